//! Random programs on several queues, whose indices begin shortly before a wrap, and an oracle.
//!
//! The oracle has the rules of the executor's table over lists that never wrap. It says beforehand
//! what a step answers, and what the GPU sees of each entry afterwards.

use super::*;
use crate::random::Random;

const RANKS: usize = 3;
const OWN: usize = 0;
/// The rank of each queue: two peers, and a companion for each.
const QUEUES: [usize; 4] = [1, ORDERED, OWN, OWN];
/// The way to this rank keeps the order.
const ORDERED: usize = 2;
const FIRST: u32 = 0x00ff_fff0;
const WINDOW_BYTES: u64 = 4096;
const SIGNALS: u64 = 8;
/// Turns in which all that was posted must have ended.
const DRAIN_MAX: usize = 10_000;

/// What an entry asks for, as the oracle sees it.
#[derive(Copy, Clone, Debug)]
enum Meaning {
    Nothing,
    Dump,
    /// Waits for an entry of a queue, by its place in the list.
    Wait {
        queue: usize,
        place: usize,
    },
    Run(Class, Action),
    Senseless(Syndrome),
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum State {
    Waiting,
    Flying,
    Ended,
}

struct Posted {
    meaning: Meaning,
    fenced: bool,
    state: State,
}

/// One queue of the oracle. Places count from its first entry.
struct Line {
    first: u64,
    rank: usize,
    posted: Vec<Posted>,
    announced: usize,
    taken: usize,
    completed: usize,
    failure: Option<(usize, Syndrome)>,
}

impl Line {
    fn flying(&self) -> impl Iterator<Item = &Posted> {
        let taken = &self.posted[self.completed..self.taken];
        taken.iter().filter(|entry| entry.state == State::Flying)
    }

    fn is_quiet(&self) -> bool {
        self.flying().count() == 0
    }

    fn may_start(&self, class: Class) -> bool {
        self.flying().all(|entry| match entry.meaning {
            Meaning::Run(earlier, _) => may_be_beside(earlier, class),
            Meaning::Nothing | Meaning::Dump | Meaning::Wait { .. } | Meaning::Senseless(_) => true,
        })
    }

    /// The first failure counts: that of the earliest entry.
    fn fail(&mut self, place: usize, syndrome: Syndrome) {
        if self.failure.is_none_or(|(earlier, _)| place < earlier) {
            self.failure = Some((place, syndrome));
        }
    }

    fn flush(&mut self) {
        if self.failure.is_some() && self.is_quiet() {
            self.completed = self.announced;
            self.taken = self.announced;
        }
    }

    /// Ends an entry, and completes what has ended in a row.
    fn end(&mut self, place: usize) {
        self.posted[place].state = State::Ended;
        while self.completed < self.taken && self.posted[self.completed].state == State::Ended {
            self.completed += 1;
        }
    }

    /// Takes the next entry, which is over at once.
    fn pass(&mut self) -> Step {
        self.taken += 1;
        self.end(self.taken - 1);
        Step::Ended
    }

    fn refuse(&mut self, syndrome: Syndrome) -> Step {
        self.fail(self.taken, syndrome);
        self.flush();
        Step::Failed
    }

    fn outcome(&self, place: usize) -> Option<Result<(), u8>> {
        (place < self.completed).then_some(match self.failure {
            Some((failed, syndrome)) if place == failed => Err(syndrome as u8),
            Some((failed, _)) if place > failed => Err(Syndrome::Flushed as u8),
            Some(_) | None => Ok(()),
        })
    }
}

struct Oracle(Vec<Line>);

impl Oracle {
    /// What a step of the queue `at` answers.
    fn step(&mut self, at: usize) -> Step {
        let line = &mut self.0[at];
        if line.failure.is_some() {
            line.flush();
            return Step::Failed;
        }
        if line.taken == line.announced {
            return Step::Idle;
        }
        let next = &line.posted[line.taken];
        if next.fenced && !line.is_quiet() {
            return Step::Blocked;
        }
        match next.meaning {
            Meaning::Nothing => line.pass(),
            Meaning::Dump if line.is_quiet() => line.pass(),
            Meaning::Senseless(syndrome) => line.refuse(syndrome),
            Meaning::Wait { queue, place } => self.wait(at, queue, place),
            Meaning::Run(class, action) if line.may_start(class) => {
                let index = line.first + line.taken as u64;
                line.posted[line.taken].state = State::Flying;
                line.taken += 1;
                Step::Operation(Operation { queue: at, index, action })
            }
            Meaning::Dump | Meaning::Run(..) => Step::Blocked,
        }
    }

