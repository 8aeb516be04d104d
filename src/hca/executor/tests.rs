//! A fake GPU drives the executor: one rule each here, all of them in `model`.

mod model;

use std::vec;
use std::vec::Vec;

use super::*;
use crate::base::bitset;
use crate::base::sync::{AtomicU64, Ordering};
use crate::hca::ENTRY_WORDS;
use crate::hca::fake_gpu::FakeQueue;
use crate::hca::keys::{Kind, Slot as KeySlot};
use crate::hca::queue::{Memory, SETTLE_NS};

const DEPTH: usize = 8;
const BYTES: u64 = 1024;
const FIRST: u32 = 100;
const PATTERN: u64 = 0xa5c3_f00d_dead_beef;
/// The main queue, and its companion.
const MAIN: usize = 0;
const COMPANION: usize = 1;
const OWN: usize = 0;
const PEER: usize = 1;

/// What both sides share of one queue.
struct Shared {
    ring: Vec<AtomicU64>,
    completions: Vec<AtomicU64>,
    doorbell: AtomicU64,
    ended: Vec<u64>,
    classes: Vec<Class>,
}

impl Shared {
    fn new(depth: usize) -> Shared {
        let words = || (0..depth * ENTRY_WORDS).map(|_| AtomicU64::new(0)).collect();
        Shared {
            ring: words(),
            completions: words(),
            doorbell: AtomicU64::new(0),
            ended: vec![0; bitset::words(depth)],
            classes: vec![Class::Write; depth],
        }
    }
}

/// Two queues, their GPU, and four regions.
struct Bench<'m, 'q> {
    executor: Executor<'m, 'q>,
    gpu: Vec<FakeQueue<'m>>,
    keys: Keys<'m>,
    window: u32,
    signals: u32,
    sink: u32,
    now_ns: u64,
}

impl Bench<'_, '_> {
    fn step(&mut self, queue: usize) -> Step {
        self.executor.step(queue, &self.keys, self.now_ns)
    }

    fn operation(&mut self, queue: usize) -> Operation {
        match self.step(queue) {
            Step::Operation(operation) => operation,
            other => panic!("no operation of queue {queue}: {other:?}"),
        }
    }

    fn write(&self) -> Work {
        let local = Segment { at: Address { key: self.window, offset: 0 }, bytes: 16 };
        Work::Write {
            remote: Address { key: self.window, offset: 32 },
            local: [local, Segment::default()],
        }
    }

    fn read(&self) -> Work {
        let Work::Write { remote, local } = self.write() else { unreachable!() };
        Work::Read { remote, local }
    }

    fn add(&self) -> Work {
        let sink = Address { key: self.sink, offset: 0 };
        let remote = Address { key: self.signals, offset: 8 };
        Work::FetchAdd { remote, add: 3, local: Segment { at: sink, bytes: 8 } }
    }
}

fn with_bench(test: impl FnOnce(&mut Bench<'_, '_>)) {
    let mut shared = [Shared::new(DEPTH), Shared::new(DEPTH)];
    let (mut slots, mut bytes) = ([KeySlot::default(); 4], [0; 8]);
    let mut keys = Keys::new(&mut slots, &mut bytes, 2);
    let mut register = |kind, bytes| keys.register(kind, &[bytes; 2]).unwrap();
    let (window, signals) = (register(Kind::Window, BYTES), register(Kind::Signals, 64));
    let sink = register(Kind::Sink, 8);
    let mut gpu = Vec::new();
    let mut lanes = Vec::new();
    for (at, part) in shared.iter_mut().enumerate() {
        let Shared { ring, completions, doorbell, ended, classes } = part;
        let number = FIRST + at as u32;
        gpu.push(FakeQueue::new(ring, completions, doorbell, number));
        let memory = Memory { ring, completions, doorbell, ended, classes };
        let rank = if at == MAIN { PEER } else { OWN };
        lanes.push(Lane { queue: Queue::new(memory, number, PATTERN), rank, keeps_order: false });
    }
    let executor = Executor::new(&mut lanes, OWN);
    test(&mut Bench { executor, gpu, keys, window, signals, sink, now_ns: 0 });
}

