//! GPU-initiated operations without a NIC: the composition of the software HCA.
//!
//! NCCL's device code writes work queue entries into pinned host memory of its own process. One
//! thread of that process reads and executes them ([`crate::hca`]):
//!
//! - a write is a copy between GPUs;
//! - a signal is an add of the CPU to a word that the ranks of the host share.
//!
//! The parts:
//!
//! - [`comm`]: the ranks of one communicator, and what they do together
//! - [`state`]: the memory that they registered, and what is under way
//! - [`hosts`]: the way to ranks of other hosts
//! - [`context`]: queues, signals and counters, and the structures that device code reads
//! - [`adds`]: adds to words of windows, which their owner performs
//! - [`flow`]: copies under way
//! - [`road`]: the stream to one rank, and its markers
//! - [`launcher`]: copies by a kernel, and whether it starts
//! - [`loopback`]: puts of a rank to itself
//! - [`engine`]: the thread, and its [`clock`]
//! - [`report`]: what queues wait for
//!
//! ```text
//!   GPU kernel ──entries, doorbell──▶ rings ──▶ engine ──copies──▶ memory of the peer's GPU
//!        ▲                                        │
//!        └──── completions, counters ─────────────┤
//!   peer's GPU ◀──── signals (shared words) ◀─────┘
//! ```

pub mod adds;
pub mod clock;
pub mod comm;
pub mod context;
pub mod engine;
pub mod flow;
pub mod hosts;
pub mod launcher;
mod leaked;
pub mod loopback;
pub mod report;
pub mod road;
pub mod state;

use super::group::board::BoardError;
use super::settings::Environment;
use super::{OpenError, RegisterError};
use crate::base::hash::fnv1a;
use crate::base::words::{said, wraps};
use crate::connect::Trust;
use crate::connect::group::{Group, GroupError, Listener};
use crate::connect::interfaces::{address_list, local_addresses};
use crate::connect::key::{Key, KeyError};
use crate::memory::cuda::adder::AdderError;
use crate::memory::cuda::{CudaError, LoadError};
use crate::memory::{Errno, PinError};
use crate::window::WindowError;
use crate::wire::hello::AddressList;
use core::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

pub use comm::Comm;
pub use context::{Config, Layout, OwnWords};
pub use engine::Engine;

/// A word of host memory that counts ranks that have ended.
#[derive(Clone, Debug)]
pub struct EndCount(pub Arc<dyn Counts>);

/// What an [`EndCount`] stands for.
pub trait Counts: fmt::Debug + Send + Sync {
    /// One rank more has ended.
    fn count(&self);
}

