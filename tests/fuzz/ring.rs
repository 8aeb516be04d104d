//! Any bytes in the memory that a peer can write: nothing outside it is touched, nothing panics.

#[allow(dead_code)]
#[path = "../common/shm_pair.rs"]
mod shm_pair;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, Domain, DownCause, LocalSpan, MemoryDomain, MemoryKind, Op, OpId, OpKind, Provider,
    RailKey, Region, RemoteSpan,
};
use crosstie::provider::shm::Limits;
use crosstie::provider::shm::layout::{self, RingSizes};
use crosstie::provider::shm::record::{self, Header, Kind, LINE};
use crosstie::provider::shm::ring::{LINES_MIN, RingReader};
use crosstie::provider::shm::view::SharedView;
use shm_pair::{PairConfig, PairMemory};

const LINES: usize = LINES_MIN as usize;
const RING_BYTES: u32 = LINES_MIN * LINE as u32;
const SIZES: RingSizes = RingSizes { send_bytes: RING_BYTES, write_bytes: RING_BYTES };
const CONFIG: PairConfig = PairConfig {
    limits: Limits {
        peers_max: 1,
        regions_max: 2,
        ops_max: 8,
        send_ring_bytes: RING_BYTES,
        send_payload_max: 128,
    },
    sizes: SIZES,
    heaps: false,
    kernel_copy: false,
    use_fence: true,
    threads: 0,
};
/// Memory of the side that is lied to.
const OWN_BYTES: usize = 256;

/// The reader alone, over a block of exactly the ring's length and the word behind it.
pub fn ring(data: &[u8]) {
    let mut block = HeapBlock::new((LINES + 1) * LINE);
    let start = block.start();
    let length = data.len().min(LINES * LINE);
    // SAFETY: the block has a line more than the ring, and nobody else knows it.
    let mut reader = unsafe {
        start.copy_from(data.as_ptr(), length);
        RingReader::new(SharedView::new(start, LINES * LINE), start.add(LINES * LINE))
    };
    for _ in 0..2 * LINES {
        let Ok(Some(found)) = reader.peek() else { return };
        let at = found.at as usize - start as usize;
        let bytes = found.lines as usize * LINE;
        assert!(at.is_multiple_of(LINE) && bytes > 0 && at + bytes <= LINES * LINE, "{found:?}");
        if found.kind != Kind::Pad {
            let body = found.length as usize;
            assert!(record::body_at(body) + body <= bytes, "{found:?}");
        }
        reader.pass(&found);
        reader.retire(reader.position());
    }
}

/// A whole provider whose peer wrote `data` over everything that it can write.
pub fn rings(data: &[u8]) {
    let mut memory = PairMemory::new(CONFIG);
    let (shared, whole) = (memory.rings(0), layout::rings_bytes(RING_BYTES, RING_BYTES));
    let [_, mut own] = memory.open();
    let mut bytes = [0x5a_u8; OWN_BYTES + 2 * LINE];
    let start = bytes.as_mut_ptr().expose_provenance() as u64 + LINE as u64;
    let length = Bytes::of(OWN_BYTES);
    let region = Region { address: start, length, kind: MemoryKind::Host };
    // SAFETY: the bytes outlive the provider.
    let key = unsafe { own.domain().register(region) }.expect("room for a region");
    let remote = RemoteSpan { key: RailKey(1), address: 4096 };
    // SAFETY: inside the region.
    let target = unsafe { LocalSpan::new(start, length, key) };
    let read = OpKind::Read { target, source: remote };
    let posted = own.post(&Op { id: OpId(7), peer: PeerIndex(0), kind: read }, Instant(0));
    assert!(posted.is_ok());
    // SAFETY: inside the memory of the rings, while neither side runs.
    unsafe { shared.copy_from(data.as_ptr(), data.len().min(whole)) };
    for _ in 0..32 {
        poll(&mut own);
    }
    let touched = bytes[..LINE].iter().chain(&bytes[LINE + OWN_BYTES..]).any(|b| *b != 0x5a);
    assert!(!touched, "bytes beside the region were written");
}

fn poll(own: &mut impl Provider) {
    let nothing = Completion::PeerDown { peer: PeerIndex(0), cause: DownCause::Closed };
    let mut out = [nothing; 4];
    let count = own.poll(&mut out, Bytes::kib(64), Instant(0));
    for completion in &out[..count] {
        if let Completion::Received { peer, slot, length, .. } = completion {
            // a liar's message may be as long as the ring: the machine looks before it copies
            let mut payload = [0; RING_BYTES as usize];
            own.received_peek(*peer, *slot, &mut payload[..*length as usize]);
            own.received_release(*peer, *slot);
        }
    }
}

/// Records of an honest peer of the ring reader: messages in both shapes, and the padding.
#[allow(dead_code)] // for the corpora, not for the fuzzer
pub fn ring_seed() -> Vec<u8> {
    let mut bytes = vec![0; LINES * LINE];
    let records = [
        (0, Header::new(Kind::Send, 0, 24)),
        (1, Header::new(Kind::Send, record::FLAG_ACK, 100)),
        (4, Header::new(Kind::Write, record::FLAG_IMMEDIATE, 25)),
        (6, Header::new(Kind::Refuse, 0, 0)),
        (7, Header::new(Kind::Pad, 0, 9)),
    ];
    for (line, header) in records {
        bytes[line * LINE..][..8].copy_from_slice(&header.0.to_ne_bytes());
    }
    bytes
}

/// The shared memory after an honest peer has sent and asked.
#[allow(dead_code)]
pub fn rings_seed() -> Vec<u8> {
    let mut bytes = vec![0; layout::rings_bytes(RING_BYTES, RING_BYTES)];
    let mut put = |at: usize, header: Header| {
        bytes[at..at + 8].copy_from_slice(&header.0.to_ne_bytes());
    };
    let (sends, writes) = (layout::SEND_RING_AT, layout::write_ring_at(SIZES));
    put(sends, Header::new(Kind::Send, 0, 8));
    put(sends + LINE, Header::new(Kind::Send, 0, 128));
    put(writes, Header::new(Kind::Write, record::FLAG_ACK | record::FLAG_IMMEDIATE, 0));
    put(writes + LINE, Header::new(Kind::Read, 0, 0));
    put(writes + 2 * LINE, Header::new(Kind::Data, 0, 16));
    bytes
}
