//! The schedules of an AllGather, and its words, without a GPU: each rank's stream and service as a
//! state machine, in random orders.

use crosstie::collective::plan::PlanError;
use crosstie::collective::{Algorithm, Op, Plan, Put, Word, Words, program};
use std::collections::BTreeMap;

const BOTH: [Algorithm; 2] = [Algorithm::Direct, Algorithm::Pipeline];

/// The length of a chunk.
const BYTES: u64 = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// A chunk of a rank's memory: of which replay it is, and whether a flush has made it visible.
#[derive(Copy, Clone, Default, PartialEq, Debug)]
struct Chunk {
    replay: u32,
    visible: bool,
    /// How often it was written in this replay.
    writes: u32,
}

/// One rank: its memory, its words, and where its two workers are.
struct Rank {
    chunks: Vec<Chunk>,
    words: Vec<u64>,
    replay: u32,
    op: usize,
    service: Service,
    /// The caller's memory may be written: a replay is under way.
    is_open: bool,
}

#[derive(Default)]
struct Service {
    runs: u32,
    is_running: bool,
    issued: usize,
    landed: u32,
    /// By rank: how often it was ready, and how many chunks it has put, visible or not.
    ready: BTreeMap<u32, u32>,
    arrived: BTreeMap<u32, u32>,
    flushed: BTreeMap<u32, u32>,
}

struct World {
    teams: Vec<u32>,
    algorithm: Algorithm,
    in_place: bool,
    replays: u32,
    ranks: Vec<Rank>,
    /// Puts under way: from, put, replay.
    flying: Vec<(u32, Put, u32)>,
    words: Words,
}

impl World {
    fn new(teams: Vec<u32>, algorithm: Algorithm, in_place: bool, replays: u32) -> World {
        let words = Words { ranks: teams.len() as u32 };
        let rank = |rank| Rank {
            chunks: vec![Chunk::default(); teams.len()],
            words: at_rest(words, rank as u32),
            replay: 1,
            op: 0,
            service: Service::default(),
            is_open: false,
        };
        let ranks = (0..teams.len()).map(rank).collect();
        World { teams, algorithm, in_place, replays, ranks, flying: Vec::new(), words }
    }

