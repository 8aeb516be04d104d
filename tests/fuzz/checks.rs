//! What must hold for any bytes, one function per decoder. The fuzz targets feed them what the
//! fuzzer invents, and `tests/wire.rs` the committed corpora and damaged copies of them.

use crosstie::base::seq::Seq;
use crosstie::wire::hello::{FRAME_BYTES_WRITTEN, Frame, FrameHeader, RefuseReason};
use crosstie::wire::one_sided::{
    self as records, FrameHead, Greeting, Member, Record, RecordKind, Short,
};
use crosstie::wire::{blob, cell, descriptor, handle, head, immediate, slot, state};

#[path = "ring.rs"]
mod shared;
#[allow(unused_imports)] // the seeds are for the corpora
pub use shared::{ring, ring_seed, rings, rings_seed};
#[path = "stream.rs"]
mod streams;
#[allow(unused_imports)]
pub use streams::{stream, stream_seed};
#[path = "sums.rs"]
mod summed;
#[allow(unused_imports)]
pub use summed::{sums, sums_seed};

/// One decoder's check.
pub type Check = fn(&[u8]);

/// Every check under the name of its fuzz target and corpus.
pub const ALL: [(&str, Check); 14] = [
    ("head", head),
    ("descriptor", descriptor),
    ("slot", slot),
    ("cell", cell),
    ("state", state),
    ("immediate", immediate),
    ("handle", handle),
    ("blob", blob),
    ("frame", frame),
    ("one_sided", one_sided),
    ("ring", ring),
    ("rings", rings),
    ("stream", stream),
    ("sums", sums),
];

/// W1.
pub fn head(data: &[u8]) {
    let Some(bytes) = data.first_chunk() else { return };
    if let Ok(value) = head::SendHead::decode(bytes) {
        assert_eq!(head::SendHead::decode(&value.encode()), Ok(value));
    }
}

/// W2. Every byte of a descriptor has a meaning, so the bytes come back too.
pub fn descriptor(data: &[u8]) {
    if let Ok(value) = descriptor::Descriptor::decode(data) {
        let bytes = value.encode();
        assert_eq!(&bytes[..descriptor::Descriptor::bytes(value.rails)], data);
    }
}

/// W3.
pub fn slot(data: &[u8]) {
    let Some(bytes) = data.first_chunk() else { return };
    if let Ok(value) = slot::ControlSlot::decode(bytes) {
        assert!(value.index < value.count);
        assert_eq!(slot::ControlSlot::decode(&value.encode()), Ok(value));
    }
}

/// W4. The first line says which sequence and epoch are looked for.
pub fn cell(data: &[u8]) {
    let Some((first, rest)) = data.split_first_chunk::<64>() else { return };
    let Some(second) = rest.first_chunk::<64>() else { return };
    let says = cell::CellFirst::from_bytes(first);
    if let Some(keys) = cell::decode(first, second, says.sequence, says.epoch) {
        let (a, b) = cell::encode(&keys, says.sequence, says.epoch);
        assert_eq!(cell::decode(&a, &b, says.sequence, says.epoch), Some(keys));
        assert_eq!(cell::decode(&a, &b, says.sequence.wrapping_add(1), says.epoch), None);
        assert_eq!(cell::decode(&a, &b, says.sequence, says.epoch.wrapping_add(1)), None);
    }
}

/// W5.
pub fn state(data: &[u8]) {
    let Some(bytes) = data.first_chunk() else { return };
    if let Ok(value) = state::StateLine::decode(bytes) {
        assert_eq!(state::StateLine::decode(&value.encode()), Ok(value));
    }
}

/// W6. Twelve bytes: an immediate, the oldest group, the window.
pub fn immediate(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<12>() else { return };
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (immediate, oldest, window) = (word(0), Seq(word(4)), word(8));
    let (token, stripe) = immediate::decode(immediate);
    assert_eq!(immediate::encode(token, stripe), immediate);
    if let Some((group, index)) = immediate::resolve(token, oldest, window) {
        let ahead = group.ahead_of(oldest);
        assert!(ahead >= 0 && (ahead as u32) < window, "{group:?} of {oldest:?} in {window}");
        assert_eq!(immediate::token(group, index), token);
    }
}