#[test]
fn a_write_completes_once_its_bytes_are_there() {
    with_bench(|bench| {
        assert_eq!(bench.step(MAIN), Step::Idle);
        let work = bench.write();
        let index = bench.gpu[MAIN].post(&work);
        let operation = bench.operation(MAIN);
        let Action::Write { to, from } = operation.action else { panic!("{operation:?}") };
        assert_eq!((to.rank, to.offset), (PEER as u16, 32));
        assert_eq!(from[0].map(|local| (local.at.rank, local.bytes)), Some((OWN as u16, 16)));
        assert_eq!(from[1], None);
        assert_eq!(bench.gpu[MAIN].poll(index), None);
        bench.executor.complete(&operation, Ok(()));
        assert_eq!(bench.gpu[MAIN].poll(index), Some(Ok(())));
    });
}

#[test]
fn completions_are_published_in_order() {
    with_bench(|bench| {
        let work = bench.write();
        for _ in 0..2 {
            bench.gpu[MAIN].post(&work);
        }
        let (first, second) = (bench.operation(MAIN), bench.operation(MAIN));
        bench.executor.complete(&second, Ok(()));
        assert_eq!(bench.gpu[MAIN].poll(1), None);
        bench.executor.complete(&first, Ok(()));
        assert_eq!(bench.gpu[MAIN].poll(0), Some(Ok(())));
        assert_eq!(bench.gpu[MAIN].poll(1), Some(Ok(())));
    });
}

#[test]
fn an_atomic_starts_when_all_before_it_have_ended() {
    with_bench(|bench| {
        for work in [bench.write(), bench.add(), bench.write()] {
            bench.gpu[MAIN].post(&work);
        }
        let write = bench.operation(MAIN);
        assert_eq!(bench.step(MAIN), Step::Blocked);
        bench.executor.complete(&write, Ok(()));
        let add = bench.operation(MAIN);
        assert!(matches!(add.action, Action::Add { value: 3, .. }));
        assert_eq!(bench.step(MAIN), Step::Blocked, "a write passed an atomic");
        bench.executor.complete(&add, Ok(()));
        bench.operation(MAIN);
    });
}

#[test]
fn an_add_to_a_signal_starts_beside_writes_where_the_peer_keeps_the_order() {
    with_bench(|bench| {
        bench.executor.lanes[MAIN].keeps_order = true;
        for work in [bench.read(), bench.write(), bench.add(), bench.write(), bench.read()] {
            bench.gpu[MAIN].post(&work);
        }
        let (read, write) = (bench.operation(MAIN), bench.operation(MAIN));
        assert_eq!(bench.step(MAIN), Step::Blocked, "an add passed a read");
        bench.executor.complete(&read, Ok(()));
        let add = bench.operation(MAIN);
        assert!(matches!(add.action, Action::Add { value: 3, .. }));
        let last = bench.operation(MAIN);
        assert!(matches!(last.action, Action::Write { .. }));
        for operation in [write, last] {
            bench.executor.complete(&operation, Ok(()));
            assert_eq!(bench.step(MAIN), Step::Blocked, "a read passed an add");
        }
        bench.executor.complete(&add, Ok(()));
        bench.operation(MAIN);
    });
}

/// Words of windows may be a GPU's, where a later write does not wait for an add.
#[test]
fn an_add_to_a_window_waits_for_writes_although_the_peer_keeps_the_order() {
    with_bench(|bench| {
        bench.executor.lanes[MAIN].keeps_order = true;
        let Work::FetchAdd { remote, add, local } = bench.add() else { unreachable!() };
        let remote = Address { key: bench.window, ..remote };
        let write = bench.write();
        bench.gpu[MAIN].post(&write);
        bench.gpu[MAIN].post(&Work::FetchAdd { remote, add, local });
        let write = bench.operation(MAIN);
        assert_eq!(bench.step(MAIN), Step::Blocked);
        bench.executor.complete(&write, Ok(()));
        bench.operation(MAIN);
    });
}

