//! The wire format, byte for byte. The tables here are those of `doc/wire.md`, written down a
//! second time and not by the code's own macro, so that a field cannot move unnoticed.
//!
//! `XTIE_BLESS=1 cargo test --test wire` writes the fuzz corpora anew.

use std::path::Path;

use crosstie::base::seq::Seq;
use crosstie::wire::DecodeError;
use crosstie::wire::blob::{BLOB_BYTES, BLOB_IMMEDIATE, BLOB_PULL, ConnectionBlob};
use crosstie::wire::cell;
use crosstie::wire::descriptor::{DESCRIPTOR_BYTES_MAX, Descriptor};
use crosstie::wire::door::DoorHello;
use crosstie::wire::handle::{Address, Family, HANDLE_BYTES, HANDLE_LOCAL, ListenHandle, MORE_MAX};
use crosstie::wire::head::*;
use crosstie::wire::hello::{
    ConnectHello, FRAME_BYTES_MAX, FRAME_BYTES_WRITTEN, Frame, FrameHeader, FrameKind, LinkHello,
    RefuseReason, RefusedHello, StreamHello,
};
use crosstie::wire::immediate;
use crosstie::wire::one_sided::{
    APART, FENCE, FrameHead, Greeting, Member, Record, RecordKind, SIGNAL, Short,
};
use crosstie::wire::pair::{PairHello, PortHello, PortList};
use crosstie::wire::queue_pair::QueuePairHello;
use crosstie::wire::shared_end::{NAME_BYTES_MAX, SharedEndHello, ToldRegion};
use crosstie::wire::slot::{ControlSlot, SLOT_CANCEL, SLOT_TAKEN};
use crosstie::wire::state::{STATE_CANCELED, STATE_FAILED, STATE_FLAGS, StateLine};
use crosstie::wire::status::{RequestStatus, Status, StatusAsk, StatusHello};
use crosstie::wire::stream::{HEADER_BYTES_MAX, StreamFrame};
use crosstie::wire::vendor_end::{BLOB_BYTES_MAX, VendorEndHello};

#[path = "fuzz/checks.rs"]
mod checks;

/// `N` zero bytes with each row's bytes at its offset.
fn laid_out<const N: usize>(rows: &[(usize, &[u8])]) -> [u8; N] {
    let mut bytes = [0; N];
    for (at, row) in rows {
        assert!(bytes[*at..*at + row.len()].iter().all(|b| *b == 0), "rows overlap at {at}");
        bytes[*at..*at + row.len()].copy_from_slice(row);
    }
    bytes
}

/// `first`, `first + 1`, …: recognisable where it lands. Little-endian, so that lowest is first.
const fn run<const N: usize>(first: u8) -> [u8; N] {
    let mut bytes = [0; N];
    let mut i = 0;
    while i < N {
        bytes[i] = first + i as u8;
        i += 1;
    }
    bytes
}

const fn n16(first: u8) -> u16 {
    u16::from_le_bytes(run(first))
}

const fn n32(first: u8) -> u32 {
    u32::from_le_bytes(run(first))
}

const fn n64(first: u8) -> u64 {
    u64::from_le_bytes(run(first))
}

const fn n128(first: u8) -> u128 {
    u128::from_le_bytes(run(first))
}

fn head(kind: u8, stripes: u8) -> SendHead {
    SendHead {
        kind,
        stripes,
        filled: 0,
        epoch: n32(0x10),
        tag: -2,
        send_number: n32(0x20),
        eager_number: n32(0x30),
        group_base: n32(0x40),
        credits_through: n32(0x50),
        delivered_through: n32(0x60),
    }
}

fn descriptor(rails: usize) -> Descriptor {
    let mut keys = [0; 8];
    for (rail, key) in keys[..rails].iter_mut().enumerate() {
        *key = n64(0x20 + 8 * rail as u8);
    }
    Descriptor { address: n64(0x10), length: n64(0x18), keys, rails }
}

fn slot(index: u8, count: u8, flags: u16) -> ControlSlot {
    ControlSlot {
        address: n64(0x10),
        length: n64(0x18),
        cell: n32(0x20),
        cell_sequence: n32(0x24),
        tag: i32::MIN,
        token: n32(0x28),
        index,
        count,
        flags,
        more: 0,
        credits_through: n32(0x30),
        delivered_through: n32(0x34),
        taken_by: n32(0x2c),
        sequence: n32(0x38),
        epoch: n32(0x3c),
    }
}

fn state(flags: u32) -> StateLine {
    StateLine {
        sequence_first: n32(0x10),
        credits_through: n32(0x20),
        delivered_mask: n64(0x30),
        delivered_through: n32(0x40),
        groups_through: n32(0x50),
        canceled_group: n32(0x60),
        eager_through: n32(0x70),
        flags,
        sequence: n32(0x10),
        epoch: n32(0x80),
    }
}