said! {
    /// Why something of this room does not work.
    #[derive(Debug)]
    pub enum GinError {
        /// There is no usable driver.
        Driver(error: LoadError) => "{error}",
        /// A call of the driver failed.
        Cuda(error: CudaError) => "{error}",
        /// The ranks do not come together.
        Group(error: GroupError) => "{error}",
        /// The shared key cannot be had.
        Key(error: KeyError) => "CROSSTIE_KEY_FILE: {error}",
        /// The thread cannot run where `CROSSTIE_GIN_CPUS` says.
        Pin(what: PinError) => |f| match what {
            PinError::Cpu(cpu) => write!(
                f,
                "CROSSTIE_GIN_CPUS names CPU {cpu}, which this host does not have or the cpuset \
                 forbids"
            ),
            PinError::System(error) => error.fmt(f),
        },
        /// The kernel refused.
        System(error: Errno) => "{error}",
        /// The memory has no exportable handle.
        NotExportable(error: CudaError) =>
            "this memory has no handle for other processes ({error}); allocate it by \
             ncclMemAlloc, or by cuMemCreate with a POSIX descriptor as handle type",
        /// A rank could not take part; its own log says why.
        Rank(rank: usize) => "rank {rank} could not take part; see its log",
        /// More regions than there are keys.
        Full => "all memory keys are in use; deregister some memory",
        /// An argument is out of range.
        Argument(what: &'static str) => "{what} is out of range",
        /// The endpoint to other hosts cannot be opened.
        Endpoint(error: OpenError) => "no way to ranks of other hosts: {error}",
        /// The ranks of all hosts do not come together.
        Hosts(error: super::group::GroupError) => "no way to ranks of other hosts: {error}",
        Register(error: RegisterError) =>
            "ranks of other hosts cannot reach this memory ({error:?})",
        Window(error: WindowError) => "ranks of other hosts cannot use this memory: {error}",
        /// A rank has not made its part of a window in time.
        Late(rank: u32) => "rank {rank} has not registered its part of the memory in time",
    }
}

wraps!(GinError: Cuda(CudaError), Group(GroupError), System(Errno));

impl From<AdderError> for GinError {
    fn from(error: AdderError) -> GinError {
        match error {
            AdderError::System(error) => GinError::System(error),
            AdderError::Cuda(error) => GinError::Cuda(error),
        }
    }
}

impl From<BoardError> for GinError {
    fn from(error: BoardError) -> GinError {
        match error {
            BoardError::Register(error) => GinError::Register(error),
            BoardError::Window(error) => GinError::Window(error),
            BoardError::Missing(rank) => GinError::Late(rank),
        }
    }
}

/// Opens a listener for ranks that the settings admit. Ranks of other hosts reach it unless
/// `is_one_host` says that there are none.
///
/// | `CROSSTIE_KEY_FILE` | admitted |
/// |---|---|
/// | set | ranks with the key |
/// | not set | ranks of this user, of root, and of users that `CROSSTIE_ALLOW_UIDS` names |
///
/// *Errors*: [`GinError::Key`], [`GinError::Group`].
pub fn listen(environment: &Environment, is_one_host: bool) -> Result<Listener, GinError> {
    let key = environment.key_file.as_deref().map(Key::read).transpose().map_err(GinError::Key)?;
    let choice = environment.socket_ifname.as_deref().unwrap_or_default();
    let addresses = match is_one_host || !environment.rails.tcp {
        true => AddressList::EMPTY,
        // without an address ranks of this host come all the same, and others are told
        false => address_list(&local_addresses(choice).unwrap_or_default()),
    };
    let place = place(environment.node_id)?;
    Ok(Listener::new(Trust::new(key, environment.users), place, &addresses)?)
}

/// Whether all ranks could do their part, which this one could or not. A collective call.
fn all_have(group: &mut Group, has: bool) -> Result<(), GinError> {
    let parts = group.gather(&[u8::from(has)], &[])?;
    let missing = parts.iter().position(|part| part.bytes != [1]);
    missing.map_or(Ok(()), |rank| Err(GinError::Rank(rank)))
}

/// Ranks of one place meet by abstract names, which a network namespace has of its own.
fn place(node_id: Option<u64>) -> Result<u64, GinError> {
    let node = node_id.map_or_else(crate::connect::node_id, Ok).map_err(GroupError::System)?;
    let space = std::fs::metadata("/proc/self/ns/net").map_or(0, |file| file.ino());
    Ok(fnv1a([node.to_le_bytes(), space.to_le_bytes()].as_flattened()))
}

/// Why these operations are off on this host, whatever its driver: `wish` is `CROSSTIE_GIN`.
pub fn refusal(wish: Option<bool>) -> Option<&'static str> {
    match wish {
        Some(true) => None,
        Some(false) => Some("CROSSTIE_GIN=0"),
        None => nic_of_nccl_gpu().then_some(
            "an mlx5 or EFA device runs NCCL's own; CROSSTIE_GIN=1 takes the software HCA",
        ),
    }
}

/// Whether a NIC of this host runs NCCL's own GPU-initiated backend: its driver is mlx5's or EFA's.
fn nic_of_nccl_gpu() -> bool {
    let Ok(devices) = std::fs::read_dir("/sys/class/infiniband") else { return false };
    devices.flatten().any(|device| driver_is_known(&device.path()))
}

fn driver_is_known(device: &Path) -> bool {
    let driver = std::fs::read_link(device.join("device/driver"));
    let name: Option<std::ffi::OsString> =
        driver.ok().and_then(|path| path.file_name().map(Into::into));
    name.is_some_and(|name| name == "mlx5_core" || name == "efa")
}
