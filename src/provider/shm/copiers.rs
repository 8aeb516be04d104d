//! Copy threads: long parts of writes go into a ring, and out of one, beside the data thread.
//!
//! The data thread decides and the threads copy. It reserves the place in the ring, pins memory and
//! checks keys. What goes in becomes visible when its thread stores the record's header word behind
//! it, so that parts which several threads copy at once are still read in order. What comes out is
//! remembered as [`Taken`] until its copy has ended: its place in the ring, its acknowledgement and
//! its immediate are given in the order of the ring, by the data thread.
//!
//! The peer need not know: it sees records as ever, and has threads of its own, or none.
//!
//! A thread that the scheduler has put aside keeps its jobs, and whoever waits for the message, for
//! milliseconds. Where that happens the data thread copies itself for a while ([`Pace`]).

use super::ring::Record;
use super::sides::Bell;
use super::word::{RELEASE, u64_at};
use crate::base::carve::{Carver, Zeroable, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::ring::{Consumer, Indices, Producer, split};
use crate::base::sync::{AtomicU32, AtomicU64, Cell, Ordering, fence};
use crate::memory::{Errno, Reserve, threads};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most copy threads of a rail.
pub const THREADS_MAX: usize = 7;
/// Longest part of a transfer that one thread copies at a time: some microseconds, so that several
/// threads share a message.
pub(super) const PART_BYTES_MAX: u32 = 32 << 10;
/// Parts from here on are worth handing over.
pub(super) const PART_BYTES_MIN: u32 = 16 << 10;
/// Parts that wait for one thread at most. Where all have as many the data thread copies itself.
const DEEP: u64 = 4;
/// Records of one peer that were passed and are not over, at most.
pub(super) const TAKEN_MAX: usize = 64;
/// Places of a thread's queue: every part that may wait, and a power of two.
const JOBS: usize = 8;
/// Looks at an empty queue before others are let run.
const LOOKS: u32 = 200;
/// A copy that is over so much later than it was given has waited for a processor: copies take
/// microseconds each, and first touches of fresh memory some hundreds.
const LATE: Duration = Duration::from_millis(1);
/// How long the data thread copies itself after the first late copy, and at most after others.
const REST_MIN: Duration = Duration::from_millis(10);
const REST_MAX: Duration = Duration::from_secs(1);
/// After so many copies in time a late one counts as the first: processors are there, most of the
/// time.
const IN_TIME: u64 = 2048;
/// How long a thread stays awake without work: longer than a collective's pauses.
const AWAKE: Duration = Duration::from_micros(500);

const _: () = assert!(JOBS.is_power_of_two() && JOBS as u64 >= DEEP);

/// One copy.
#[derive(Copy, Clone, Debug)]
pub(super) enum Job {
    /// Nothing: what an unused place of the queue holds.
    Nothing,
    /// Into the ring, where `header` is the place of the record's header word.
    In { from: u64, body: u64, length: u32, header: u64, word: u64, bell: Bell },
    /// Out of the ring; `taken` is the number of its [`Taken`].
    Out { body: u64, to: u64, length: u32, taken: u32 },
}

/// A copy, and when it was given.
#[derive(Copy, Clone, Debug)]
struct Order {
    job: Job,
    at: Instant,
}

/// A record that was passed and has not given its place back.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub(super) struct Taken {
    /// Position behind it.
    pub(super) end: u32,
    /// The pinned region that a thread copies to, plus one; 0: none does.
    pub(super) region: u32,
    /// Reported when it is over, if `has_immediate`.
    pub(super) immediate: u32,
    /// Whether `immediate` counts.
    pub(super) has_immediate: bool,
    /// Whether it counts as carried out, or refused, when it is over.
    pub(super) is_acked: bool,
    /// Whether it was refused.
    pub(super) is_refused: bool,
}