fn listen_handle() -> ListenHandle {
    let v4 = Address { family: Family::Ipv4, port: 0x1234, ip: laid_out(&[(0, &[10, 0, 0, 1])]) };
    let v6 = Address { family: Family::Ipv6, port: 0x5678, ip: run(0x60) };
    let local = Address { family: Family::Local, port: 0, ip: [0; 16] };
    let beside = |port, last| Address {
        family: Family::Ipv4,
        port,
        ip: laid_out(&[(0, &[10, 0, 0, last])]),
    };
    let mut more = [Address::default(); MORE_MAX];
    more[2..4].copy_from_slice(&[beside(0x2345, 2), beside(0x3456, 3)]);
    ListenHandle {
        minor: 7,
        flags: HANDLE_LOCAL,
        node_id: n64(0x10),
        endpoint_id: n128(0x20),
        listener: n64(0x40),
        addresses: [local, v4, v6],
        more,
    }
}

fn link_hello() -> LinkHello {
    LinkHello {
        node_id: n64(0x10),
        endpoint_id: n128(0x20),
        peer_endpoint_id: n128(0x30),
        features: n64(0x40),
        pid: n32(0x48),
        page_bytes: n32(0x4c),
        probe_address: n64(0x50),
        probe_word: n64(0x58),
        arena_bytes: n64(0x60),
        heap_bytes: n64(0x68),
        name_low: n128(0x70),
        name_high: n128(0x80),
        nonce: n128(0x90),
        rails: n32(0xa0),
        streams: n32(0xa4),
        proof_low: n128(0xb0),
        proof_high: n128(0xc0),
        lanes: n32(0xd0),
        resume: n128(0xd8),
    }
}

fn connect_hello() -> ConnectHello {
    ConnectHello {
        connection: n64(0x10),
        target: n64(0x18),
        rings_offset: n64(0x20),
        send_ring_bytes: n32(0x28),
        write_ring_bytes: n32(0x2c),
        mailbox_key: n64(0x30),
        mailbox_address: n64(0x38),
        groups_max: n32(0x40),
        credits: n32(0x44),
        eager_bytes_max: n32(0x48),
        data_rails: n32(0x4c),
        control_rails: n32(0x50),
        features: n64(0x58),
        streams: n32(0x60),
    }
}

fn stream_hello() -> StreamHello {
    StreamHello {
        endpoint_id: n128(0x10),
        proof: n128(0x20),
        connection: n64(0x30),
        stream: n32(0x38),
        streams: n32(0x3c),
        ask: n64(0x40),
        lane: 7,
        lane_generation: n32(0x48),
    }
}

fn refused_hello() -> RefusedHello {
    RefusedHello { target: n64(0x10), reason: RefuseReason::Full as u32, major: n16(0x20) }
}

fn frame(frame: Frame) -> Vec<u8> {
    let mut bytes = [0; FRAME_BYTES_WRITTEN];
    let length = frame.encode(&mut bytes);
    bytes[..length].to_vec()
}

/// As a writer says it that knows no sums: what a fuzzer changes is read all the same.
fn unsummed(said: Frame) -> Vec<u8> {
    let mut bytes = frame(said);
    bytes[12..16].fill(0);
    bytes
}

#[test]
fn w1_send_head() {
    let expected: [u8; 32] = laid_out(&[
        (0, &[3, 64]),
        (4, &run::<4>(0x10)),
        (8, &[0xfe, 0xff, 0xff, 0xff]),
        (12, &run::<4>(0x20)),
        (16, &run::<4>(0x30)),
        (20, &run::<4>(0x40)),
        (24, &run::<4>(0x50)),
        (28, &run::<4>(0x60)),
    ]);
    assert_eq!(head(KIND_START, 64).encode(), expected);
    assert_eq!(SendHead::decode(&expected), Ok(head(KIND_START, 64)));
    for kind in KIND_REPORT..=KIND_PROBED {
        assert_eq!(SendHead::decode(&head(kind, 0).encode()), Ok(head(kind, 0)));
        assert_eq!(SendHead::decode(&head(kind, 1).encode()), Err(DecodeError::Field));
    }
    let refused = [(0, 0), (10, 0), (KIND_EAGER, 1), (KIND_DESCRIPTOR, 1), (KIND_START, 0)];
    for (kind, stripes) in refused.into_iter().chain([(KIND_START, 65)]) {
        let decoded = SendHead::decode(&head(kind, stripes).encode());
        assert_eq!(decoded, Err(DecodeError::Field), "kind {kind}, {stripes} stripes");
    }
}

