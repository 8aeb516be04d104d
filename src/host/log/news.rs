//! What an endpoint has to say to people: what the side band notes, and what is opened and closed.
#![forbid(unsafe_code)]

use super::silence;
use crate::base::units::Span;
use crate::connect::interfaces::ip_of;
use crate::connect::{ConnectError, DialCause, Note, Peer, Rail, Side, TextBuffer, Tried};
use crate::fabric::{MemoryKind, RegisterError};
use crate::host::choice::device::{DeviceKind, Rails};
use crate::host::log::{self, Level};
use crate::memory::Errno;
use crate::provider::libfabric::sys::Code;
use crate::provider::rail_set::PortDomain;
use crate::provider::verbs::dmabuf_refusal;
use crate::wire::handle::{HANDLE_LOCAL, ListenHandle};
use crate::wire::hello::AddressList;
use core::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a listener that other hosts cannot reach was reported: once per process is enough.
static OWN_HOST_SAID: AtomicBool = AtomicBool::new(false);

/// The user has named the interfaces that there are: nothing to be told of.
pub(in crate::host) fn own_host_meant() {
    // relaxed: nothing else is told by it
    OWN_HOST_SAID.store(true, Ordering::Relaxed);
}

/// Whether this is the first time in this process that something is to be said.
pub(in crate::host) fn is_first(said: &AtomicBool) -> bool {
    // relaxed: nothing else is told by it
    !said.swap(true, Ordering::Relaxed)
}

/// Says a sentence as a warning.
macro_rules! warning {
    ($($text:tt)*) => {
        $crate::host::log::news::say_of($crate::host::log::Level::Warning, format_args!($($text)*))
    };
}
pub(super) use warning;

/// The same for those who want to know what is going on.
macro_rules! info {
    ($($text:tt)*) => {
        $crate::host::log::news::say_of($crate::host::log::Level::Info, format_args!($($text)*))
    };
}

/// Does something the first time in this process.
macro_rules! once {
    ($act:expr) => {{
        static SAID: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);
        if $crate::host::log::news::is_first(&SAID) {
            $act
        }
    }};
}
pub(super) use once;

/// What the side band has to say to people. Without the heap, which it must not use.
pub(in crate::host) fn note(note: Note) {
    match note {
        Note::Stranger(from) => warning!(
            "something{from} that is no crosstie peer talks to the side-band socket; it is ignored"
        ),
        Note::Key(peer, cause) => {
            warning!("{peer} was not let in{}: it {cause}", peer.tried)
        }
        Note::User(peer, cause) => warning!("shared memory is refused: {peer} {cause}"),
        Note::LocalVersion(peer) => warning!("{}", ConnectError::LocalVersion(peer)),
        Note::Stopped { peer, silent } => warning!(
            "{peer} has not answered for {} ms: its process is stopped or gets no processor, or \
             its host cannot be reached; requests with it stay open",
            silent.0 / 1_000_000
        ),
        Note::Resumed { peer, silent, owed } => silence::resumed(&peer, silent, owed),
        Note::Paused(late) => silence::paused(late),
        Note::Stalled { peer, silent } => warning!(
            "{peer} answers, but its host has acknowledged nothing on one connection for {} ms: \
             packets are lost on the way; that connection has ended",
            silent.0 / 1_000_000
        ),
        Note::LaneMissed { peer, lane, code } => warning!(
            "rail {lane} to {peer} cannot be connected ({}); it is tried again",
            DialCause(code)
        ),
        Note::PairAwaited(peer, lane, silent) => pair_awaited(&peer, lane, silent),
        Note::LargeLost(peer, lane, bytes) => large_lost(&peer, lane, bytes),
        Note::Version(from, theirs) => version_refused(&from, theirs),
        // the data thread tells of it when it has let go of that rail, with what is left
        Note::LaneStalled { .. } => {}
        Note::Unchecked(peer) => silence::unchecked(&peer),
        Note::CarriersUnknown(code) => silence::carriers_unknown(code),
        Note::LinkLost { peer } => warning!(
            "the side-band link to {peer} is lost; rails that still work go on, and the link is \
             connected again"
        ),
        Note::LinkBack { peer, lost } => {
            warning!("the side-band link to {peer} is back, after {} ms", lost.0 / 1_000_000)
        }
        Note::Spare { peer, over } => spare(&peer, over.as_str()),
        Note::Descriptors(limit) => turned_away(&ConnectError::Descriptors(limit)),
        Note::Memory => turned_away(&ConnectError::Memory),
        Note::SharedRefused(code) => shared_refused(code),
        Note::Connected { .. } | Note::Closed(_) => tell(note),
    }
}

