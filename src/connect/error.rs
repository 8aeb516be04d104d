//! Why set-up failed. Small values; their `Display` is the sentence for people.
#![forbid(unsafe_code)]

extern crate std;

use super::address::is_out_of_descriptors;
use super::os;
use super::peer::Peer;
use crate::wire::WIRE_MAJOR;
use core::fmt;

/// Why a band could not be opened. Nothing is left behind.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum OpenError {
    /// The directory for sockets is too long for a socket's name.
    ShmDir,
    /// The tables given disagree in size, or a limit is zero.
    Tables,
    /// The process may open no more descriptors; its limit.
    Descriptors(u64),
    /// The kernel refused, with its code.
    System(i32),
}

/// Why a listener could not be opened. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum ListenError {
    /// All listeners are in use.
    Full,
    /// The process may open no more descriptors; its limit.
    Descriptors(u64),
    /// The kernel refused, with its code.
    System(i32),
    /// This process is a fork of the one that opened the endpoint.
    Forked,
}

/// Why a connection was not made. The attempt is over.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum ConnectError {
    /// The handle is damaged.
    HandleCorrupt,
    /// The bytes are not a handle of ours.
    HandleForeign,
    /// The other side speaks another major version, which is given.
    Version(u16),
    /// The listener is on another host, and we allow, or its handle names, no way to it.
    OtherHost,
    /// The listener is closed, or its process has ended.
    NoListener(Peer),
    /// The peer has no connection left.
    PeerFull(Peer),
    /// The peer could not get memory.
    PeerMemory(Peer),
    /// The peer's process may open no more descriptors.
    PeerDescriptors(Peer),
    /// Our endpoint has no connection left.
    LocalFull,
    /// Our endpoint has no link to another peer left.
    LinksFull,
    /// No memory for the connection's rings.
    Memory,
    /// This process may open no more descriptors; its limit.
    Descriptors(u64),
    /// The peer did not answer in time.
    Deadline(Peer),
    /// The peer's process ended, or closed its endpoint, before it answered.
    PeerDied(Peer),
    /// The peer answered nonsense.
    Protocol(Peer),
    /// The shared keys differ, or one side alone has one.
    Key(Peer),
    /// No rail that both sides allow leads to the peer.
    Rail(Peer),
    /// None of the listener's addresses can be reached; the kernel's last code.
    Unreachable(Peer, i32),
    /// The attempt is not known: it is over, or was abandoned.
    Stale,
    /// This process is a fork of the one that opened the endpoint.
    Forked,
    /// The kernel refused, with its code.
    System(i32),
}

/// Why no connection could be accepted. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum AcceptError {
    /// No such listener: closed, or never opened.
    Stale,
    /// This process is a fork of the one that opened the endpoint.
    Forked,
}

/// Why something could not be closed. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum CloseError {
    /// It is closed already.
    Stale,
    /// This process is a fork of the one that opened the endpoint.
    Forked,
}

impl OpenError {
    /// What the kernel said.
    pub(super) fn of(error: &std::io::Error) -> OpenError {
        if is_out_of_descriptors(error) {
            return OpenError::Descriptors(os::descriptor_limit());
        }
        OpenError::System(error.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::HandleCorrupt => f.write_str("the handle is damaged"),
            ConnectError::HandleForeign => f.write_str("this is not a handle of crosstie"),
            ConnectError::Version(theirs) => version_sentence(*theirs, f),
            ConnectError::OtherHost => f.write_str(
                "the listener is on another host, and no rail is allowed that leads there",
            ),
            ConnectError::NoListener(peer) => {
                write!(f, "nobody listens at {peer}: closed, or the process has ended")
            }
            ConnectError::PeerFull(peer) => write!(f, "{peer} has no connection left"),
            ConnectError::PeerMemory(peer) => write!(f, "{peer} has no memory for a connection"),
            ConnectError::PeerDescriptors(peer) => {
                write!(f, "{peer} may open no more file descriptors (ulimit -n)")
            }
            ConnectError::LocalFull => f.write_str("all connections of this endpoint are in use"),
            ConnectError::LinksFull => f.write_str("this endpoint has links to too many peers"),
            ConnectError::Memory => f.write_str("no memory for the rings of a connection"),
            ConnectError::Descriptors(limit) => {
                write!(f, "this process may open no more than {limit} file descriptors (ulimit -n)")
            }
            ConnectError::Deadline(peer) => write!(f, "{peer} did not answer in time"),
            ConnectError::PeerDied(peer) => write!(f, "{peer} ended before it answered"),
            ConnectError::Protocol(peer) => write!(f, "{peer} broke the protocol"),
            ConnectError::Key(peer) => write!(
                f,
                "{peer} has another shared key, or one side alone has one (CROSSTIE_KEY_FILE)"
            ),
            ConnectError::Rail(peer) => {
                write!(f, "no rail that both sides allow leads to {peer} (CROSSTIE_RAILS)")
            }
            ConnectError::Unreachable(peer, code) => {
                let cause = std::io::Error::from_raw_os_error(*code);
                write!(f, "none of the addresses of {peer} can be reached: {cause}")
            }
            ConnectError::Stale => f.write_str("no such attempt to connect"),
            ConnectError::Forked => f.write_str("the endpoint belongs to the parent process"),
            ConnectError::System(code) => write!(f, "the kernel refused (errno {code})"),
        }
    }
}

fn version_sentence(theirs: u16, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let side = if theirs > WIRE_MAJOR { "this side" } else { "the peer" };
    write!(f, "the peer speaks wire version {theirs}, we speak {WIRE_MAJOR}: upgrade {side}")
}
