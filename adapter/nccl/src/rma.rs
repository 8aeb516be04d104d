//! One-sided operations that NCCL's host threads ask for, without versions: RMA, and GIN by proxy.

use crate::abi::{PTR_CUDA, PTR_HOST};
use crate::net::device::Device;
use crate::net::kind::{Kind, joined};
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
use std::sync::atomic::{AtomicBool, Ordering};

/// `NCCL_NET_DEVICE_GIN_PROXY`: device code asks a thread of NCCL's.
pub const DEVICE_TYPE: c_int = 2;
/// A signal grows by one.
const SIGNAL_INC: u32 = 1;
/// It grows by a value.
const SIGNAL_ADD: u32 = 2;
/// The list of requests that name a communicator, and no contexts.
const LIST_OF_COMM: usize = 0;

/// The ranks of one connection of NCCL's.
pub struct Coll(Arc<Ranks>);

/// A communicator, and whether it was said that it has failed.
struct Ranks {
    comm: Comm,
    has_said: AtomicBool,
}

/// A set of contexts.
pub struct Context {
    ranks: Arc<Ranks>,
    list: usize,
}

/// Who issues operations: a communicator, or a set of contexts of it.
#[derive(Copy, Clone)]
pub struct Issuer<'c> {
    ranks: &'c Ranks,
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
    fault_of(error)
}

fn fault_of(error: RmaError) -> Fault {
    match error {
        RmaError::Open(error) => Fault::from(&error),
        RmaError::Listen(error) => Fault::from(&error),
        RmaError::Group(_)
        | RmaError::Missing(_)
        | RmaError::Rank(_)
        | RmaError::Told(_)
        | RmaError::Broken => Fault::Remote,
        RmaError::System(_) => Fault::System,
        RmaError::Register(_) | RmaError::Argument(_) => Fault::Argument,
        RmaError::Window(WindowError::Failed(_, error)) => Fault::from(error),
        // it gave up a call that all ranks make
        RmaError::Window(WindowError::Freed) => Fault::Remote,
        RmaError::Window(WindowError::Memory | WindowError::OutcomeUnknown) => Fault::System,
        RmaError::Window(_) => Fault::Argument,
        RmaError::Refused(refused) => fault_of(RmaError::Window(refused.why)),
        RmaError::Full => Fault::Internal,
    }
}

/// NCCL opens a communicator for each device near the GPU, but kernels and its own host calls may
/// use the first context alone, and so one device. Where that is an interface, the others are
/// rails, too.
fn kind(device: &Device) -> Kind {
    let Kind::Interfaces(own) = device.kind else { return device.kind };
    let others = (0..net::device_count() as c_int).filter_map(|number| net::device(number).ok());
    Kind::Interfaces(others.fold(own, |all, (_, other)| match other.kind {
        Kind::Interfaces(its) => joined(all, &its),
        Kind::Alone | Kind::Ports { .. } | Kind::Nics { .. } => all,
    }))
}

fn options(device: &Device) -> Options {
    let mut options = Options {
        limits: Limits { rails_max: RAILS_MAX as u32, ..Limits::default() },
        verbs_names: Names::WithNccl,
        interfaces_spare: Some(device.spare),
        family: device.family,
        ..Options::default()
    };
    kind(device).choose(&mut options);
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
    let comm = made.map_err(|error| fault("connect", error))?;
    Ok(Coll(Arc::new(Ranks { comm, has_said: AtomicBool::new(false) })))
}

impl Ranks {
    /// What NCCL hears of an operation that has failed: its thread stops then, whichever operation
    /// it was. So the other ranks are told.
    fn fails(&self, what: &str, error: RmaError) -> Fault {
        self.comm.fail();
        self.fault(what, error)
    }

    /// The same without telling the ranks. What stays so is said once.
    fn fault(&self, what: &str, error: RmaError) -> Fault {
        let stays = matches!(error, RmaError::Told(_) | RmaError::Missing(_) | RmaError::Broken);
        if stays && self.has_said.swap(true, Ordering::Relaxed) {
            return fault_of(error); // nothing is ordered by it
        }
        fault(what, error)
    }

