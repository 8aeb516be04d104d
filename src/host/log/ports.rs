//! Sentences about ports: which of them an endpoint uses, and which lead to a peer.
#![forbid(unsafe_code)]

use super::Level;
use super::event::Event;
use super::news::NotRegistered;
use crate::base::words::said;
use crate::provider::verbs::companion::CompanionError;
use crate::provider::verbs::gid::GidEntry;
use crate::provider::verbs::settings::Settings;
use crate::wire::pair::PORTS_MAX;
use core::fmt;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

/// What is to be said of the ports of an endpoint when it is opened.
pub(in crate::host) enum PortEvent<'a> {
    /// A port is left out. `tcp_instead`: the endpoint is opened all the same.
    Out { port: &'a str, why: PortOut<'a>, tcp_instead: bool },
    /// Those that are used are as many as there may be.
    TooMany(&'a [String]),
    /// A port has completions for few connections.
    FewConnections { port: &'a str, connections: u32 },
    /// Ports without a rail, because a connection has no more.
    NoRail { level: Level, rails_max: u32, left: NoRail<'a>, variable: &'a str },
    /// A port has no companion.
    NoCompanion { port: &'a str, error: CompanionError },
    /// Domains of libfabric that are named and not there.
    DomainsMissing(&'a str),
    /// No domain of libfabric is used. `required`: and one must be there.
    NoDomain { level: Level, why: &'a str, required: bool },
}

said! {
    /// Why a port is left out.
    pub(in crate::host) enum PortOut<'a> {
        /// It cannot be opened.
        Open(why: &'a dyn fmt::Display) => "{why}",
        /// It does not register the mailboxes.
        Memory(why: NotRegistered<'a>) => "it does not register memory ({why})",
    }
}

/// Ports that have no rail, as names with commas between them.
pub(in crate::host) struct NoRail<'a> {
    /// Towards peers that have the same ports.
    pub(in crate::host) spare: &'a str,
    /// Towards all peers.
    pub(in crate::host) useless: &'a str,
}

impl Event for PortEvent<'_> {
    fn level(&self) -> Level {
        match self {
            PortEvent::NoRail { level, .. } | PortEvent::NoDomain { level, .. } => *level,
            PortEvent::Out { .. }
            | PortEvent::TooMany(_)
            | PortEvent::FewConnections { .. }
            | PortEvent::NoCompanion { .. }
            | PortEvent::DomainsMissing(_) => Level::Warning,
        }
    }

    fn is_once(&self) -> bool {
        matches!(self, PortEvent::TooMany(_) | PortEvent::NoRail { .. })
    }
}

impl fmt::Display for PortEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortEvent::Out { port, why, tcp_instead } => {
                let then = if *tcp_instead { "; TCP is used instead" } else { "" };
                write!(f, "{port} is not used: {why}{then}")
            }
            PortEvent::TooMany(names) => write!(
                f,
                "an endpoint uses {PORTS_MAX} ports at most, and leaves out {} (CROSSTIE_IB_HCA, \
                 CROSSTIE_OFI_DOMAINS choose)",
                names.join(", ")
            ),
            PortEvent::FewConnections { port, connections } => {
                write!(
                    f,
                    "{port} has completion entries for {connections} connections; others use TCP"
                )
            }
            PortEvent::NoRail { rails_max, left, variable, .. } => write!(
                f,
                "connections have {rails_max} rails at most (rails_max), the first of them TCP, \
                 and leave out {left} ({variable} chooses, a larger rails_max has room)"
            ),
            PortEvent::NoCompanion { port, error } => {
                write!(f, "{port} has no companion: {error}; its connections have no NIC counters")
            }
            PortEvent::DomainsMissing(text) => f.write_str(text),
            PortEvent::NoDomain { why, required, .. } => {
                let then = Then { required: *required, kind: "libfabric" };
                write!(f, "no libfabric rail, {then} ({why})")
            }
        }
    }
}

impl fmt::Display for NoRail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoRail { spare, useless } = self;
        if spare.is_empty() {
            return f.write_str(useless);
        }
        write!(f, "{spare}, unless the peer lacks the ports before")?;
        if useless.is_empty() { Ok(()) } else { write!(f, ", and always {useless}") }
    }
}

/// What follows where no port of a kind is used.
struct Then {
    required: bool,
    kind: &'static str,
}

impl fmt::Display for Then {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.required {
            true => write!(f, "and CROSSTIE_RAILS_REQUIRED names {}", self.kind),
            false => f.write_str("hosts talk over TCP"),
        }
    }
}