    fn plan(&self, rank: usize) -> Plan<'_> {
        Plan::new(&self.teams, rank as u32, self.algorithm).expect("a plan")
    }

    fn word(&mut self, rank: usize, word: Word) -> &mut u64 {
        let owner = match word {
            Word::Ready { owner, .. } | Word::Done { owner, .. } | Word::Failed { owner } => {
                owner as usize
            }
            Word::Go | Word::State | Word::Landed(_) => rank,
        };
        &mut self.ranks[owner].words[self.words.at(word) as usize]
    }

    /// Bytes come to a rank, whose caller must have let it.
    fn write(&mut self, to: usize, chunk: u32, replay: u32, visible: bool) {
        let rank = &mut self.ranks[to];
        assert!(rank.is_open && rank.replay == replay, "rank {to} is not ready for {replay}");
        let held = &mut rank.chunks[chunk as usize];
        assert!(held.replay < replay, "chunk {chunk} reached rank {to} twice");
        *held = Chunk { replay, visible, writes: 1 };
    }

    /// A rank reads a chunk of its memory, to give it to others.
    fn read(&self, rank: usize, chunk: u32, replay: u32) {
        let held = self.ranks[rank].chunks[chunk as usize];
        assert!(held.replay == replay && held.visible, "rank {rank} passes {chunk} on too early");
    }

    /// One step of a rank's stream; whether there was one.
    fn stream(&mut self, rank: usize) -> bool {
        if self.ranks[rank].replay > self.replays {
            return false;
        }
        let replay = self.ranks[rank].replay;
        let op = program(self.plan(rank), BYTES, self.in_place).nth(self.ranks[rank].op);
        let Some(op) = op else {
            let rank = &mut self.ranks[rank];
            for (at, chunk) in rank.chunks.iter().enumerate() {
                let wanted = Chunk { replay, visible: true, writes: 1 };
                assert_eq!(*chunk, wanted, "chunk {at} at the release");
            }
            (rank.replay, rank.op, rank.is_open) = (replay + 1, 0, false);
            return true;
        };
        match op {
            Op::Write(Word::State, _) => self.ranks[rank].is_open = true,
            Op::Write(word, value) => {
                let is_open = matches!(word, Word::Done { owner, .. } if owner as usize == rank);
                self.ranks[rank].is_open |= is_open;
                let word = self.word(rank, word);
                assert_eq!(*word == 0, value != 0, "a word that was not put back, or not seen");
                *word = value;
            }
            Op::Await(word) => {
                if *self.word(rank, word) != 1 {
                    return false;
                }
            }
            Op::CopyOwn => self.write(rank, rank as u32, replay, true),
            Op::Copy { chunk, to } => {
                if chunk as usize != rank {
                    self.read(rank, chunk, replay); // else what the caller gives
                }
                self.write(to as usize, chunk, replay, true);
            }
        }
        if self.in_place && self.ranks[rank].op == 0 {
            self.write(rank, rank as u32, replay, true);
        }
        self.ranks[rank].op += 1;
        true
    }

    /// One step of a rank's service; whether there was one.
    fn serve(&mut self, rank: usize) -> bool {
        let service = &self.ranks[rank].service;
        let (run, is_running) = (service.runs, service.is_running);
        if !is_running {
            let go = self.word(rank, Word::Go);
            if core::mem::take(go) != BYTES {
                return false;
            }
            let told: Vec<u32> = self.plan(rank).sources().collect();
            let service = &mut self.ranks[rank].service;
            (service.runs, service.is_running, service.issued, service.landed) =
                (run + 1, true, 0, 0);
            for peer in told {
                let ready = &mut self.ranks[peer as usize].service.ready;
                *ready.entry(rank as u32).or_default() += 1;
            }
            return true;
        }
        self.land(rank, run) || self.issue(rank, run) || self.finish(rank)
    }

    /// Flushes what has arrived, and tells the stream.
    fn land(&mut self, rank: usize, run: u32) -> bool {
        let plan = self.plan(rank);
        let next = self.ranks[rank].service.landed + 1;
        if next > plan.landings() {
            return false;
        }
        let wanted = (run - 1) * plan.chunks_each() + plan.landed(next);
        let chunks: Vec<(u32, u32)> = plan.landing(next).collect();
        let service = &self.ranks[rank].service;
        let count = |of: &BTreeMap<u32, u32>, from| of.get(&from).copied().unwrap_or(0);
        if !chunks.iter().all(|(_, from)| count(&service.arrived, *from) >= wanted) {
            return false;
        }
        for (chunk, from) in chunks {
            self.ranks[rank].chunks[chunk as usize].visible = true; // the flush
            self.ranks[rank].service.flushed.insert(from, wanted);
        }
        self.ranks[rank].service.landed = next;
        let word = self.word(rank, Word::Landed(next));
        assert_eq!(*word, 0);
        *word = 1;
        true
    }

    fn issue(&mut self, rank: usize, run: u32) -> bool {
        let service = &self.ranks[rank].service;
        let Some(put) = self.plan(rank).puts().nth(service.issued) else { return false };
        let is_ready = service.ready.get(&put.to).copied().unwrap_or(0) >= run;
        if !is_ready || service.landed < put.after {
            return false;
        }
        self.read(rank, put.chunk, run);
        self.flying.push((rank as u32, put, run));
        self.ranks[rank].service.issued += 1;
        true
    }

    fn finish(&mut self, rank: usize) -> bool {
        let plan = self.plan(rank);
        let last = plan.landings() + 1;
        let service = &self.ranks[rank].service;
        let is_left = self.flying.iter().all(|(from, ..)| *from != rank as u32);
        let is_over =
            service.issued == plan.puts().count() && service.landed + 1 == last && is_left;
        if is_over {
            self.ranks[rank].service.is_running = false;
            *self.word(rank, Word::Landed(last)) = 1;
        }
        is_over
    }

    /// Bytes of a put arrive. Those to one rank keep their order.
    fn fly(&mut self, random: &mut Random) -> bool {
        if self.flying.is_empty() {
            return false;
        }
        let (from, put, _) = self.flying[random.below(self.flying.len())];
        let is_first = |it: &(u32, Put, u32)| it.0 == from && it.1.to == put.to;
        let at = self.flying.iter().position(is_first).expect("itself");
        let (from, put, run) = self.flying.remove(at);
        self.write(put.to as usize, put.chunk, run, false);
        *self.ranks[put.to as usize].service.arrived.entry(from).or_default() += 1;
        true
    }

    /// Runs until all streams have ended. `slow`: a rank that moves only when nothing else can.
    fn run(&mut self, seed: u64, slow: Option<usize>) {
        let mut random = Random(seed * 2 + 1);
        let count = self.ranks.len();
        let mut idle = 0;
        while self.ranks.iter().any(|rank| rank.replay <= self.replays) {
            let rank = random.below(count);
            let is_held = slow == Some(rank) && idle < 8 * count;
            let moved = match random.below(3) {
                0 => self.fly(&mut random),
                _ if is_held => false,
                1 => self.stream(rank),
                _ => self.serve(rank),
            };
            idle = if moved { 0 } else { idle + 1 };
            assert!(idle < 400 * count, "the ranks wait for each other for ever");
        }
        assert!(self.flying.is_empty());
        for (at, rank) in self.ranks.iter().enumerate() {
            assert_eq!(rank.words, at_rest(self.words, at as u32), "a word is left");
        }
    }
}

