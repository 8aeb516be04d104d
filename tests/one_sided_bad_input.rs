//! Bad input to groups: members that lie about frames, records and bytes, that never come, that
//! die, and memory that may not be written. Typed errors, memory unchanged, and nothing stays.

mod group_support;
mod host_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Span};
use crosstie::fabric::MemoryKind;
use crosstie::host::group::{
    Bootstrap, BootstrapError, Group, GroupError, GroupOptions, WaitError,
};
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::RequestError;
use crosstie::window::WindowError;
use crosstie::wire::one_sided as wire;
use crosstie::wire::one_sided::{
    APART, FRAME_BYTES, FrameHead, MEMBER_BYTES, READ_ONLY, REFUSED, Record, RecordKind, Refusal,
    SHORT_FRAME_BYTES, SIGNAL, Short,
};
use group_support::liar::{Liar, record};
use group_support::{Member, Memory, Rank, Table, limits};
use host_support::roles::{self, Line};
use host_support::{Node, Random, Watch, small};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn role() {
    roles::take(&[("member", role_member)]);
}

const BYTES: usize = 64 << 10;
/// Memory on either side of the window.
const BESIDE: usize = 4096;
const OLD: u64 = 77;
const PATIENCE: Span = Span::millis(30_000);

fn rails() -> [Options; 2] {
    [DeviceKind::SharedMemory, DeviceKind::Tcp].map(|device| Options { device, ..small(32) })
}

/// What a lie leads to.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum End {
    /// The liar hears why, and all goes on.
    Refused(Refusal),
    /// The connection ends.
    Protocol,
}

struct Lie {
    name: &'static str,
    /// Bytes that the victim gets from the liar's window; none: it does not.
    asked: Option<usize>,
    is_read_only: bool,
    /// Is given what the victim has told of its window.
    tell: fn(&mut Liar, &Record),
    end: End,
}

/// The victim: its window, and what is beside it.
struct Victim {
    rank: Rank,
    window: Handle,
    all: Memory,
}

impl Victim {
    fn open(options: &Options, table: &Arc<Table>, is_read_only: bool) -> Victim {
        let mut rank = Rank::try_open(options, table, 0, limits(2), PATIENCE).expect("a group");
        let all = rank.memory(BYTES + 2 * BESIDE);
        all.fill(OLD);
        let address = all.address() as usize + BESIDE;
        let start = std::ptr::with_exposed_provenance_mut(address);
        let inner = Memory { start, bytes: BYTES, ..all };
        let window = rank.try_register(inner, BYTES as u64, is_read_only).expect("a window");
        rank.exchange(window).expect("the liar takes part");
        Victim { rank, window, all }
    }

    fn failure(&mut self) -> Result<(), WindowError> {
        self.rank.group().inner().failure_of(1)
    }

    /// Ends all, and nothing is left.
    fn close(mut self, connections_max: u32) {
        let watch = Watch::start();
        while let Err(error) = self.rank.group().free(self.window) {
            assert_eq!(error, WindowError::Again);
            self.rank.progress();
            watch.look("a window that is free");
        }
        let group = self.rank.group.take().expect("open");
        assert!(group.close(&mut self.rank.node), "a connection stays");
        all_connections_free(&self.rank.node, connections_max);
        self.rank.node.shared.free(self.all.region).expect("no request stands");
    }
}

/// Who sets connections up lets go of them soon after they were closed.
fn all_connections_free(node: &Node, connections_max: u32) {
    let watch = Watch::start();
    while node.shared.connections_left() != connections_max {
        std::thread::yield_now();
        watch.look("connections that are free");
    }
}

