//! Frames with sums (W9.1) on the stream of a TCP rail, of which one byte is changed: nothing from
//! the changed frame on is believed.

use crosstie::fabric::LINE_BYTES;
use crosstie::wire::stream::{HEADER_BYTES_MAX, StreamFrame};

use super::streams::{run, stream_seed, translated};

/// Input before the frames: where the changed byte is, and what it is changed by.
const DAMAGE_BYTES: usize = 3;

/// A whole frame among the bytes with sums.
struct Placed {
    /// Where its header begins, and ends with its sum.
    header: [usize; 2],
    /// Whether nothing of its payload may be seen before the sum of that was right.
    is_line: bool,
    end: usize,
}

/// CRC-32C by its definition, bit by bit: RFC 3720, B.4.
fn sum_of(bytes: &[u8]) -> [u8; 4] {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = sum >> 1 ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    (!sum).to_le_bytes()
}

fn payload_of(frame: StreamFrame) -> usize {
    match frame {
        StreamFrame::Send { length }
        | StreamFrame::Write { length, .. }
        | StreamFrame::ReadReply { length, refused: false, .. } => length as usize,
        StreamFrame::ReadReply { refused: true, .. }
        | StreamFrame::Read { .. }
        | StreamFrame::Add { .. }
        | StreamFrame::Done { .. }
        | StreamFrame::Failed { .. }
        | StreamFrame::Bye => 0,
    }
}

/// The frames that follow each other from the start, with their sums, and what is behind them as it
/// is.
fn summed(plain: &[u8]) -> (Vec<u8>, Vec<Placed>) {
    let (mut bytes, mut placed, mut rest) = (Vec::new(), Vec::new(), plain);
    while let Ok(frame) = StreamFrame::decode(rest) {
        let header = StreamFrame::header_bytes(rest[0]).unwrap_or(HEADER_BYTES_MAX);
        let payload = payload_of(frame);
        if rest.len() < header.saturating_add(payload) {
            break;
        }
        let start = bytes.len();
        bytes.extend_from_slice(&rest[..header]);
        bytes.extend(sum_of(&rest[..header]));
        let ends = bytes.len();
        if payload > 0 {
            bytes.extend_from_slice(&rest[header..][..payload]);
            bytes.extend(sum_of(&rest[header..][..payload]));
        }
        let is_silent = matches!(frame, StreamFrame::Write { silent: true, .. });
        let is_line = is_silent && payload == LINE_BYTES;
        placed.push(Placed { header: [start, ends], is_line, end: bytes.len() });
        rest = &rest[header + payload..];
    }
    bytes.extend_from_slice(rest);
    (bytes, placed)
}

/// A rail whose peer sends the frames of `data`, of which a byte is changed on the way. What it
/// reports is what it reports of the frames before, and less at most. With no change it reports all
/// that it reports without sums.
pub fn sums(data: &[u8]) {
    let Some((damage, frames)) = data.split_first_chunk::<DAMAGE_BYTES>() else { return };
    let [low, high, change] = *damage;
    let mut hit = None;
    let changed = run(true, |key, start| {
        let (mut bytes, placed) = summed(&translated(frames, key, start));
        let at = usize::from(u16::from_le_bytes([low, high])) % bytes.len().max(1);
        bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= change);
        let mut all = placed.into_iter();
        hit = all.find(|frame| at < frame.end).map(|frame| (at, frame)).filter(|_| change != 0);
        bytes
    });
    if change == 0 {
        let plain = run(false, |key, start| translated(frames, key, start));
        // an empty line to memory that there is not breaks a stream without sums alone
        assert!(plain.is_start_of(&changed), "{:?}, not {:?}", changed.arrived, plain.arrived);
    }
    let Some((at, frame)) = hit else { return };
    // the first byte says how long the header is, and so where its sum is looked for
    if at == frame.header[0] {
        return;
    }
    let before = run(true, |key, start| {
        let mut bytes = summed(&translated(frames, key, start)).0;
        bytes.truncate(frame.header[0]);
        bytes
    });
    assert!(changed.is_start_of(&before), "{:?}, not {:?}", changed.arrived, before.arrived);
    // a payload that is answered may lie in its place before its sum is looked at
    if frame.is_line || at < frame.header[1] {
        assert!(before.memory == changed.memory, "a changed frame has written");
    }
}

/// What an honest peer might send, with a byte of the second message changed.
#[allow(dead_code)] // for the corpora, not for the fuzzer
pub fn sums_seed() -> Vec<u8> {
    let place = HEADER_BYTES_MAX as u16 * 2 + 40;
    let mut bytes = [&place.to_le_bytes()[..], &[1]].concat();
    bytes.extend(stream_seed());
    bytes
}