impl Taken {
    /// Of a record that was carried out and calls for nothing more.
    pub(super) fn behind(record: &Record) -> Taken {
        let end = record.position.wrapping_add(record.lines);
        let (region, immediate) = (0, 0);
        let (has_immediate, is_acked, is_refused) = (false, false, false);
        Taken { end, region, immediate, has_immediate, is_acked, is_refused }
    }
}

/// What is known of one peer.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
struct PeerCopies {
    /// How many jobs each thread had been given at the peer's last.
    marks: [u64; THREADS_MAX],
    /// Counts of the oldest and of the next [`Taken`].
    first: u32,
    next: u32,
}

/// Words that the two threads share beside the queue.
#[repr(C)]
struct Shared {
    jobs: Indices,
    /// How many jobs are done.
    done: AtomicU64,
    /// How many of them were late.
    late: AtomicU64,
    /// Whether the thread sleeps, or is about to.
    asleep: AtomicU32,
    /// Whether the thread is to end.
    stop: AtomicU32,
}

// SAFETY: integers, and atomics of integers.
unsafe impl Zeroable for PeerCopies {}
// SAFETY: as above.
unsafe impl Zeroable for Taken {}
// SAFETY: as above.
unsafe impl Zeroable for Shared {}

/// The data thread's end of one thread. Dropping it ends the thread.
struct Copier {
    jobs: Producer<'static, Order>,
    shared: &'static Shared,
    given: u64,
    /// By number of a job: whose it is, and which of its acknowledged ops, where it copies in.
    whose: [Option<(PeerIndex, u32)>; JOBS],
    thread: Option<JoinHandle<()>>,
}

/// Whether the threads are given anything: not while they lack processors.
#[derive(Copy, Clone, Debug)]
struct Pace {
    /// Late copies that have been seen.
    late: u64,
    /// Copies given when the last rest ended.
    given: u64,
    /// How long the last rest was.
    rest: Duration,
    /// Until when the threads rest, if they do.
    until: Option<Instant>,
}

impl Pace {
    const NEW: Pace = Pace { late: 0, given: 0, rest: Duration::ZERO, until: None };

    /// Whether the threads rest, where so many copies were late of so many that were given.
    fn rests(&mut self, late: u64, given: u64, now: impl FnOnce() -> Instant) -> bool {
        if late == self.late && self.until.is_none() {
            return false;
        }
        let now = now();
        if late != self.late && self.until.is_none() {
            let is_first = given - self.given >= IN_TIME;
            let longer = if is_first { REST_MIN } else { self.rest * 2 };
            self.rest = longer.clamp(REST_MIN, REST_MAX);
            self.until = Some(now + self.rest);
        }
        // what was under way may end late while they rest: that is no news
        self.late = late;
        let rests = self.until.is_some_and(|until| now < until);
        if !rests {
            (self.until, self.given) = (None, given);
        }
        rests
    }
}

/// The threads, and what they have not finished.
pub(super) struct Copiers {
    copiers: [Option<Copier>; THREADS_MAX],
    peers: &'static mut [PeerCopies],
    taken: &'static mut [Taken],
    /// By number of a [`Taken`]: whether its copy has ended.
    ended: &'static [AtomicU32],
    pace: core::cell::Cell<Pace>,
    /// How many there are, not none.
    count: u32,
    /// Who has started the threads: a forked child has none.
    process: u32,
    /// What everything above lies in: last, so that it goes last.
    _memory: Reserve,
}

impl core::fmt::Debug for Copiers {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        f.debug_struct("Copiers").finish_non_exhaustive()
    }
}

