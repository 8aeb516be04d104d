//! One-sided operations that NCCL's host threads ask for, without versions: RMA, and GIN by proxy.

use crate::abi::{PTR_CUDA, PTR_HOST};
use crate::net::device::Device;
use crate::net::{self, Fault, log};
use core::ffi::c_int;
use crosstie::base::units::Span;
use crosstie::connect::group::HANDLE_BYTES;
use crosstie::fabric::MemoryKind;
use crosstie::host::rma::{
    Comm, Listener, Memory, Opening, RmaError, Side, Signal, Target, listener,
};
use crosstie::host::{MemoryOptions, Options};
use crosstie::provider::verbs::settings::Names;
use crosstie::transport::Limits;
use crosstie::window::WindowError;
use crosstie::wire::RAILS_MAX;
use std::os::fd::RawFd;
use std::sync::Arc;

/// `NCCL_NET_DEVICE_GIN_PROXY`: device code asks a thread of NCCL's.
pub const DEVICE_TYPE: c_int = 2;
/// A signal grows by one.
const SIGNAL_INC: u32 = 1;
/// It grows by a value.
const SIGNAL_ADD: u32 = 2;
/// The list of requests that name a communicator, and no contexts.
const LIST_OF_COMM: usize = 0;

/// The ranks of one connection of NCCL's.
pub struct Coll(Arc<Comm>);

/// A set of contexts.
pub struct Context {
    comm: Arc<Comm>,
    list: usize,
}

/// Who issues operations: a communicator, or a set of contexts of it.
#[derive(Copy, Clone)]
pub struct Issuer<'c> {
    comm: &'c Comm,
    list: usize,
}

/// One end of a transfer: offset, and the memory's handle.
pub type End = (u64, u64);

/// A transfer that NCCL asks for.
#[derive(Copy, Clone)]
pub struct Transfer {
    /// Which context.
    pub context: c_int,
    /// The source.
    pub from: End,
    /// How many bytes.
    pub bytes: usize,
    /// The target.
    pub to: End,
    /// The rank that it is with.
    pub rank: u32,
}

/// A signal that NCCL asks for.
#[derive(Copy, Clone)]
pub struct Raise {
    /// The word.
    pub at: End,
    /// By how much, where the operation adds.
    pub value: u64,
    /// `NCCL_NET_SIGNAL_OP_INC` or `NCCL_NET_SIGNAL_OP_ADD`.
    pub operation: u32,
}

fn fault(what: &str, error: RmaError) -> Fault {
    log::warn(&format!("RMA {what}: {error}"));
    match error {
        RmaError::Open(error) => Fault::from(&error),
        RmaError::Listen(error) => Fault::from(&error),
        RmaError::Group(_) | RmaError::Missing(_) | RmaError::Rank(_) | RmaError::Broken => {
            Fault::Remote
        }
        RmaError::System(_) => Fault::System,
        RmaError::Register(_) | RmaError::Argument(_) => Fault::Argument,
        RmaError::Window(WindowError::Failed(_, error)) => Fault::from(error),
        // it gave up a call that all ranks make
        RmaError::Window(WindowError::Freed) => Fault::Remote,
        RmaError::Window(WindowError::Memory | WindowError::OutcomeUnknown) => Fault::System,
        RmaError::Window(_) => Fault::Argument,
        RmaError::Full => Fault::Internal,
    }
}

fn options(device: &Device) -> Options {
    let mut options = Options {
        limits: Limits { rails_max: RAILS_MAX as u32, ..Limits::default() },
        verbs_names: Names::WithNccl,
        interfaces_spare: Some(device.spare),
        family: device.family,
        ..Options::default()
    };
    device.kind.choose(&mut options);
    listener::options(options)
}

/// Opens a listener on a device.
pub fn listen(number: c_int) -> Result<Listener, Fault> {
    let (_, device) = net::device(number)?;
    Listener::open(&options(device)).map_err(|error| fault("listen", error))
}

/// Brings the ranks together by the handles of all.
pub fn connect(
    listener: &Listener,
    handles: &[[u8; HANDLE_BYTES]],
    rank: usize,
) -> Result<Coll, Fault> {
    let nanoseconds = u64::try_from(net::patience().as_nanos()).unwrap_or(u64::MAX);
    let opening = Opening { handles, rank, contexts: 1, timeout: Span(nanoseconds) };
    let made = Comm::connect(listener, &opening);
    Ok(Coll(Arc::new(made.map_err(|error| fault("connect", error))?)))
}

