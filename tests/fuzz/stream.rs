//! Any bytes on the streams of a TCP rail: nothing outside of its regions is touched, nothing
//! panics, and the peer is down in the end.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, Domain, DownCause, Head, LocalSpan, MemoryKind, Op, OpId, OpKind, Provider,
    RailKey, Region, RemoteSpan, Source,
};
use crosstie::provider::host_domain::HostDomain;
use crosstie::provider::tcp::{Limits, Settings, Tcp, bytes};
use crosstie::wire::stream::{HEADER_BYTES_MAX, StreamFrame};

const LIMITS: Limits = Limits { peers_max: 1, ops_max: 8, streams: 1, lanes: 1 };
const PEER: PeerIndex = PeerIndex(0);
/// Memory of the side that is lied to, and what lies on either side of it.
const OWN_BYTES: usize = 256;
const BESIDE: usize = 64;
/// What the socket takes at once.
const LIES_MAX: usize = 32 << 10;
/// Polls within which all of it has been looked at.
const POLLS_MAX: u32 = 1000;
/// What the clock says has passed between two of them.
const POLL_NANOS: u64 = 1_000_000;

/// W9 alone: what is understood comes back.
fn frame(data: &[u8]) {
    let Ok(frame) = StreamFrame::decode(data) else { return };
    let mut bytes = [0; HEADER_BYTES_MAX];
    let length = frame.encode(&mut bytes);
    assert_eq!(StreamFrame::header_bytes(data[0]), Ok(length));
    assert_eq!(StreamFrame::decode(&bytes[..length]), Ok(frame));
}

/// A rail whose peer sends `data`. Keys and addresses of the memory that it may touch, which no
/// fuzzer would guess, are put in the place of the numbers 1 to 8 there.
pub fn stream(data: &[u8]) {
    frame(data);
    run(false, |key, start| translated(data, key, start));
}

/// What has come of the peer's own accord.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Arrival {
    Received(Head, Vec<u8>),
    Immediate(u32),
}

/// What a rail has reported that was no failure, and what lies in its region then.
#[derive(Default)]
pub struct Run {
    pub arrived: Vec<Arrival>,
    /// Ops of ours that have ended well. They are reported at another time than what arrives.
    pub done: Vec<OpId>,
    pub memory: Vec<u8>,
    down: bool,
}

impl Run {
    /// Whether it has reported nothing that the other has not, in the same order.
    pub fn is_start_of(&self, other: &Run) -> bool {
        other.arrived.starts_with(&self.arrived) && other.done.starts_with(&self.done)
    }
}

/// Lets a rail, with `sums` or without, read what its peer says, which is told the key and the
/// address of the rail's region.
pub fn run(sums: bool, said: impl FnOnce(u64, u64) -> Vec<u8>) -> Run {
    // to the rail a stream is a stream, and thousands of these leave no ports behind
    let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
    far.set_nonblocking(true).expect("a flag of our own socket");
    let mut block = HeapBlock::new(bytes(&LIMITS) + HostDomain::bytes(2));
    let mut carver = block.carver();
    let domain = HostDomain::carve(&mut carver, 2).expect("room");
    let settings = Settings::default();
    // SAFETY: no threads.
    let mut own = unsafe { Tcp::open(&mut carver, &LIMITS, domain, settings) }.expect("a rail");
    own.peer_open_with(PEER, &[near.as_raw_fd()], sums).expect("a fresh peer");
    let mut memory = [0x5a_u8; OWN_BYTES + 2 * BESIDE];
    let start = memory.as_mut_ptr().expose_provenance() as u64 + BESIDE as u64;
    let region = Region { address: start, length: Bytes::of(OWN_BYTES), kind: MemoryKind::Host };
    // SAFETY: the bytes outlive the rail's last poll.
    let key = unsafe { domain.register(region) }.expect("room for a region");
    post_some(&mut own, start, key);
    let lies = said(key.0, start);
    // A liar who is not listened to any more has said enough.
    let _ = far.write_all(&lies[..lies.len().min(LIES_MAX)]);
    let _ = far.shutdown(Shutdown::Write);
    let mut run = Run::default();
    for n in 0..POLLS_MAX {
        // a clock that runs: the rail waits a while for more bytes of who has not said goodbye
        poll(&mut own, Instant(u64::from(n) * POLL_NANOS), &mut run);
        if run.down {
            break;
        }
        let _ = far.read(&mut [0; 4096]);
    }
    assert!(run.down, "the peer is gone and still counts as there");
    let touched = memory[..BESIDE].iter().chain(&memory[BESIDE + OWN_BYTES..]).any(|b| *b != 0x5a);
    assert!(!touched, "bytes beside the region were written");
    run.memory = memory.to_vec();
    run
}

