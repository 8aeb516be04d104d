//! GPU-initiated operations without a NIC, without versions: what the GIN tables' functions are
//! translated to where kernels ask ([`crate::one_sided`]).
//!
//! A rank has a *collective communicator* for each of NCCL's connections, with the windows that are
//! registered with it, and contexts on it. One thread of the process executes what kernels queue
//! (`crosstie::host::gin`).

use crate::abi::DeviceHandle;
use crate::launcher;
use crate::net::process::OfProcess;
use crate::net::{Fault, log};
use crate::one_sided::Table;
use core::ffi::c_int;
use core::ptr::without_provenance_mut;
use crosstie::connect::group::{HANDLE_BYTES, Listener};
use crosstie::host::gin::comm::Window;
use crosstie::host::gin::{self, Comm, Config, Engine, GinError};
use crosstie::host::settings;
use crosstie::memory::Variables;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// `NCCL_NET_DEVICE_GIN_GDAKI`: device code writes mlx5's queue entries.
pub const DEVICE_TYPE: c_int = 3;

static ENGINE: OfProcess<Mutex<Option<Engine>>> =
    OfProcess::new(Mutex::new(None), || Mutex::new(None));

/// The ranks of one connection of NCCL's.
pub struct Coll(Arc<Comm>);

/// A set of contexts, and what NCCL hands to its kernels.
pub struct Context {
    comm: Arc<Comm>,
    number: u64,
    /// NCCL reads it while the context stands.
    pub handle: DeviceHandle,
}

/// NCCL 2.30.0, as `ncclGetVersion` counts.
const NCCL_2_30: i32 = 23_000;
/// The first release that takes the table of v13 for one of RMA.
const NCCL_RMA_BY_V13: i32 = 23_005;

/// What `ncclGetVersion` says, where NCCL is a library of this process or a part of the program.
pub fn nccl_version() -> Option<i32> {
    // SAFETY: a name that ends with a zero; nothing is loaded that is not there already.
    let library =
        unsafe { libc::dlopen(c"libnccl.so.2".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    let library = if library.is_null() { libc::RTLD_DEFAULT } else { library };
    // SAFETY: a library that stays loaded, since NCCL calls us, and a name that ends with a zero.
    let symbol = unsafe { libc::dlsym(library, c"ncclGetVersion".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: NCCL's function of this name has had this type since 2.3.
    let version: unsafe extern "C" fn(*mut c_int) -> c_int =
        unsafe { core::mem::transmute(symbol) };
    let mut number = 0;
    // SAFETY: valid for a write.
    (unsafe { version(&mut number) } == 0).then_some(number)
}

/// Whether a release takes the table of v13 for one of RMA, where it knows no newer one.
pub fn is_taken_for_rma(version: Option<i32>) -> bool {
    version.is_some_and(|version| version >= NCCL_RMA_BY_V13)
}

/// Why a table offers no software HCA, or nothing.
pub fn refusal(table: Table, wish: Option<bool>, version: Option<i32>) -> Option<String> {
    let is_other = table == Table::GinV11 && version.is_some_and(|version| version >= NCCL_2_30);
    if is_other && wish != Some(false) {
        return Some("NCCL 2.30 expects other structures than this table has".into());
    }
    gin::refusal(wish).map(Into::into)
}

fn fault(what: &str, error: &GinError) -> Fault {
    log::warn(&format!("GIN {what}: {error}"));
    match error {
        GinError::Driver(_)
        | GinError::Cuda(_)
        | GinError::System(_)
        | GinError::Endpoint(_)
        | GinError::Register(_)
        | GinError::Window(_) => Fault::System,
        GinError::Group(_) | GinError::Rank(_) | GinError::Hosts(_) | GinError::Late(_) => {
            Fault::Remote
        }
        GinError::NotExportable(_)
        | GinError::Argument(_)
        | GinError::Key(_)
        | GinError::Pin(_) => Fault::Argument,
        GinError::Full => Fault::Internal,
    }
}

/// Opens a listener; its handle is [`HANDLE_BYTES`] long.
pub fn listen() -> Result<Listener, Fault> {
    let environment = settings::environment();
    let said = launcher::one_host(Variables::of_process());
    // who numbers hosts means several, whatever the launcher knows of them
    let is_one_host = said.is_some() && environment.node_id.is_none();
    let made = gin::listen(&environment, is_one_host);
    made.map_err(|error| fault("listen", &error))
}

/// Brings the ranks together by their handles.
pub fn connect(
    listener: &Listener,
    handles: &[[u8; HANDLE_BYTES]],
    rank: usize,
) -> Result<Box<Coll>, Fault> {
    let timeout = settings::environment().connect_timeout;
    let timeout = timeout.map(|timeout| Duration::from_nanos(timeout.0));
    let made = Comm::connect(listener, handles, rank, timeout);
    let comm = Arc::new(made.map_err(|error| fault("connect", &error))?);
    let mut engine = ENGINE.get().lock().unwrap_or_else(PoisonError::into_inner);
    if engine.is_none() {
        let started = Engine::start(&settings::environment());
        *engine = Some(started.map_err(|error| fault("thread", &error))?);
    }
    engine.iter().for_each(|engine| engine.add(comm.clone()));
    Ok(Box::new(Coll(comm)))
}

/// Ends a communicator; with the last one the thread ends.
pub fn close(coll: Coll) {
    let mut engine = ENGINE.get().lock().unwrap_or_else(PoisonError::into_inner);
    if engine.as_ref().is_some_and(|engine| !engine.remove(&coll.0)) {
        *engine = None;
    }
}

impl Coll {
    /// Registers device memory.
    pub fn register(&self, address: u64, bytes: usize) -> Result<Window, Fault> {
        self.0.register(address, bytes).map_err(|error| fault("registration", &error))
    }

    /// Takes part in a registration without memory, so that it fails at all ranks.
    pub fn refuse(&self, what: &'static str) -> Fault {
        let told = self.0.agree(Err(GinError::Argument(what)));
        told.map_or_else(|error| fault("registration", &error), |_| Fault::Argument)
    }

    /// Ends a registration.
    pub fn deregister(&self, key: u32) {
        self.0.deregister(key);
    }

    /// Makes contexts. `version` is that of the device handle.
    pub fn context(&self, config: &Config, version: c_int) -> Result<Box<Context>, Fault> {
        let made = self.0.context(config);
        let (number, address) = made.map_err(|error| fault("contexts", &error))?;
        let handle = DeviceHandle {
            device_type: DEVICE_TYPE,
            device_version: version,
            handle: without_provenance_mut(address as usize),
            size: 0,
            needs_proxy_progress: 0,
        };
        Ok(Box::new(Context { comm: self.0.clone(), number, handle }))
    }
}

impl Context {
    /// Whether a queue has failed.
    pub fn has_failed(&self) -> bool {
        self.comm.has_failed(self.number)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.comm.context_end(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NCCL 2.30.3 takes a table of v11 where there is no newer one, and reads 296 bytes of 280.
    #[test]
    fn table_offers_nothing_to_a_release_that_reads_other_structures() {
        for wish in [None, Some(true)] {
            assert!(refusal(Table::GinV11, wish, Some(23_003)).is_some());
        }
        assert_eq!(refusal(Table::GinV11, Some(true), Some(22_809)), None);
        assert_eq!(refusal(Table::GinV11, Some(true), None), None);
        assert!(refusal(Table::GinV11, Some(false), Some(22_809)).is_some());
        assert_eq!(refusal(Table::GinV13, Some(true), Some(23_007)), None);
    }
}
