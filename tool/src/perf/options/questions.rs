//! What can be measured.
#![forbid(unsafe_code)]

use crate::Failure;
use crate::arguments::hint;

/// A question.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Measure {
    /// Half of a round trip.
    Latency,
    /// Bytes per second.
    Bandwidth,
    /// Messages per second.
    Rate,
    /// Connections.
    Setup,
    /// The library's own cost.
    Pair,
    /// A socket in the library's place.
    Socket,
    /// Puts with a signal.
    Put,
    /// Gets.
    Get,
    /// Signals alone.
    Signal,
    /// Puts whose counter is waited for.
    Counter,
}

impl Measure {
    /// All of them; the default ones stand first.
    const EVERY: [Measure; 10] = [
        Measure::Latency,
        Measure::Bandwidth,
        Measure::Rate,
        Measure::Setup,
        Measure::Pair,
        Measure::Socket,
        Measure::Put,
        Measure::Get,
        Measure::Signal,
        Measure::Counter,
    ];
    const DEFAULT: &[Measure] = Measure::EVERY.split_at(4).0;

    /// Whether operations of a group answer it.
    pub fn is_one_sided(self) -> bool {
        matches!(self, Measure::Put | Measure::Get | Measure::Signal | Measure::Counter)
    }

    /// Whether both are measured over the same connections.
    pub fn shares_connections(self, other: Measure) -> bool {
        let is_transfer = |measure| !matches!(measure, Measure::Setup | Measure::Socket);
        is_transfer(self) && is_transfer(other) && self.is_one_sided() == other.is_one_sided()
    }

    /// As it is typed and printed.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Latency => "latency",
            Measure::Bandwidth => "bandwidth",
            Measure::Rate => "rate",
            Measure::Setup => "setup",
            Measure::Pair => "pair",
            Measure::Socket => "socket",
            Measure::Put => "put",
            Measure::Get => "get",
            Measure::Signal => "signal",
            Measure::Counter => "counter",
        }
    }
}

/// What is typed of what can be measured.
pub fn words() -> impl Iterator<Item = &'static str> {
    Measure::EVERY.iter().map(|measure| measure.name()).chain(["all"])
}

/// What can be measured, as a list.
pub fn measures_known() -> String {
    Measure::EVERY.map(Measure::name).join(", ") + " and all"
}

/// What is asked for.
///
/// *Errors*: a sentence that says which word is unknown.
pub fn measures(operands: &[String]) -> Result<Vec<Measure>, Failure> {
    let mut measures = Vec::new();
    for operand in operands {
        if operand == "all" {
            measures.extend(Measure::DEFAULT);
            continue;
        }
        let found = Measure::EVERY.iter().find(|measure| measure.name() == operand);
        let known = || Measure::EVERY.iter().map(|measure| measure.name());
        measures.push(*found.ok_or_else(|| {
            let end = match hint(operand, known()) {
                near if near.is_empty() => format!("; there are {}", measures_known()),
                near => near,
            };
            format!("nothing called `{operand}` is measured{end}")
        })?);
    }
    if measures.is_empty() {
        measures.extend(Measure::DEFAULT);
    }
    Ok(measures)
}