impl Coll {
    /// Registers memory of a kind that NCCL names, with its dma-buf where it has one; the handle.
    pub fn register(
        &self,
        (address, bytes): (u64, usize),
        kind: c_int,
        dmabuf: Option<(RawFd, u64)>,
    ) -> Result<u64, Fault> {
        let kind = match kind {
            PTR_HOST => MemoryKind::Host,
            PTR_CUDA => MemoryKind::Cuda(0), // the driver knows of which GPU
            _ => {
                log::warn(&format!("RMA: memory of kind {kind} is refused: there is no such kind"));
                // the other ranks are told by memory that cannot be registered
                return self.register_with((address, 0), MemoryKind::Host, None);
            }
        };
        self.register_with((address, bytes), kind, dmabuf)
    }

    fn register_with(
        &self,
        (address, bytes): (u64, usize),
        kind: MemoryKind,
        dmabuf: Option<(RawFd, u64)>,
    ) -> Result<u64, Fault> {
        // NCCL's signals have no handle for other processes
        let options = MemoryOptions { kind, device: None, dmabuf };
        // SAFETY: NCCL keeps the memory until it has deregistered it.
        let made = unsafe { self.0.register((address, bytes as u64), &options) };
        made.map(|memory| memory.0).map_err(|error| fault("registration", error))
    }

    /// Ends a registration.
    pub fn deregister(&self, memory: u64) -> Result<(), Fault> {
        self.0.deregister(Memory(memory)).map_err(|error| fault("deregistration", error))
    }

    /// Makes contexts.
    pub fn contexts(&self, contexts: usize) -> Result<Context, Fault> {
        let list = self.0.contexts_open(contexts).map_err(|error| fault("contexts", error))?;
        Ok(Context { comm: Arc::clone(&self.0), list })
    }

    /// Issues without contexts.
    pub fn issuer(&self) -> Issuer<'_> {
        Issuer { comm: &self.0, list: LIST_OF_COMM }
    }

    /// How a request stands.
    #[inline]
    pub fn test(&self, request: u64) -> Result<bool, Fault> {
        self.0.test(request).map_err(|error| fault("test", error))
    }

    /// Makes progress.
    pub fn progress(&self) -> Result<(), Fault> {
        self.0.progress().map_err(|error| fault("progress", error))
    }
}

impl Context {
    /// Issues by these contexts.
    pub fn issuer(&self) -> Issuer<'_> {
        Issuer { comm: &self.comm, list: self.list }
    }

    /// Makes progress.
    pub fn progress(&self) -> Result<(), Fault> {
        self.comm.progress().map_err(|error| fault("progress", error))
    }

    /// Whether a rank has failed.
    pub fn has_failed(&self) -> bool {
        self.comm.failure().is_some()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.comm.contexts_close(self.list);
    }
}

fn side((offset, memory): End) -> Side {
    Side { memory: Memory(memory), offset }
}

impl Issuer<'_> {
    fn target(&self, context: c_int, rank: u32) -> Result<Target, Fault> {
        let context = usize::try_from(context).map_err(|_| Fault::Argument)?;
        Ok(Target { list: self.list, context, rank })
    }

    /// Puts bytes, and raises a signal behind them; the request.
    #[inline]
    pub fn put(&self, put: &Transfer, raise: Option<Raise>) -> Result<u64, Fault> {
        let signal = match raise {
            None => None,
            Some(Raise { at, value, operation }) => {
                let value = match operation {
                    SIGNAL_INC => 1,
                    SIGNAL_ADD => value,
                    _ => return Err(fault("put", RmaError::Argument("the signal's operation"))),
                };
                Some(Signal { at: side(at), value })
            }
        };
        let (target, sides) = (self.target(put.context, put.rank)?, (side(put.from), side(put.to)));
        let made = self.comm.put(target, put.bytes as u64, sides, signal);
        made.map_err(|error| fault("put", error))
    }

    /// Gets bytes; the request.
    pub fn get(&self, get: &Transfer) -> Result<u64, Fault> {
        let (target, sides) = (self.target(get.context, get.rank)?, (side(get.from), side(get.to)));
        let made = self.comm.get(target, get.bytes as u64, sides);
        made.map_err(|error| fault("get", error))
    }

    /// Waits for gets; the request, or 0: there are none.
    pub fn flush(&self, context: c_int, rank: u32) -> Result<u64, Fault> {
        let made = self.comm.flush(self.target(context, rank)?);
        made.map(|request| request.unwrap_or(0)).map_err(|error| fault("flush", error))
    }
}
