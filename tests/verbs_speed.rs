//! How fast the verbs rail is, as a line for each size: for comparison with perftest in the same
//! run (`tests/vm/speed` does both). It runs when it is asked for: with `XTIE_MEASURE=1` all, with
//! `XTIE_MEASURE=LENGTH:COUNT` one stream, with `XTIE_MEASURE=ping:COUNT` the latency of a message
//! of 64 bytes, with `put:COUNT` that of a write of 64 bytes that notifies and is acknowledged by
//! the next one; `--nocapture` shows the lines. `XTIE_EXTENDED=1` posts by the extended interface.
//! With `XTIE_COUNT=LENGTH:COUNT` one thread is both sides, for counters of instructions.

mod verbs_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, Domain, LINE_BYTES, LocalSpan, MemoryDomain, MemoryKind, Op, OpId, OpKind,
    PostError, Provider, RailKey, Region, RemoteSpan, Source,
};
use crosstie::provider::verbs::Verbs;
use std::thread;
use verbs_support::{LIMITS, PEER, ends, rails_as};

const BLOCK_BYTES: usize = 32 << 20;
/// Where the other side writes how much it has taken.
const COUNT_AT: usize = BLOCK_BYTES - 4096;
/// What the sender may have on its way, of the peer's 64 receives.
const WINDOW: u64 = 48;
const NOTHING: Completion = Completion::Immediate { peer: PEER, immediate: 0 };

/// One side, on a thread of its own.
struct End {
    rail: Verbs<'static>,
    block: u64,
    key: RailKey,
    far: RemoteSpan,
    start: std::time::Instant,
    posted: u64,
    polls: u64,
    now: Instant,
}

impl End {
    fn local(&self, offset: usize, length: usize) -> LocalSpan {
        assert!(offset + length <= BLOCK_BYTES);
        // SAFETY: inside a leaked block that is registered.
        unsafe { LocalSpan::new(self.block + offset as u64, Bytes::of(length), self.key) }
    }

    /// The time, now and then: an emulated machine has an emulated clock, which is slow.
    fn now(&mut self) -> Instant {
        if self.polls.is_multiple_of(1024) {
            self.now = Instant(self.start.elapsed().as_nanos() as u64);
        }
        self.polls += 1;
        self.now
    }

    fn poll(&mut self, mut see: impl FnMut(&mut Verbs, &Completion)) -> usize {
        let mut out = [NOTHING; 32];
        let now = self.now();
        let count = self.rail.poll(&mut out, Bytes::kib(64), now);
        for completion in &out[..count] {
            if let Completion::PeerDown { cause, .. } = completion {
                panic!("{cause:?}: {:?}", self.rail.error(PEER));
            }
            see(&mut self.rail, completion);
        }
        self.rail.flush(Bytes::kib(64));
        count
    }

    /// `false`: there is no room.
    fn post(&mut self, kind: OpKind) -> bool {
        let op = Op { id: OpId(self.posted), peer: PEER, kind };
        match self.rail.post(&op, Instant(0)) {
            Ok(_) => {
                self.posted += 1;
                true
            }
            Err(PostError::Again) => false,
            Err(error) => panic!("{error:?}"),
        }
    }

    fn send(&mut self, length: usize) -> bool {
        let payload = self.local(0, length);
        self.post(OpKind::Send { head: [1; 32], payload })
    }

    fn write(&mut self, length: usize) -> bool {
        let source = Source::Span(self.local(0, length));
        let target = self.far;
        self.post(OpKind::Write { source, target, immediate: Some(1) })
    }

    /// Tells the other side how much was taken.
    fn tell(&mut self, count: u64) {
        let mut line = [0; LINE_BYTES];
        line[..8].copy_from_slice(&count.to_ne_bytes());
        let (source, target) = (Source::Line(line), self.far.plus(COUNT_AT as u64));
        while !self.post(OpKind::Write { source, target, immediate: None }) {
            self.poll(|_, _| {});
        }
    }

    fn told(&self) -> u64 {
        // SAFETY: an aligned word inside a leaked block; volatile because a device writes it.
        unsafe { ((self.block + COUNT_AT as u64) as *const u64).read_volatile() }
    }

    /// Sends so many messages and waits until all were taken.
    fn stream(&mut self, length: usize, count: u64) {
        self.rail.flush(Bytes::kib(64));
        let (start, mut sent) = (std::time::Instant::now(), 0);
        let before = self.told();
        while self.told() - before < count {
            while sent < count && sent - (self.told() - before) < WINDOW {
                let posted = if length <= 8192 { self.send(length) } else { self.write(length) };
                if !posted {
                    break;
                }
                sent += 1;
            }
            self.poll(|_, _| {});
        }
        let seconds = start.elapsed().as_secs_f64();
        let (rate, speed) = (count as f64 / seconds, (count * length as u64) as f64 / seconds);
        println!("stream {length:>8} B: {rate:>12.2} /s, {:>8.2} MB/s", speed / 1e6);
    }

    fn take(&mut self, before: u64, count: u64) {
        let (mut taken, mut told) = (0, 0);
        while told < count {
            self.poll(|rail, completion| match completion {
                Completion::Received { slot, .. } => {
                    taken += 1;
                    rail.received_release(PEER, *slot);
                }
                Completion::Immediate { .. } => taken += 1,
                _ => {}
            });
            if taken - told >= WINDOW / 4 || taken == count && told < count {
                told = taken;
                self.tell(before + told);
            }
        }
    }

