//! The two queue pairs of a companion.

use super::super::Step;
use super::super::rail::Verbs;
use super::super::sys::abi::{QpCap, QpInitAttr};
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
    let (port, end) = (&rail.port, rail.port.own_end(other, rail.peers.abilities.answers_max));
    port.begin(pair, n::ACCESS_LOCAL_WRITE | access).map_err(at(Step::Init))?;
    port.join(pair, &end).map_err(at(Step::ReadyToReceive))?;
    let reads = rail.peers.abilities.reads_max.min(rail.peers.abilities.answers_max);
    port.start(pair, 0, reads).map_err(at(Step::ReadyToSend))
}