/// The words of a rank between two runs.
fn at_rest(words: Words, owner: u32) -> Vec<u64> {
    let mut all = vec![0; words.count() as usize];
    for by in 0..words.ranks {
        all[words.at(Word::Done { owner, by }) as usize] = 1;
    }
    all
}

fn teams_of(teams: u32, each: u32) -> Vec<u32> {
    (0..teams * each).map(|rank| rank / each).collect()
}

#[test]
fn each_chunk_reaches_each_rank_once_and_none_is_passed_on_too_early() {
    for teams in 1..=8 {
        for each in 1..=8 {
            for algorithm in BOTH {
                let mut world = World::new(teams_of(teams, each), algorithm, true, 1);
                world.run(u64::from(teams * 8 + each), None);
            }
        }
    }
}

#[test]
fn replays_may_overlap_between_ranks_and_none_overtakes_another() {
    for (teams, each) in [(1, 2), (1, 3), (1, 8), (2, 1), (2, 2), (3, 2), (4, 3)] {
        for algorithm in BOTH {
            for seed in 1..=20 {
                for slow in [None, Some(0), Some(teams as usize * each as usize - 1)] {
                    let in_place = seed % 2 == 0;
                    let mut world = World::new(teams_of(teams, each), algorithm, in_place, 4);
                    world.run(seed, slow);
                }
            }
        }
    }
}

#[test]
fn teams_of_unequal_size_gather_directly_and_refuse_the_pipeline() {
    for teams in [vec![0, 0, 1], vec![0, 1, 0, 1], vec![2, 2, 1, 0, 0, 0]] {
        let refused = Plan::new(&teams, 0, Algorithm::Pipeline).err();
        assert_eq!(refused, Some(PlanError::Teams));
        let mut world = World::new(teams, Algorithm::Direct, false, 3);
        world.run(7, None);
    }
    assert_eq!(Plan::new(&[0, 0], 2, Algorithm::Direct).err(), Some(PlanError::Rank));
}

#[test]
fn no_two_words_of_an_owner_share_a_place() {
    let words = Words { ranks: 5 };
    let mut all = vec![Word::Go, Word::State];
    for by in 0..5 {
        all.extend([Word::Ready { owner: 0, by }, Word::Done { owner: 0, by }]);
    }
    all.extend((1..=6).map(Word::Landed));
    all.push(Word::Failed { owner: 0 });
    let mut places: Vec<u32> = all.iter().map(|word| words.at(*word)).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), all.len());
    assert!(places.iter().all(|place| *place < words.count()));
}