    fn wait(&mut self, at: usize, queue: usize, place: usize) -> Step {
        let other = &self.0[queue];
        if other.failure.is_some_and(|(failed, _)| failed <= place) {
            return self.0[at].refuse(Syndrome::Flushed);
        }
        if place < other.completed { self.0[at].pass() } else { Step::Blocked }
    }

    fn complete(&mut self, operation: &Operation, outcome: Result<(), Syndrome>) {
        let line = &mut self.0[operation.queue];
        let place = (operation.index - line.first) as usize;
        if let Err(syndrome) = outcome {
            line.fail(place, syndrome);
        }
        line.end(place);
    }

    fn fail_rank(&mut self, rank: usize, syndrome: Syndrome) {
        for line in self.0.iter_mut().filter(|line| line.rank == rank) {
            line.fail(line.completed, syndrome);
            line.flush();
        }
    }

    fn owes_nothing(&self) -> bool {
        self.0.iter().all(|line| line.completed == line.posted.len())
    }
}

/// Keys, in the order of their slots.
struct Regions {
    window: u32,
    signals: u32,
    sink: u32,
}

fn place_of(region: u16, kind: Kind, rank: usize, offset: u64) -> Place {
    Place { region, kind, rank: rank as u16, offset }
}

impl Regions {
    fn window(&self, random: &mut Random, rank: usize) -> (Address, Place) {
        let offset = random.below(WINDOW_BYTES - 128);
        (Address { key: self.window, offset }, place_of(0, Kind::Window, rank, offset))
    }

    fn local(&self, random: &mut Random) -> (Segment, Local) {
        let (at, place) = self.window(random, OWN);
        let bytes = 1 + random.below(64);
        (Segment { at, bytes }, Local { at: place, bytes })
    }

    fn locals(&self, random: &mut Random) -> ([Segment; 2], [Option<Local>; 2]) {
        let (first, second) = (self.local(random), self.local(random));
        match random.below(2) {
            0 => ([first.0, Segment::default()], [Some(first.1), None]),
            _ => ([first.0, second.0], [Some(first.1), Some(second.1)]),
        }
    }

    fn old(&self) -> Segment {
        Segment { at: Address { key: self.sink, offset: 0 }, bytes: 8 }
    }

    fn write(&self, random: &mut Random, rank: usize) -> (Work, Meaning) {
        let ((remote, to), (local, from)) = (self.window(random, rank), self.locals(random));
        (Work::Write { remote, local }, Meaning::Run(Class::Write, Action::Write { to, from }))
    }

    /// No byte is one of the pattern's: it would be waited for.
    fn inline(&self, random: &mut Random, rank: usize) -> (Work, Meaning) {
        let (remote, to) = self.window(random, rank);
        let bytes = random.below(INLINE_MAX as u64 + 1) as u8;
        let mut data = [0; INLINE_MAX];
        data[..usize::from(bytes)].fill_with(|| 1 + random.below(12) as u8);
        let action = Action::WriteInline { to, data, bytes };
        (Work::WriteInline { remote, data, bytes }, Meaning::Run(Class::Write, action))
    }

    fn read(&self, random: &mut Random, rank: usize) -> (Work, Meaning) {
        let ((remote, from), (local, to)) = (self.window(random, rank), self.locals(random));
        (Work::Read { remote, local }, Meaning::Run(Class::Read, Action::Read { from, to }))
    }

    fn add(&self, random: &mut Random, rank: usize) -> (Work, Meaning) {
        let (offset, value) = (8 * random.below(SIGNALS), random.below(1 << 40));
        let remote = Address { key: self.signals, offset };
        let word = place_of(1, Kind::Signals, rank, offset);
        let old = place_of(2, Kind::Sink, OWN, 0);
        let work = Work::FetchAdd { remote, add: value, local: self.old() };
        let class = if rank == ORDERED { Class::Ordered } else { Class::Atomic };
        (work, Meaning::Run(class, Action::Add { word, value, old }))
    }

