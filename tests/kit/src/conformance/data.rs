//! P5: the right bytes at the right place, and receive slots.

use super::bench::{Arrival, Bench, Check, Fate, PASSED, ensure, fail, skipped};
use super::{ARENA_BYTES, Rig, Side, Verdict};
use crosstie::base::units::Bytes;
use crosstie::fabric::{
    Caps, LINE_BYTES, LocalSpan, OpKind, PostError, Provider, RecvSlot, RemoteSpan, Source,
};

const HALF: usize = ARENA_BYTES / 2;

fn paint<R: Rig>(bench: &mut Bench<R>, side: Side, at: usize, length: usize, seed: usize) {
    for n in 0..length {
        bench.set_byte(side, at + n, (n * 7 + n / 256 + seed) as u8);
    }
}

/// Where memory of the op begins, here and there, behind a multiple of 64.
const ODD: [(usize, usize); 5] = [(1, 0), (0, 1), (3, 5), (6, 2), (7, 7)];
/// The last is most of the arena, which takes many polls; it is tried at one address.
const ODD_LENGTHS: [usize; 6] = [1, 7, 65, 4097, 30_001, 500_000];
/// What such ops move lies here at both sides; bytes in front and behind are not theirs.
const ODD_AT: usize = 4096;
const BESIDE: usize = 64;

/// What is tried from an address on, as far as the rail has ops of that length.
fn odd_lengths<R: Rig>(bench: &Bench<R>, near: usize) -> impl Iterator<Item = usize> + use<R> {
    let count = if near == ODD_AT { ODD_LENGTHS.len() } else { ODD_LENGTHS.len() - 1 };
    ODD_LENGTHS.map(|length| bench.cut(length)).into_iter().take(count)
}

/// Paints one side, and makes room for so much at the other.
fn paint_odd<R: Rig>(
    bench: &mut Bench<R>,
    (from, at): (Side, usize),
    (to, to_at): (Side, usize),
    length: usize,
) {
    paint(bench, from, at, length, length + at);
    bench.fill(to, to_at - BESIDE, length + 2 * BESIDE, 0xee);
}

/// Whether what was painted at `at` lies at its place, and nothing beside it.
fn lies_there<R: Rig>(
    bench: &mut Bench<R>,
    at: usize,
    (to, to_at): (Side, usize),
    length: usize,
) -> bool {
    is_painted(bench, to, to_at, length, length + at)
        && bench.holds(to, to_at - BESIDE, BESIDE, 0xee)
        && bench.holds(to, to_at + length, BESIDE, 0xee)
}

fn is_painted<R: Rig>(
    bench: &mut Bench<R>,
    side: Side,
    at: usize,
    length: usize,
    seed: usize,
) -> bool {
    (0..length).all(|n| bench.byte(side, at + n) == (n * 7 + n / 256 + seed) as u8)
}

/// The last message that came to B.
fn message<R: Rig>(bench: &Bench<R>) -> Check<(RecvSlot, [u8; 32], usize)> {
    match bench.arrivals(Side::B).last() {
        Some(Arrival::Message { slot, head, length }) => Ok((slot, head, length as usize)),
        Some(Arrival::Word(_) | Arrival::Down) | None => fail(5, "no message where one was due"),
    }
}

fn copy_out<R: Rig>(bench: &mut Bench<R>, slot: RecvSlot, from: usize, length: usize) {
    let to = bench.local(Side::B, HALF + from, length);
    let peer = bench.rig.peer(Side::B);
    bench.rig.provider(Side::B).received_copy(peer, slot, from as u64, to);
}

fn release<R: Rig>(bench: &mut Bench<R>, slot: RecvSlot) {
    let peer = bench.rig.peer(Side::B);
    bench.rig.provider(Side::B).received_release(peer, slot);
}