fn told(options: &Options, lie: &Lie) {
    let (table, is_told) = (Table::new(2), AtomicBool::new(false));
    let is_seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut liar = Liar::open(options, &table);
            let share = liar.share(BYTES as u64);
            (lie.tell)(&mut liar, &share);
            if let End::Refused(refusal) = lie.end {
                let heard = liar.await_kind(RecordKind::Refused);
                assert_eq!(Refusal::from_wire(heard.value), refusal, "{}", lie.name);
            }
            is_told.store(true, Ordering::SeqCst);
            liar.stay_until(&is_seen);
        });
        let mut victim = Victim::open(options, &table, lie.is_read_only);
        let target = victim.rank.memory(BYTES);
        target.fill(OLD);
        let window = victim.window;
        let get =
            lie.asked.map(|bytes| victim.rank.get((window, 1), 0, target, bytes).expect("a get"));
        let watch = Watch::start();
        while !is_told.load(Ordering::SeqCst)
            || (lie.end == End::Protocol && victim.failure().is_ok())
        {
            victim.rank.progress();
            watch.look(lie.name);
        }
        let expected = match lie.end {
            End::Refused(_) => Ok(()),
            End::Protocol => Err(WindowError::Failed(1, RequestError::Protocol)),
        };
        assert_eq!(victim.failure(), expected, "{}", lie.name);
        let failed = expected.map_err(WaitError::Window);
        if let Some(get) = get {
            let ended = victim.rank.wait_local(get);
            assert!(ended.is_err(), "{}: {ended:?}", lie.name);
        }
        if failed.is_err() {
            assert_eq!(victim.rank.flush(), failed, "{}", lie.name);
        }
        for id in 0..4 {
            let word = victim.rank.group().inner().signal_read(window, id);
            assert_eq!(word, Ok(0), "{}", lie.name);
        }
        victim.all.check(0, BYTES + 2 * BESIDE, OLD);
        target.check(0, BYTES, OLD);
        is_seen.store(true, Ordering::SeqCst);
        victim.close(options.limits.connections_max);
    });
}

/// A put to the victim's window.
fn put(share: &Record, offset: u64, length: u64) -> Record {
    let (window, generation) = (share.window, share.generation);
    Record { window, generation, offset, length, ..record(RecordKind::Put) }
}

const fn lie(name: &'static str, tell: fn(&mut Liar, &Record), end: End) -> Lie {
    Lie { name, asked: None, is_read_only: false, tell, end }
}

const fn answer(name: &'static str, asked: usize, tell: fn(&mut Liar, &Record)) -> Lie {
    Lie { name, asked: Some(asked), is_read_only: false, tell, end: End::Protocol }
}

const RANGE: End = End::Refused(Refusal::Range);
const STALE: End = End::Refused(Refusal::Stale);
const ID: End = End::Refused(Refusal::Id);