#[test]
fn w2_descriptor() {
    let expected: [u8; DESCRIPTOR_BYTES_MAX] = laid_out(&[(0, &run::<32>(0x10))]);
    assert_eq!(descriptor(2).encode(), expected);
    assert_eq!(Descriptor::bytes(2), 32);
    for rails in 1..=8 {
        let bytes = descriptor(rails).encode();
        let said = Descriptor::decode(&bytes[..Descriptor::bytes(rails)]);
        assert_eq!(said, Ok(descriptor(rails)));
    }
    let bytes = [0; 96];
    assert_eq!(Descriptor::decode(&bytes[..15]), Err(DecodeError::Short));
    assert_eq!(Descriptor::decode(&bytes[..16]), Err(DecodeError::Short));
    assert_eq!(Descriptor::decode(&bytes[..25]), Err(DecodeError::Field));
    assert_eq!(Descriptor::decode(&bytes[..88]), Err(DecodeError::Field));
}

#[test]
fn w3_control_slot() {
    let flags = SLOT_CANCEL | SLOT_TAKEN;
    let expected: [u8; 64] = laid_out(&[
        (0, &run::<16>(0x10)),
        (16, &run::<8>(0x20)),
        (24, &[0, 0, 0, 0x80]),
        (28, &run::<4>(0x28)),
        (32, &[7, 8, 3, 0]),
        (40, &run::<8>(0x30)),
        (48, &run::<4>(0x2c)),
        (56, &run::<8>(0x38)),
    ]);
    assert_eq!(slot(7, 8, flags).encode(), expected);
    assert_eq!(ControlSlot::decode(&expected), Ok(slot(7, 8, flags)));
    for (index, count, flags) in [(0, 0, 0), (0, 9, 0), (1, 1, 0), (0, 1, 4), (0, 1, 0x8000)] {
        let decoded = ControlSlot::decode(&slot(index, count, flags).encode());
        assert_eq!(decoded, Err(DecodeError::Field), "{index} of {count}, flags {flags:#x}");
    }
    // what stands for many groups
    let run = ControlSlot { more: 31, ..slot(0, 1, SLOT_TAKEN) };
    assert_eq!(run.encode()[32..40], [0, 1, 2, 0, 31, 0, 0, 0]);
    assert_eq!(ControlSlot::decode(&run.encode()), Ok(run));
    for wrong in [
        ControlSlot { more: 32, ..run },
        ControlSlot { count: 2, ..run },
        ControlSlot { flags: 0, ..run },
        ControlSlot { flags: SLOT_TAKEN | SLOT_CANCEL, ..run },
    ] {
        assert_eq!(ControlSlot::decode(&wrong.encode()), Err(DecodeError::Field), "{wrong:?}");
    }
}

#[test]
fn w4_region_cell() {
    let keys = [0x10, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40, 0x48].map(n64);
    let (first, second) = cell::encode(&keys, n32(0x60), n32(0x70));
    let last = (56, run::<4>(0x60), 60, run::<4>(0x70));
    assert_eq!(first, laid_out(&[(0, &run::<56>(0x10)), (last.0, &last.1), (last.2, &last.3)]));
    assert_eq!(second, laid_out(&[(0, &run::<8>(0x48)), (last.0, &last.1), (last.2, &last.3)]));
    assert_eq!(cell::decode(&first, &second, n32(0x60), n32(0x70)), Some(keys));
    let (_, later) = cell::encode(&keys, n32(0x61), n32(0x70));
    assert_eq!(cell::decode(&first, &later, n32(0x60), n32(0x70)), None, "half written");
}

#[test]
fn w5_state_line() {
    let expected: [u8; 64] = laid_out(&[
        (0, &run::<4>(0x10)),
        (4, &run::<4>(0x20)),
        (8, &run::<8>(0x30)),
        (16, &run::<4>(0x40)),
        (20, &run::<4>(0x50)),
        (24, &run::<4>(0x60)),
        (32, &run::<4>(0x70)),
        (36, &[3, 0, 0, 0]),
        (56, &run::<4>(0x10)),
        (60, &run::<4>(0x80)),
    ]);
    let line = state(STATE_CANCELED | STATE_FAILED);
    assert_eq!(line.encode(), expected);
    assert_eq!(StateLine::decode(&expected), Ok(line));
    for flag in (0..32).map(|bit| 1 << bit).filter(|flag| STATE_FLAGS & flag == 0) {
        assert_eq!(StateLine::decode(&state(flag).encode()), Err(DecodeError::Field), "{flag:#x}");
    }
    let half = StateLine { sequence_first: 1, ..line };
    assert_eq!(StateLine::decode(&half.encode()), Err(DecodeError::Field));
}

#[test]
fn w6_immediate() {
    // 23 bits of the group number, 3 of the position, 6 of the stripe, from the top.
    let token = immediate::token(Seq(0x8000_0005), 6);
    assert_eq!(token, 0b101_110);
    assert_eq!(immediate::encode(token, 33), 0b101_110_100_001);
    assert_eq!(immediate::token(Seq(u32::MAX), 7), (1 << 26) - 1);
    assert_eq!(immediate::encode((1 << 26) - 1, 63), u32::MAX);
    assert_eq!(immediate::resolve(token, Seq(0x8000_0000), 8), Some((Seq(0x8000_0005), 6)));
}

