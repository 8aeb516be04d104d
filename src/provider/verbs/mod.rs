//! The verbs rail: peers over InfiniBand or RoCE.
//!
//! Each peer has a reliable queue pair. All queue pairs of a rail complete into one queue. Posts
//! are chained, and go to the device with the next flush or poll, up to [`CHAIN`] requests per
//! doorbell.
//!
//! - **Copied at post**: a send's head and payload, and a line, are gathered in the peer's
//!   registered staging; short ones go inline. They are done at post, and not signalled. A write
//!   from memory, a read and an add end with a completion, which stands for all earlier requests of
//!   its queue pair.
//! - **Flow control is the transport's.** [`RECEIVES`] receives of each peer are posted before its
//!   queue pair can receive. Each is posted again when its message is released or its word
//!   reported. A few wait for others, and for a poll that finds nothing. `rnr_retry` is 0: a
//!   missing receive is a broken credit, so it breaks the connection.
//! - **Order** is the queue pair's. Requests after a read or an add carry a fence bit, since the
//!   queue pair alone would not wait. With adaptive routing ([`Config::adaptive_bytes_min`]),
//!   writes are placed as they come, and only sends and words keep their order. The caps promise no
//!   order there. A line then ends with its completion, and the transport does not overwrite it
//!   before.
//! - **A bad key** of the peer's ends its op with `Key`, and the queue pair with it, as the devices
//!   do ([`crate::fabric::Caps::bad_key_breaks`]). A key of our own is checked here, and harms
//!   nothing.
//! - **A fence is our own act.** The queue pair goes to its error state, in which it neither sends
//!   nor takes packets. A marker at the end of each of its two queues comes back behind everything
//!   else. Then the device touches nothing for it. If that fails or takes too long, the queue pair
//!   is destroyed.
//! - **A GID that goes** ends every peer. The rail is out of use until it is revived with another
//!   GID. A failed device is out of use for good.
//! - **Silent peers**: the side band finds a peer that sends nothing. An op that is not
//!   acknowledged ends the peer, too: [`PathConfig`] says how long the device takes,
//!   [`Config::silence_max`] how long it may take.
//!
//! These parts need no device. They run at open: they allocate and read files.
//!
//! - [`ports`]: what the kernel shows of the ports
//! - [`settings`]: what the user wants of them
//! - [`choice`]: which ports may be used, and why others may not
//! - [`gid`]: which of its addresses a port uses
//! - [`rails`]: which ports of two hosts reach each other

mod area;
pub mod choice;
mod closer;
pub mod companion;
mod completions;
mod domain;
pub mod mtu;
mod neighbour;
mod peer;
mod peers;
mod poll;
mod port;
mod post;
mod provider;
mod queue;
mod rail;
mod report;
mod search;
mod sends;
mod silence;
pub mod sys;

pub use area::{RECEIVES, part_bytes as peer_reserve_bytes};
pub use choice::{gid, names, ports, rails, settings, speed};
pub use domain::{REGIONS_MAX, VerbsDomain, device_takes_dmabufs, dmabuf_refusal};
pub use port::{Health, loss_words};
pub use rail::{RECORD_SIZES, Verbs, bytes};
pub use report::{ErrorReport, GidText, status_words};
pub use sends::{CHAIN, SENDS};

use crate::base::units::Span;
use crate::base::words::{named, said};
use crate::memory::Errno;
use core::fmt;
use sys::LoadError;

/// How large a rail is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Peers at a time, [`PEERS_MAX`] at most.
    pub peers_max: u32,
    /// Regions at a time, [`REGIONS_MAX`] at most.
    pub regions_max: u32,
    /// Longest payload of a send, [`PAYLOAD_BYTES_MAX`] at most. Each peer pins [`RECEIVES`] as
    /// many bytes.
    pub payload_bytes_max: u32,
}

/// Most peers: a request's name has 16 bits for whose.
pub const PEERS_MAX: u32 = 1 << 16;
/// Longest payload that a send may be opened for: a quarter of the staging holds one with its head.
pub const PAYLOAD_BYTES_MAX: u32 = 8 << 10;

/// How packets find their way, and how patient a queue pair is. The same on all of a rail.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct PathConfig {
    /// 4.096 us times two to the power of this, until what was not acknowledged is sent again.
    pub timeout: u8,
    /// How often it is sent again, 7 at most.
    pub retries: u8,
    /// Partition, by index into the port's table.
    pub pkey_index: u16,
    /// Service level.
    pub service_level: u8,
    /// On Ethernet, priority and congestion marks of a packet.
    pub traffic_class: u8,
}

impl Default for PathConfig {
    /// NCCL's values.
    fn default() -> PathConfig {
        PathConfig { timeout: 20, retries: 7, pkey_index: 0, service_level: 0, traffic_class: 0 }
    }
}

/// What a rail is opened on.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Config<'a> {
    /// The device's name, as in `/sys/class/infiniband`.
    pub device: &'a str,
    /// Its port, from 1 on.
    pub port: u8,
    /// Which GID of the port.
    pub gid_index: u8,
    /// What stood there when it was chosen: tables change meanwhile, and peers are told the chosen
    /// one. `None`: whatever stands there is used.
    pub gid_chosen: Option<(gid::Gid, gid::GidKind)>,
    /// Which others may take its place when it has gone ([`Verbs::revive`]).
    pub gid_rule: gid::GidRule,
    /// How many bits of the GID's address name the subnet, by which peers are matched.
    pub subnet_bits: u8,
    /// Of every queue pair.
    pub path: PathConfig,
    /// Whether [`VerbsDomain::register_payload`] asks for relaxed ordering, and so do dma-bufs.
    pub relaxed_ordering: bool,
    /// Whether extensions of the device's vendor are used, where both ends have them (ECE).
    pub extensions: bool,
    /// Whether queue pairs post by the extended interface (`ibv_wr_…`) where library and driver
    /// have it.
    pub extended_post: bool,
    /// 0: packets of a queue pair take one way. Else they may take several, so that writes without
    /// a word land in any order, and the end of a line is told; and from this length on, a write
    /// with a word is two: the data, and then the word alone.
    pub adaptive_bytes_min: u64,
    /// How long the port may be down before its connections are given up. A queue pair whose
    /// patience is longer survives an outage that is shorter.
    pub port_grace: Span,
    /// How long nothing may complete of what a peer was sent before it ends, where that is shorter
    /// than what the path's retries take. 0: as long as those take.
    pub silence_max: Span,
}