const LIES: &[Lie] = &[
    lie("a put past the end", |liar, share| say(liar, &put(share, BYTES as u64, 8)), RANGE),
    lie("a put at an offset that wraps", |liar, share| say(liar, &put(share, !7, 16)), RANGE),
    lie("a put apart past the end", |liar, share| apart(liar, put(share, 8, BYTES as u64)), RANGE),
    lie(
        "a put apart at an offset that wraps",
        |liar, share| apart(liar, put(share, !7, 64)),
        RANGE,
    ),
    lie(
        "a put into another generation",
        |liar, share| say(liar, &Record { generation: share.generation ^ 1, ..put(share, 0, 8) }),
        STALE,
    ),
    lie(
        "a put into a window that is none",
        |liar, share| say(liar, &Record { window: u16::MAX, ..put(share, 0, 8) }),
        STALE,
    ),
    lie(
        "a put with a signal that is none",
        |liar, share| {
            say(liar, &Record { flags: SIGNAL, id: 4, value: 1, ..put(share, 0, 8) });
        },
        ID,
    ),
    lie(
        "a put apart with a signal that is none",
        |liar, share| {
            apart(liar, Record { flags: SIGNAL, id: u16::MAX, value: 1, ..put(share, 0, 4096) });
        },
        ID,
    ),
    lie(
        "a signal that is none",
        |liar, share| {
            say(liar, &Record { kind: RecordKind::Signal, id: 4, value: 1, ..put(share, 0, 0) });
        },
        ID,
    ),
    lie(
        "a barrier that is none",
        |liar, share| {
            say(liar, &Record { kind: RecordKind::Arrive, id: 4, ..put(share, 0, 0) });
        },
        ID,
    ),
    Lie {
        is_read_only: true,
        ..lie(
            "a put into a window that is read only",
            |liar, share| {
                assert_eq!(share.flags & READ_ONLY, READ_ONLY);
                say(liar, &put(share, 0, 8));
            },
            End::Refused(Refusal::ReadOnly),
        )
    },
    Lie {
        is_read_only: true,
        ..lie(
            "a put apart into a window that is read only",
            |liar, share| apart(liar, Record { flags: SIGNAL, value: 1, ..put(share, 0, 4096) }),
            End::Refused(Refusal::ReadOnly),
        )
    },
    lie("a frame of no bytes", |liar, _| frame(liar, &[]), End::Protocol),
    lie("half a head", |liar, _| frame(liar, &[0; 15]), End::Protocol),
    lie("half a record", |liar, _| frame(liar, &[1; 40]), End::Protocol),
    lie("a frame that is too long", |liar, _| frame(liar, &[0; FRAME_BYTES + 8]), End::Protocol),
    lie("a short frame of none", |liar, _| frame(liar, &[0; SHORT_FRAME_BYTES]), End::Protocol),
    lie(
        "a short frame of a put that is refused",
        |liar, share| {
            let record = Record { flags: REFUSED, ..put(share, 0, 8) };
            let short = Short { record, wants_applied: true }.to_bytes().expect("small numbers");
            frame(liar, &short);
        },
        End::Protocol,
    ),
    lie(
        "a short put past the end",
        |liar, share| {
            let record = put(share, BYTES as u64 - 4, 8);
            let short = Short { record, wants_applied: true }.to_bytes().expect("small numbers");
            frame(liar, &short);
        },
        RANGE,
    ),
    lie(
        "a put that is refused",
        |liar, share| {
            say(liar, &Record { flags: REFUSED, ..put(share, 0, 8) });
        },
        End::Protocol,
    ),
    lie(
        "what was never issued has been applied",
        |liar, _| frame(liar, &FrameHead { applied: 1 << 40, wants_applied: true }.to_bytes()),
        End::Protocol,
    ),
    lie(
        "what was never issued was refused",
        |liar, _| say(liar, &Record { offset: 1 << 40, ..record(RecordKind::Refused) }),
        End::Protocol,
    ),
    lie(
        "all was refused that ever will be issued",
        |liar, _| say(liar, &Record { offset: 1, length: !0, ..record(RecordKind::Refused) }),
        End::Protocol,
    ),
    lie(
        "what is before the first record was refused",
        |liar, _| say(liar, &record(RecordKind::Refused)),
        End::Protocol,
    ),
    lie(
        "inline bytes that are not there",
        |liar, share| {
            let mut bytes = FrameHead::default().to_bytes().to_vec();
            bytes.extend(put(share, 0, 2048).to_bytes());
            bytes.extend([9; 2000]);
            frame(liar, &bytes);
        },
        End::Protocol,
    ),
    lie(
        "more inline bytes than a record may have",
        |liar, share| {
            let mut bytes = FrameHead::default().to_bytes().to_vec();
            bytes.extend(put(share, 0, 3000).to_bytes());
            bytes.extend([9; 3000]);
            frame(liar, &bytes);
        },
        End::Protocol,
    ),
    lie(
        "a message that is longer than its record says",
        |liar, share| {
            say(liar, &Record { flags: APART, ..put(share, BYTES as u64 - 4096, 4096) });
            let _ = liar.apart(&[9; 3 * 4096]);
        },
        End::Protocol,
    ),
    lie("an answer that nobody asked for", |liar, _| say(liar, &got(0, 8)), End::Protocol),
    lie(
        "an answer apart that nobody asked for",
        |liar, _| say(liar, &got(APART, 8)),
        End::Protocol,
    ),
    lie("a refusal that nobody asked for", |liar, _| say(liar, &got(REFUSED, 8)), End::Protocol),
    answer("an answer that is too short", 16, |liar, _| answer_say(liar, got(0, 8))),
    answer("an answer that is too long", 16, |liar, _| answer_say(liar, got(0, 24))),
    answer("an answer inline that must not be", 4096, |liar, _| answer_say(liar, got(0, 2048))),
    answer("an answer whose message is longer", 4096, |liar, _| {
        answer_say(liar, got(APART, 4096));
        let _ = liar.apart(&[9; 8192]);
    }),
    answer("two answers", 16, |liar, _| {
        liar.await_kind(RecordKind::Get);
        let _ = liar.say(&got(REFUSED, 16), &[]);
        say(liar, &got(REFUSED, 16));
    }),
];

fn got(flags: u8, length: u64) -> Record {
    Record { flags, length, ..record(RecordKind::Got) }
}

/// Answers the victim's get.
fn answer_say(liar: &mut Liar, got: Record) {
    liar.await_kind(RecordKind::Get);
    say(liar, &got);
}

fn frame(liar: &mut Liar, bytes: &[u8]) {
    // the other may have closed the connection already
    let _ = liar.frame(bytes);
}

