//! A flush over four real rails: each with or without room, alive or dead, in every pattern.

mod common;

use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, Domain, DownCause, LocalSpan, MemoryDomain, MemoryKind, Op, OpId, OpKind, PeerLife,
    PostError, Posted, Provider, RailKey, Region, RemoteSpan, Source,
};
use crosstie::provider::loopback::{Limits, Loopback};
use crosstie::transport::flush::{Flush, FlushEnd};

const RAILS: usize = 4;
const GENERATIONS: [RailGeneration; 8] = [RailGeneration(3); 8];
const NOW: Instant = Instant(0);
/// A transfer that polls work on, and the room for one such.
const LONG: usize = 64 << 10;
const LIMITS: Limits =
    Limits { peers_max: 2, slots: 4, payload_max: Bytes(64), regions_max: 2, jobs: 1 };

const DATA: OpId = OpId(1);
const FLUSH: OpId = OpId(2);
const FENCE: OpId = OpId(3);

/// One rail, memory that its peer writes data into, and what its flush reads.
struct Rail {
    loopback: Loopback<'static>,
    peer: PeerIndex,
    memory: Vec<u8>,
    key: RailKey,
}

impl Rail {
    fn open() -> Rail {
        let mut loopback =
            Loopback::open(LIMITS, &mut common::carver(Loopback::bytes(LIMITS))).unwrap();
        let peer = PeerIndex(0);
        loopback.peer_open_at(peer, PeerIndex(1)).unwrap();
        let mut memory = vec![0; 2 * LONG + 64];
        memory[..LONG].fill(7);
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let length = Bytes::of(memory.len());
        let region = Region { address, length, kind: MemoryKind::Host };
        // SAFETY: the vector does not grow, and is dropped with the loopback.
        let key = unsafe { loopback.domain().register(region) }.unwrap();
        Rail { loopback, peer, memory, key }
    }

    fn span(&self, offset: usize, length: usize) -> LocalSpan {
        let address = self.memory.as_ptr() as u64 + offset as u64;
        // SAFETY: inside the vector; it is looked at when the op has ended.
        unsafe { LocalSpan::new(address, Bytes::of(length), self.key) }
    }

    fn remote(&self, offset: usize) -> RemoteSpan {
        RemoteSpan { key: self.key, address: self.memory.as_ptr() as u64 + offset as u64 }
    }

    fn post(&mut self, id: OpId, kind: OpKind) -> Result<Posted, PostError> {
        self.loopback.post(&Op { id, peer: self.peer, kind }, NOW)
    }

    /// Data on its way, which takes all the room that the rail has.
    fn data_post(&mut self) {
        let (source, target) = (Source::Span(self.span(0, LONG)), self.remote(LONG));
        let posted = self.post(DATA, OpKind::Write { source, target, immediate: None });
        assert_eq!(posted, Ok(Posted::Pending));
    }

    /// The flush's read: the last byte of the data, to memory of the flush's own.
    fn flush_post(&mut self) -> Result<Posted, PostError> {
        let (target, source) = (self.span(2 * LONG, 1), self.remote(2 * LONG - 1));
        self.post(FLUSH, OpKind::Read { target, source })
    }

    /// Polls, and hands the flush what concerns it.
    fn poll(&mut self, number: u8, flush: &mut Flush) {
        let mut out = [common::NOTHING; 8];
        let count = self.loopback.poll(&mut out, Bytes::of(LONG / 4), NOW);
        for completion in &out[..count] {
            match *completion {
                Completion::Done { id: FLUSH, result, .. } => {
                    flush.completed(number, result.is_ok());
                }
                Completion::Fenced { id: FENCE, generation, .. } => {
                    flush.fenced(number, generation);
                }
                Completion::PeerDown { peer, .. } if peer == self.peer => flush.failed(number),
                _ => {}
            }
        }
    }
}

fn rails() -> Vec<Rail> {
    (0..RAILS).map(|_| Rail::open()).collect()
}

fn step(flush: &mut Flush, rails: &mut [Rail]) -> bool {
    flush.step(|rail| rails[usize::from(rail)].flush_post())
}

fn poll(flush: &mut Flush, rails: &mut [Rail]) {
    for (number, rail) in rails.iter_mut().enumerate() {
        rail.poll(number as u8, flush);
    }
}

#[test]
fn data_posted_before_a_flush_is_there_when_it_ends() {
    for busy in 0..1u8 << RAILS {
        let mut rails = rails();
        for (_, rail) in rails.iter_mut().enumerate().filter(|(n, _)| busy >> n & 1 == 1) {
            rail.data_post();
        }
        let mut flush = Flush::begin(0b1111, GENERATIONS);
        assert_eq!(step(&mut flush, &mut rails), busy != 0);
        assert_eq!((flush.due(), flush.posted()), (busy, !busy & 0b1111), "Again on the busy ones");
        let mut rounds = 0;
        while flush.end().is_none() {
            assert!(rounds < 100, "a flush that does not end");
            poll(&mut flush, &mut rails);
            step(&mut flush, &mut rails);
            rounds += 1;
        }
        assert_eq!(flush.end(), Some(FlushEnd::Visible));
        for (n, rail) in rails.iter().enumerate() {
            let expected = if busy >> n & 1 == 1 { 7 } else { 0 };
            assert!(rail.memory[LONG..2 * LONG].iter().all(|byte| *byte == expected));
            assert_eq!(rail.memory[2 * LONG], expected, "what the flush read");
        }
    }
}

#[test]
fn rails_that_die_are_settled_by_their_fences() {
    for busy in 0..1u8 << RAILS {
        for dead in 1..1u8 << RAILS {
            let mut rails = rails();
            let mut flush = Flush::begin(0b1111, GENERATIONS);
            for (n, rail) in rails.iter_mut().enumerate() {
                if busy >> n & 1 == 1 {
                    rail.data_post();
                }
                if dead >> n & 1 == 1 {
                    rail.loopback.peer_fail(rail.peer, DownCause::Died);
                }
            }
            for _ in 0..100 {
                step(&mut flush, &mut rails);
                poll(&mut flush, &mut rails);
            }
            assert_eq!((flush.unsettled(), flush.end()), (dead, None), "busy {busy:b}");
            assert_eq!(flush.done(), !dead & 0b1111);
            for (n, rail) in rails.iter_mut().enumerate().filter(|(n, _)| dead >> n & 1 == 1) {
                let kind = OpKind::Fence { generation: GENERATIONS[n] };
                assert_eq!(rail.post(FENCE, kind), Ok(Posted::Pending));
                assert_eq!(flush.end(), None);
            }
            poll(&mut flush, &mut rails);
            assert_eq!((flush.end(), flush.flying()), (Some(FlushEnd::Visible), 0));
        }
    }
}
