//! Why set-up failed. Small values; their `Display` is the sentence for people.
#![forbid(unsafe_code)]

use super::address::is_out_of_descriptors;
use super::interfaces::InterfaceName;
use super::os::{self, NoThread};
use super::peer::Peer;
use super::trust::UserCause;
use crate::base::errno::Errno;
use crate::base::words::said;
use crate::wire::WIRE_MAJOR;
use crate::wire::hello::{RAIL_SHM, RAIL_TCP};
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
    /// The number of this host cannot be read, with the kernel's code.
    HostNumber(i32),
    /// The side band's thread could not be started.
    Thread(NoThread),
    /// The kernel refused, with its code.
    System(i32),
}

said! {
    /// Why a listener could not be opened. Nothing was changed.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum ListenError {
        Full => "all listeners of this endpoint are in use",
        /// The process may open no more descriptors; its limit.
        Descriptors(limit: u64) =>
            "this process may open no more than {limit} file descriptors (ulimit -n)",
        Ports => "no listening socket: all local ports are in use (net.ipv4.ip_local_port_range)",
        /// The kernel refused, with its code.
        System(code: i32) => |f| write!(f, "the kernel refused: {}", Errno(*code)),
        /// The side band's thread could not be started again.
        Thread(why: NoThread) => "{why}",
        /// This process is a fork of the one that opened the endpoint.
        Forked => "the endpoint belongs to the parent process",
    }
}

said! {
    /// Why a connection was not made. The attempt is over.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum ConnectError {
        HandleCorrupt => "the handle is damaged",
        /// The bytes are not a handle of ours.
        HandleForeign => "this is not a handle of crosstie",
        /// The other side speaks another major version, which is given.
        Version(theirs: u16) => |f| version_sentence(*theirs, f),
        /// The listener is on another host, and we allow, or its handle names, no way to it.
        OtherHost =>
            "the listener is on another host, and no rail that this side allows leads there \
             (CROSSTIE_RAILS, the device)",
        /// The listener is another endpoint's, and the device reaches its own alone.
        OtherEndpoint => |f| f.write_str(OTHER_ENDPOINT),
        /// The listener is on another host, and this side has no interface: none that was chosen is
        /// up and has an address.
        NoInterface =>
            "the listener is on another host, and no interface of this side leads there; none \
             that the device or CROSSTIE_SOCKET_IFNAME chooses is up and has an address",
        /// The listener is on another host, and only an interface leads there that was left out.
        Interface {
            /// Who.
            peer: Peer,
            /// The interface; empty: it was not there at open.
            interface: InterfaceName,
        } => |f| write!(
            f,
            "no chosen interface leads to {peer}{}: the route is over {}, which the device or \
             CROSSTIE_SOCKET_IFNAME leaves out",
            peer.tried,
            interface.as_str()
        ),
        /// The listener is closed, or its process has ended.
        NoListener(peer: Peer) => |f| write!(
            f,
            "no listener at {peer}{}: it was closed, or its process has ended",
            peer.tried
        ),
        PeerFull(peer: Peer) => "{peer} has no connection left",
        /// The peer could not get memory.
        PeerMemory(peer: Peer) => "{peer} {NO_PEER_MEMORY}",
        /// The peer's process may open no more descriptors.
        PeerDescriptors(peer: Peer) => "{peer} may open no more file descriptors (ulimit -n)",
        LocalFull => "all connections of this endpoint are in use",
        /// Our endpoint has no link to another peer left.
        LinksFull => "this endpoint has links to too many peers",
        /// No memory for the connection's rings.
        Memory => |f| f.write_str(NO_MEMORY),
        /// This process may open no more descriptors; its limit.
        Descriptors(limit: u64) =>
            "this process may open no more than {limit} file descriptors (ulimit -n)",
        /// The peer did not answer in time.
        Deadline(peer: Peer) => |f| {
            let setting = "CROSSTIE_CONNECT_TIMEOUT_MS";
            write!(f, "{peer} did not answer in time ({setting}){}", peer.tried)
        },
        /// The peer's process ended, or closed its endpoint, before it answered.
        PeerDied(peer: Peer) => "{peer} ended before it answered",
        /// The peer answered nonsense.
        Protocol(peer: Peer) => "{peer} broke the protocol",
        /// The shared keys differ, or one side alone has one.
        Key(peer: Peer, cause: KeyCause) => |f| write!(f, "{peer}{} {cause}", peer.tried),
        /// One side refuses the other's user, over shared memory.
        User(peer: Peer, cause: UserCause) => "{peer} {cause}",
        /// The peer speaks another version of what is said within a host.
        LocalVersion(peer: Peer) => "{peer} {OTHER_LOCAL_VERSION}",
        /// No rail that both sides allow leads to the peer.
        Rail {
            /// Who.
            peer: Peer,
            /// The `RAIL_` bits that this side allows.
            ours: u32,
            /// Those that the peer allows; 0: it has not said.
            theirs: u32,
            /// Whether it is on this host.
            same_host: bool,
        } => |f| rail_sentence(peer, *ours, *theirs, *same_host, f),
        /// Another program has the listener's address: it took the connection and answered
        /// nonsense.
        OtherProgram(peer: Peer) => |f| write!(
            f,
            "another program answers in the place of {peer}{}: it took the connection and \
             answered nonsense; the listener is closed, or its process has ended",
            peer.tried
        ),
        /// None of the listener's addresses can be reached; the kernel's last code.
        Unreachable(peer: Peer, code: i32) => |f| unreachable_sentence(peer, *code, f),
        /// The attempt is not known: it is over, or was abandoned.
        Stale => "no such attempt to connect",
        /// This process is a fork of the one that opened the endpoint.
        Forked => "the endpoint belongs to the parent process",
        /// The kernel makes us no shared memory, as a filter of system calls wants it.
        SharedMemory => |f| f.write_str(NO_SHARED),
        /// The side band's thread could not be started again.
        Thread(why: NoThread) => "{why}",
        /// The kernel refused, with its code.
        System(code: i32) => |f| write!(f, "the kernel refused: {}", Errno(*code)),
    }
}