/// Says a record with the inline bytes that it has, if they are not too many for a frame.
fn say(liar: &mut Liar, record: &Record) {
    let _ = liar.say(record, &vec![9; record.inline_bytes().min(3000) as usize]);
}

/// Says a put whose bytes come apart, and sends them.
fn apart(liar: &mut Liar, put: Record) {
    let _ = liar.say(&Record { flags: put.flags | APART, ..put }, &[]);
    let _ = liar.apart(&vec![9; put.length as usize]);
}

#[test]
fn lies_are_refused_or_end_the_connection_and_touch_nothing() {
    for options in rails() {
        for lie in LIES {
            told(&options, lie);
        }
    }
}

/// The connection ends while bytes apart are awaited in the window: they do not come any more once
/// the window was freed.
#[test]
fn bytes_of_a_connection_that_has_ended_do_not_reach_a_window_that_was_freed() {
    for options in rails() {
        let (table, is_free) = (Table::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let liar = scope.spawn(|| {
                let mut liar = Liar::open(&options, &table);
                let share = liar.share(BYTES as u64);
                let put = Record { flags: APART, ..put(&share, 0, BYTES as u64) };
                liar.say(&put, &[]).expect("the group lives");
                frame(&mut liar, &[0; 3]);
                liar.stay_until(&is_free);
                let _ = liar.apart(&vec![9; BYTES]);
            });
            let mut victim = Victim::open(&options, &table, false);
            let watch = Watch::start();
            while victim.failure().is_ok() {
                victim.rank.progress();
                watch.look("the end of the connection");
            }
            while victim.rank.group().free(victim.window) == Err(WindowError::Again) {
                victim.rank.progress();
                watch.look("a window that is free");
            }
            // the memory is the owner's again
            victim.rank.node.shared.free(victim.all.region).expect("no request stands");
            victim.all = victim.rank.memory(BYTES + 2 * BESIDE);
            victim.all.fill(OLD);
            is_free.store(true, Ordering::SeqCst);
            while !liar.is_finished() {
                victim.rank.progress();
                watch.look("the liar");
            }
            victim.all.check(0, BYTES + 2 * BESIDE, OLD);
            let group = victim.rank.group.take().expect("open");
            assert!(group.close(&mut victim.rank.node), "a connection stays");
        });
    }
}

/// Frames of random bytes, and of random records with random messages beside them: nothing beside
/// the window changes, nothing panics, and the group closes.
#[test]
fn random_frames_touch_nothing_beside_the_window() {
    const SEEDS: u64 = 60;
    let options = &rails()[0];
    for seed in 0..SEEDS {
        let (table, is_told) = (Table::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut liar = Liar::open(options, &table);
                let share = liar.share(BYTES as u64);
                random_lies(&mut liar, &share, &mut Random(seed));
                is_told.store(true, Ordering::SeqCst);
            });
            let mut victim = Victim::open(options, &table, false);
            let target = victim.rank.memory(4096);
            let window = victim.window;
            let _ = victim.rank.get((window, 1), 0, target, if seed % 2 == 0 { 64 } else { 4096 });
            let watch = Watch::start();
            while !is_told.load(Ordering::SeqCst) {
                victim.rank.progress();
                watch.look("a liar");
            }
            while victim.failure().is_ok() {
                victim.rank.progress();
                watch.look("the end of the connection");
            }
            let error = victim.failure();
            println!("seed {seed}: {error:?}");
            victim.all.check(0, BESIDE, OLD);
            for at in BESIDE + BYTES..BYTES + 2 * BESIDE {
                assert_eq!(victim.all.read(at), group_support::pattern(OLD, at), "seed {seed}");
            }
            victim.close(options.limits.connections_max);
        });
    }
}

