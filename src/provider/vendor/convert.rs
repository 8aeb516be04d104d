//! Between the seam's values and the C structures.
#![forbid(unsafe_code)]

use super::abi::*;
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::base::units::Bytes;
use crate::fabric::{
    Caps, Completion, DownCause, LocalSpan, Op, OpError, OpErrorKind, OpId, OpKind, RecvSlot,
    RemoteSpan, Source,
};
use core::ffi::c_int;

/// The provider's own code in an answer; an answer that carries none is its own code.
pub fn code(answer: c_int) -> i32 {
    if answer <= XTIE_PROVIDER_CODE { XTIE_PROVIDER_CODE.wrapping_sub(answer) } else { answer }
}

pub fn span(span: LocalSpan) -> xtie_provider_span {
    xtie_provider_span { address: span.address(), bytes: span.length().0, key: span.key().0 }
}

fn remote(span: RemoteSpan) -> xtie_provider_remote {
    xtie_provider_remote { address: span.address, key: span.key.0 }
}

/// Whether the caps promise that an op is carried.
pub fn is_within(op: &Op, caps: &Caps) -> bool {
    let is_short = |bytes: Bytes| bytes <= caps.transfer_max;
    match &op.kind {
        OpKind::Send { payload, .. } => payload.length() <= caps.send_payload_max,
        OpKind::Write { source, immediate, .. } => {
            let is_fit = match source {
                Source::Line(_) => true,
                Source::Span(span) => is_short(span.length()),
            };
            is_fit && (immediate.is_none() || caps.immediate)
        }
        OpKind::Read { target, .. } => caps.pull && is_short(target.length()),
        OpKind::Add { .. } => caps.atomic_bytes == 8,
        OpKind::Fence { .. } => false,
    }
}

/// The C form of an op that is no fence, under the name that the vendor is told; its `data` points
/// into `op`.
pub fn op(op: &Op, name: u64) -> xtie_provider_op {
    let mut out = xtie_provider_op {
        id: name,
        peer: op.peer.0,
        kind: 0,
        flags: 0,
        immediate: 0,
        local: xtie_provider_span::default(),
        remote: xtie_provider_remote::default(),
        value: 0,
        data: core::ptr::null(),
    };
    match &op.kind {
        OpKind::Send { head, payload } => {
            out.kind = XTIE_PROVIDER_OP_SEND;
            out.local = span(*payload);
            out.data = head.as_ptr();
        }
        OpKind::Write { source, target, immediate } => {
            out.kind = XTIE_PROVIDER_OP_WRITE;
            out.remote = remote(*target);
            match source {
                Source::Line(line) => {
                    out.flags = XTIE_PROVIDER_OP_LINE;
                    out.data = line.as_ptr();
                }
                Source::Span(source) => out.local = span(*source),
            }
            if let Some(word) = immediate {
                out.flags |= XTIE_PROVIDER_OP_IMMEDIATE;
                out.immediate = *word;
            }
        }
        OpKind::Read { target, source } => {
            out.kind = XTIE_PROVIDER_OP_READ;
            out.local = span(*target);
            out.remote = remote(*source);
        }
        OpKind::Add { target, value } => {
            out.kind = XTIE_PROVIDER_OP_ADD;
            out.remote = remote(*target);
            out.value = *value;
        }
        OpKind::Fence { .. } => {} // `Vendor::post` hands fences to `fence_begin`
    }
    out
}

pub fn cause(cause: DownCause) -> (u32, i32) {
    match cause {
        DownCause::Closed => (XTIE_PROVIDER_DOWN_CLOSED, 0),
        DownCause::Died | DownCause::Severed => (XTIE_PROVIDER_DOWN_DIED, 0),
        DownCause::Failed => (XTIE_PROVIDER_DOWN_FAILED, 0),
        DownCause::Silent | DownCause::Unheard => (XTIE_PROVIDER_DOWN_SILENT, 0),
        DownCause::Broken(code) => (XTIE_PROVIDER_DOWN_BROKEN, code),
    }
}

/// What an event says, or why it cannot be one.
pub fn completion(
    event: &xtie_provider_event,
    caps: &Caps,
    peers_max: u32,
) -> Result<Completion, &'static str> {
    if event.peer >= peers_max {
        return Err("an event names a peer beyond limits.peers_max");
    }
    let peer = PeerIndex(event.peer);
    Ok(match event.kind {
        XTIE_PROVIDER_EVENT_DONE => {
            Completion::Done { peer, id: OpId(event.id), result: result(event)? }
        }
        XTIE_PROVIDER_EVENT_RECEIVED => {
            if u64::from(event.bytes) > caps.send_payload_max.0 {
                return Err("a message is longer than caps.send_bytes_max");
            }
            let (slot, head, length) = (RecvSlot(event.id), event.head, event.bytes);
            Completion::Received { peer, slot, head, length }
        }
        XTIE_PROVIDER_EVENT_IMMEDIATE => Completion::Immediate { peer, immediate: event.word },
        XTIE_PROVIDER_EVENT_FENCED => {
            let generation = RailGeneration(event.word);
            Completion::Fenced { peer, id: OpId(event.id), generation }
        }
        XTIE_PROVIDER_EVENT_PEER_DOWN => {
            let cause = match event.status {
                XTIE_PROVIDER_DOWN_CLOSED => DownCause::Closed,
                XTIE_PROVIDER_DOWN_DIED => DownCause::Died,
                XTIE_PROVIDER_DOWN_FAILED => DownCause::Failed,
                XTIE_PROVIDER_DOWN_SILENT => DownCause::Silent,
                XTIE_PROVIDER_DOWN_BROKEN => DownCause::Broken(event.code),
                _ => return Err("a peer is down for no known cause"),
            };
            Completion::PeerDown { peer, cause }
        }
        _ => return Err("an event has no known kind"),
    })
}

fn result(event: &xtie_provider_event) -> Result<Result<(), OpError>, &'static str> {
    let kind = match event.status {
        XTIE_PROVIDER_OP_OK => return Ok(Ok(())),
        XTIE_PROVIDER_OP_PEER_DOWN => OpErrorKind::PeerDown,
        XTIE_PROVIDER_OP_KEY => OpErrorKind::Key,
        XTIE_PROVIDER_OP_CANCELED => OpErrorKind::Canceled,
        XTIE_PROVIDER_OP_FABRIC => OpErrorKind::Fabric,
        _ => return Err("an op ended with no known status"),
    };
    Ok(Err(OpError { kind, code: event.code }))
}