    fn progress(&self) -> Result<(), Fault> {
        self.comm.progress().map_err(|error| self.fault("progress", error))
    }
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
        let made = unsafe { self.0.comm.register((address, bytes as u64), &options) };
        made.map(|memory| memory.0).map_err(|error| fault("registration", error))
    }

    /// Ends a registration.
    pub fn deregister(&self, memory: u64) -> Result<(), Fault> {
        self.0.comm.deregister(Memory(memory)).map_err(|error| fault("deregistration", error))
    }

    /// Makes contexts.
    pub fn contexts(&self, contexts: usize) -> Result<Context, Fault> {
        let made = self.0.comm.contexts_open(contexts);
        let list = made.map_err(|error| self.0.fault("contexts", error))?;
        Ok(Context { ranks: Arc::clone(&self.0), list })
    }

    /// Issues without contexts.
    pub fn issuer(&self) -> Issuer<'_> {
        Issuer { ranks: &self.0, list: LIST_OF_COMM }
    }

    /// How a request stands.
    #[inline]
    pub fn test(&self, request: u64) -> Result<bool, Fault> {
        self.0.comm.test(request).map_err(|error| match error {
            // the ranks go on; NCCL up to 2.29 asks again and again
            RmaError::Refused(it) if it.again => fault_of(error),
            RmaError::Refused(_) => fault("request", error),
            _ => self.0.fails("test", error),
        })
    }

    /// Makes progress.
    pub fn progress(&self) -> Result<(), Fault> {
        self.0.progress()
    }
}

impl Context {
    /// Issues by these contexts.
    pub fn issuer(&self) -> Issuer<'_> {
        Issuer { ranks: &self.ranks, list: self.list }
    }

    /// Makes progress.
    pub fn progress(&self) -> Result<(), Fault> {
        self.ranks.progress()
    }

    /// Whether a rank has failed.
    pub fn has_failed(&self) -> bool {
        self.ranks.comm.failure().is_some()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.ranks.comm.contexts_close(self.list);
    }
}

fn side((offset, memory): End) -> Side {
    Side { memory: Memory(memory), offset }
}

impl Issuer<'_> {
    fn fails<T>(&self, what: &str, made: Result<T, RmaError>) -> Result<T, Fault> {
        made.map_err(|error| self.ranks.fails(what, error))
    }

    fn target(&self, context: c_int, rank: u32) -> Result<Target, RmaError> {
        let context = usize::try_from(context).map_err(|_| RmaError::Argument("the context"))?;
        Ok(Target { list: self.list, context, rank })
    }

    /// Puts bytes, and raises a signal behind them; the request.
    #[inline]
    pub fn put(&self, put: &Transfer, raise: Option<Raise>) -> Result<u64, Fault> {
        self.fails("put", self.put_by(put, raise))
    }

    #[inline]
    fn put_by(&self, put: &Transfer, raise: Option<Raise>) -> Result<u64, RmaError> {
        let signal = match raise {
            None => None,
            Some(Raise { at, value, operation }) => {
                let value = match operation {
                    SIGNAL_INC => 1,
                    SIGNAL_ADD => value,
                    _ => return Err(RmaError::Argument("the signal's operation")),
                };
                Some(Signal { at: side(at), value })
            }
        };
        let (target, sides) = (self.target(put.context, put.rank)?, (side(put.from), side(put.to)));
        self.ranks.comm.put(target, put.bytes as u64, sides, signal)
    }

    /// Gets bytes; the request.
    pub fn get(&self, get: &Transfer) -> Result<u64, Fault> {
        let sides = (side(get.from), side(get.to));
        let made = self.target(get.context, get.rank);
        let made = made.and_then(|to| self.ranks.comm.get(to, get.bytes as u64, sides));
        self.fails("get", made)
    }

    /// Waits for gets; the request, or 0: there are none.
    pub fn flush(&self, context: c_int, rank: u32) -> Result<u64, Fault> {
        let made = self.target(context, rank).and_then(|target| self.ranks.comm.flush(target));
        self.fails("flush", made.map(|request| request.unwrap_or(0)))
    }
}
