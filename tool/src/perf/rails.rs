//! What carried the bytes: rails of the measuring process's first connection, and paths into and
//! out of memory of GPUs, as they are when all was measured.
#![forbid(unsafe_code)]

use super::side::Side;
use crate::table::Table;
use crosstie::host::RailView;
use crosstie::transport::rail::LaneState;
use serde_json::json;
use std::ops::Add;

/// How the rails of the first connection are; nothing where there is one, which carried everything.
pub fn rails(side: &mut Side) -> Vec<RailView> {
    let Some(connection) = side.connections.first().copied() else { return Vec::new() };
    let known = |rail| side.owned.endpoint().rail_view(connection, rail).ok().flatten();
    let all: Vec<RailView> = (0..).map_while(known).collect();
    if all.len() > 1 { all } else { Vec::new() }
}

/// A table of them; nothing for none.
pub fn table(rails: &[RailView]) -> String {
    if rails.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new(&["rail", "over", "state", "bytes sent", "failures", "joins", "way"]);
    for (number, rail) in rails.iter().enumerate() {
        let stats = rail.lane.stats;
        table.row(
            [
                number.to_string(),
                rail.rail.name().to_string(),
                state(rail).to_string(),
                stats.bytes.to_string(),
                stats.failures.to_string(),
                stats.joins.to_string(),
                way(rail),
            ]
            .into(),
        );
    }
    let legend = "rails of the first connection: bytes of long messages that the measuring process \
                  sent on each,\n\
                  how often it failed, and how often it came up after the connection";
    format!("\n{legend}\n{}", table.text())
}

/// The same as JSON, one object per line.
pub fn json(rails: &[RailView]) -> String {
    let line = |(number, rail): (usize, &RailView)| {
        let stats = rail.lane.stats;
        let [local, remote] = rail.ends.map(|end| end.to_string());
        let object = json!({
            "measure": "rail", "rail": number, "over": rail.rail.name(), "state": state(rail),
            "local": local, "remote": remote, "bytes_sent": stats.bytes,
            "failures": stats.failures, "joins": stats.joins,
        });
        format!("{object}\n")
    };
    rails.iter().enumerate().map(line).collect()
}

fn state(rail: &RailView) -> &'static str {
    match rail.lane.state {
        LaneState::Up => "up",
        LaneState::Down => "down",
        LaneState::Joining => "joining",
        LaneState::Failing | LaneState::Fenced => "failed",
    }
}

fn way(rail: &RailView) -> String {
    match rail.ends.map(|end| end.to_string()) {
        [local, _] if local.is_empty() => "-".into(),
        [local, remote] if remote.is_empty() => local,
        [local, remote] => format!("{local} to {remote}"),
    }
}

/// What has arrived at one process, or at both.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Paths {
    /// By a copy engine, from GPU to GPU.
    engine_bytes: u64,
    /// From or to a GPU, through memory of the host.
    staged_bytes: u64,
    /// All of it, that between memory of hosts as well.
    all_bytes: u64,
}

impl Add for Paths {
    type Output = Paths;

    fn add(self, other: Paths) -> Paths {
        Paths {
            engine_bytes: self.engine_bytes + other.engine_bytes,
            staged_bytes: self.staged_bytes + other.staged_bytes,
            all_bytes: self.all_bytes + other.all_bytes,
        }
    }
}

impl Paths {
    /// What has arrived at a process until now.
    pub fn of(side: &mut Side) -> Paths {
        let endpoint = side.owned.endpoint();
        let copied = endpoint.copied();
        Paths {
            engine_bytes: copied.engine_bytes,
            staged_bytes: copied.staged_bytes,
            all_bytes: endpoint.stats().receive_bytes,
        }
    }

    /// As words for the measuring process.
    pub fn words(self) -> [u64; 3] {
        [self.engine_bytes, self.staged_bytes, self.all_bytes]
    }

    /// The inverse of [`Paths::words`].
    pub fn of_words([engine_bytes, staged_bytes, all_bytes]: [u64; 3]) -> Paths {
        Paths { engine_bytes, staged_bytes, all_bytes }
    }

    fn other_bytes(self) -> u64 {
        self.all_bytes.saturating_sub(self.engine_bytes + self.staged_bytes)
    }

    /// A table of them.
    pub fn table(self) -> String {
        let mut table = Table::new(&["path", "bytes"]);
        for (path, bytes) in [
            ("copy engine", self.engine_bytes),
            ("staged through the host", self.staged_bytes),
            ("others", self.other_bytes()),
        ] {
            table.row([path.into(), bytes.to_string()].into());
        }
        format!("\nbytes that arrived in both processes, by path\n{}", table.text())
    }

    /// The same as a line of JSON.
    pub fn json(self) -> String {
        let object = json!({
            "measure": "paths", "copy_engine_bytes": self.engine_bytes,
            "staged_bytes": self.staged_bytes, "other_bytes": self.other_bytes(),
        });
        format!("{object}\n")
    }
}
