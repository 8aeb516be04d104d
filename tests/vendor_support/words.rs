//! What a vendor's functions are told and answer, in the words of the seam: for vendors of tests
//! that stand on a rail of ours.

use crosstie::base::units::Bytes;
use crosstie::fabric::{
    CloseError, Completion, DeregisterError, DownCause, LocalSpan, MemoryKind, OpErrorKind, OpKind,
    PostError, Posted, RailKey, Region, RegisterError, RemoteSpan, Source,
};
use crosstie::provider::vendor::abi::*;
use std::ffi::c_int;

/// Memory as it is registered.
pub fn region_of(address: u64, bytes: u64, kind: u32) -> Region {
    let kind = match kind & 0xff {
        XTIE_PROVIDER_MEMORY_HOST => MemoryKind::Host,
        XTIE_PROVIDER_MEMORY_MAPPED => MemoryKind::Mapped,
        _ => MemoryKind::Cuda(kind >> 8),
    };
    Region { address, length: Bytes(bytes), kind }
}

/// Why a peer is gone, as it is told from outside.
pub fn cause(cause: u32, code: i32) -> DownCause {
    match cause {
        XTIE_PROVIDER_DOWN_CLOSED => DownCause::Closed,
        XTIE_PROVIDER_DOWN_DIED => DownCause::Died,
        XTIE_PROVIDER_DOWN_FAILED => DownCause::Failed,
        XTIE_PROVIDER_DOWN_SILENT => DownCause::Silent,
        _ => DownCause::Broken(code),
    }
}

/// A key, or the answer without one.
pub fn registered(result: Result<RailKey, RegisterError>) -> Result<u64, c_int> {
    match result {
        Ok(key) => Ok(key.0),
        Err(RegisterError::Full) => Err(XTIE_PROVIDER_FULL),
        Err(RegisterError::Kind) => Err(XTIE_PROVIDER_KIND),
        Err(RegisterError::Range) => Err(XTIE_PROVIDER_RANGE),
        Err(RegisterError::Fabric(code)) => Err(XTIE_PROVIDER_CODE - code),
    }
}

pub fn deregistered(result: Result<(), DeregisterError>) -> c_int {
    match result {
        Ok(()) => XTIE_PROVIDER_OK,
        Err(DeregisterError::Busy) => XTIE_PROVIDER_BUSY,
        Err(DeregisterError::Stale) => XTIE_PROVIDER_STALE,
        Err(DeregisterError::Fabric(code)) => XTIE_PROVIDER_CODE - code,
    }
}

pub fn closed(result: Result<(), CloseError>) -> c_int {
    match result {
        Ok(()) => XTIE_PROVIDER_OK,
        Err(CloseError::Busy) => XTIE_PROVIDER_BUSY,
        Err(CloseError::Stale) => XTIE_PROVIDER_STALE,
    }
}

pub fn posted(answer: Result<Posted, PostError>) -> c_int {
    match answer {
        Ok(Posted::Pending) => XTIE_PROVIDER_OK,
        Ok(Posted::Done) => XTIE_PROVIDER_DONE,
        Err(PostError::Again) => XTIE_PROVIDER_AGAIN,
        Err(PostError::PeerDown) => XTIE_PROVIDER_PEER_DOWN,
        Err(PostError::Unsupported) => XTIE_PROVIDER_UNSUPPORTED,
    }
}

/// The seam's op again.
pub fn kind_of(op: &xtie_provider_op) -> OpKind {
    // SAFETY: whoever posted vouches for the memory.
    let local =
        unsafe { LocalSpan::new(op.local.address, Bytes(op.local.bytes), RailKey(op.local.key)) };
    let remote = RemoteSpan { key: RailKey(op.remote.key), address: op.remote.address };
    match op.kind {
        XTIE_PROVIDER_OP_SEND => {
            // SAFETY: a head, until we return.
            OpKind::Send { head: unsafe { op.data.cast::<[u8; 32]>().read() }, payload: local }
        }
        XTIE_PROVIDER_OP_WRITE => {
            let line = op.flags & XTIE_PROVIDER_OP_LINE != 0;
            // SAFETY: a line, until we return.
            let line = line.then(|| unsafe { op.data.cast::<[u8; 64]>().read() });
            let source = line.map_or(Source::Span(local), Source::Line);
            let told = op.flags & XTIE_PROVIDER_OP_IMMEDIATE != 0;
            OpKind::Write { source, target: remote, immediate: told.then_some(op.immediate) }
        }
        XTIE_PROVIDER_OP_READ => OpKind::Read { target: local, source: remote },
        _ => OpKind::Add { target: remote, value: op.value },
    }
}

pub fn peer_of(completion: &Completion) -> u32 {
    match *completion {
        Completion::Done { peer, .. }
        | Completion::Received { peer, .. }
        | Completion::Immediate { peer, .. }
        | Completion::Fenced { peer, .. }
        | Completion::PeerDown { peer, .. } => peer.0,
    }
}

pub fn event_of(completion: &Completion) -> xtie_provider_event {
    let peer = peer_of(completion);
    let event = xtie_provider_event { peer, ..xtie_provider_event::default() };
    match *completion {
        Completion::Done { id, result, .. } => {
            let (status, code) = match result {
                Ok(()) => (XTIE_PROVIDER_OP_OK, 0),
                Err(error) => {
                    let status = match error.kind {
                        OpErrorKind::PeerDown => XTIE_PROVIDER_OP_PEER_DOWN,
                        OpErrorKind::Key => XTIE_PROVIDER_OP_KEY,
                        OpErrorKind::Canceled => XTIE_PROVIDER_OP_CANCELED,
                        OpErrorKind::Fabric => XTIE_PROVIDER_OP_FABRIC,
                    };
                    (status, error.code)
                }
            };
            xtie_provider_event { kind: XTIE_PROVIDER_EVENT_DONE, id: id.0, status, code, ..event }
        }
        Completion::Received { slot, head, length, .. } => {
            let kind = XTIE_PROVIDER_EVENT_RECEIVED;
            xtie_provider_event { kind, id: slot.0, head, bytes: length, ..event }
        }
        Completion::Immediate { immediate, .. } => {
            xtie_provider_event { kind: XTIE_PROVIDER_EVENT_IMMEDIATE, word: immediate, ..event }
        }
        Completion::Fenced { id, generation, .. } => {
            let (kind, word) = (XTIE_PROVIDER_EVENT_FENCED, generation.0);
            xtie_provider_event { kind, id: id.0, word, ..event }
        }
        Completion::PeerDown { cause, .. } => {
            let (status, code) = match cause {
                DownCause::Closed => (XTIE_PROVIDER_DOWN_CLOSED, 0),
                DownCause::Died | DownCause::Severed => (XTIE_PROVIDER_DOWN_DIED, 0),
                DownCause::Failed => (XTIE_PROVIDER_DOWN_FAILED, 0),
                DownCause::Silent | DownCause::Unheard => (XTIE_PROVIDER_DOWN_SILENT, 0),
                DownCause::Broken(code) => (XTIE_PROVIDER_DOWN_BROKEN, code),
            };
            xtie_provider_event { kind: XTIE_PROVIDER_EVENT_PEER_DOWN, status, code, ..event }
        }
    }
}