#[test]
fn a_write_may_pass_a_read_unless_it_is_fenced() {
    with_bench(|bench| {
        let (read, write) = (bench.read(), bench.write());
        bench.gpu[MAIN].post(&read);
        bench.gpu[MAIN].post(&write);
        bench.gpu[MAIN].write(&write, 4);
        bench.gpu[MAIN].ring();
        let read = bench.operation(MAIN);
        let write = bench.operation(MAIN);
        assert_eq!(bench.step(MAIN), Step::Blocked);
        bench.executor.complete(&write, Ok(()));
        assert_eq!(bench.step(MAIN), Step::Blocked, "the fence waits for the read");
        bench.executor.complete(&read, Ok(()));
        bench.operation(MAIN);
    });
}

#[test]
fn a_dump_ends_after_the_reads_before_it() {
    with_bench(|bench| {
        let local = Segment { at: Address { key: bench.sink, offset: 0 }, bytes: 1 };
        let read = bench.read();
        bench.gpu[MAIN].post(&read);
        let dump = bench.gpu[MAIN].post(&Work::Dump { local });
        let read = bench.operation(MAIN);
        assert_eq!(bench.step(MAIN), Step::Blocked);
        bench.executor.complete(&read, Ok(()));
        assert_eq!(bench.step(MAIN), Step::Ended);
        assert_eq!(bench.gpu[MAIN].poll(dump), Some(Ok(())));
    });
}

#[test]
fn a_companion_waits_for_the_index_of_its_main_queue() {
    with_bench(|bench| {
        let (write, add) = (bench.write(), bench.add());
        for index in 0..2 * DEPTH as u64 {
            bench.gpu[MAIN].post(&write);
            bench.gpu[COMPANION].post(&Work::Wait { queue: FIRST, index: index as u32 });
            bench.gpu[COMPANION].post(&add);
            assert_eq!(bench.step(COMPANION), Step::Blocked);
            let operation = bench.operation(MAIN);
            assert_eq!(bench.step(COMPANION), Step::Blocked);
            bench.executor.complete(&operation, Ok(()));
            assert_eq!(bench.step(COMPANION), Step::Ended);
            let add = bench.operation(COMPANION);
            let Action::Add { word, .. } = add.action else { panic!("{add:?}") };
            assert_eq!(word.rank, OWN as u16);
            bench.executor.complete(&add, Ok(()));
        }
    });
}

#[test]
fn a_wait_for_what_failed_is_flushed_and_its_counter_never_added() {
    with_bench(|bench| {
        let (write, add) = (bench.write(), bench.add());
        bench.gpu[MAIN].post(&write);
        bench.gpu[COMPANION].post(&Work::Wait { queue: FIRST, index: 0 });
        let last = bench.gpu[COMPANION].post(&add);
        let operation = bench.operation(MAIN);
        bench.executor.complete(&operation, Err(Syndrome::PeerLost));
        assert_eq!(bench.gpu[MAIN].poll(0), Some(Err(Syndrome::PeerLost as u8)));
        assert_eq!(bench.step(COMPANION), Step::Failed);
        assert_eq!(bench.gpu[COMPANION].poll(last), Some(Err(Syndrome::Flushed as u8)));
    });
}

#[test]
fn a_report_says_what_the_oldest_open_entry_waits_for() {
    use crate::hca::stuck::Why;
    with_bench(|bench| {
        assert_eq!(bench.executor.stuck(0), None);
        let write = bench.write();
        bench.gpu[MAIN].post(&write);
        assert_eq!(bench.executor.stuck(0), None, "the doorbell was not looked at");
        let operation = bench.operation(0);
        let why = |bench: &Bench<'_, '_>, at: usize| bench.executor.stuck(at).map(|it| it.why);
        assert_eq!(why(bench, 0), Some(Why::UnderWay(Class::Write)));
        let queue = bench.gpu[MAIN].number();
        bench.gpu[COMPANION].post(&Work::Wait { queue, index: 0 });
        assert_eq!(bench.step(1), Step::Blocked);
        assert_eq!(why(bench, 1), Some(Why::Waits { queue, index: 0, completed: 0 }));
        bench.executor.complete(&operation, Ok(()));
        assert_eq!(bench.step(1), Step::Ended);
        assert_eq!((why(bench, 0), why(bench, 1)), (None, None));
        bench.gpu[MAIN].doorbell().store(2, Ordering::Release);
        assert_eq!(bench.step(0), Step::Blocked);
        assert_eq!(why(bench, 0), Some(Why::NotWritten));
    });
}

