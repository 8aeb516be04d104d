//! The tables that host threads of NCCL's use, each called as the sources of its releases do.

use crosstie_nccl::abi::Logger;
use crosstie_nccl::abi::gin::{ConfigV13, GinV11, GinV13};
use crosstie_nccl::abi::rma::{ConfigV14, RmaV14, RmaV15};
use crosstie_nccl::abi::table::Pointer;
use crosstie_nccl::{ncclGinPlugin_v11, ncclGinPlugin_v13, ncclRmaPlugin_v14, ncclRmaPlugin_v15};
use std::ffi::c_int;
use std::ptr::null_mut;

/// Memory of the host, and of GPUs.
pub const HOST: c_int = 1;
pub const CUDA: c_int = 2;
/// Operations of signals.
pub const INC: u32 = 1;
pub const ADD: u32 = 2;

/// A table, by the number that tests give it: 11 and 13 are of GIN, 14 and 15 of RMA.
#[derive(Copy, Clone)]
pub enum Table {
    V11(&'static GinV11),
    V13(&'static GinV13),
    V14(&'static RmaV14),
    V15(&'static RmaV15),
}

/// What all tables have, which is of one type in all of them.
macro_rules! each {
    ($table:expr, $it:ident => $what:expr) => {
        match $table {
            Table::V11($it) => $what,
            Table::V13($it) => $what,
            Table::V14($it) => $what,
            Table::V15($it) => $what,
        }
    };
}

/// One end of a transfer: offset and handle.
pub type End = (u64, Pointer);

/// A word, by how much it grows, and how.
pub type Raise = (End, u64, u32);

fn checked(rc: c_int) -> Result<(), c_int> {
    if rc == 0 { Ok(()) } else { Err(rc) }
}

// SAFETY of all calls below: the tables' contract is NCCL's, and tests use them as NCCL does.
impl Table {
    pub fn of(number: usize) -> Table {
        match number {
            11 => Table::V11(&ncclGinPlugin_v11),
            13 => Table::V13(&ncclGinPlugin_v13),
            14 => Table::V14(&ncclRmaPlugin_v14),
            15 => Table::V15(&ncclRmaPlugin_v15),
            other => panic!("no table {other}"),
        }
    }

    pub fn init(self, logger: Option<Logger>) -> Result<Pointer, c_int> {
        let mut out = null_mut();
        // SAFETY: as above.
        checked(each!(self, it => unsafe { (it.init)(&mut out, 1, logger) })).map(|()| out)
    }

    pub fn devices(self) -> c_int {
        let mut count = -1;
        // SAFETY: as above.
        assert_eq!(each!(self, it => unsafe { (it.devices)(&mut count) }), 0);
        count
    }

    /// Type and `maxRecvs` of a device.
    pub fn properties(self, device: c_int) -> (c_int, c_int) {
        match self {
            Table::V11(it) => {
                let mut props = std::mem::MaybeUninit::uninit();
                // SAFETY: as above; every field is written.
                let props = unsafe {
                    assert_eq!((it.get_properties)(device, props.as_mut_ptr()), 0);
                    props.assume_init()
                };
                (props.net_device_type, props.max_recvs)
            }
            Table::V13(GinV13 { get_properties, .. })
            | Table::V14(RmaV14 { get_properties, .. })
            | Table::V15(RmaV15 { get_properties, .. }) => {
                let mut props = std::mem::MaybeUninit::uninit();
                // SAFETY: as above; every field is written.
                let props = unsafe {
                    assert_eq!(get_properties(device, props.as_mut_ptr()), 0);
                    props.assume_init()
                };
                (props.net_device_type, props.max_recvs)
            }
        }
    }

    pub fn listen(self, context: Pointer, handle: &mut [u8; 128]) -> Result<Pointer, c_int> {
        let (mut out, handle) = (null_mut(), handle.as_mut_ptr().cast());
        // SAFETY: as above.
        checked(each!(self, it => unsafe { (it.listen)(context, 0, handle, &mut out) }))
            .map(|()| out)
    }

    /// Connects, with a context that is not the plugin's: NCCL gives the net's.
    pub fn connect(
        self,
        handles: &mut [[u8; 128]],
        rank: usize,
        listener: Pointer,
    ) -> Result<Pointer, c_int> {
        let (mut out, mut other) = (null_mut(), 0xbad_u64);
        let mut pointers: Vec<Pointer> =
            handles.iter_mut().map(|handle| handle.as_mut_ptr().cast()).collect();
        let (list, ranks) = (pointers.as_mut_ptr(), handles.len() as c_int);
        let foreign: Pointer = (&raw mut other).cast();
        // SAFETY: as above.
        let rc = each!(self, it => unsafe {
            (it.connect)(foreign, list, ranks, rank as c_int, listener, &mut out)
        });
        checked(rc).map(|()| out)
    }

    /// Contexts, as the release makes them; NULL with v11, which makes none.
    pub fn contexts(self, coll: Pointer, contexts: c_int) -> Result<Pointer, c_int> {
        let mut out = null_mut();
        let rc = match self {
            Table::V11(_) => 0,
            Table::V13(it) => {
                let config = ConfigV13 {
                    signals: 4,
                    counters: 4,
                    contexts,
                    queue_depth: 0,
                    traffic_class: -1,
                };
                // SAFETY: as above. 2.30.3 gives no place for a device handle.
                unsafe { (it.create_context)(coll, &config, &mut out, null_mut()) }
            }
            Table::V14(RmaV14 { create_context, .. })
            | Table::V15(RmaV15 { create_context, .. }) => {
                let config = ConfigV14 { contexts, traffic_class: -1, rank_stride: 1 };
                // SAFETY: as above.
                unsafe { create_context(coll, &config, &mut out) }
            }
        };
        checked(rc).map(|()| out)
    }

    pub fn register(
        self,
        coll: Pointer,
        (address, bytes): (u64, usize),
        kind: c_int,
    ) -> Result<Pointer, c_int> {
        let (mut out, mut of_kernels) = (null_mut(), null_mut());
        let data = address as Pointer;
        let rc = match self {
            Table::V11(GinV11 { reg_mr_sym, .. }) | Table::V13(GinV13 { reg_mr_sym, .. }) => {
                // SAFETY: as above.
                let rc =
                    unsafe { reg_mr_sym(coll, data, bytes, kind, 0, &mut out, &mut of_kernels) };
                assert_eq!(out, of_kernels, "one name for both");
                rc
            }
            Table::V14(RmaV14 { reg_mr_sym, .. }) | Table::V15(RmaV15 { reg_mr_sym, .. }) => {
                // SAFETY: as above.
                unsafe { reg_mr_sym(coll, data, bytes, kind, 1, &mut out) }
            }
        };
        checked(rc).map(|()| out)
    }

    pub fn deregister(self, coll: Pointer, memory: Pointer) -> c_int {
        // SAFETY: as above.
        each!(self, it => unsafe { (it.dereg_mr_sym)(coll, memory) })
    }

    pub fn destroy(self, context: Pointer) -> c_int {
        // SAFETY: as above.
        each!(self, it => unsafe { (it.destroy_context)(context) })
    }

    pub fn close(self, coll: Pointer) -> c_int {
        // SAFETY: as above.
        each!(self, it => unsafe { (it.close_coll)(coll) })
    }

    pub fn close_listen(self, listener: Pointer) -> c_int {
        // SAFETY: as above.
        each!(self, it => unsafe { (it.close_listen)(listener) })
    }

    pub fn finalize(self, context: Pointer) -> c_int {
        // SAFETY: as above.
        each!(self, it => unsafe { (it.finalize)(context) })
    }

    pub fn has_failed(self, context: Pointer) -> bool {
        let mut failed = true;
        // SAFETY: as above; the tables take any pointer.
        assert_eq!(each!(self, it => unsafe { (it.query_last_error)(context, &mut failed) }), 0);
        failed
    }

    pub fn progress(self, coll: Pointer, context: Pointer) -> c_int {
        match self {
            // SAFETY: as above.
            Table::V11(it) => unsafe { (it.gin_progress)(coll) },
            // SAFETY: as above.
            Table::V13(it) => unsafe { (it.gin_progress)(context) },
            // SAFETY: as above.
            Table::V14(it) => unsafe { (it.rma_progress)(context) },
            // SAFETY: as above.
            Table::V15(it) => unsafe { (it.rma_progress)(context) },
        }
    }

    pub fn test(self, coll: Pointer, request: Pointer) -> Result<bool, c_int> {
        let mut done = -1;
        // SAFETY: as above.
        checked(each!(self, it => unsafe { (it.test)(coll, request, &mut done) }))?;
        assert!(done == 0 || done == 1, "done is written: {done}");
        Ok(done == 1)
    }

    pub fn put(
        self,
        (coll, context, number): (Pointer, Pointer, c_int),
        (from, bytes, to): (End, usize, End),
        rank: u32,
        raise: Option<Raise>,
    ) -> Result<Pointer, c_int> {
        let mut out = null_mut();
        let ((a, m), (b, n), out_) = (from, to, &raw mut out);
        // SAFETY: as above.
        let rc = unsafe {
            match (self, raise) {
                (Table::V11(it), None) => (it.iput)(coll, a, m, bytes, b, n, rank, out_),
                (Table::V11(it), Some(((c, s), v, op))) => {
                    (it.iput_signal)(coll, a, m, bytes, b, n, rank, c, s, v, op, out_)
                }
                (Table::V13(GinV13 { iput, .. }) | Table::V14(RmaV14 { iput, .. }), None) => {
                    iput(context, number, a, m, bytes, b, n, rank, out_)
                }
                (Table::V13(it), Some(((c, s), v, op))) => {
                    (it.iput_signal)(context, number, a, m, bytes, b, n, rank, c, s, v, op, out_)
                }
                (Table::V14(RmaV14 { iput_signal, .. }), Some(((c, s), v, op))) => {
                    iput_signal(context, number, a, m, bytes, b, n, rank, c, s, v, op, 0, out_)
                }
                (Table::V15(it), None) => {
                    (it.iput)(context, number, a, m, bytes, b, n, rank, 1, out_)
                }
                (Table::V15(RmaV15 { iput_signal, .. }), Some(((c, s), v, op))) => {
                    iput_signal(context, number, a, m, bytes, b, n, rank, c, s, v, op, 1, 0, out_)
                }
            }
        };
        checked(rc).map(|()| out)
    }

    /// Whether the table has gets.
    pub fn has_gets(self) -> bool {
        !matches!(self, Table::V11(_))
    }

    pub fn get(
        self,
        (context, number): (Pointer, c_int),
        (from, bytes, to): (End, usize, End),
        rank: u32,
    ) -> Result<Pointer, c_int> {
        let mut out = null_mut();
        let ((a, m), (b, n), out_) = (from, to, &raw mut out);
        let rc = match self {
            Table::V11(_) => panic!("v11 has no gets"),
            // SAFETY: as above.
            Table::V13(it) => unsafe { (it.iget)(context, number, a, m, bytes, b, n, rank, out_) },
            // SAFETY: as above.
            Table::V14(it) => unsafe { (it.iget)(context, number, a, m, bytes, b, n, rank, out_) },
            // SAFETY: as above.
            Table::V15(it) => unsafe {
                (it.iget)(context, number, a, m, bytes, b, n, rank, 0, out_)
            },
        };
        checked(rc).map(|()| out)
    }

    pub fn flush(
        self,
        (context, number): (Pointer, c_int),
        memory: Pointer,
        rank: u32,
    ) -> Result<Pointer, c_int> {
        let mut out = null_mut();
        let rc = match self {
            Table::V11(_) => panic!("v11 has no flush"),
            Table::V13(GinV13 { iflush, .. })
            | Table::V14(RmaV14 { iflush, .. })
            | Table::V15(RmaV15 { iflush, .. }) => {
                // SAFETY: as above.
                unsafe { iflush(context, number, memory, rank, &mut out) }
            }
        };
        checked(rc).map(|()| out)
    }
}
