//! The libfabric rail: peers over every network that libfabric reaches (EFA, Slingshot, Omni-Path,
//! sockets, shared memory).
//!
//! A rail has one endpoint of reliable datagrams (`FI_EP_RDM`), shared by its peers, and one
//! completion queue. The library is loaded at run time. If it is missing, [`LoadError`] says so in
//! a line.
//!
//! - **Sender of a message.** The prefix ([`message`]) holds the receiver's number of the peer, and
//!   a token that it gave to that peer alone. Messages of strangers are dropped. Sends and words
//!   are numbered: a library may lose copied messages when its connection breaks. A gap breaks the
//!   peer.
//! - **Copied at post**: a send's head and payload, and a line. Short sends are injected. Others
//!   lie in the peer's staging until they have ended.
//! - **A write ends when its bytes are in the peer's memory** (`FI_DELIVERY_COMPLETE`). A line is
//!   done at post if the library keeps the order of everything, and pending otherwise.
//! - **Keys are asked for.** Libraries differ: keys of 64 bits, addresses or offsets, bad keys that
//!   break a connection or go unnoticed. So a rail asks the peer for the key of a region at its
//!   first use, and posts again. The answer has the library's key and the range, or says that there
//!   is none. The asker then holds the region: `deregister` says `Busy` and asks for it back. It
//!   succeeds when all askers have given it back and none of their ops is under way. No op with a
//!   bad key or range reaches the library.
//! - **A word** (immediate) travels with its write if the library carries 64 bits (`cq_data_size`).
//!   Otherwise it is a message behind the write, sent when the data is there.
//! - **Fence** (`WriterDrained`): we ask the peer to stop, and it says when none of its ops is
//!   under way. One peer's end never takes the endpoint from the others. A silent peer stays
//!   unfenced until the endpoint is closed.
//! - **Threads take turns** ([`Callers`]), if the library does not let all of them in at once.
//! - **A failed NIC** is a failed endpoint. [`Libfabric::reopen`] closes registrations, endpoint,
//!   queue and vector, in this order, which fences everything. Then it opens and registers all
//!   anew. Regions keep their keys.
//! - **Registrations belong** to the domain or to the endpoint ([`Scope`]), as the provider wants.
//! - **Teardown order**: registrations, endpoint, queue, vector, event queue, domain, fabric.
//! - **Silent peers**: as on other rails, the side band finds a peer that sends nothing.
//!   [`Config::silence_max`] limits how long ops to a peer may stay open.

mod area;
pub mod choice;
mod control;
mod domain;
mod ending;
mod endpoint;
mod flush;
mod keys;
pub mod message;
mod peer;
mod peers;
mod poll;
mod post;
mod probe;
mod provider;
mod rail;
mod receives;
mod report;
mod silence;
pub mod sys;
mod watch;

pub use area::{RECEIVES, SENDS, part_bytes as peer_reserve_bytes};
pub use choice::offer::Traits;
pub use choice::{names, settings, survey};
pub use domain::turns::Callers;
pub use domain::{Keys, LibfabricDomain, REGIONS_MAX, Scope};
pub use rail::{Libfabric, NicName, RECORD_SIZES, bytes};
pub use report::{Complaint, ErrorReport, Health};

/// What two rails tell each other before either sends.
pub use crate::wire::shared_end::SharedEndHello as Hello;

use crate::base::units::Span;
use crate::base::words::{named, said};
use crate::memory::Errno;
use core::ffi::CStr;
use core::fmt;
use sys::{Code, LoadError};

/// How large a rail is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Peers at a time, [`PEERS_MAX`] at most.
    pub peers_max: u32,
    /// Regions at a time, [`REGIONS_MAX`] at most.
    pub regions_max: u32,
    /// Longest payload of a send, [`PAYLOAD_BYTES_MAX`] at most.
    pub payload_bytes_max: u32,
}

/// Most peers: a message has 16 bits for whose it is.
pub const PEERS_MAX: u32 = 1 << 16;
/// Longest payload that a send may be opened for.
pub const PAYLOAD_BYTES_MAX: u32 = 8 << 10;