#[test]
fn a_bad_entry_fails_its_queue_alone_after_what_was_before_it() {
    with_bench(|bench| {
        let good = bench.write();
        let Work::Write { remote, local } = good else { unreachable!() };
        let beyond = Address { offset: BYTES - 8, ..remote };
        let stale = Address { key: remote.key ^ 1 << 16, ..remote };
        let misaligned = Address { key: bench.signals, offset: 4 };
        let unknown_wait = Work::Wait { queue: FIRST + 2, index: 0 };
        let sink = Segment { at: Address { key: bench.sink, offset: 0 }, bytes: 8 };
        let other = [
            (Work::Write { remote: beyond, local }, Syndrome::RemoteAccess),
            (Work::Write { remote: stale, local }, Syndrome::RemoteAccess),
            (Work::Read { remote: beyond, local }, Syndrome::RemoteAccess),
            (Work::FetchAdd { remote: misaligned, add: 1, local: sink }, Syndrome::RemoteAccess),
            (unknown_wait, Syndrome::LocalOperation),
        ];
        let local_bad = Segment { at: Address { key: 5, offset: 0 }, bytes: 8 };
        let local_cases = [
            (Work::Write { remote, local: [local_bad; 2] }, Syndrome::LocalProtection),
            (Work::Dump { local: local_bad }, Syndrome::LocalProtection),
        ];
        for (bad, syndrome) in other.into_iter().chain(local_cases) {
            with_bench(|bench| {
                bench.gpu[MAIN].post(&good);
                let failed = bench.gpu[MAIN].post(&bad);
                let after = bench.gpu[MAIN].post(&good);
                let first = bench.operation(MAIN);
                assert_eq!(bench.step(MAIN), Step::Failed, "{bad:?}");
                assert_eq!(bench.gpu[MAIN].poll(failed), None, "the first is in flight");
                bench.executor.complete(&first, Ok(()));
                bench.step(MAIN);
                assert_eq!(bench.gpu[MAIN].poll(0), Some(Ok(())));
                assert_eq!(bench.gpu[MAIN].poll(failed), Some(Err(syndrome as u8)), "{bad:?}");
                assert_eq!(bench.gpu[MAIN].poll(after), Some(Err(Syndrome::Flushed as u8)));
                let late = bench.gpu[MAIN].post(&good);
                bench.step(MAIN);
                assert_eq!(bench.gpu[MAIN].poll(late), Some(Err(Syndrome::Flushed as u8)));
                bench.gpu[COMPANION].post(&Work::Nop);
                assert_eq!(bench.step(COMPANION), Step::Ended, "the other queue goes on");
            });
        }
        assert_eq!(bench.step(MAIN), Step::Idle);
    });
}

#[test]
fn a_peer_that_is_gone_fails_what_was_posted_and_what_is_posted_later() {
    with_bench(|bench| {
        let write = bench.write();
        bench.gpu[MAIN].post(&write);
        bench.gpu[MAIN].post(&write);
        let flying = bench.operation(MAIN);
        bench.executor.fail_rank(PEER, Syndrome::PeerLost);
        assert!(!bench.executor.lanes()[MAIN].queue.has_completed_with_error());
        bench.executor.complete(&flying, Err(Syndrome::PeerLost));
        assert_eq!(bench.step(MAIN), Step::Failed);
        assert!(bench.executor.lanes()[MAIN].queue.has_completed_with_error());
        assert_eq!(bench.gpu[MAIN].poll(0), Some(Err(Syndrome::PeerLost as u8)));
        assert_eq!(bench.gpu[MAIN].poll(1), Some(Err(Syndrome::Flushed as u8)));
        for _ in 0..3 * DEPTH {
            assert!(bench.gpu[MAIN].has_room());
            let index = bench.gpu[MAIN].post(&write);
            bench.step(MAIN);
            assert_eq!(bench.gpu[MAIN].poll(index), Some(Err(Syndrome::Flushed as u8)));
        }
    });
}