fn random_lies(liar: &mut Liar, share: &Record, random: &mut Random) {
    const KINDS: [RecordKind; 7] = [
        RecordKind::Put,
        RecordKind::Signal,
        RecordKind::Get,
        RecordKind::Got,
        RecordKind::Refused,
        RecordKind::Share,
        RecordKind::Arrive,
    ];
    for _ in 0..12 {
        if random.below(4) == 0 {
            let mut bytes: Vec<u8> = (0..SHORT_FRAME_BYTES).map(|_| random.next() as u8).collect();
            bytes[0] = (bytes[0] & 0x80) | (1 + random.below(7) as u8);
            (bytes[2], bytes[3]) = (share.window as u8, (share.window >> 8) as u8);
            (bytes[4], bytes[5]) = (share.generation as u8, (share.generation >> 8) as u8);
            frame(liar, &bytes);
            continue;
        }
        if random.below(8) == 0 {
            let bytes: Vec<u8> = (0..random.below(5000)).map(|_| random.next() as u8).collect();
            frame(liar, &bytes);
            return;
        }
        let kinds = if random.below(4) == 0 { 7 } else { 3 };
        let kind = KINDS[random.below(kinds) as usize];
        let odd = |random: &mut Random| [0, 1, u64::MAX, BYTES as u64][random.below(4) as usize];
        let near = random.below(2) == 0;
        let length = if near { random.below(2048) } else { odd(random).min(1 << 20) };
        let record = Record {
            kind,
            flags: random.below(64) as u8,
            id: random.below(6) as u16,
            window: share.window,
            generation: share.generation + u16::from(random.below(8) == 0),
            offset: if near { random.below(BYTES as u64) } else { odd(random) },
            length,
            value: random.below(6),
        };
        say(liar, &record);
        if record.is_apart() && random.below(4) != 0 {
            let _ = liar.apart(&vec![9; length as usize]);
        }
    }
}

/// How far the member comes that is killed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Dies {
    /// It has told where it listens.
    Listening,
    /// It has opened the group, and registered a window.
    Opened,
}

/// A bootstrap through the process that has started this one.
struct ByLine(Line);

impl Bootstrap for ByLine {
    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), BootstrapError> {
        self.0.say(mine);
        for chunk in all.chunks_exact_mut(MEMBER_BYTES) {
            chunk.copy_from_slice(&self.0.hear::<MEMBER_BYTES>());
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }
}

fn role_member() {
    let options = if std::env::var_os("TEST_TCP").is_some() { rails()[1] } else { rails()[0] };
    let mut node = Node::open(&options);
    let mut bootstrap = ByLine(roles::line());
    let (mut group, _block) =
        group_open(&mut node, (1, 3), Span::millis(60_000), &mut bootstrap).expect("a group");
    let (start, region) = node.shared.allocate(Bytes::of(BYTES)).expect("memory");
    // SAFETY: the heap's memory stays to the end.
    let window = unsafe { group.register(&mut node, (region, start as u64, BYTES as u64), false) };
    window.expect("a window");
    bootstrap.0.say_number(1);
    loop {
        group.progress(&mut node);
    }
}

fn group_open(
    node: &mut Node,
    (rank, ranks): (u32, u32),
    timeout: Span,
    bootstrap: &mut dyn Bootstrap,
) -> Result<(Group, HeapBlock), GroupError> {
    let options = GroupOptions { limits: limits(ranks), rank, timeout };
    let mut block = HeapBlock::new(options.bytes());
    let place = (block.start(), block.length());
    // SAFETY: the caller keeps the block until the group is closed.
    let group = unsafe { Group::open(node, place, &options, bootstrap) }?;
    Ok((group, block))
}

/// All connections are free, and as many regions can be registered as were agreed.
fn nothing_stays(node: &Node, options: &Options) {
    all_connections_free(node, options.limits.connections_max);
    let mut memory = vec![0u8; 64];
    let address = memory.as_mut_ptr().expose_provenance() as u64;
    let regions: Vec<_> = (0..options.limits.regions_max)
        .map(|at| {
            // SAFETY: it is deregistered below, before the memory ends.
            let region = unsafe { node.shared.register(address, Bytes::of(64), MemoryKind::Host) };
            region.unwrap_or_else(|error| panic!("region {at}: {error:?}"))
        })
        .collect();
    for region in regions {
        node.shared.deregister(region).expect("no request stands");
    }
}