pub fn read_brings_the_peers_bytes<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    if !bench.caps.pull {
        return skipped("the rail has no reads");
    }
    for length in [1, 63, 4096, 100_000].map(|length| bench.cut(length)) {
        paint(&mut bench, Side::B, 64, length, length);
        let id = bench.read(Side::A, 64, length)?;
        bench.finish(2)?;
        ensure(bench.succeeded(id), 5, "a good read failed")?;
        let why = "a read brought other bytes than the peer has";
        ensure(is_painted(&mut bench, Side::A, 64, length, length), 5, why)?;
    }
    for (near, far) in ODD.map(|(near, far)| (ODD_AT + near, ODD_AT + far)) {
        for length in odd_lengths(&bench, near) {
            paint_odd(&mut bench, (Side::B, far), (Side::A, near), length);
            let (target, source) = (bench.local(Side::A, near, length), bench.remote(Side::B, far));
            let id = bench.post_patiently(Side::A, OpKind::Read { target, source })?;
            bench.finish(2)?;
            ensure(bench.succeeded(id), 5, "a good read failed")?;
            let why = "a read at an odd address brought other bytes, or to another place";
            ensure(lies_there(&mut bench, far, (Side::A, near), length), 5, why)?;
        }
    }
    PASSED
}

pub fn write_lands_at_any_address<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let mut words = 0;
    for (near, far) in ODD.map(|(near, far)| (ODD_AT + near, ODD_AT + far)) {
        for length in odd_lengths(&bench, near) {
            paint_odd(&mut bench, (Side::A, near), (Side::B, far), length);
            let source = Source::Span(bench.local(Side::A, near, length));
            let target = bench.remote(Side::B, far);
            let has_word = bench.caps.immediate && length % 3 == 1;
            let immediate = has_word.then_some(length as u32);
            let id = bench.post_patiently(Side::A, OpKind::Write { source, target, immediate })?;
            bench.finish(2)?;
            ensure(bench.succeeded(id), 5, "a good write failed")?;
            words += usize::from(has_word);
            bench.await_arrivals(Side::B, words, 5)?;
            let why = "a write at an odd address landed with other bytes, or at another place";
            if !has_word {
                let lies = |bench: &mut Bench<R>| lies_there(bench, near, (Side::B, far), length);
                bench.wait_until((5, why), lies)?;
            }
            ensure(lies_there(&mut bench, near, (Side::B, far), length), 5, why)?;
        }
    }
    PASSED
}

const NO_SUM: &str = "adds do not sum up in 64 bits";

pub fn adds_sum_in_64_bits<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    if bench.caps.atomic_bytes != 8 {
        return skipped("the rail has no 64-bit adds");
    }
    let target = bench.remote(Side::B, 64);
    let mut sum = 0u64;
    for n in 0..100u64 {
        let value = 0xffff_fff0 + (n << 40);
        sum = sum.wrapping_add(value);
        bench.post_patiently(Side::A, OpKind::Add { target, value })?;
    }
    bench.finish(2)?;
    ensure(bench.word(Side::B, 64) == sum, 5, NO_SUM)?;
    // each by itself: two that lose the topmost bit would make up for each other
    for value in [1 << 63, u64::MAX, 1, (1 << 63) + 1, i64::MAX as u64] {
        sum = sum.wrapping_add(value);
        bench.post_patiently(Side::A, OpKind::Add { target, value })?;
        bench.finish(2)?;
        ensure(bench.word(Side::B, 64) == sum, 5, NO_SUM)?;
    }
    ensure(bench.word(Side::B, 72) == 0, 5, "an add touched the word behind its own")?;
    PASSED
}

pub fn ops_without_bytes_take_effect<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    bench.send(Side::A, 1, LocalSpan::EMPTY)?;
    bench.await_arrivals(Side::B, 1, 5)?;
    ensure(message(&bench)?.2 == 0, 5, "an empty message has bytes")?;
    let source = Source::Span(LocalSpan::EMPTY);
    let target = bench.remote(Side::B, 0);
    if bench.caps.immediate {
        let kind = OpKind::Write { source, target, immediate: Some(77) };
        bench.post_patiently(Side::A, kind)?;
        bench.await_arrivals(Side::B, 2, 5)?;
        let word = bench.arrivals(Side::B).last();
        ensure(word == Some(Arrival::Word(77)), 5, "an empty write lost its immediate")?;
    }
    let id = bench.post_patiently(Side::A, OpKind::Write { source, target, immediate: None })?;
    bench.finish(5)?;
    ensure(bench.succeeded(id), 5, "a write of no bytes failed")?;
    PASSED
}