/// One op of each kind that waits for an answer.
fn post_some(own: &mut Tcp, start: u64, key: RailKey) {
    // SAFETY: inside the region.
    let local = unsafe { LocalSpan::new(start, Bytes(64), key) };
    let remote = RemoteSpan { key: RailKey(1), address: 4096 };
    let kinds = [
        OpKind::Read { target: local, source: remote },
        OpKind::Write { source: Source::Span(local), target: remote, immediate: Some(1) },
        OpKind::Add { target: remote, value: 1 },
    ];
    for (n, kind) in kinds.into_iter().enumerate() {
        let op = Op { id: OpId(n as u64), peer: PEER, kind };
        assert!(own.post(&op, Instant(0)).is_ok());
    }
}

/// Polls once.
fn poll(own: &mut Tcp, now: Instant, run: &mut Run) {
    let nothing = Completion::PeerDown { peer: PEER, cause: DownCause::Closed };
    let mut out = [nothing; 4];
    let count = own.poll(&mut out, Bytes::kib(64), now);
    for completion in &out[..count] {
        match completion {
            Completion::Received { peer, slot, head, length } => {
                let mut payload = vec![0; *length as usize];
                own.received_peek(*peer, *slot, &mut payload);
                run.arrived.push(Arrival::Received(*head, payload));
                // the odd ones stay held, so that there is an end of slots too
                if *length % 2 == 0 {
                    own.received_release(*peer, *slot);
                }
            }
            Completion::Immediate { immediate, .. } => {
                run.arrived.push(Arrival::Immediate(*immediate));
            }
            Completion::Done { id, result: Ok(()), .. } => run.done.push(*id),
            Completion::Done { .. } | Completion::Fenced { .. } => {}
            Completion::PeerDown { .. } => run.down = true,
        }
    }
}

/// `data` with the numbers 1 (the key) and 2 to 8 (addresses around the region) replaced in the
/// words where frames that follow each other from the start have them.
pub fn translated(data: &[u8], key: u64, start: u64) -> Vec<u8> {
    let mut lies = data.to_vec();
    let mut at = 0;
    while let Ok(frame) = StreamFrame::decode(&lies[at.min(lies.len())..]) {
        let mut put = |offset: usize, word: u64| {
            lies[at + offset..][..8].copy_from_slice(&word.to_le_bytes());
        };
        let payload = match frame {
            StreamFrame::Write { length, key: named, address, .. } => {
                if named == 1 {
                    put(8, key);
                }
                if let 2..=8 = address {
                    put(16, start + (address - 2) * 48 - 8);
                }
                length
            }
            StreamFrame::Read { key: named, address, .. }
            | StreamFrame::Add { key: named, address, .. } => {
                if named == 1 {
                    put(8, key);
                }
                if let 2..=8 = address {
                    put(16, start + (address - 2) * 48 - 8);
                }
                0
            }
            StreamFrame::Send { length } | StreamFrame::ReadReply { length, .. } => length,
            StreamFrame::Done { .. } | StreamFrame::Failed { .. } | StreamFrame::Bye => 0,
        };
        let header = StreamFrame::header_bytes(lies[at]).unwrap_or(HEADER_BYTES_MAX);
        at = at.saturating_add(header).saturating_add(payload as usize);
    }
    lies
}

/// What an honest peer might send.
#[allow(dead_code)] // for the corpora, not for the fuzzer
pub fn stream_seed() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |frame: StreamFrame, payload: usize| {
        let mut header = [0; HEADER_BYTES_MAX];
        let length = frame.encode(&mut header);
        bytes.extend_from_slice(&header[..length]);
        bytes.extend(std::iter::repeat_n(0x33, payload));
    };
    put(StreamFrame::Send { length: 8 }, 8);
    put(StreamFrame::Send { length: 101 }, 101);
    let silent =
        StreamFrame::Write { length: 64, key: 1, address: 3, immediate: None, silent: true };
    put(silent, 64);
    let loud =
        StreamFrame::Write { length: 32, key: 1, address: 4, immediate: Some(9), silent: false };
    put(loud, 32);
    put(StreamFrame::Read { length: 100, token: 0, key: 1, address: 3 }, 0);
    put(StreamFrame::Add { key: 1, address: 3, value: 7 }, 0);
    put(StreamFrame::Failed { index: 0 }, 0);
    put(StreamFrame::Done { through: 2 }, 0);
    put(StreamFrame::ReadReply { length: 64, token: 0, refused: false }, 64);
    put(StreamFrame::Bye, 0);
    bytes
}