/// What is to be said of RDMA ports when an endpoint is opened.
pub(in crate::host) enum RdmaEvent<'a> {
    /// The devices cannot be listed.
    NoList { level: Level, error: &'a dyn fmt::Display, required: bool },
    /// No port can be used. `reasons`: of each port; `devices`: whether there is a device.
    NoPort { level: Level, reasons: &'a [String], devices: bool, required: bool },
    /// One port cannot be used.
    Unusable(&'a str),
    /// There are not so many queue pairs as were asked for.
    QueuePairs { each: u16, wanted: usize, ports: usize },
    /// Names that were asked for are those of no port.
    Missing { names: &'a [String], asker: &'a str },
    /// A port is used by an address that is none of ours.
    Elsewhere { device: &'a str, port: u8, gid: &'a GidEntry },
    /// Registered memory cannot be guarded from forks.
    Forks(&'a dyn fmt::Display),
}

impl Event for RdmaEvent<'_> {
    fn level(&self) -> Level {
        match self {
            RdmaEvent::NoList { level, .. } | RdmaEvent::NoPort { level, .. } => *level,
            RdmaEvent::Unusable(_) | RdmaEvent::QueuePairs { .. } => Level::Info,
            RdmaEvent::Missing { .. } | RdmaEvent::Elsewhere { .. } | RdmaEvent::Forks(_) => {
                Level::Warning
            }
        }
    }

    fn is_once(&self) -> bool {
        match self {
            RdmaEvent::QueuePairs { .. }
            | RdmaEvent::Missing { .. }
            | RdmaEvent::Elsewhere { .. }
            | RdmaEvent::Forks(_) => true,
            RdmaEvent::NoList { .. } | RdmaEvent::NoPort { .. } | RdmaEvent::Unusable(_) => false,
        }
    }
}

impl fmt::Display for RdmaEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RdmaEvent::NoList { error, required, .. } => {
                let then = Then { required: *required, kind: "verbs" };
                write!(f, "RDMA devices cannot be listed: {error}; {then}")
            }
            RdmaEvent::NoPort { reasons, devices, required, .. } => {
                let then = Then { required: *required, kind: "verbs" };
                write!(f, "no RDMA port can be used, {then} (")?;
                match (reasons, devices) {
                    ([], false) => f.write_str("there is none")?,
                    ([], true) => f.write_str("no device shows a port")?,
                    (reasons, _) => f.write_str(&reasons.join("; "))?,
                }
                f.write_str(")")
            }
            RdmaEvent::Unusable(why) => write!(f, "this endpoint does not use RDMA port {why}"),
            RdmaEvent::QueuePairs { each, wanted, ports } => write!(
                f,
                "CROSSTIE_IB_QPS_PER_CONNECTION={each} would be {wanted} queue pairs to each peer, \
                 over {ports} ports: there are {PORTS_MAX} at most"
            ),
            RdmaEvent::Missing { names, asker } => {
                write!(f, "no RDMA port is called {} ({asker})", names.join(", "))
            }
            RdmaEvent::Elsewhere { device, port, gid } => write!(
                f,
                "RDMA port {device}:{port} is used by {gid}, which is no address of this network \
                 namespace; it reaches only peers of this host, and other hosts are reached over \
                 TCP; if namespaces share the device, choose another address \
                 (CROSSTIE_IB_ADDR_RANGE)"
            ),
            RdmaEvent::Forks(error) => write!(
                f,
                "libibverbs cannot guard registered memory from forks ({error}): on kernels before \
                 5.12 a child may get pages that devices use"
            ),
        }
    }
}

/// An event whose sentence calls each variable as it was set: by its own name, or by NCCL's.
pub(in crate::host) struct AsSet<'a, E>(pub(in crate::host) &'a Settings, pub(in crate::host) E);

impl<E: Event> Event for AsSet<'_, E> {
    fn level(&self) -> Level {
        self.1.level()
    }

    fn is_once(&self) -> bool {
        self.1.is_once()
    }
}

impl<E: Event> fmt::Display for AsSet<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.as_set(&self.1.to_string()))
    }
}

/// The names of ports that are left out. One that is listed several times has so many queue pairs.
pub(in crate::host) fn queue_pairs(left: &[String], all: &[String]) -> Vec<String> {
    let count = |names: &[String], name: &String| names.iter().filter(|it| *it == name).count();
    let words = |(at, name): (usize, &String)| match (count(left, name), count(all, name)) {
        _ if left[..at].contains(name) => None,
        (some, most) if some < most => Some(format!("{some} of {most} queue pairs of {name}")),
        _ => Some(name.clone()),
    };
    left.iter().enumerate().filter_map(words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody was told that the second port of two is of no use, nor further queue pairs of one.
    #[test]
    fn ports_and_queue_pairs_without_a_rail_are_named() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).into()).collect::<Vec<String>>();
        assert_eq!(queue_pairs(&names(&["b"]), &names(&["a", "b"])), ["b"]);
        let all = names(&["a", "b", "a", "b"]);
        let left = names(&["b", "a", "b"]);
        assert_eq!(queue_pairs(&left, &all), ["b", "1 of 2 queue pairs of a"]);
    }
}
