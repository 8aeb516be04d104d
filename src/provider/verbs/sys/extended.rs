//! The extended post interface (`ibv_wr_…`), for queue pairs that are made for it.
//!
//! Between `wr_start` and `wr_complete`, the driver gets the requests one by one, by a function for
//! each kind. `wr_complete` rings the doorbell. Only requests of one part or none go this way.
//! Requests of several parts go by `ibv_post_send`, which may alternate with it (ibv_wr_post(3)).
//!
//! The reason is soft-RoCE, whose functions for lists count wrongly. With rdma-core 44,
//! `wr_set_sge_list` takes all parts for as long as the first. `wr_set_inline_data_list` takes the
//! whole for empty. Both were seen in the guest, and in `librxe-rdmav34.so`.
//!
//! The structures here stand behind mutexes in the header. The C library sets the size of these, so
//! the compiler computes the offsets.

use super::abi::{Context, Cq, Fact, Pd, Qp, QpCap, SendWr, Sge, layout};
use super::numbers as n;
use super::objects::Device;
use crate::memory::Errno;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};
use core::ptr::{self, NonNull};

layout! { STRUCT_FACTS:
    /// What a queue pair is made with that has more than the first ones had.
    struct QpInitAttrEx = "struct ibv_qp_init_attr_ex" [136] {
        qp_context: *mut c_void = "qp_context" @ 0,
        send_cq: *mut Cq = "send_cq" @ 8,
        recv_cq: *mut Cq = "recv_cq" @ 16,
        srq: *mut c_void = "srq" @ 24,
        /// Asked for; afterwards what there is.
        cap: QpCap = "cap" @ 32,
        /// `QPT_RC`.
        qp_type: c_int = "qp_type" @ 52,
        /// Whether every send is signalled.
        sq_sig_all: c_int = "sq_sig_all" @ 56,
        /// Which of the fields below count, as `QP_INIT_`.
        comp_mask: u32 = "comp_mask" @ 60,
        pd: *mut Pd = "pd" @ 64,
        xrcd: *mut c_void = "xrcd" @ 72,
        create_flags: u32 = "create_flags" @ 80,
        max_tso_header: u16 = "max_tso_header" @ 84,
        rwq_ind_tbl: *mut c_void = "rwq_ind_tbl" @ 88,
        rx_hash_conf: [u64; 3] = "rx_hash_conf" @ 96,
        source_qpn: u32 = "source_qpn" @ 120,
        /// Which requests will be posted, as `QP_EX_`.
        send_ops_flags: u64 = "send_ops_flags" @ 128,
    }
}

/// A context to its end, by which one sees whether it is an extended one.
#[derive(Copy, Clone)]
#[repr(C)]
struct WholeContext {
    head: Context,
    num_comp_vectors: c_int,
    mutex: libc::pthread_mutex_t,
    abi_compat: *mut c_void,
}

/// What stands before a context that is extended: the last of it, which is what came first.
#[derive(Copy, Clone)]
#[repr(C)]
struct Front {
    create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    unused: [*mut c_void; 4],
    placeholder: u64,
    /// How long all is, context included, as library and driver were built.
    size: usize,
}

/// A queue pair to its end.
#[derive(Copy, Clone)]
#[repr(C)]
struct WholeQp {
    head: Qp,
    state: c_int,
    qp_type: c_int,
    mutex: libc::pthread_mutex_t,
    cond: libc::pthread_cond_t,
    events_completed: u32,
}

/// The functions of a queue pair by which requests are posted. Those that it was not made for are
/// null, and so is a type of none of them.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct QpEx {
    base: WholeQp,
    comp_mask: u64,
    wr_id: u64,
    wr_flags: c_uint,
    atomic_cmp_swp: *mut c_void,
    atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
    bind_mw: *mut c_void,
    local_inv: *mut c_void,
    rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    send: Option<unsafe extern "C" fn(*mut QpEx)>,
    unused: [*mut c_void; 5],
    set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)>,
    set_inline_data_list: *mut c_void,
    set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
    start: Option<unsafe extern "C" fn(*mut QpEx)>,
    complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    abort: Option<unsafe extern "C" fn(*mut QpEx)>,
}