impl Copiers {
    /// Starts `count` threads for `peers_max` peers.
    pub(super) fn start(count: u32, peers_max: usize) -> Result<Copiers, Errno> {
        let count = (count as usize).clamp(1, THREADS_MAX);
        let records = peers_max * TAKEN_MAX;
        let length = bytes_for::<PeerCopies>(peers_max)
            + bytes_for::<Taken>(records)
            + bytes_for::<AtomicU32>(records)
            + count * (bytes_for::<Shared>(1) + bytes_for::<Cell<Order>>(JOBS));
        let memory = Reserve::create(length)?;
        // SAFETY: fresh memory of that length, aligned to a page; it outlives the threads, which
        // are joined before it is unmapped (order of the fields).
        let mut carver: Carver<'static> = unsafe { Carver::over_zeroed(memory.start(), length) };
        let fits = "`length` is the sum of what is carved";
        let peers = carver.slice::<PeerCopies>(peers_max).expect(fits);
        let taken = carver.slice::<Taken>(records).expect(fits);
        let ended = carver.slice::<AtomicU32>(records).expect(fits);
        let process = std::process::id();
        let copiers = [const { None }; THREADS_MAX];
        let pace = core::cell::Cell::new(Pace::NEW);
        let nothing = Order { job: Job::Nothing, at: Instant::now() };
        let mut all = Copiers {
            copiers,
            peers,
            taken,
            ended,
            pace,
            count: count as u32,
            process,
            _memory: memory,
        };
        for place in &mut all.copiers[..count] {
            let shared: &'static Shared = carver.value::<Shared>().expect(fits);
            let queue = carver.filled_with(JOBS, || Cell::new(nothing)).expect(fits);
            let (jobs, told) = split(&shared.jobs, queue);
            let mut work = Work { told, shared, ended };
            let thread = threads::start("crosstie-copy", move || work.run())?;
            *place =
                Some(Copier { jobs, shared, given: 0, whose: [None; JOBS], thread: Some(thread) });
        }
        Ok(all)
    }

    /// How much of a transfer, of which so much is left, is a part: all threads have one, if it is
    /// long enough.
    pub(super) fn part_bytes(&self, left: u64) -> u32 {
        let each = left / u64::from(self.count);
        let most = each.clamp(PART_BYTES_MIN.into(), PART_BYTES_MAX.into()) as u32;
        most & !(PART_BYTES_MIN / 4 - 1)
    }

    /// Whether the threads lack processors, and rest.
    fn rest(&self) -> bool {
        let late = |copier: &Copier| copier.shared.late.load(Ordering::Relaxed);
        let late = self.copiers.iter().flatten().map(late).sum();
        let mut pace = self.pace.get();
        let rests = pace.rests(late, self.given(), Instant::now);
        self.pace.set(pace);
        rests
    }

    /// The thread that has the least to do. `None`: all sleep, rest, or have enough; the caller
    /// copies.
    /// Where all that are awake have something to do, one more is woken.
    pub(super) fn choose(&self) -> Option<usize> {
        if self.rest() {
            return None;
        }
        let (mut least, mut sleeper) = ((DEEP, None), None);
        for (n, copier) in self.copiers.iter().flatten().enumerate() {
            if copier.shared.asleep.load(Ordering::Relaxed) != 0 {
                sleeper = Some(copier);
                continue;
            }
            let waits = copier.given - copier.shared.done.load(Ordering::Relaxed);
            if waits < least.0 {
                least = (waits, Some(n));
            }
        }
        if let (Some(sleeper), true) = (sleeper, least.0 > 0) {
            sleeper.wake();
        }
        least.1
    }

    /// Hands a copy over to a thread that was chosen just now; `op` is the count of the peer's
    /// acknowledged op whose memory is read, if it is.
    pub(super) fn give(&mut self, copier: usize, peer: PeerIndex, op: Option<u32>, job: Job) {
        let Some(to) = &mut self.copiers[copier] else { return };
        to.whose[to.given as usize % JOBS] = op.map(|op| (peer, op));
        let order = Order { job, at: Instant::now() };
        assert!(to.jobs.push(order).is_ok(), "a queue with room for every part that may wait");
        to.given += 1;
        self.peers[peer.as_usize()].marks[copier] = to.given;
        // [asleep]: our job before our look at whether it sleeps
        fence(Ordering::SeqCst);
        if to.shared.asleep.load(Ordering::Relaxed) != 0 {
            to.wake();
        }
    }