named! {
    /// The call that a device refused.
    pub enum Step {
        Device = "the device cannot be opened",
        Port = "the device has no such port",
        Gid = "the port has no such GID",
        GidNow = "the GID of the port cannot be read",
        ProtectionDomain = "the device gives no protection domain",
        CompletionQueue = "the device gives no completion queue",
        Buffers = "buffers cannot be registered",
        QueuePair = "the device gives no queue pair",
        Receives = "the queue pair takes no receives",
        Init = "the queue pair refuses the port or the partition",
        Extensions = "the queue pair refuses the extensions (CROSSTIE_IB_ECE_ENABLE=0)",
        ReadyToReceive = "the queue pair refuses the path to the peer",
        ReadyToSend = "the queue pair cannot start to send",
    }
}

said! {
    /// Why a rail could not be opened. Nothing is left behind.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum OpenError {
        Block => "the block is too small for the rail",
        /// The limits are beyond the constants that bound them.
        Limits => "the limits of the rail are out of range",
        /// There is no usable libibverbs.
        Library(error: LoadError) => "{error}",
        NoDevice =>
            "libibverbs shows no device of that name: is its file in /dev/infiniband, and the \
             library of its driver installed?",
        PortDown => "the port of the RDMA device is not active",
        NoGid => "the GID at that index is empty",
        /// It is another one than was chosen, or is of another version of RoCE: the next choice has
        /// it.
        GidChanged =>
            "the GID at that index has changed since it was chosen (did an address change?); \
             endpoints that are opened later may use it",
        /// The completion queue would need more entries than the device has.
        Completions {
            /// For so many peers.
            wanted: u32,
            /// What the device has.
            most: u32,
        } =>
            "so many peers need a completion queue of {wanted} entries, the device has {most}",
        /// The device refused, with its code.
        Refused(step: Step, errno: Errno) => |f| refused(f, *step, *errno),
    }
}

said! {
    /// Why a peer could not be opened. Its number is closed, but for [`PeerOpenError::NoAnswer`].
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum PeerOpenError {
        /// No such number, or it is not in the state for the call.
        Index => "the rail has no free peer of that number",
        /// The other end is on another kind of link.
        LinkLayer => "one end is on InfiniBand and the other on Ethernet",
        /// Both ends are on RoCE v2 by a GID each, of which one is of IPv4 and the other of IPv6:
        /// our GID and the peer's. Packets are of one of them.
        Families(ours: gid::Gid, theirs: gid::Gid) => |f| {
            let of = |gid: &gid::Gid| gid::Family::of(gid.ip());
            write!(
                f,
                "the GID of this side's port, {ours}, is of {}, and the peer's, {theirs}, of \
                 {}: RoCE v2 packets are of one family (CROSSTIE_IB_ADDR_FAMILY must be the \
                 same on both sides; a GID that CROSSTIE_IB_GID_INDEX chooses must have that \
                 family)",
                of(ours),
                of(theirs)
            )
        },
        /// The other end has so many receives, fewer than [`RECEIVES`].
        Receives(count: u32) => "the peer keeps {count} receives posted, but {RECEIVES} are needed",
        /// The device failed, or its GID has gone: the rail must be revived or opened anew.
        RailLost => "the device or its GID has gone",
        /// The kernel looks for the link address of the other end's port. The peer stays prepared:
        /// try again later, or close it.
        NoAnswer => "no host answers for the address of the peer's port",
        /// The device refused, with its code.
        Refused(step: Step, errno: Errno) => |f| refused(f, *step, *errno),
    }
}

fn refused(f: &mut fmt::Formatter, step: Step, errno: Errno) -> fmt::Result {
    write!(f, "{}: {errno}", step.name())?;
    match (step, errno) {
        (Step::Buffers, Errno::NO_MEMORY) => {
            f.write_str(" (is the limit of locked memory too low? `ulimit -l`)")
        }
        (Step::Device, Errno(libc::EACCES | libc::EPERM)) => {
            f.write_str(" (this user may not open its file in /dev/infiniband)")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use std::string::ToString;

    #[test]
    fn refusals_name_the_step_and_the_limit() {
        let text = OpenError::Refused(Step::Buffers, Errno::NO_MEMORY).to_string();
        assert!(text.starts_with("buffers cannot be registered: errno 12"), "{text}");
        assert!(text.contains("ulimit -l"), "{text}");
        let ip = |text: &str| text.parse::<core::net::IpAddr>().unwrap();
        let ends = ["10.0.0.1", "fd00::2"].map(|text| gid::Gid::from(ip(text)));
        let text = PeerOpenError::Families(ends[0], ends[1]).to_string();
        let wanted = "the GID of this side's port, 10.0.0.1, is of IPv4, and the peer's, fd00::2, \
                      of IPv6: ";
        assert!(text.starts_with(wanted) && text.contains("CROSSTIE_IB_GID_INDEX"), "{text}");
        let text = OpenError::Completions { wanted: 70000, most: 32767 }.to_string();
        assert!(text.contains("70000") && text.contains("32767"), "{text}");
    }
}