macro_rules! at {
    ($c:literal, $field:literal, $ty:ty, $ours:ident) => {
        Fact {
            expression: concat!("offsetof(struct ", $c, ", ", $field, ")"),
            value: offset_of!($ty, $ours) as u64,
        }
    };
}

const WHOLE_FACTS: &[Fact] = &[
    at!("ibv_context", "abi_compat", WholeContext, abi_compat),
    Fact { expression: "sizeof(struct ibv_context)", value: size_of::<WholeContext>() as u64 },
    Fact { expression: "sizeof(struct ibv_qp)", value: size_of::<WholeQp>() as u64 },
    // from its end, since it grows at its front
    Fact {
        expression: "offsetof(struct verbs_context, context) \
                     - offsetof(struct verbs_context, create_qp_ex)",
        value: (size_of::<Front>() - offset_of!(Front, create_qp_ex)) as u64,
    },
    Fact {
        expression: "offsetof(struct verbs_context, context) - offsetof(struct verbs_context, sz)",
        value: (size_of::<Front>() - offset_of!(Front, size)) as u64,
    },
    at!("ibv_qp_ex", "wr_id", QpEx, wr_id),
    at!("ibv_qp_ex", "wr_flags", QpEx, wr_flags),
    at!("ibv_qp_ex", "wr_atomic_fetch_add", QpEx, atomic_fetch_add),
    at!("ibv_qp_ex", "wr_rdma_read", QpEx, rdma_read),
    at!("ibv_qp_ex", "wr_rdma_write", QpEx, rdma_write),
    at!("ibv_qp_ex", "wr_rdma_write_imm", QpEx, rdma_write_imm),
    at!("ibv_qp_ex", "wr_send", QpEx, send),
    at!("ibv_qp_ex", "wr_set_inline_data", QpEx, set_inline_data),
    at!("ibv_qp_ex", "wr_set_sge", QpEx, set_sge),
    at!("ibv_qp_ex", "wr_set_sge_list", QpEx, set_sge_list),
    at!("ibv_qp_ex", "wr_start", QpEx, start),
    at!("ibv_qp_ex", "wr_complete", QpEx, complete),
    at!("ibv_qp_ex", "wr_abort", QpEx, abort),
];

/// The same for a C compiler.
pub const FACTS: [&[Fact]; 2] = [STRUCT_FACTS, WHOLE_FACTS];

/// Makes a queue pair that posts through functions of its own.
///
/// *Errors*: EOPNOTSUPP where library or driver know of none; else why there is none.
///
/// # Safety
/// - as [`super::QueuePair::create`].
pub unsafe fn create(
    device: &Device,
    init: &mut QpInitAttrEx,
) -> Result<(NonNull<Qp>, NonNull<QpEx>), Errno> {
    let none = Errno(libc::EOPNOTSUPP);
    let library = device.library();
    let context = device.context();
    let to_extended = library.qp_to_qp_ex.ok_or(none)?;
    // SAFETY: an open device, whose context every library makes to its end.
    let mark = unsafe { (*context.cast::<WholeContext>()).abi_compat };
    // all bits: nothing lies at such an address
    if mark != ptr::without_provenance_mut(usize::MAX) {
        return Err(none);
    }
    // SAFETY: before a context that is marked so there is the rest of an extended one.
    let front = unsafe { *context.cast::<Front>().sub(1) };
    if front.size < size_of::<Front>() + size_of::<WholeContext>() {
        return Err(none);
    }
    let create = front.create_qp_ex.ok_or(none)?;
    // SAFETY: an open device; the caller vouches for the domain and the queues.
    let qp = NonNull::new(unsafe { create(context, init) }).ok_or_else(Errno::last)?;
    // SAFETY: a live queue pair.
    let extended = NonNull::new(unsafe { to_extended(qp.as_ptr()) });
    // SAFETY: it is one that the library made to the end that we read.
    let extended = extended.filter(|it| unsafe { has_all(it.as_ptr(), init.send_ops_flags) });
    extended.map(|extended| (qp, extended)).ok_or_else(|| {
        // SAFETY: just made, and nobody uses it.
        unsafe { (library.destroy_qp)(qp.as_ptr()) };
        none
    })
}