    /// One message, or a write with a word.
    fn ask(&mut self, length: usize, puts: bool) -> bool {
        if puts { self.write(length) } else { self.send(length) }
    }

    /// Answers, or asks, so many times.
    fn ping(&mut self, length: usize, (count, puts): (u64, bool), asks: bool) {
        let start = std::time::Instant::now();
        let mut lengths = Vec::with_capacity(count as usize);
        let mut last = start;
        for n in 0..count {
            if asks {
                assert!(self.ask(length, puts));
            }
            let mut came = false;
            while !came {
                self.poll(|rail, completion| match completion {
                    Completion::Received { slot, .. } => {
                        rail.received_release(PEER, *slot);
                        came = true;
                    }
                    Completion::Immediate { .. } => came = true,
                    _ => {}
                });
            }
            if !asks {
                assert!(self.ask(length, puts), "round {n}");
                self.rail.flush(Bytes::kib(64));
            }
            let now = std::time::Instant::now();
            lengths.push((now - last).as_nanos());
            last = now;
        }
        lengths.sort_unstable();
        if asks && count > 0 {
            let typical = lengths[lengths.len() / 2] as f64 / 2e3;
            println!("latency {length:>7} B: {typical:>9.2} us one way");
        } else if !asks {
            while self.rail.is_undelivered(PEER) {
                self.poll(|_, _| {});
            }
        }
    }
}

/// Posts by eights, and takes them.
fn both_sides(a: &mut End, b: &mut End, length: usize, count: u64) {
    for _ in 0..count / 8 {
        for _ in 0..8 {
            assert!(if length <= 8192 { a.send(length) } else { a.write(length) });
        }
        a.poll(|_, _| {});
        let mut taken = 0;
        while taken < 8 {
            b.poll(|rail, completion| match completion {
                Completion::Received { slot, .. } => {
                    taken += 1;
                    rail.received_release(PEER, *slot);
                }
                Completion::Immediate { .. } => taken += 1,
                _ => {}
            });
        }
    }
}

fn ends_of_a_connection() -> Option<[End; 2]> {
    let names = ends()?;
    let extended = std::env::var_os("XTIE_EXTENDED").is_some_and(|it| it == "1");
    let rails = rails_as(&names, LIMITS, |config| config.extended_post = extended);
    assert_eq!(rails.each_ref().map(|rail| rail.is_extended(PEER)), [extended; 2]);
    let blocks = [(); 2].map(|()| Box::leak(Box::new(HeapBlock::new(BLOCK_BYTES))).start() as u64);
    let keys = [0, 1].map(|side| {
        let (address, length) = (blocks[side], Bytes::of(BLOCK_BYTES));
        let region = Region { address, length, kind: MemoryKind::Host };
        // SAFETY: leaked memory.
        unsafe { rails[side].domain().register(region) }.expect("memory of our own")
    });
    let start = std::time::Instant::now();
    let mut sides = [0, 1].into_iter();
    Some(rails.map(|rail| {
        let side = sides.next().expect("two");
        let far = RemoteSpan { key: keys[1 - side], address: blocks[1 - side] };
        End {
            rail,
            block: blocks[side],
            key: keys[side],
            far,
            start,
            posted: 0,
            polls: 0,
            now: Instant(0),
        }
    }))
}

/// Length, and how many: a second or more on an emulated device.
const STREAMS: [(usize, u64); 5] =
    [(8, 40_000), (4096, 4000), (16 << 10, 2000), (128 << 10, 400), (1 << 20, 60)];
const PINGS: u64 = 4000;

/// Lengths, and how many of each.
type Streams = Vec<(usize, u64)>;
/// How many rounds, and whether of writes.
type Pings = (u64, bool);

/// What `XTIE_MEASURE` asks for, streams and rounds; `None`: nothing.
fn wanted() -> Option<(Streams, Pings)> {
    let text = std::env::var("XTIE_MEASURE").ok()?;
    let Some((length, count)) = text.split_once(':') else {
        return Some((STREAMS.into(), (PINGS, false)));
    };
    let count = count.parse().expect("a count");
    match length {
        "ping" | "put" => Some((Vec::new(), (count, length == "put"))),
        _ => Some((vec![(length.parse().expect("a length"), count)], (0, false))),
    }
}

#[test]
fn counted() {
    let Ok(text) = std::env::var("XTIE_COUNT") else {
        println!("SKIP: XTIE_COUNT is not set");
        return;
    };
    let (length, count) = text.split_once(':').expect("LENGTH:COUNT");
    let Some([mut a, mut b]) = ends_of_a_connection() else { return };
    let (length, count) = (length.parse().expect("a length"), count.parse().expect("a count"));
    both_sides(&mut a, &mut b, length, count);
    assert!(a.posted >= count / 8 * 8);
}

#[test]
fn speed() {
    let Some((streams, pings)) = wanted() else {
        println!("SKIP: XTIE_MEASURE is not set");
        return;
    };
    let Some([mut a, mut b]) = ends_of_a_connection() else { return };
    // a side that fails must not leave the other one waiting
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::exit(1);
    }));
    thread::scope(|scope| {
        let streams = &streams;
        scope.spawn(move || {
            let mut before = 0;
            for (_, count) in streams {
                let count = *count;
                b.take(before, count);
                before += count;
            }
            b.ping(64, pings, false);
        });
        for (length, count) in streams {
            a.stream(*length, *count);
        }
        a.ping(64, pings, true);
    });
}