/// A peer's heap has found no address space; what is read of it is read otherwise.
pub(in crate::host) fn heap_not_mapped(bytes: u64) {
    warning!(
        "the address space of this process (ulimit -v) has no room for the heap of a peer, {bytes} \
         bytes; its memory is read through the kernel or in two copies, which is slower; a smaller \
         heap_bytes (CROSSTIE_HEAP_BYTES) on all ranks of this host leaves room"
    );
}

/// What peers read cannot be kept from being written by them.
pub(in crate::host) fn not_sealed(errno: Errno) {
    once!(warning!(
        "peers of this host could write shared memory that they should only read: the kernel \
         cannot seal it ({errno}; Linux 5.1 can); if peers are not trusted, set CROSSTIE_RAILS=tcp"
    ));
}

/// What the kernel has granted at open, it refuses now.
fn shared_refused(code: i32) {
    let errno = Errno(code);
    let why: &dyn fmt::Display = if code == 0 { &"not permitted" } else { &errno };
    warning!(
        "shared memory: the kernel granted it when this endpoint was opened, and refuses it now \
         ({why}), as a filter of system calls does; peers of this host are reached over TCP, where \
         both sides allow it"
    );
}

fn turned_away(why: &ConnectError) {
    warning!("a peer was turned away: {why}");
}

/// A peer of another version; it hears the same.
fn version_refused(from: &Tried, theirs: u16) {
    warning!("a peer{from} was refused: {}", ConnectError::Version(theirs));
}

/// Small packets pass and large ones do not: once per process, as the next stall is as the last.
fn large_lost(peer: &Peer, lane: u8, packet_bytes: u32) {
    once!(warning!(
        "rail {lane} to {peer}: large packets are lost and small ones pass; the MTU of the path is \
         probably smaller than the {packet_bytes} bytes that this host sends; set the same MTU on \
         both hosts and all switches between them"
    ));
}

fn pair_awaited(peer: &Peer, lane: u8, silent: Span) {
    info!(
        "rail {lane} to {peer} is not connected yet: the peer has not answered for {} ms; its port \
         is down or refuses (see its log), or its program does not call the library",
        silent.0 / 1_000_000
    );
}

/// Over an interface that is not the device's.
fn spare(peer: &Peer, over: &str) {
    let text =
        format_args!("none of the device's interfaces leads to {peer}: it is reached over {over}");
    say_of(Level::Info, text);
}

/// Says a sentence that is put together on the stack.
pub(in crate::host) fn say_of(level: Level, text: fmt::Arguments<'_>) {
    say_by(log::say, level, text);
}

pub(super) fn say_by(say: fn(Level, &str), level: Level, text: fmt::Arguments<'_>) {
    let mut bytes = [0; log::TEXT_BYTES_MAX];
    let mut buffer = TextBuffer::new(&mut bytes);
    let _ = buffer.write_fmt(text);
    // a peer's name is printable ASCII, so that a cut leaves whole characters
    say(level, buffer.text());
}

/// Once per connection, for those who want to know what is going on.
fn tell(note: Note) {
    if !log::is_heard(Level::Info) {
        return;
    }
    match note {
        Note::Connected { peer, rail, lanes, pairs, side } => {
            let rail = match rail {
                Rail::Tcp if pairs != 0 => "ports and tcp",
                Rail::Shm => "shm",
                Rail::Tcp => "tcp",
            };
            let how = match side {
                Side::Connector => "connected to",
                Side::Listener => "connected by",
            };
            let others = if pairs != 0 { ", those over TCP" } else { ", those behind the first" };
            let several = Several { lanes, side, all_tcp: rail == "tcp", others };
            info!("{how} {peer} over {rail}{several}{}", peer.tried);
        }
        Note::Closed(peer) => {
            info!("closed a connection with {peer}{}", peer.tried);
        }
        Note::Stranger(_)
        | Note::Key(..)
        | Note::User(..)
        | Note::LocalVersion(_)
        | Note::Stopped { .. }
        | Note::Resumed { .. }
        | Note::Paused(_)
        | Note::Stalled { .. }
        | Note::LaneMissed { .. }
        | Note::PairAwaited(..)
        | Note::LaneStalled { .. }
        | Note::CarriersUnknown(_)
        | Note::Unchecked(_)
        | Note::LargeLost(..)
        | Note::Version(..)
        | Note::LinkLost { .. }
        | Note::LinkBack { .. }
        | Note::Spare { .. }
        | Note::Descriptors(_)
        | Note::Memory
        | Note::SharedRefused(_) => {}
    }
}