#[test]
fn an_announced_entry_is_taken_when_its_words_have_come() {
    with_bench(|bench| {
        let write = bench.write();
        bench.gpu[MAIN].write(&write, 0);
        let ring = bench.gpu[MAIN].slot_words(0);
        let late = ring[5].swap(PATTERN, Ordering::Relaxed);
        bench.gpu[MAIN].ring();
        assert_eq!(bench.step(MAIN), Step::Blocked);
        ring[5].store(late, Ordering::Relaxed);
        bench.operation(MAIN);
    });
}

#[test]
fn a_value_that_equals_the_pattern_is_taken_after_a_while() {
    with_bench(|bench| {
        let mut data = [0; INLINE_MAX];
        data[..4].copy_from_slice(&((PATTERN >> 32) as u32).to_le_bytes());
        let remote = Address { key: bench.window, offset: 0 };
        bench.gpu[MAIN].post(&Work::WriteInline { remote, data, bytes: 4 });
        assert_eq!(bench.step(MAIN), Step::Blocked);
        bench.now_ns += SETTLE_NS;
        let operation = bench.operation(MAIN);
        let Action::WriteInline { data: got, .. } = operation.action else { panic!() };
        assert_eq!(got, data);
    });
}

#[test]
fn doorbells_that_lie_harm_their_queue_alone() {
    with_bench(|bench| {
        let write = bench.write();
        bench.gpu[MAIN].post(&write);
        let operation = bench.operation(MAIN);
        bench.executor.complete(&operation, Ok(()));
        bench.gpu[MAIN].doorbell().store(0, Ordering::Release);
        assert_eq!(bench.step(MAIN), Step::Idle, "one that goes back says nothing");
        assert_eq!(bench.executor.lanes()[MAIN].queue.counts().backwards, 1);
        // announced, never written: nothing is taken
        bench.gpu[MAIN].doorbell().store(2, Ordering::Release);
        bench.now_ns += 10 * SETTLE_NS;
        assert_eq!(bench.step(MAIN), Step::Blocked);
        // more than there are slots
        bench.gpu[MAIN].doorbell().store(u64::MAX, Ordering::Release);
        assert_eq!(bench.step(MAIN), Step::Failed);
        assert_eq!(bench.gpu[MAIN].poll(1), Some(Err(Syndrome::LocalLength as u8)));
        assert_eq!(bench.step(MAIN), Step::Failed);
        bench.gpu[COMPANION].post(&Work::Nop);
        assert_eq!(bench.step(COMPANION), Step::Ended);
    });
}

/// After a doorbell of garbage the true one still counts: each entry that the GPU has posted on the
/// failed queue is flushed.
#[test]
fn entries_are_flushed_by_true_doorbells_after_one_that_lied() {
    with_bench(|bench| {
        bench.gpu[MAIN].doorbell().store(u64::MAX, Ordering::Release);
        assert_eq!(bench.step(MAIN), Step::Failed);
        let nop = Work::Nop;
        for index in 0..3 * DEPTH as u64 {
            assert_eq!(bench.gpu[MAIN].post(&nop), index);
            assert_eq!(bench.step(MAIN), Step::Failed);
            let syndrome = if index == 0 { Syndrome::LocalLength } else { Syndrome::Flushed };
            assert_eq!(bench.gpu[MAIN].poll(index), Some(Err(syndrome as u8)));
        }
        let counts = bench.executor.lanes()[MAIN].queue.counts();
        assert_eq!(counts.completed, 3 * DEPTH as u64);
    });
}

/// What may be in flight beside each other on one queue, in the words of the executor's table.
fn may_be_beside(earlier: Class, later: Class) -> bool {
    match (earlier, later) {
        (Class::Write | Class::Ordered, Class::Write | Class::Ordered)
        | (Class::Read, Class::Write | Class::Read) => true,
        (Class::Write | Class::Atomic | Class::Ordered, Class::Read)
        | (Class::Atomic, Class::Write)
        | (Class::Read | Class::Atomic, Class::Ordered)
        | (_, Class::Atomic) => false,
    }
}