/// Whether all functions are there that [`post`] calls.
///
/// # Safety
/// - a live queue pair, made to its end.
unsafe fn has_all(qp: *mut QpEx, flags: u64) -> bool {
    // SAFETY: the caller's contract.
    let it = unsafe { &*qp };
    let adds = flags & n::QP_EX_FETCH_ADD == 0 || it.atomic_fetch_add.is_some();
    let parts = it.set_sge.is_some() && it.set_sge_list.is_some() && it.set_inline_data.is_some();
    let kinds = it.rdma_read.is_some() && it.rdma_write.is_some() && it.rdma_write_imm.is_some();
    let frame = it.start.is_some() && it.complete.is_some() && it.abort.is_some();
    adds && parts && kinds && frame && it.send.is_some()
}

/// Posts a chain, with one doorbell: all of it, or nothing.
///
/// # Safety
/// - a live queue pair that [`create`] has made, used by nobody else meanwhile;
/// - of the chain, as [`super::QueuePair::send`]; no request has more than one part.
#[inline]
pub unsafe fn post(qp: NonNull<QpEx>, first: *mut SendWr) -> c_int {
    // SAFETY: this function's contract: its functions are there, since `create` has looked.
    unsafe { post_chain(qp.as_ptr(), first) }.unwrap_or(libc::ENOSYS)
}

/// `None`: a function is missing, which [`has_all`] excludes.
#[inline]
unsafe fn post_chain(qp: *mut QpEx, first: *mut SendWr) -> Option<c_int> {
    // SAFETY: all of it is the contract of `post`; each function belongs to this queue pair.
    unsafe {
        let complete = (*qp).complete?;
        (*qp).start?(qp);
        let mut at = first;
        while let Some(wr) = at.as_ref() {
            (*qp).wr_id = wr.wr_id;
            (*qp).wr_flags = wr.send_flags;
            let (key, target) = (wr.rkey(), wr.remote_addr);
            match wr.opcode {
                n::WR_WRITE => (*qp).rdma_write?(qp, key, target),
                n::WR_WRITE_IMM => (*qp).rdma_write_imm?(qp, key, target, wr.imm_data),
                n::WR_SEND => (*qp).send?(qp),
                n::WR_READ => (*qp).rdma_read?(qp, key, target),
                _ => (*qp).atomic_fetch_add?(qp, wr.atomic_rkey, target, wr.rkey_or_add),
            }
            part(qp, wr)?;
            at = wr.next;
        }
        Some(complete(qp))
    }
}

/// Says where the bytes of the last request lie. Drivers write a request when they are told, so
/// that one of no bytes has to be told so.
#[inline]
unsafe fn part(qp: *mut QpEx, wr: &SendWr) -> Option<()> {
    // SAFETY: the contract of `post`: the request has a part, or none.
    unsafe {
        if wr.num_sge == 0 {
            (*qp).set_sge_list?(qp, 0, ptr::null());
            return Some(());
        }
        let part = *wr.sg_list;
        match wr.send_flags & n::SEND_INLINE != 0 {
            true => {
                let addr = part.addr as *mut c_void;
                (*qp).set_inline_data?(qp, addr, part.length as usize);
            }
            false => (*qp).set_sge?(qp, part.lkey, part.addr, part.length),
        }
    }
    Some(())
}