    /// How many copies all threads were given so far.
    pub(super) fn given(&self) -> u64 {
        self.copiers.iter().flatten().map(|copier| copier.given).sum()
    }

    /// Whether no thread touches memory or rings of the peer's.
    fn is_quiet(&self, peer: PeerIndex) -> bool {
        let marks = &self.peers[peer.as_usize()].marks;
        // acquire: pairs with [done]
        let is_done =
            |(copier, mark): (&Copier, &u64)| copier.shared.done.load(Ordering::Acquire) >= *mark;
        self.copiers.iter().flatten().zip(marks).all(is_done)
    }

    /// Whether a thread reads the memory of that acknowledged op of the peer's. What the peer says
    /// of the op does not change that.
    pub(super) fn is_read(&self, peer: PeerIndex, op: u32) -> bool {
        let is_read_by = |copier: &Copier| {
            // acquire: pairs with [done]
            let done = copier.shared.done.load(Ordering::Acquire);
            (done..copier.given).any(|job| copier.whose[job as usize % JOBS] == Some((peer, op)))
        };
        self.copiers.iter().flatten().any(is_read_by)
    }

    /// Waits until no thread touches memory or rings of the peer's: for parts of a few
    /// microseconds each. Cold: a connection ends.
    #[cold]
    pub(super) fn settle(&self, peer: PeerIndex) {
        // a forked child has no threads that could touch anything
        while !self.is_quiet(peer) && std::process::id() == self.process {
            std::thread::yield_now();
        }
    }

    /// Whether nothing of the peer waits to be over.
    #[inline]
    pub(super) fn none_taken(&self, peer: PeerIndex) -> bool {
        let of = &self.peers[peer.as_usize()];
        of.first == of.next
    }

    /// Whether one more [`Taken`] of the peer finds room.
    pub(super) fn has_room(&self, peer: PeerIndex) -> bool {
        let of = &self.peers[peer.as_usize()];
        of.next.wrapping_sub(of.first) < TAKEN_MAX as u32
    }

    fn number(peer: PeerIndex, count: u32) -> u32 {
        (peer.as_usize() * TAKEN_MAX + count as usize % TAKEN_MAX) as u32
    }

    /// The number of the peer's next [`Taken`].
    pub(super) fn next_taken(&self, peer: PeerIndex) -> u32 {
        Copiers::number(peer, self.peers[peer.as_usize()].next)
    }

    /// Puts a record behind those of the peer, with its copy, if it has one, under way.
    pub(super) fn take(&mut self, peer: PeerIndex, record: Taken) {
        let number = self.next_taken(peer) as usize;
        self.taken[number] = record;
        let of = &mut self.peers[peer.as_usize()];
        of.next = of.next.wrapping_add(1);
    }

    /// Says that the copy of the peer's next record is about to be handed over.
    pub(super) fn begin(&self, peer: PeerIndex) {
        self.ended[self.next_taken(peer) as usize].store(0, Ordering::Relaxed);
    }

    /// The peer's oldest record, if it is over.
    pub(super) fn front(&self, peer: PeerIndex) -> Option<Taken> {
        let of = &self.peers[peer.as_usize()];
        let number = Copiers::number(peer, of.first) as usize;
        if of.first == of.next {
            return None;
        }
        let record = self.taken[number];
        // acquire: pairs with [ended]
        let is_over = record.region == 0 || self.ended[number].load(Ordering::Acquire) != 0;
        is_over.then_some(record)
    }

    /// Forgets the peer's oldest record.
    pub(super) fn drop_front(&mut self, peer: PeerIndex) {
        let of = &mut self.peers[peer.as_usize()];
        of.first = of.first.wrapping_add(1);
    }
}