/// How many rails a connection has that has several, and which of them the addresses behind are.
struct Several {
    lanes: u8,
    side: Side,
    all_tcp: bool,
    others: &'static str,
}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lanes < 2 {
            return Ok(());
        }
        write!(f, ", {} rails", self.lanes)?;
        match (self.side, self.all_tcp) {
            // where the others come from is known when they come
            (Side::Listener, true) => f.write_str(", the first"),
            (Side::Connector, false) => f.write_str(self.others),
            (Side::Listener, false) | (Side::Connector, true) => Ok(()),
        }
    }
}

/// A listener was opened.
pub(in crate::host) fn listening(handle: &ListenHandle) {
    let at = Tried::of_handle(handle);
    let local = if handle.flags & HANDLE_LOCAL != 0 { " on this host and" } else { "" };
    if at.is_empty() {
        say_heard(Level::Info, format_args!("listening on this host"));
        return;
    }
    say_heard(Level::Info, format_args!("listening{local}{at}"));
    if at.is_own_host() && is_first(&OWN_HOST_SAID) {
        warning!(
            "listening{at} alone: other hosts cannot connect; no other interface that is up and \
             chosen (CROSSTIE_SOCKET_IFNAME) has an address, link-local IPv6 ones aside"
        );
    }
}

/// An endpoint was opened.
pub(in crate::host) fn opened(
    device: DeviceKind,
    rails: Rails,
    addresses: &AddressList,
    node_id: u64,
) {
    let own = Own { rails, addresses };
    let name = device.name();
    say_heard(Level::Info, format_args!("endpoint opened on {name}, host {node_id:016x}: {own}"));
}

/// A connection was closed although messages of requests that have ended were still on their way.
pub(in crate::host) fn closed_on_messages(peer: &str, waited: Span) {
    warning!(
        "the connection with {peer} was closed while messages were still on their way after {} ms; \
         they may be lost, although their requests have ended",
        waited.0 / 1_000_000
    );
}

/// Why a port does not register memory.
pub(in crate::host) struct NotRegistered<'a> {
    pub(in crate::host) domain: &'a PortDomain<'static>,
    pub(in crate::host) error: RegisterError,
    pub(in crate::host) kind: MemoryKind,
}

impl fmt::Display for NotRegistered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (MemoryKind::Cuda(_), PortDomain::Verbs(_)) = (self.kind, self.domain) {
            return f.write_str(dmabuf_refusal(self.error));
        }
        if let (MemoryKind::Cuda(_), PortDomain::Libfabric(domain)) = (self.kind, self.domain)
            && !domain.reaches_gpus()
        {
            return f.write_str(
                "its provider has no FI_HMEM, or no driver was loaded when the endpoint was opened",
            );
        }
        let code = match self.error {
            RegisterError::Kind => return f.write_str("it cannot reach memory of that kind"),
            RegisterError::Full => return f.write_str("its table is full"),
            RegisterError::Range => return f.write_str("the range is empty"),
            RegisterError::Fabric(code) => code,
        };
        match self.domain {
            PortDomain::Verbs(_) => Errno(code).fmt(f)?,
            PortDomain::Libfabric(_) => Code(code).fmt(f)?,
            PortDomain::Vendor(_) => return write!(f, "the provider's code {code}"),
        }
        match code {
            libc::ENOMEM => f.write_str(": is the limit of locked memory too low? `ulimit -l`"),
            _ => Ok(()),
        }
    }
}

/// A port does not register the user's memory: said once of each port and reason.
pub(in crate::host) fn not_registered(port: &str, why: &NotRegistered<'_>) {
    let gpu = match why.kind {
        MemoryKind::Host | MemoryKind::Mapped => "",
        MemoryKind::Cuda(_) => " of GPUs",
    };
    say_by(
        log::say_once,
        Level::Warning,
        format_args!(
            "{port} does not register memory{gpu} ({why}); messages in it take the other rails"
        ),
    );
}