    fn senseless(&self, random: &mut Random) -> (Work, Meaning) {
        let ((local, _), remote) = (self.local(random), Address { key: self.window, offset: 0 });
        let locals = [local, Segment::default()];
        let beyond = Address { offset: WINDOW_BYTES - local.bytes + 1, ..remote };
        let stale = Address { key: self.window ^ 1 << 16, ..remote };
        let odd = Address { key: self.signals, offset: 4 };
        let foreign = Segment { at: stale, bytes: 8 };
        let (work, syndrome) = match random.below(6) {
            0 => (Work::Write { remote: beyond, local: locals }, Syndrome::RemoteAccess),
            1 => (Work::Read { remote: stale, local: locals }, Syndrome::RemoteAccess),
            2 => {
                let local = self.old();
                (Work::FetchAdd { remote: odd, add: 1, local }, Syndrome::RemoteAccess)
            }
            3 => (Work::Read { remote, local: [local, foreign] }, Syndrome::LocalProtection),
            4 => (Work::Dump { local: foreign }, Syndrome::LocalProtection),
            _ => (Work::Wait { queue: FIRST - 1, index: 0 }, Syndrome::LocalOperation),
        };
        (work, Meaning::Senseless(syndrome))
    }
}

/// Both sides of all queues, and the oracle.
struct World<'m, 'q> {
    executor: Executor<'m, 'q>,
    gpu: Vec<FakeQueue<'m>>,
    keys: Keys<'m>,
    regions: Regions,
    oracle: Oracle,
    flying: Vec<Operation>,
    random: Random,
    /// Whether anything may fail.
    troubled: bool,
    name: (u64, u64),
}

impl World<'_, '_> {
    fn any_queue(&mut self) -> usize {
        self.random.below(QUEUES.len() as u64) as usize
    }

    /// A wait for one of the last entries of a queue, which may be the own one.
    fn wait(&mut self) -> (Work, Meaning) {
        let queue = self.any_queue();
        let line = &self.oracle.0[queue];
        let count = line.posted.len();
        if count == 0 {
            return (Work::Nop, Meaning::Nothing);
        }
        let place = count - 1 - self.random.below(count.min(12) as u64) as usize;
        let index = (line.first + place as u64) as u32;
        (Work::Wait { queue: FIRST + queue as u32, index }, Meaning::Wait { queue, place })
    }

    fn draft(&mut self, at: usize) -> (Work, Meaning) {
        let (rank, troubled) = (QUEUES[at], self.troubled);
        let kind = self.random.below(40);
        let (regions, random) = (&self.regions, &mut self.random);
        match kind {
            0..=3 => (Work::Nop, Meaning::Nothing),
            4..=11 => regions.write(random, rank),
            12..=15 => regions.inline(random, rank),
            16..=20 => regions.read(random, rank),
            21..=27 => regions.add(random, rank),
            28..=30 => (Work::Dump { local: regions.local(random).0 }, Meaning::Dump),
            31 if troubled => regions.senseless(random),
            _ => self.wait(),
        }
    }

    fn post(&mut self) {
        let at = self.any_queue();
        if !self.gpu[at].has_room() {
            return;
        }
        let (work, meaning) = self.draft(at);
        let fence = if self.random.below(8) == 0 { 1 + self.random.below(7) } else { 0 };
        let index = self.gpu[at].write(&work, fence);
        let line = &mut self.oracle.0[at];
        assert_eq!(index, line.first + line.posted.len() as u64);
        line.posted.push(Posted { meaning, fenced: fence != 0, state: State::Waiting });
    }

    fn ring(&mut self, at: usize) {
        self.gpu[at].ring();
        self.oracle.0[at].announced = self.oracle.0[at].posted.len();
    }

    fn step(&mut self, at: usize) {
        let (expected, name) = (self.oracle.step(at), self.name);
        let step = self.executor.step(at, &self.keys, 0);
        assert_eq!(step, expected, "queue {at}, wrap and seed {name:?}");
        if let Step::Operation(operation) = step {
            self.flying.push(operation);
        }
    }

    fn complete(&mut self) {
        if self.flying.is_empty() {
            return;
        }
        let at = self.random.below(self.flying.len() as u64) as usize;
        let operation = self.flying.swap_remove(at);
        let failed = self.troubled && self.random.below(100) == 0;
        let outcome = if failed { Err(Syndrome::RemoteOperation) } else { Ok(()) };
        self.executor.complete(&operation, outcome);
        self.oracle.complete(&operation, outcome);
    }

    fn lose(&mut self) {
        if self.troubled && self.random.below(400) == 0 {
            let rank = 1 + self.random.below(RANKS as u64 - 1) as usize;
            self.executor.fail_rank(rank, Syndrome::PeerLost);
            self.oracle.fail_rank(rank, Syndrome::PeerLost);
        }
    }

