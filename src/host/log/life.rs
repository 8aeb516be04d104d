//! Sentences about connections, their rails, and the ports of these.
#![forbid(unsafe_code)]

use super::Level;
use super::event::Event;
use super::rail_news::RailAt;
use crate::base::words::said;
use crate::diagnose::lost::What;
use crate::memory::Errno;
use crate::provider::rail_set::{Complaint, PortPeerError, PortRail};
use crate::transport::{Limits, ReportError};
use core::fmt;

said! {
    /// What is to be said of a connection, or of a rail of it.
    pub(in crate::host) enum LifeEvent<'a> {
        CopyThreads(errno: Errno) =>
            "threads that copy through shared memory cannot be started ({errno}); the calling \
             threads copy alone; CROSSTIE_SHM_THREADS=0 asks for none",
        TcpThreads(errno: Errno) =>
            "threads for long messages over TCP cannot be started ({errno}); the calling threads \
             move these messages; CROSSTIE_TCP_THREADS=0 asks for none",
        /// The two sides have different numbers of requests.
        RequestsMax { ours: u32, theirs: u32 } => |f| write!(
            f,
            "requests_max differs: {ours}{} here, {theirs}{} at the peer; over TCP, both sides \
             must have 32, or neither",
            Limits::or_more(*ours),
            Limits::or_more(*theirs),
        ),
        Ends { at: &'a RailAt<'a> } =>
            "{at} was lost, and its connection ends: an endpoint with companions moves nothing to \
             another rail",
        /// A rail has lost something.
        Lost { at: &'a RailAt<'a>, what: What, silent_ms: u64 } =>
            "{at} has lost {what}: the peer's host has it, but the peer's program polls and has \
             not acknowledged it for {silent_ms} ms (bytes were changed on the way); the rail \
             fails",
        /// A port says something of a rail.
        Complaint { at: &'a RailAt<'a>, complaint: Complaint } => "{at} {complaint}",
        /// A rail whose second end could not be opened.
        NoSecondEnd { lane: u8, error: PortPeerError } =>
            "rail {lane} is not connected yet: {error}; it is tried again",
        Broken { peer: &'a str, error: ReportError } => "{peer} breaks the protocol: {error}",
    }
}

impl Event for LifeEvent<'_> {
    fn level(&self) -> Level {
        match self {
            LifeEvent::RequestsMax { .. } | LifeEvent::Broken { .. } => Level::Error,
            LifeEvent::NoSecondEnd { .. } => Level::Info,
            LifeEvent::CopyThreads(_)
            | LifeEvent::TcpThreads(_)
            | LifeEvent::Ends { .. }
            | LifeEvent::Lost { .. }
            | LifeEvent::Complaint { .. } => Level::Warning,
        }
    }

    fn is_once(&self) -> bool {
        matches!(self, LifeEvent::TcpThreads(_))
    }
}

/// What is to be said of a port while an endpoint is open.
pub(in crate::host) struct PortChange<'a> {
    pub(in crate::host) port: &'a PortRail<'static>,
    pub(in crate::host) fact: PortFact<'a>,
}

/// What has happened to a port.
pub(in crate::host) enum PortFact<'a> {
    /// It went out of use.
    Lost,
    /// It is in use again.
    Back,
    /// It tells of operations that nobody posted.
    Strange(u32),
    /// It opens no new rail. `again`: it is asked again.
    Refuses { error: PortPeerError, again: bool },
    /// It opens new rails again.
    Gives,
    /// It is not used for a peer.
    Unused { peer: &'a str, why: Astray },
    /// A peer is reached over TCP alone, although there is this port. `again`: and one before it.
    TcpAlone { peer: &'a str, why: TcpAlone<'a>, again: bool },
}

/// Why no port leads to a peer.
pub(in crate::host) enum TcpAlone<'a> {
    /// The first one leads to no peer of that host.
    Astray(Astray),
    /// The peer tells of no port.
    NoPort(&'a dyn fmt::Display),
    /// The peer has none that pairs with one of ours.
    NoPair(&'a dyn fmt::Display),
}

impl Event for PortChange<'_> {
    fn level(&self) -> Level {
        match self.fact {
            PortFact::Unused { .. } | PortFact::TcpAlone { again: true, .. } => Level::Info,
            PortFact::Lost
            | PortFact::Back
            | PortFact::Strange(_)
            | PortFact::Refuses { .. }
            | PortFact::Gives
            | PortFact::TcpAlone { again: false, .. } => Level::Warning,
        }
    }
}

impl fmt::Display for PortChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortChange { port, fact } = self;
        match fact {
            PortFact::Lost => write!(f, "{port} is out of use: {}", port.loss_words()),
            PortFact::Back => write!(f, "{port} is in use again"),
            PortFact::Strange(count) => write!(
                f,
                "{port}: its library reports the end of {count} operations that were never posted; \
                 they are ignored, but its provider may be at fault"
            ),
            PortFact::Refuses { error, again } => {
                let then = if *again { ", and it is tried again" } else { "" };
                write!(f, "{port} opens no new rail ({error}); TCP is used instead{then}")
            }
            PortFact::Gives => write!(f, "{port} opens new rails again"),
            PortFact::Unused { peer, why } => write!(f, "{port} is not used for {peer}: {why}"),
            PortFact::TcpAlone { peer, why, .. } => {
                write!(f, "{peer} is reached over TCP alone: ")?;
                match why {
                    TcpAlone::Astray(why) => write!(f, "{port} is not used, since {why}"),
                    TcpAlone::NoPort(apart) => write!(
                        f,
                        "it reports no port, and this side has some ({port} is the first){apart}"
                    ),
                    TcpAlone::NoPair(apart) => write!(
                        f,
                        "it has no port that pairs with one of this side ({port} is the \
                         first){apart}"
                    ),
                }
            }
        }
    }
}

/// Why a port that is paired by its network's name leads to no peer of a host.
#[derive(Copy, Clone)]
pub(in crate::host) struct Astray {
    /// Whether the vendor's own flags say where it leads.
    pub(in crate::host) is_vendor: bool,
    /// Whether the peer is on our host.
    pub(in crate::host) same_host: bool,
}

impl fmt::Display for Astray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (words, flag) = match self.same_host {
            true => ("it reaches other hosts alone, and the peer is on this one", "OTHER_HOSTS"),
            false => ("it reaches this host alone, and the peer is on another", "OWN_HOST"),
        };
        f.write_str(words)?;
        match self.is_vendor {
            true => write!(f, " (XTIE_VENDOR_RAIL_{flag})"),
            false => Ok(()),
        }
    }
}

/// What is said of the ports of two sides that make no lane. Of RDMA: why not. Of libfabric: how
/// many the peer has.
pub(in crate::host) struct Apart<R> {
    pub(in crate::host) of_rdma: Option<R>,
    pub(in crate::host) of_libfabric: usize,
}

impl<R: fmt::Display> fmt::Display for Apart<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.of_rdma {
            write!(f, "; RDMA: {why}")?;
        }
        match self.of_libfabric {
            0 => Ok(()),
            count => write!(
                f,
                "; libfabric: {count} of the peer have another provider or network; compare `used` \
                 in `crosstie info` of both hosts"
            ),
        }
    }
}