/// What a rail is opened on.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Config<'a> {
    /// The library's file; [`sys::library::FILE`] is its usual name.
    pub library: &'a CStr,
    /// The provider, as `fi_info -l` names it; `None`: the library's first choice.
    pub provider: Option<&'a CStr>,
    /// The domain, such as an interface or a NIC; `None`: the provider's first.
    pub domain: Option<&'a CStr>,
    /// How long nothing that was sent to a peer may end, while its program polls, before the peer
    /// is given up; 0: for ever. See [`Libfabric::peer_polls`].
    pub silence_max: Span,
}

impl Config<'_> {
    /// The library's first choice.
    pub const DEFAULT: Config<'static> =
        Config { library: sys::library::FILE, provider: None, domain: None, silence_max: Span(0) };
}

named! {
    /// The call that the library refused.
    pub enum Step {
        Offer = "libfabric cannot say what it offers",
        Fabric = "the network cannot be opened",
        Domain = "the domain cannot be opened",
        CompletionQueue = "the domain gives no completion queue",
        AddressVector = "the domain gives no address vector",
        Endpoint = "the domain gives no endpoint",
        Name = "the endpoint does not tell its address",
        Buffers = "buffers cannot be registered",
        Receives = "the endpoint takes no receives",
        Address = "the peer's address is refused",
        Regions = "memory that is registered cannot be registered with it",
    }
}

said! {
    /// Why a rail could not be opened. Nothing is left behind.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum OpenError {
        Block => "the block is too small for the rail",
        /// The limits are beyond the constants that bound them.
        Limits => "the limits of the rail are out of range",
        /// There is no usable libfabric.
        Library(error: LoadError) => "{error}",
        /// No provider offers what a rail needs, under the names that were asked for.
        NoOffer =>
            "no libfabric provider of that name offers reliable endpoints with messages, writes \
             and confirmed delivery",
        Software =>
            "libfabric's software providers net, sockets and udp are not used; for trials there \
             are tcp;ofi_rxm and shm",
        Lacks(what: &'static str) => "the libfabric provider lacks {what}",
        /// The provider wants something of us that we do not do: of what kind, and its bits.
        Wants(what: &'static str, bits: u64) =>
            "the libfabric provider wants {what} that is not known here: {bits:#x}",
        Buffers(errno: Errno) => "no room for the rail's buffers: {errno}",
        /// The provider gives no completion queue as long as the peers want it, but one of so many.
        Completions {
            /// What is wanted.
            wanted: u32,
            /// What there is.
            most: u32,
        } =>
            "the libfabric provider has no queue for {wanted} completions, which so many peers \
             need; it has one for {most}",
        /// The library refused, with its code.
        Refused(step: Step, code: Code) => |f| refused(f, *step, *code),
    }
}

said! {
    /// Why a peer could not be opened. Its number is closed.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum PeerOpenError {
        /// No such number, or it is not in the state for the call.
        Index => "the rail has no free peer of that number",
        /// The other end's address has another format: it is of another provider.
        Format => "the two ends are of different libfabric providers",
        /// The endpoint failed: the rail must be opened again.
        RailLost => "the endpoint has failed",
        /// The last peer of that number waits for a word for which there was no room: poll, and try
        /// again.
        Again => "the last peer of that number still awaits an answer",
        /// The library refused, with its code.
        Refused(step: Step, code: Code) => |f| refused(f, *step, *code),
    }
}

/// Behind a refusal of memory.
const LOCKED_HINT: &str = " (is the limit of locked memory too low? `ulimit -l`)";

fn refused(f: &mut fmt::Formatter, step: Step, code: Code) -> fmt::Result {
    write!(f, "{}: {code}", step.name())?;
    match (step, code) {
        (Step::Buffers | Step::Regions, Code(libc::ENOMEM)) => f.write_str(LOCKED_HINT),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use std::string::ToString;

    #[test]
    fn refusals_are_sentences_with_what_was_refused() {
        let text = OpenError::Refused(Step::Buffers, Code(libc::ENOMEM)).to_string();
        assert!(text.contains("errno 12") && text.contains("ulimit -l"), "{text}");
        let text = OpenError::Wants("a mode", 1 << 51).to_string();
        assert!(text.contains("0x8000000000000"), "{text}");
        let text = OpenError::Refused(Step::Endpoint, Code(259)).to_string();
        assert!(text.contains("libfabric's code 259"), "{text}");
    }
}