    /// Both sides say the same of every entry whose slot is not taken again.
    fn check(&self) {
        for ((line, gpu), lane) in self.oracle.0.iter().zip(&self.gpu).zip(self.executor.lanes()) {
            let queue = &lane.queue;
            let count = line.posted.len();
            for place in count.saturating_sub(queue.depth() as usize)..count {
                let seen = gpu.poll(line.first + place as u64);
                let what = (queue.number() - FIRST, place, line.first);
                assert_eq!(seen, line.outcome(place), "{what:?}, wrap and seed {:?}", self.name);
            }
            let counts = [queue.counts().taken, queue.counts().completed];
            let expected = [line.taken, line.completed].map(|count| line.first + count as u64);
            assert_eq!(counts, expected, "wrap and seed {:?}", self.name);
        }
        assert_eq!(self.executor.is_quiet(), self.flying.is_empty());
    }

    fn turn(&mut self) {
        let at = self.any_queue();
        match self.random.below(9) {
            0..=2 => self.post(),
            3 => self.ring(at),
            4..=6 => self.step(at),
            7 => self.complete(),
            _ => self.lose(),
        }
        self.check();
    }

    fn drain(&mut self) {
        for _ in 0..DRAIN_MAX {
            if self.oracle.owes_nothing() {
                return;
            }
            for at in 0..QUEUES.len() {
                self.ring(at);
                self.step(at);
                self.complete();
            }
            self.check();
        }
        panic!("entries never end: wrap and seed {:?}", self.name);
    }
}

/// Runs `test` on queues whose indices begin up to four laps before `wrap`.
fn with_world(seed: u64, wrap: u64, test: impl FnOnce(&mut World<'_, '_>)) {
    let mut random = Random::new(seed ^ wrap);
    let mut shared: Vec<Shared> = QUEUES.map(|_| Shared::new(1 << random.below(5))).into();
    let (mut slots, mut bytes) = ([KeySlot::default(); 3], [0; 3 * RANKS]);
    let mut keys = Keys::new(&mut slots, &mut bytes, RANKS);
    let mut register = |kind, bytes| keys.register(kind, &[bytes; RANKS]).unwrap();
    let window = register(Kind::Window, WINDOW_BYTES);
    let signals = register(Kind::Signals, 8 * SIGNALS);
    let regions = Regions { window, signals, sink: register(Kind::Sink, 8) };
    let (mut gpu, mut lanes, mut lines) = (vec![], vec![], vec![]);
    for ((at, part), rank) in shared.iter_mut().enumerate().zip(QUEUES) {
        let depth = part.classes.len() as u64;
        let first = wrap.saturating_sub(random.below(4 * depth) + 1);
        let Shared { ring, completions, doorbell, ended, classes } = part;
        let number = FIRST + at as u32;
        let mut queue =
            Queue::new(Memory { ring, completions, doorbell, ended, classes }, number, PATTERN);
        let mut side = FakeQueue::new(ring, completions, doorbell, number);
        queue.skip_to(first);
        side.skip_to(first);
        gpu.push(side);
        lanes.push(Lane { queue, rank, keeps_order: rank == ORDERED });
        let (announced, taken, completed) = (0, 0, 0);
        let (posted, failure) = (vec![], None);
        lines.push(Line { first, rank, posted, announced, taken, completed, failure });
    }
    let (executor, oracle) = (Executor::new(&mut lanes, OWN), Oracle(lines));
    let (flying, troubled, name) = (vec![], seed % 2 == 1, (wrap, seed));
    let mut world = World { executor, gpu, keys, regions, oracle, flying, random, troubled, name };
    test(&mut world);
}

fn run(seed: u64, wrap: u64, turns: usize) {
    with_world(seed, wrap, |world| {
        for _ in 0..turns {
            world.turn();
        }
        world.drain();
        for line in &world.oracle.0 {
            assert!(line.first + line.posted.len() as u64 > wrap, "no wrap was crossed");
        }
    });
}

/// The control segment counts modulo 2^16, the completion queue's record 2^24, and a wait 2^32.
#[test]
fn random_programs_do_what_the_oracle_says_across_each_wrap() {
    for wrap in [0, 1 << 16, 1 << 24, 1 << 32, 1 << 48] {
        for seed in 0..100 {
            run(seed, wrap, 3_000);
        }
    }
}

/// Nothing is skipped: enough entries for 16 bits to wrap on each queue.
#[test]
fn random_programs_from_the_start_cross_the_first_wrap() {
    with_world(2, 0, |world| {
        while world.oracle.0.iter().any(|line| line.posted.len() < 70_000) {
            world.turn();
        }
        world.drain();
    });
}
