//! The two queue pairs of a companion.

use super::super::Step;
use super::super::mtu::mtu_code;
use super::super::queue::{RNR_TIMER, no_attributes};
use super::super::rail::Verbs;
use super::super::sys::abi::{AhAttr, QpAttr, QpCap, QpInitAttr};
use super::super::sys::{CompletionQueue, QueuePair, numbers as n};
use super::adds::ADDS_MAX;
use super::error::{CompanionError, at};
use core::ffi::c_int;

/// A queue pair that takes no receives.
pub(super) fn create(rail: &Verbs, cq: &CompletionQueue) -> Result<QueuePair, CompanionError> {
    let shared = rail.domain.shared();
    let none = core::ptr::null_mut();
    let cap = QpCap {
        max_send_wr: ADDS_MAX,
        max_recv_wr: 1, // some drivers refuse a queue of none
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let mut init = QpInitAttr {
        qp_context: none,
        send_cq: cq.as_ptr(),
        recv_cq: cq.as_ptr(),
        srq: none,
        cap,
        qp_type: n::QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: the companion's completion queue, which it drops after its queue pairs.
    let pair = unsafe { QueuePair::create(shared.device(), shared.pd(), &mut init) };
    pair.map_err(at(Step::QueuePair))
}

/// Connects a queue pair to another one of its own port, which may do in our memory what `access`
/// says.
pub(super) fn join(
    rail: &Verbs,
    pair: &mut QueuePair,
    other: u32,
    access: c_int,
) -> Result<(), CompanionError> {
    let way = rail.way_to(rail.gid, rail.lid);
    let mut attr = initial(rail, access);
    let mask = n::QP_STATE | n::QP_PKEY_INDEX | n::QP_PORT | n::QP_ACCESS_FLAGS;
    pair.modify(&mut attr, mask).map_err(at(Step::Init))?;
    let mut attr = receiving(rail, other, way);
    let mask = n::QP_STATE
        | n::QP_AV
        | n::QP_PATH_MTU
        | n::QP_DEST_QPN
        | n::QP_RQ_PSN
        | n::QP_MAX_DEST_RD_ATOMIC
        | n::QP_MIN_RNR_TIMER;
    pair.modify(&mut attr, mask).map_err(at(Step::ReadyToReceive))?;
    let mut attr = sending(rail);
    let mask = n::QP_STATE
        | n::QP_TIMEOUT
        | n::QP_RETRY_CNT
        | n::QP_RNR_RETRY
        | n::QP_SQ_PSN
        | n::QP_MAX_RD_ATOMIC;
    pair.modify(&mut attr, mask).map_err(at(Step::ReadyToSend))
}

fn initial(rail: &Verbs, access: c_int) -> QpAttr {
    let mut attr = no_attributes();
    attr.qp_state = n::QPS_INIT;
    attr.pkey_index = rail.path.pkey_index;
    attr.port_num = rail.port;
    attr.qp_access_flags = (n::ACCESS_LOCAL_WRITE | access) as u32;
    attr
}

fn receiving(rail: &Verbs, other: u32, way: AhAttr) -> QpAttr {
    let mut attr = no_attributes();
    attr.qp_state = n::QPS_RTR;
    attr.path_mtu = mtu_code(rail.mtu_bytes);
    attr.dest_qp_num = other;
    attr.max_dest_rd_atomic = rail.answers_max;
    attr.min_rnr_timer = RNR_TIMER;
    attr.ah_attr = way;
    attr
}

fn sending(rail: &Verbs) -> QpAttr {
    let mut attr = no_attributes();
    attr.qp_state = n::QPS_RTS;
    attr.timeout = rail.path.timeout;
    attr.retry_cnt = rail.path.retries.min(rail.retries_max());
    attr.max_rd_atomic = rail.reads_max.min(rail.answers_max);
    attr
}