pub fn longest_payload_arrives_whole<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    bench.release = false;
    let longest = bench.payload_max(Side::A).as_usize().min(HALF);
    paint(&mut bench, Side::A, 0, longest, 3);
    let payload = bench.local(Side::A, 0, longest);
    bench.send(Side::A, 1, payload)?;
    bench.await_arrivals(Side::B, 1, 5)?;
    let (slot, _, length) = message(&bench)?;
    ensure(length == longest, 5, "the longest payload was cut")?;
    copy_out(&mut bench, slot, 0, longest);
    let whole = is_painted(&mut bench, Side::B, HALF, longest, 3);
    ensure(whole, 5, "the longest payload arrived with other bytes")?;
    PASSED
}

pub fn send_source_is_free_after_post<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    if !bench.caps.copies_at_post {
        return skipped("the rail reads the source later");
    }
    bench.release = false;
    let length = bench.caps.send_payload_max.as_usize().min(512);
    bench.fill(Side::A, 0, length, 0x11);
    let payload = bench.local(Side::A, 0, length);
    bench.send(Side::A, 1, payload)?;
    bench.fill(Side::A, 0, length, 0x22);
    bench.await_arrivals(Side::B, 1, 5)?;
    let (slot, _, got) = message(&bench)?;
    ensure(got == length, 5, "a payload arrived with another length")?;
    copy_out(&mut bench, slot, 0, length);
    let why = "a send's source was read after post";
    ensure(bench.holds(Side::B, HALF, length, 0x11), 5, why)?;
    PASSED
}

pub fn line_lands_whole_at_its_target<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let mut line = [0u8; LINE_BYTES];
    for (n, byte) in line.iter_mut().enumerate() {
        *byte = n as u8 + 1;
    }
    let source = Source::Line(line);
    for (at, word) in [(128, None), (509, None), (1021, Some(0x8000_0001))] {
        let immediate = word.filter(|_| bench.caps.immediate);
        let target = bench.remote(Side::B, at);
        bench.post_patiently(Side::A, OpKind::Write { source, target, immediate })?;
        bench.finish(2)?;
        // where the target's poll carries it out, it is on its way
        bench.wait_until((5, "a line did not land as it was posted"), |bench| {
            (0..LINE_BYTES).all(|n| bench.byte(Side::B, at + n) == n as u8 + 1)
        })?;
        if immediate.is_some() {
            bench.await_arrivals(Side::B, 1, 5).or(fail(5, "a line lost its immediate"))?;
        }
        let last = bench.arrivals(Side::B).last();
        ensure(last == immediate.map(Arrival::Word), 5, "a line brought another immediate")?;
        let clean = bench.byte(Side::B, at - 1) == 0 && bench.byte(Side::B, at + LINE_BYTES) == 0;
        ensure(clean, 5, "a line touched its neighbours")?;
    }
    PASSED
}

pub fn head_and_payload_arrive_unchanged<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    bench.release = false;
    let length = bench.caps.send_payload_max.as_usize().min(333);
    paint(&mut bench, Side::A, 10, length, 9);
    let mut head = [0u8; 32];
    for (n, byte) in head.iter_mut().enumerate() {
        *byte = 255 - n as u8;
    }
    let payload = bench.local(Side::A, 10, length);
    bench.post_patiently(Side::A, OpKind::Send { head, payload })?;
    bench.await_arrivals(Side::B, 1, 5)?;
    let (slot, got_head, got_length) = message(&bench)?;
    ensure(got_head == head && got_length == length, 5, "a head arrived changed")?;
    let (first, rest) = (length / 3, length - length / 3);
    copy_out(&mut bench, slot, first, rest);
    copy_out(&mut bench, slot, 0, first);
    let same = is_painted(&mut bench, Side::B, HALF, length, 9);
    ensure(same, 5, "a payload arrived changed")?;
    let mut start = [0u8; 16];
    let peeked = length.min(16);
    let peer = bench.rig.peer(Side::B);
    bench.rig.provider(Side::B).received_peek(peer, slot, &mut start[..peeked]);
    let same = (0..peeked).all(|n| start[n] == bench.byte(Side::B, HALF + n));
    ensure(same, 5, "a peek shows other bytes than a copy")?;
    PASSED
}