impl Copier {
    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // release: [stop], nothing is given any more
        self.shared.stop.store(1, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has said so; its memory is not used any more either way.
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Work {
    told: Consumer<'static, Order>,
    shared: &'static Shared,
    ended: &'static [AtomicU32],
}

impl Work {
    fn run(&mut self) {
        let (mut looks, mut idle_since) = (0, None);
        loop {
            if let Some(Order { job, at }) = self.told.pop() {
                self.copy(job);
                if at.elapsed() > LATE {
                    self.shared.late.fetch_add(1, Ordering::Relaxed);
                }
                (looks, idle_since) = (0, None);
                continue;
            }
            // acquire: pairs with [stop]
            if self.shared.stop.load(Ordering::Acquire) != 0 {
                return;
            }
            looks += 1;
            if looks < LOOKS {
                core::hint::spin_loop();
            } else if idle_since.get_or_insert_with(Instant::now).elapsed() < AWAKE {
                std::thread::yield_now();
            } else {
                self.sleep();
                (looks, idle_since) = (0, None);
            }
        }
    }

    fn copy(&mut self, job: Job) {
        match job {
            Job::Nothing => {}
            Job::In { from, body, length, header, word, bell } => {
                // SAFETY: the source stays readable until the op ends, and the place in the ring is
                // reserved; neither happens, nor goes the ring, before we count the job as done
                // (`settle`).
                unsafe {
                    (from as *const u8).copy_to_nonoverlapping(body as *mut u8, length as usize);
                    // release: [record], the record's bytes, and the zero after it, which the data
                    // thread has stored before it gave us the job
                    u64_at(header as *mut u8).store(word, RELEASE);
                }
                bell.ring();
            }
            Job::Out { body, to, length, taken } => {
                // SAFETY: the record lies in the ring, whose place is not given back, and the
                // region is pinned, both until the copy has ended.
                unsafe { (body as *const u8).copy_to(to as *mut u8, length as usize) };
                // release: [ended], the bytes are there
                self.ended[taken as usize].store(1, Ordering::Release);
            }
        }
        let done = self.shared.done.load(Ordering::Relaxed);
        // release: [done], nothing of the job is touched any more
        self.shared.done.store(done + 1, Ordering::Release);
    }

    fn sleep(&mut self) {
        self.shared.asleep.store(1, Ordering::Relaxed);
        // [asleep]: our flag before our look at the queue
        fence(Ordering::SeqCst);
        if !self.told.has_some() && self.shared.stop.load(Ordering::Acquire) == 0 {
            std::thread::park();
        }
        self.shared.asleep.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight ranks with two threads each on 16 processors took up to seven times as long as with
    /// none.
    #[test]
    fn threads_without_processors_rest_longer_and_longer() {
        let (start, mut pace) = (Instant::now(), Pace::NEW);
        let at = |ms: u64| move || start + Duration::from_millis(ms);
        assert!(!pace.rests(0, 100, || unreachable!("nothing is late")));
        // late; what ends late meanwhile changes nothing
        assert!(pace.rests(1, 200, at(1000)));
        assert!(pace.rests(3, 200, at(1009)));
        assert!(!pace.rests(3, 200, at(1010)));
        assert!(!pace.rests(3, 300, || unreachable!("nothing is late")));
        // soon again: twice as long each time
        let mut now = 1011;
        for rest in [20, 40, 80, 160, 320, 640, 1000, 1000] {
            let late = pace.late + 1;
            assert!(pace.rests(late, 300, at(now)));
            assert!(pace.rests(late, 300, at(now + rest - 1)));
            assert!(!pace.rests(late, 300, at(now + rest)));
            now += rest + 1;
        }
        // after many in time one is a chance
        let late = pace.late + 1;
        assert!(pace.rests(late, 300 + IN_TIME, at(now)));
        assert!(!pace.rests(late, 300 + IN_TIME, at(now + 10)));
    }
}