/// Ranks 0 and 2 of three stay, as threads of this process; rank 1 is another, which is killed.
fn killed(options: &Options, dies: Dies, is_told: bool) {
    let (table, again, killed) = (Table::new(3), Table::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let tcp = [("TEST_TCP", "1")];
            let is_tcp = options.device == DeviceKind::Tcp;
            let mut process = roles::start("member", if is_tcp { &tcp } else { &[] });
            let mut member = member(&table, 1);
            for _ in 0..if dies == Dies::Opened { 2 } else { 1 } {
                let mine = process.line.hear::<MEMBER_BYTES>();
                let mut all = [0; 3 * MEMBER_BYTES];
                member.gather(&mine, &mut all).expect("all ranks");
                process.line.say(&all);
            }
            if dies == Dies::Opened {
                assert_eq!(process.line.hear_number(), 1);
            }
            process.kill();
            killed.store(true, Ordering::SeqCst);
            if is_told {
                table.end();
            }
        });
        for rank in [0, 2] {
            let (table, again, killed) = (&table, &again, &killed);
            scope.spawn(move || {
                let mut node = Node::open(options);
                let bootstrap = &mut member(table, rank as usize);
                let opened = group_open(&mut node, (rank, 3), Span::millis(3000), bootstrap);
                match dies {
                    Dies::Listening => refused_at_open(rank, opened.err(), is_told),
                    Dies::Opened => {
                        refused_in_exchange(&mut node, opened.expect("all lived"), killed);
                    }
                }
                nothing_stays(&node, options);
                // those that stay can go on together
                let mut bootstrap = member(again, rank as usize / 2);
                bootstrap.patience = Duration::from_secs(60);
                let bootstrap = &mut bootstrap;
                let (group, _block) =
                    group_open(&mut node, (rank / 2, 2), PATIENCE, bootstrap).expect("a group");
                assert!(group.close(&mut node));
                nothing_stays(&node, options);
            });
        }
    });
}

fn member(table: &Arc<Table>, rank: usize) -> Member {
    Member { table: Arc::clone(table), rank, patience: Duration::from_secs(5) }
}

fn refused_at_open(rank: u32, error: Option<GroupError>, is_told: bool) {
    println!("rank {rank}: {error:?}");
    match error.expect("a member has died") {
        // the other that stays may have given up before this one has looked for rank 1
        GroupError::Connect(..) | GroupError::Failed(..) => {}
        GroupError::Missing(_) => assert!(!is_told, "its bootstrap has said so"),
        GroupError::Bootstrap(_) => {}
        error => panic!("{error:?}"),
    }
}

fn refused_in_exchange(
    node: &mut Node,
    (mut group, _block): (Group, HeapBlock),
    killed: &AtomicBool,
) {
    let watch = Watch::start();
    while !killed.load(Ordering::SeqCst) {
        group.progress(node);
        watch.look("a member that is killed");
    }
    let (start, region) = node.shared.allocate(Bytes::of(BYTES)).expect("memory");
    // SAFETY: the memory is freed after the window.
    let window = unsafe { group.register(node, (region, start as u64, BYTES as u64), false) };
    let window = window.expect("a window");
    let ended = group.exchange(node, window, Some(PATIENCE));
    match ended {
        Err(WaitError::Window(WindowError::Failed(1, error))) => println!("exchange: {error}"),
        // the other that stays has seen it first, and given its part up
        Err(WaitError::Window(WindowError::Freed)) => {}
        ended => panic!("{ended:?}"),
    }
    while group.free(window) == Err(WindowError::Again) {
        group.progress(node);
        watch.look("a window that is free");
    }
    assert!(group.close(node));
    node.shared.free(region).expect("no request stands");
}

#[test]
fn member_that_dies_while_the_group_opens_is_an_error_of_all_others() {
    for options in rails() {
        for is_told in [true, false] {
            killed(&options, Dies::Listening, is_told);
        }
    }
}

#[test]
fn member_that_dies_before_an_exchange_is_an_error_of_all_others() {
    for options in rails() {
        killed(&options, Dies::Opened, false);
    }
}

/// One rank expects two, the other three.
struct Stretched(Member);

impl Bootstrap for Stretched {
    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), BootstrapError> {
        let mut both = [0; 2 * MEMBER_BYTES];
        self.0.gather(mine, &mut both)?;
        all.fill(0);
        all[..both.len()].copy_from_slice(&both);
        Ok(())
    }

    fn look(&mut self) -> Result<(), BootstrapError> {
        self.0.look()
    }
}

#[test]
fn ranks_that_differ_in_their_number_do_not_open_a_group() {
    for options in &rails() {
        let table = Table::new(2);
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let table = &table;
                scope.spawn(move || {
                    let mut node = Node::open(options);
                    let bootstrap = &mut Stretched(member(table, rank as usize));
                    let opened = group_open(&mut node, (rank, 2 + rank), PATIENCE, bootstrap);
                    assert_eq!(opened.err(), Some(GroupError::Mismatch(1 - rank)));
                    nothing_stays(&node, options);
                });
            }
        });
    }
}