/// W16: the head of a frame, its records one behind the other, a short frame, and what ranks say
/// when they meet. Nothing that is understood reaches out of its frame.
pub fn one_sided(data: &[u8]) {
    if let Some(value) = FrameHead::from_bytes(data) {
        assert_eq!(FrameHead::from_bytes(&value.to_bytes()), Some(value));
    }
    let mut rest = data.get(records::FRAME_HEAD_BYTES..).unwrap_or_default();
    while let Some(record) = Record::from_bytes(rest) {
        assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        record_is_sound(&record);
        let Some(behind) = rest.get(record.frame_bytes()..) else { break };
        rest = behind;
    }
    if let Some(short) = data.first_chunk().and_then(Short::from_bytes) {
        record_is_sound(&short.record);
        let inline = short.record.inline_bytes() as usize;
        assert!(records::SHORT_INLINE_AT + inline <= records::SHORT_FRAME_BYTES);
        let again = short.to_bytes().as_ref().and_then(Short::from_bytes);
        assert_eq!(again, Some(short));
    }
    if let Some(member) = Member::from_bytes(data) {
        assert_eq!(Member::from_bytes(&member.to_bytes()), Some(member));
    }
    if let Some(greeting) = data.first_chunk().and_then(Greeting::from_bytes) {
        assert_eq!(Greeting::from_bytes(&greeting.to_bytes()), Some(greeting));
    }
}

/// Its bytes come in one way, all of them.
fn record_is_sound(record: &Record) {
    let inline = record.inline_bytes();
    assert!(inline <= records::INLINE_BYTES_MAX as u64);
    if record.kind == RecordKind::Put {
        assert!(record.is_apart() || inline == record.length, "{record:?}");
    }
    assert!(!record.is_apart() || inline == 0, "{record:?}");
}

/// W7, as it comes and with the checksum put right, which no fuzzer would guess.
pub fn handle(data: &[u8]) {
    let Some(bytes) = data.first_chunk() else { return };
    handle_of(bytes);
    let mut whole = *bytes;
    whole[..8].copy_from_slice(b"crosstie");
    let sum = fnv(&whole[..120]);
    whole[120..].copy_from_slice(&sum);
    handle_of(&whole);
}

fn fnv(bytes: &[u8]) -> [u8; 8] {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, step).to_le_bytes()
}

/// W12, likewise.
pub fn blob(data: &[u8]) {
    let Some(bytes) = data.first_chunk() else { return };
    blob_of(bytes);
    let mut whole = *bytes;
    whole[..8].copy_from_slice(b"tie-blob");
    whole[56..64].fill(0);
    let sum = fnv(&whole);
    whole[56..64].copy_from_slice(&sum);
    blob_of(&whole);
}

fn blob_of(bytes: &[u8; blob::BLOB_BYTES]) {
    if let Ok(value) = blob::ConnectionBlob::decode(bytes) {
        assert!(value.rail_bytes as usize <= value.rail.len());
        assert_eq!(blob::ConnectionBlob::decode(&value.encode()), Ok(value));
    }
}

fn handle_of(bytes: &[u8; handle::HANDLE_BYTES]) {
    if let Ok(value) = handle::ListenHandle::decode(bytes) {
        assert_eq!(handle::ListenHandle::decode(&value.encode()), Ok(value));
    }
}

/// W8. A frame of a later minor version comes back as its known prefix.
pub fn frame(data: &[u8]) {
    if let Ok((_, _, body)) = FrameHeader::decode(data) {
        assert!(FrameHeader::SIZE + body.len() <= data.len());
    }
    let Ok(frame) = Frame::decode(data) else { return };
    let mut bytes = [0; FRAME_BYTES_WRITTEN];
    let length = frame.encode(&mut bytes);
    assert_eq!(Frame::decode(&bytes[..length]), Ok(frame));
    // what an older writer's hello or list of addresses lacks is written as zero
    let grows = matches!(
        frame,
        Frame::LinkHello(_) | Frame::LinkReply(_) | Frame::LinkReady(_) | Frame::Addresses(_)
    );
    assert!(length <= data.len() || grows);
    if let Frame::Refused(body) | Frame::Closed(body) = frame {
        let reason = RefuseReason::from_wire(body.reason);
        assert_eq!(RefuseReason::from_wire(reason as u32), reason);
    }
}