#[test]
fn w7_listen_handle() {
    let mut expected: [u8; HANDLE_BYTES] = laid_out(&[
        (0, b"crosstie"),
        (8, &[1, 0, 7, 0]),
        (16, &run::<8>(0x10)),
        (12, &[2]),
        (24, &run::<16>(0x20)),
        (40, &run::<8>(0x40)),
        (48, &[1]),
        (68, &[4, 0, 0x34, 0x12, 10, 0, 0, 1]),
        (76, &[0x45, 0x23, 10, 0, 0, 2]),
        (82, &[0x56, 0x34, 10, 0, 0, 3]),
        (88, &[6, 0, 0x78, 0x56]),
        (92, &run::<16>(0x60)),
    ]);
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for byte in &expected[..120] {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    expected[120..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(listen_handle().encode(), expected);
    assert_eq!(ListenHandle::decode(&expected), Ok(listen_handle()));
    assert_eq!(ListenHandle::decode(&[0; HANDLE_BYTES]), Err(DecodeError::Magic));
    expected[100] ^= 1;
    assert_eq!(ListenHandle::decode(&expected), Err(DecodeError::Checksum));
}

#[test]
fn w8_frame_header() {
    let bytes = frame(Frame::Closed(refused_hello()));
    let sum = [144, 0, 34, 8];
    let expected: [u8; 16] = laid_out(&[
        (0, b"XTIE"),
        (4, &[1, 0]),
        (6, &[1, 0]),
        (8, &[7, 0]),
        (10, &[32, 0]),
        (12, &sum),
    ]);
    assert_eq!(bytes[..16], expected);
    assert_eq!(bytes[16..], refused_hello().encode());
    assert_eq!(FrameHeader::decode(&bytes), Ok((FrameKind::Closed, 1, &bytes[16..])));
    assert_eq!(FrameHeader::decode(&bytes[..15]), Err(DecodeError::Short));
    assert_eq!(FrameHeader::decode(&bytes[..47]), Err(DecodeError::Short));
    for (at, wrong) in
        [(0, DecodeError::Magic), (4, DecodeError::Version(2)), (8, DecodeError::Field)]
    {
        let mut damaged = bytes.clone();
        damaged[at] += if at == 8 { 99 } else { 1 };
        let noticed = if at == 0 { DecodeError::Magic } else { DecodeError::Checksum };
        assert_eq!(FrameHeader::decode(&damaged), Err(noticed));
        damaged[12..16].fill(0); // an earlier writer says no sum
        assert_eq!(FrameHeader::decode(&damaged), Err(wrong));
    }
    assert_eq!((FRAME_BYTES_WRITTEN, FRAME_BYTES_MAX), (424, 1024));
}

#[test]
fn w8_bodies() {
    let link: [u8; 256] = laid_out(&[
        (0, &run::<8>(0x10)),
        (8, &run::<16>(0x20)),
        (24, &run::<16>(0x30)),
        (40, &run::<16>(0x40)),
        (56, &run::<8>(0x50)),
        (64, &run::<8>(0x58)),
        (72, &run::<8>(0x60)),
        (80, &run::<8>(0x68)),
        (96, &run::<16>(0x70)),
        (112, &run::<16>(0x80)),
        (128, &run::<16>(0x90)),
        (144, &run::<8>(0xa0)),
        (160, &run::<32>(0xb0)),
        (192, &run::<4>(0xd0)),
        (200, &run::<16>(0xd8)),
    ]);
    assert_eq!(link_hello().encode(), link);
    assert_eq!(LinkHello::from_bytes(&link), link_hello());

    let connect: [u8; 128] =
        laid_out(&[(0, &run::<68>(0x10)), (72, &run::<8>(0x58)), (80, &run::<4>(0x60))]);
    assert_eq!(connect_hello().encode(), connect);
    assert_eq!(ConnectHello::from_bytes(&connect), connect_hello());

    let stream: [u8; 64] = laid_out(&[
        (0, &run::<32>(0x10)),
        (32, &run::<24>(0x30)),
        (56, &[7]),
        (60, &run::<4>(0x48)),
    ]);
    assert_eq!(stream_hello().encode(), stream);
    assert_eq!(StreamHello::from_bytes(&stream), stream_hello());

    let refused: [u8; 32] =
        laid_out(&[(0, &run::<8>(0x10)), (8, &[2, 0, 0, 0]), (12, &run::<2>(0x20))]);
    assert_eq!(refused_hello().encode(), refused);
    assert_eq!(RefusedHello::from_bytes(&refused), refused_hello());
    for number in 0..10 {
        let reason = RefuseReason::from_wire(number) as u32;
        let known = (1..=10).contains(&number);
        assert_eq!(reason, if known { number } else { RefuseReason::Protocol as u32 });
    }
}

fn status_hello() -> StatusHello {
    let request = |first: u8| RequestStatus {
        length: n64(first),
        posted: n64(first + 8),
        written: n64(first + 16),
        age_ms: n32(first + 24),
        tag: n32(first + 28),
        sequence: n32(first + 32),
        token: n32(first + 36),
        generation: n32(first + 40),
        waits: 10,
        stripes: 11,
        rails: 12,
        record: 13,
        count: 14,
        bound: 15,
        done: 16,
        short: 17,
    };
    let status = Status {
        target: n64(0x10),
        number: n32(0x18),
        flags: n32(0x1c),
        left_ms: n32(0x20),
        silent_ms: n32(0x24),
        moved_ms: n32(0x28),
        standing: 1,
        pull: 2,
        lane_count: 3,
        up: 4,
        control: 5,
        control_blocked: 6,
        group_count: 7,
        group_bound: 8,
        sends: n16(0x30),
        receives: n16(0x32),
        unexpected: n16(0x34),
        queued: n16(0x36),
        unexpected_tag: n32(0x38),
        eager_number: n32(0x3c),
        eager_expected: n32(0x40),
        send_number: n32(0x44),
        delivered_through: n32(0x48),
        arrived_through: n32(0x4c),
        consumed: n32(0x50),
        credits_through: n32(0x54),
        credits_given: n32(0x58),
        group_oldest: n32(0x5c),
        group_post: n32(0x60),
        slots_next: n32(0x64),
        group_next: n32(0x68),
        epoch: n32(0x6c),
        peer_epoch: n32(0x70),
        failure: n32(0x74),
        lanes_shm: 9,
        lanes_tcp: 10,
        lane_states: n64(0x80),
        lane_generations_low: n128(0x88),
        lane_generations_high: n128(0x98),
        tags_low: n128(0xa8),
        tags_high: n128(0xb8),
    };
    StatusHello { status, send: request(0x40), receive: request(0x80) }
}

#[test]
fn w8_status() {
    let ask =
        StatusAsk { target: n64(0x10), connection: n64(0x18), number: n32(0x20), flags: n32(0x24) };
    assert_eq!(ask.encode(), laid_out::<24>(&[(0, &run::<24>(0x10))]));
    let bytes: [u8; 320] = laid_out(&[
        (0, &run::<28>(0x10)),
        (28, &[1, 2, 3, 4, 5, 6, 7, 8]),
        (36, &run::<72>(0x30)),
        (108, &[9, 10]),
        (112, &run::<72>(0x80)),
        (192, &run::<44>(0x40)),
        (236, &[10, 11, 12, 13, 14, 15, 16, 17]),
        (256, &run::<44>(0x80)),
        (300, &[10, 11, 12, 13, 14, 15, 16, 17]),
    ]);
    assert_eq!(status_hello().encode(), bytes);
    assert_eq!(StatusHello::decode(&bytes), Ok(status_hello()));
    assert_eq!(StatusHello::decode(&bytes[..319]), Err(DecodeError::Short));
}

/// What the fuzz target `band` takes: where to cut, and what to say.
fn cut(places: &[u8], bytes: &[u8]) -> Vec<u8> {
    [&[places.len() as u8][..], places, bytes].concat()
}

fn put(flags: u8, length: u64) -> Record {
    let kind = RecordKind::Put;
    let (id, window, generation, offset, value) = (2, 1, 9, 4096, 7);
    Record { kind, flags, id, window, generation, offset, length, value }
}

/// A frame: a put with its bytes, one whose bytes come apart, and a get.
fn records() -> Vec<u8> {
    let mut frame = FrameHead { applied: 5, wants_applied: true }.to_bytes().to_vec();
    frame.extend(put(SIGNAL, 13).to_bytes());
    frame.extend([0x5a; 16]);
    frame.extend(put(APART | FENCE, 1 << 20).to_bytes());
    frame.extend(Record { kind: RecordKind::Get, ..put(0, 64) }.to_bytes());
    frame
}

fn short_put() -> Vec<u8> {
    let short = Short { record: put(SIGNAL, 8), wants_applied: true };
    short.to_bytes().expect("small numbers").to_vec()
}

fn member() -> Member {
    let handle = listen_handle().encode();
    Member { rank: 1, ranks: 4, has_failed: false, windows_max: 3, handle }
}

/// Valid encodings, from which the fuzzer starts: corpus, file name, bytes.
fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let (first, second) = cell::encode(&[0x10, 0, 1, 2, 3, 4, 5, u64::MAX], 9, 3);
    let none = Address::default();
    let (addresses, more) = ([none; 3], [none; MORE_MAX]);
    let bare = ListenHandle { addresses, more, ..listen_handle() };
    let near = immediate::encode(immediate::token(Seq(5), 3), 63);
    let words = |words: [u32; 3]| words.map(u32::to_le_bytes).concat();
    vec![
        ("head", "eager", head(KIND_EAGER, 0).encode().to_vec()),
        ("head", "descriptor", head(KIND_DESCRIPTOR, 0).encode().to_vec()),
        ("head", "start", head(KIND_START, 64).encode().to_vec()),
        ("descriptor", "one_rail", descriptor(1).encode()[..Descriptor::bytes(1)].to_vec()),
        ("descriptor", "eight_rails", descriptor(8).encode().to_vec()),
        ("slot", "alone", slot(0, 1, 0).encode().to_vec()),
        ("slot", "last_of_eight_canceled", slot(7, 8, SLOT_CANCEL).encode().to_vec()),
        ("slot", "for_32", ControlSlot { more: 31, ..slot(0, 1, SLOT_TAKEN) }.encode().to_vec()),
        ("cell", "whole", [first, second].concat()),
        ("state", "plain", state(0).encode().to_vec()),
        ("state", "canceled_and_failed", state(STATE_CANCELED | STATE_FAILED).encode().to_vec()),
        ("immediate", "near", words([near, 4, 32])),
        ("immediate", "across_the_wrap", words([near, u32::MAX - 3, 512])),
        ("handle", "three_addresses", listen_handle().encode().to_vec()),
        ("handle", "no_address", bare.encode().to_vec()),
        ("blob", "both_ways", connection_blob().encode().to_vec()),
        ("one_sided", "records", records()),
        ("one_sided", "short_put", short_put()),
        ("one_sided", "member", member().to_bytes().to_vec()),
        ("one_sided", "greeting", Greeting { rank: 3, kind: 1 }.to_bytes().to_vec()),
        ("frame", "link_hello", unsummed(Frame::LinkHello(link_hello()))),
        ("frame", "link_reply", unsummed(Frame::LinkReply(link_hello()))),
        ("frame", "link_ready", unsummed(Frame::LinkReady(link_hello()))),
        ("frame", "connect", unsummed(Frame::Connect(connect_hello()))),
        ("frame", "accepted", unsummed(Frame::Accepted(connect_hello()))),
        ("frame", "refused", unsummed(Frame::Refused(refused_hello()))),
        ("frame", "closed", unsummed(Frame::Closed(refused_hello()))),
        ("frame", "stream_hello", unsummed(Frame::StreamHello(stream_hello(), connect_hello()))),
        ("frame", "status", unsummed(Frame::Status(status_hello()))),
        ("band", "link_hello", cut(&[10, 100], &unsummed(Frame::LinkHello(link_hello())))),
        ("band", "link_ready", cut(&[], &unsummed(Frame::LinkReady(link_hello())))),
        ("band", "connect", cut(&[128], &unsummed(Frame::Connect(connect_hello())))),
        ("ring", "records", checks::ring_seed()),
        ("rings", "records", checks::rings_seed()),
        ("stream", "frames", checks::stream_seed()),
        ("sums", "frames", checks::sums_seed()),
    ]
}

#[test]
fn w11_end_of_a_queue_pair() {
    let hello = QueuePairHello {
        gid: n128(0x10),
        number: 0x12_3456,
        first_packet: 0x65_4321,
        mtu_bytes: 1024,
        receives: n32(0x40),
        payload_bytes_max: n32(0x50),
        generation: n32(0x60),
        lid: 0x7271,
        reads_max: 16,
        link_layer: 1,
        ece_vendor: n32(0x80),
        ece_options: n32(0x90),
    };
    let expected: [u8; 64] = laid_out(&[
        (0, &run::<16>(0x10)),
        (16, &[0x56, 0x34, 0x12, 0]),
        (20, &[0x21, 0x43, 0x65, 0]),
        (24, &[0, 4, 0, 0]),
        (28, &run::<4>(0x40)),
        (32, &run::<4>(0x50)),
        (36, &run::<4>(0x60)),
        (40, &[0x71, 0x72]),
        (42, &[16, 0]),
        (44, &[1, 0]),
        (48, &run::<4>(0x80)),
        (52, &run::<4>(0x90)),
    ]);
    assert_eq!(hello.encode(), expected);
    assert_eq!(QueuePairHello::decode(&expected), Ok(hello));
}

fn connection_blob() -> ConnectionBlob {
    ConnectionBlob {
        mailbox_key: n64(0x10),
        mailbox_address: n64(0x20),
        eager_bytes_max: n32(0x30),
        credits: n32(0x40),
        groups_max: n32(0x50),
        flags: BLOB_PULL | BLOB_IMMEDIATE,
        transfer_bytes_max: n64(0x50),
        rail_bytes: 128,
        rail: run(0x60),
    }
}

#[test]
fn w12_blob_of_a_connection_of_the_core() {
    let mut expected: [u8; BLOB_BYTES] = laid_out(&[
        (0, b"tie-blob"),
        (8, &[1, 0, 1, 0]),
        (12, &[128, 0, 0, 0]),
        (16, &run::<8>(0x10)),
        (24, &run::<8>(0x20)),
        (32, &run::<4>(0x30)),
        (36, &run::<4>(0x40)),
        (40, &run::<4>(0x50)),
        (44, &[3, 0, 0, 0]),
        (48, &run::<8>(0x50)),
        (64, &run::<128>(0x60)),
    ]);
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for byte in &expected {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    expected[56..64].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(connection_blob().encode(), expected);
    assert_eq!(ConnectionBlob::decode(&expected), Ok(connection_blob()));
    assert_eq!(ConnectionBlob::decode(&[0; BLOB_BYTES]), Err(DecodeError::Magic));
}

#[test]
fn w8_ports_and_pairs() {
    let port =
        PortHello { gid: n128(0x10), prefix_bits: 0x20, kind: 0x21, speed_mbit_s: n32(0x30) };
    let expected: [u8; 24] =
        laid_out(&[(0, &run::<16>(0x10)), (16, &[0x20]), (17, &[0x21]), (20, &run::<4>(0x30))]);
    assert_eq!(port.encode(), expected);
    let mut list = PortList { count: 1, ..PortList::EMPTY };
    list.all[0] = port;
    let bytes = unsummed(Frame::Ports(list));
    assert_eq!(bytes[8..16], [14, 0, 32, 0, 0, 0, 0, 0]);
    assert_eq!((&bytes[16..24], &bytes[24..]), (&[1, 0, 0, 0, 0, 0, 0, 0][..], &expected[..]));

    let pair = PairHello {
        connection: n64(0x10),
        mailbox_key: n64(0x20),
        lane_generation: n32(0x30),
        lane: 0x40,
        word: 0x41,
        kind: 0,
    };
    let expected: [u8; 32] = laid_out(&[
        (0, &run::<8>(0x10)),
        (8, &run::<8>(0x20)),
        (16, &run::<4>(0x30)),
        (20, &[0x40, 0x41]),
    ]);
    assert_eq!(pair.encode(), expected);
    let end = QueuePairHello { number: 7, ..QueuePairHello::ZERO };
    let bytes = frame(Frame::Pair(pair, end.into()));
    assert_eq!((&bytes[16..48], &bytes[48..]), (&expected[..], &end.encode()[..]));
    let end = shared_end();
    let bytes = frame(Frame::Pair(pair, end.into()));
    assert_eq!((bytes[16 + 22], &bytes[48..]), (1, &end.encode()[..]), "of another kind");
}

fn shared_end() -> SharedEndHello {
    let mut name = [0; NAME_BYTES_MAX];
    name[..4].copy_from_slice(b"here");
    SharedEndHello {
        name,
        name_bytes: 4,
        format: n32(0x10),
        number: 0xfedc,
        token: n32(0x20),
        payload_bytes_max: n32(0x30),
        told: ToldRegion {
            key: n64(0x40),
            library_key: n64(0x50),
            start: n64(0x60),
            length: n64(0x70),
        },
    }
}

#[test]
fn w8_15_door() {
    let door = DoorHello {
        version: n32(0x10),
        door: n64(0x20),
        nonce: n128(0x30),
        proof_low: n128(0x40),
        proof_high: n128(0x50),
        key_low: n128(0x60),
        key_high: n128(0x70),
    };
    let expected: [u8; 96] = laid_out(&[
        (0, &run::<4>(0x10)),
        (8, &run::<8>(0x20)),
        (16, &run::<16>(0x30)),
        (32, &run::<16>(0x40)),
        (48, &run::<16>(0x50)),
        (64, &run::<16>(0x60)),
        (80, &run::<16>(0x70)),
    ]);
    for (kind, said) in
        [(17, Frame::Knock(door)), (18, Frame::Challenge(door)), (19, Frame::Prove(door))]
    {
        let bytes = frame(said);
        assert_eq!((bytes[8], &bytes[16..]), (kind, &expected[..]));
    }
    assert_eq!(frame(Frame::Proved(door))[8], 20);
}

#[test]
fn w13_end_on_a_shared_endpoint() {
    let expected: [u8; 244] = laid_out(&[
        (0, &[4, 0, 0, 0]),
        (4, &run::<4>(0x10)),
        (8, &[0xdc, 0xfe, 0, 0]),
        (12, &run::<4>(0x20)),
        (16, &run::<4>(0x30)),
        (20, b"here"),
        (212, &run::<8>(0x40)),
        (220, &run::<8>(0x50)),
        (228, &run::<8>(0x60)),
        (236, &run::<8>(0x70)),
    ]);
    assert_eq!(shared_end().encode(), expected);
    assert_eq!(SharedEndHello::decode(&expected), Ok(shared_end()));
}

#[test]
fn w14_end_on_a_vendors_rail() {
    let mut blob = [0; BLOB_BYTES_MAX];
    blob[..5].copy_from_slice(b"where");
    let end = VendorEndHello { blob, blob_bytes: 5, payload_bytes_max: n32(0x10) };
    let expected: [u8; 136] = laid_out(&[(0, &[5, 0, 0, 0]), (4, &run::<4>(0x10)), (8, b"where")]);
    assert_eq!(end.encode(), expected);
    assert_eq!(VendorEndHello::decode(&expected), Ok(end));
    let bytes = frame(Frame::Pair(PairHello::default(), end.into()));
    assert_eq!((bytes[16 + 22], &bytes[48..]), (2, &expected[..]), "of a third kind");
}

#[test]
fn fuzz_corpora_are_todays_valid_encodings() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let bless = std::env::var_os("XTIE_BLESS").is_some();
    for (corpus, name, bytes) in seeds() {
        let path = corpora.join(corpus).join(name);
        if bless {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        let committed = std::fs::read(&path).unwrap_or_default();
        assert_eq!(committed, bytes, "{} is stale: see XTIE_BLESS above", path.display());
    }
}

#[test]
fn decoders_take_any_damage_to_valid_bytes() {
    const SEED: u64 = 7;
    const DAMAGES: usize = 20_000;
    let mut state = SEED;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    let seeds = seeds();
    for (name, check) in checks::ALL {
        let of_name: Vec<_> = seeds.iter().filter(|(corpus, ..)| *corpus == name).collect();
        assert!(!of_name.is_empty(), "no seed for {name}");
        for _ in 0..DAMAGES {
            let mut bytes = of_name[random() % of_name.len()].2.clone();
            for _ in 0..random() % 4 {
                let at = random() % bytes.len();
                bytes[at] = random() as u8;
            }
            bytes.truncate(bytes.len() - random() % 8 / 7 * (random() % bytes.len()));
            check(&bytes);
        }
    }
}

/// Each bit of each byte, and none.
#[test]
fn w9_1_byte_that_is_changed_is_not_believed() {
    let seed = checks::sums_seed();
    for place in 0..seed.len() as u16 + 100 {
        for change in (0..8).map(|bit| 1u8 << bit).chain([0]) {
            let [low, high] = place.to_le_bytes();
            checks::sums(&[&[low, high, change], &seed[3..]].concat());
        }
    }
}

#[test]
fn w9_stream_frames() {
    let golden = |frame: StreamFrame, expected: &[u8]| {
        let mut bytes = [0; HEADER_BYTES_MAX];
        let length = frame.encode(&mut bytes);
        assert_eq!(&bytes[..length], expected);
        assert_eq!(StreamFrame::decode(expected), Ok(frame));
    };
    let (key, address) = (n64(0x10), n64(0x18));
    let remote = |first: [u8; 8], last: &[u8]| -> [u8; 32] {
        laid_out(&[(0, &first), (8, &run::<8>(0x10)), (16, &run::<8>(0x18)), (24, last)])
    };
    let send: [u8; HEADER_BYTES_MAX] = laid_out(&[(0, &[1, 0, 0, 0, 0, 0x20, 0, 0])]);
    golden(StreamFrame::Send { length: 8192 }, &send);
    let immediate = Some(n32(0x20));
    let write = StreamFrame::Write { length: 2, key, address, immediate, silent: true };
    golden(write, &remote([2, 3, 0, 0, 2, 0, 0, 0], &run::<4>(0x20)));
    let token = n32(0x20);
    let read = StreamFrame::Read { length: 2, token, key, address };
    golden(read, &remote([3, 0, 0, 0, 2, 0, 0, 0], &run::<4>(0x20)));
    let reply: [u8; 16] = laid_out(&[(0, &[4, 4, 0, 0, 0, 0, 0, 0]), (8, &run::<4>(0x20))]);
    golden(StreamFrame::ReadReply { length: 0, token, refused: true }, &reply);
    let add = StreamFrame::Add { key, address, value: n64(0x20) };
    golden(add, &remote([5, 0, 0, 0, 0, 0, 0, 0], &run::<8>(0x20)));
    golden(StreamFrame::Done { through: 0x0102 }, &[6, 0, 0, 0, 2, 1, 0, 0]);
    golden(StreamFrame::Failed { index: 3 }, &[7, 0, 0, 0, 3, 0, 0, 0]);
    golden(StreamFrame::Bye, &[8, 0, 0, 0, 0, 0, 0, 0]);
}