#[test]
fn rank_and_limits_out_of_range_do_not_open_a_group() {
    let options = &rails()[0];
    let mut node = Node::open(options);
    let table = Table::new(1);
    for (rank, ranks) in [(1, 1), (u32::MAX, 1), (0, 0)] {
        let bootstrap = &mut member(&table, 0);
        let opened = group_open(&mut node, (rank, ranks), PATIENCE, bootstrap);
        assert_eq!(opened.err(), Some(GroupError::Limits));
    }
    nothing_stays(&node, options);
}

/// Nobody comes, or one tells where it listens and does no more.
#[test]
fn member_that_never_comes_is_an_error_within_the_deadline() {
    for options in &rails() {
        let mut node = Node::open(options);
        let table = Table::new(2);
        let patience = Duration::from_millis(50);
        let bootstrap = &mut Member { table: Arc::clone(&table), rank: 0, patience };
        let opened = group_open(&mut node, (0, 2), Span::millis(100), bootstrap);
        assert_eq!(opened.err(), Some(GroupError::Bootstrap(BootstrapError(110))));
        nothing_stays(&node, options);
        for silent in 0..2 {
            let (table, is_over) = (Table::new(2), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let node = Node::open(options);
                    let (_, handle) = node.shared.listen().expect("a listener");
                    let (ranks, windows_max) = (2, limits(2).windows_max);
                    let has_failed = false;
                    let mine =
                        wire::Member { rank: silent, ranks, has_failed, windows_max, handle };
                    let mut all = [0; 2 * MEMBER_BYTES];
                    let mut bootstrap = member(&table, silent as usize);
                    bootstrap.gather(&mine.to_bytes(), &mut all).expect("both");
                    let watch = Watch::start();
                    while !is_over.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                        watch.look("the other's deadline");
                    }
                });
                let table = Arc::clone(&table);
                let patience = Duration::from_millis(500);
                let bootstrap = &mut Member { table, rank: 1 - silent as usize, patience };
                let opened = group_open(&mut node, (1 - silent, 2), Span::millis(300), bootstrap);
                is_over.store(true, Ordering::SeqCst);
                // rank 0 has connected, and waits for the other to say that it has, too
                let expected = match silent {
                    0 => GroupError::Missing(0),
                    _ => GroupError::Bootstrap(BootstrapError(110)),
                };
                assert_eq!(opened.err(), Some(expected));
                nothing_stays(&node, options);
            });
        }
    }
}

/// Memory that this process may only read is a window only where it is said to be read-only.
#[test]
fn memory_that_may_not_be_written_is_no_window_for_puts() {
    const PAGES: usize = 4 * 4096;
    let options = Options { device: DeviceKind::Loopback, ..small(8) };
    let table = Table::new(1);
    let mut rank = Rank::try_open(&options, &table, 0, limits(1), PATIENCE).expect("a group");
    // SAFETY: new memory, which nothing else knows of.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: valid for so many bytes, and never unmapped.
    let memory = rank.private(unsafe { std::slice::from_raw_parts_mut(start.cast(), PAGES) });
    let protect = |page: usize, protection| {
        // SAFETY: one page of the memory, which nobody writes meanwhile.
        let code = unsafe { libc::mprotect(start.byte_add(page * 4096), 4096, protection) };
        assert_eq!(code, 0);
    };
    for page in 0..4 {
        protect(page, libc::PROT_READ);
        let refused = rank.try_register(memory, PAGES as u64, false);
        assert_eq!(refused, Err(WindowError::ReadOnly), "page {page}");
        let window = rank.try_register(memory, PAGES as u64, true).expect("a window");
        rank.exchange(window).expect("an exchange");
        let target = rank.memory(PAGES);
        let get = rank.get((window, 0), 0, target, PAGES).expect("a get");
        rank.wait_local(get).expect("its bytes");
        target.check_zero(0, PAGES);
        rank.flush().unwrap();
        rank.group().free(window).expect("no transfer");
        protect(page, libc::PROT_READ | libc::PROT_WRITE);
    }
    let window = rank.try_register(memory, PAGES as u64, false).expect("a window");
    rank.group().free(window).expect("no transfer");
    rank.close();
}