/// How two sides' keys differ, as far as one of them can tell.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum KeyCause {
    /// The peer has one, and this side none.
    NoneHere,
    /// This side has one, and the peer none.
    NoneThere,
    /// Both have one.
    Other,
    /// The peer has none, or another one.
    Unclear,
}

impl fmt::Display for KeyCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyCause::NoneHere => "has a shared key, and this side has none",
            KeyCause::NoneThere => "has no shared key, and this side has one",
            KeyCause::Other => "has another shared key than this side",
            KeyCause::Unclear => "has no shared key, or another one than this side",
        })?;
        f.write_str(" (CROSSTIE_KEY_FILE)")
    }
}

/// `RAIL_` bits in words.
struct RailNames(u32);

impl fmt::Display for RailNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 & (RAIL_SHM | RAIL_TCP) {
            RAIL_SHM => "shm alone",
            RAIL_TCP => "tcp alone",
            0 => "none that we share",
            _ => "shm and tcp",
        })
    }
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

/// Whose listener it is not.
const OTHER_ENDPOINT: &str =
    "the listener belongs to another endpoint, and loopback0 reaches only its own";

/// Why a listener that answers its own host alone is not reached.
const OWN_HOST_ALONE: &str =
    "the listener has loopback addresses alone, which no other host reaches; its log says why";

/// Why an address was not dialled, or did not answer: the kernel's code.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct DialCause(pub i32);

impl fmt::Display for DialCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            code @ libc::EADDRINUSE => write!(
                f,
                "errno {code}, all local ports towards it are in use (net.ipv4.ip_local_port_range)"
            ),
            code => Errno(code).fmt(f),
        }
    }
}

/// What another release of one host says.
const OTHER_LOCAL_VERSION: &str = "speaks another version of the handshake within a host, and is \
                                   refused over shared memory; use one release on this host, or \
                                   CROSSTIE_RAILS=tcp";

/// What may have no room.
const NO_MEMORY: &str = "no memory for the rings of a connection: the host is full, or a limit of \
                         the container or of this process is reached (ulimit -f, ulimit -v); a \
                         smaller heap_bytes (CROSSTIE_HEAP_BYTES) leaves more address space";

/// The same, as the peer says it.
const NO_PEER_MEMORY: &str = "has no memory for a connection: its host is full, or a limit of its \
                              container or process is reached (ulimit -f, ulimit -v); a smaller \
                              heap_bytes (CROSSTIE_HEAP_BYTES) on that side leaves more address \
                              space";

/// What has none, and how to do without.
const NO_SHARED: &str = "the kernel refuses to make shared memory (memfd_create); the usual cause \
                         is a seccomp filter of the container; allow the call, or set \
                         CROSSTIE_RAILS=tcp on all ranks of this host";

impl OpenError {
    /// What the kernel said.
    pub(super) fn of(error: &std::io::Error) -> OpenError {
        if is_out_of_descriptors(error) {
            return OpenError::Descriptors(os::descriptor_limit());
        }
        OpenError::System(error.raw_os_error().unwrap_or(0))
    }

    /// The same of the number of this host: without a descriptor the file is not to blame.
    pub(super) fn of_host_number(error: &std::io::Error) -> OpenError {
        match OpenError::of(error) {
            OpenError::System(code) => OpenError::HostNumber(code),
            other => other,
        }
    }
}

fn unreachable_sentence(peer: &Peer, code: i32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{peer} cannot be reached{}: ", peer.tried)?;
    match code {
        libc::EHOSTUNREACH if peer.tried.is_loopback_alone() => f.write_str(OWN_HOST_ALONE),
        code => write!(f, "{}", DialCause(code)),
    }
}

fn rail_sentence(
    peer: &Peer,
    ours: u32,
    theirs: u32,
    same_host: bool,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "no rail that both sides allow leads to {peer}: ")?;
    write!(f, "this side allows {}, the peer ", RailNames(ours))?;
    match theirs {
        0 => f.write_str("has refused")?,
        _ => write!(f, "{}", RailNames(theirs))?,
    }
    if !same_host {
        f.write_str("; it is on another host, which shm does not reach")?;
    }
    // a device that has tcp is without it where there is no interface
    let interface = match (ours & RAIL_TCP, theirs & RAIL_TCP) {
        (0, _) => ", or no interface of this side that CROSSTIE_SOCKET_IFNAME chooses",
        (_, 0) => ", or no interface of the peer's that its CROSSTIE_SOCKET_IFNAME chooses",
        (_, _) => "",
    };
    write!(f, " (CROSSTIE_RAILS, the devices{interface})")
}

fn version_sentence(theirs: u16, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let side = if theirs > WIRE_MAJOR { "this side" } else { "the peer" };
    write!(f, "the peer speaks wire version {theirs}, we speak {WIRE_MAJOR}: upgrade {side}")
}