/// Fills the slots, one byte value per message, and holds them all.
fn fill_slots<R: Rig>(bench: &mut Bench<R>, count: usize, length: usize, already: usize) -> Check {
    for n in 0..count {
        bench.fill(Side::A, n * 64, length, n as u8 + 1);
        let payload = bench.local(Side::A, n * 64, length);
        bench.send(Side::A, n as u8, payload)?;
    }
    bench.await_arrivals(Side::B, already + count, 5)?;
    bench.finish(2)
}

pub fn held_payload_stays_until_release<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    bench.release = false;
    let count = bench.caps.recv_slots.min(64) as usize;
    let length = bench.caps.send_payload_max.as_usize().min(64);
    fill_slots(&mut bench, count, length, 0)?;
    for n in 0..count {
        let Some(Arrival::Message { slot, head, .. }) = bench.arrival(Side::B, n) else {
            return fail(5, "no message where one was due");
        };
        copy_out(&mut bench, slot, 0, length);
        let why = "a held payload was written over";
        ensure(bench.holds(Side::B, HALF, length, head[0] + 1), 5, why)?;
    }
    PASSED
}

pub fn slots_come_back_in_any_order<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    bench.release = false;
    let count = bench.caps.recv_slots.min(32) as usize;
    for round in 0..4 {
        let why = "a slot that was given back is missing";
        fill_slots(&mut bench, count, 0, round * count).or(fail(5, why))?;
        // odd ones first, the even ones backwards
        let order = (0..count).filter(|n| n % 2 == 1);
        for n in order.chain((0..count).rev().filter(|n| n % 2 == 0)) {
            match bench.arrival(Side::B, round * count + n) {
                Some(Arrival::Message { slot, .. }) => release(&mut bench, slot),
                Some(Arrival::Word(_) | Arrival::Down) | None => {
                    return fail(5, "no message where one was due");
                }
            }
        }
    }
    PASSED
}

pub fn ops_beyond_caps_are_unsupported<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let caps = bench.caps;
    let longer = bench.payload_max(Side::A).as_usize() + 1;
    if longer <= ARENA_BYTES {
        let payload = bench.local(Side::A, 0, longer);
        refused(&mut bench, OpKind::Send { head: [1; 32], payload })?;
    }
    if caps.transfer_max < Bytes::of(ARENA_BYTES) {
        let kind = bench.write_kind(Side::A, 0, caps.transfer_max.as_usize() + 1);
        refused(&mut bench, kind)?;
    }
    let (near, far) = (bench.local(Side::A, 0, 64), bench.remote(Side::B, 0));
    if !caps.pull {
        refused(&mut bench, OpKind::Read { target: near, source: far })?;
    }
    if caps.atomic_bytes == 0 {
        refused(&mut bench, OpKind::Add { target: far, value: 1 })?;
    }
    if !caps.immediate {
        refused(&mut bench, write_with_immediate(near, far))?;
    }
    PASSED
}

fn caps_are<R: Rig>(bench: &mut Bench<R>, told: &[Option<Caps>; 2]) -> Check {
    for side in [Side::A, Side::B] {
        let caps = told[side as usize];
        // more than once: what changes at each call is seen by two in a row
        let same = (0..4).all(|_| bench.rig.promises(side) == caps);
        ensure(same && caps.is_some(), 5, "what the caps promise changes while the rail is open")?;
    }
    Ok(())
}

pub fn caps_stay_as_they_are<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let told = [Side::A, Side::B].map(|side| bench.rig.promises(side));
    caps_are(&mut bench, &told)?;
    bench.send(Side::A, 1, LocalSpan::EMPTY)?;
    bench.write(Side::A, 0, bench.cut(HALF))?;
    caps_are(&mut bench, &told)?;
    bench.finish(2)?;
    caps_are(&mut bench, &told)?;
    bench.rig.sever();
    bench.await_ends(&[Side::A, Side::B])?;
    caps_are(&mut bench, &told)?;
    PASSED
}

fn write_with_immediate(source: LocalSpan, target: RemoteSpan) -> OpKind {
    OpKind::Write { source: Source::Span(source), target, immediate: Some(1) }
}

/// The post is refused for good; `Again` may come first.
fn refused<R: Rig>(bench: &mut Bench<R>, kind: OpKind) -> Check {
    let id = bench.post_past_again(Side::A, kind)?;
    let refused = bench.fate(id) == Fate::Refused(PostError::Unsupported);
    ensure(refused, 5, "an op beyond Caps was not refused as such")
}
