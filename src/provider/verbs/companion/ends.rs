//! Queue pairs that are connected within their port: a companion's two, and that of flushes.

use super::super::Step;
use super::super::mtu::mtu_code;
use super::super::port::OtherEnd;
use super::super::rail::Verbs;
use super::super::sys::abi::{QpCap, QpInitAttr};
use super::super::sys::{CompletionQueue, QueuePair, numbers as n};
use super::error::{CompanionError, at};
use core::ffi::c_int;

/// A queue pair for so many sends, which takes no receives. The queue is dropped after it.
pub(super) fn create(
    rail: &Verbs,
    cq: &CompletionQueue,
    sends: u32,
) -> Result<QueuePair, CompanionError> {
    let shared = rail.domain.shared();
    let cap = QpCap {
        max_send_wr: sends,
        max_recv_wr: 1, // some drivers refuse a queue of none
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let mut init = QpInitAttr::reliable(cq.as_ptr(), cap);
    // SAFETY: a live queue, which outlives its queue pairs by the order of fields.
    let pair = unsafe { QueuePair::create(shared.device(), shared.pd(), &mut init) };
    pair.map_err(at(Step::QueuePair))
}

/// Connects a queue pair to another one of its own port, or to itself, which may do in our memory
/// what `access` says, with so many reads and adds on their way.
pub(super) fn join(
    rail: &Verbs,
    pair: &mut QueuePair,
    number: u32,
    access: c_int,
    reads: u8,
) -> Result<(), CompanionError> {
    let port = &rail.port;
    let (gid, lid, mtu_code) = (port.place.gid, port.lid, mtu_code(port.mtu_bytes));
    let end = OtherEnd { number, gid, lid, first_packet: 0, mtu_code, answers_max: reads };
    port.begin(pair, n::ACCESS_LOCAL_WRITE | access).map_err(at(Step::Init))?;
    port.join(pair, &end).map_err(at(Step::ReadyToReceive))?;
    port.start(pair, 0, reads).map_err(at(Step::ReadyToSend))
}