/// No port takes memory of a GPU: said once of each GPU and reason.
pub(in crate::host) fn gpu_beside_ports(number: u32, why: &dyn fmt::Display) {
    say_by(
        log::say_once,
        Level::Warning,
        format_args!(
            "no port registers memory of GPU {number} ({why}); messages in it take the other rails"
        ),
    );
}

/// An endpoint was closed while a GPU copies.
pub(in crate::host) fn gpu_copies_left() {
    warning!("a GPU's copies do not end; what they may touch stays mapped");
}

/// What a GPU was told to copy does not end.
pub(in crate::host) fn gpu_copies_overdue(number: usize) {
    warning!(
        "GPU {number}: copies have not ended for 3 s, and their messages wait; a kernel or a call \
         of the program may hold the copy engine, or the GPU hangs"
    );
}

/// The driver refuses to copy out of a peer's memory, though it is mapped; said once per process.
pub(in crate::host) fn gpu_copy_refused(code: i32) {
    once!(warning!(
        "a copy out of a peer's GPU was refused (CUDA code {code}); its bytes go through memory of \
         the host, and so do those of later ones that are refused"
    ));
}

/// A peer's memory cannot be mapped; said once per process.
pub(in crate::host) fn gpu_memory_unmapped(why: &dyn fmt::Display) {
    once!(warning!(
        "memory of a peer's GPU cannot be mapped ({why}); what is copied out of it goes through \
         memory of the host"
    ));
}

/// Memory of a GPU is not registered.
pub(in crate::host) fn gpu_memory_refused(address: u64, bytes: u64, why: &dyn fmt::Display) {
    warning!("{bytes} bytes at {address:#x} are not registered as memory of a GPU: {why}");
}

/// Memory of a GPU that peers cannot map is registered; said once per process. Little memory, such
/// as NCCL's signals, is no reason to warn.
pub(in crate::host) fn gpu_memory_private(address: u64, bytes: u64, why: &dyn fmt::Display) {
    let text = format_args!(
        "{bytes} bytes of a GPU at {address:#x} have no handle for other processes ({why}): what \
         peers of this host copy out of them goes through memory of the host; use cudaMalloc, \
         ncclMemAlloc, or cuMemCreate with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR for copies by \
         copy engine"
    );
    match bytes < 64 << 10 {
        true => once!(info!("{text}")),
        false => once!(warning!("{text}")),
    }
}

/// Memory of a GPU was passed as memory of the host.
pub(in crate::host) fn memory_of_gpu_refused(address: u64, bytes: u64) {
    warning!(
        "{bytes} bytes at {address:#x} are not registered as memory of the host: it is memory of a \
         GPU: register it with XTIE_MEMORY_CUDA"
    );
}

/// An endpoint was closed.
pub(in crate::host) fn closed() {
    say_heard(Level::Info, format_args!("endpoint closed"));
}

pub(in crate::host) fn say_heard(level: Level, text: fmt::Arguments<'_>) {
    if log::is_heard(level) {
        say_of(level, text);
    }
}

/// Rails and addresses of an endpoint in words.
struct Own<'a> {
    rails: Rails,
    addresses: &'a AddressList,
}

impl fmt::Display for Own<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rails = &self.rails;
        let names = [
            (rails.shm, "shm"),
            (rails.tcp && rails.vendor, "vendor"),
            (rails.tcp && rails.verbs, "verbs"),
            (rails.tcp && rails.libfabric, "libfabric"),
            (rails.tcp, "tcp"),
        ];
        let count = names.iter().filter(|(has, _)| *has).count();
        f.write_str(match count {
            0 => "reaches itself alone",
            1 => "rail ",
            _ => "rails ",
        })?;
        for (at, (_, name)) in names.iter().filter(|(has, _)| *has).enumerate() {
            let before = match at {
                0 => "",
                at if at + 1 == count => " and ",
                _ => ", ",
            };
            write!(f, "{before}{name}")?;
        }
        for (at, ip) in self.addresses.as_slice().iter().filter_map(ip_of).enumerate() {
            write!(f, "{}{ip}", if at == 0 { ", addresses " } else { ", " })?;
        }
        Ok(())
    }
}
