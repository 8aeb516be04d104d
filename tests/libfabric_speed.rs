//! With `XTIE_MEASURE=1`: the speed of the libfabric rail between two processes beside a bare
//! driver of libfabric (`tests/bench/bare_libfabric.c`) and `fi_pingpong`, over the same provider,
//! in turn. `XTIE_MEASURE=PROVIDER` measures one, `XTIE_CPUS=A,B` says where and `XTIE_RUNS` how
//! often.

mod libfabric_support;

use crosstie::base::units::Bytes;
use crosstie::fabric::{Completion, OpKind, PeerLife, Provider, Source};
use libfabric_support::PEER;
use libfabric_support::end::{End, WHICH, join_with, pipe};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROVIDERS: [&str; 2] = ["tcp;ofi_rxm", "shm"];
const ROUNDS: usize = 5_000;
/// What is written, and how often in a window.
const WRITES: [(usize, usize); 7] = [
    (4 << 10, 2000),
    (16 << 10, 1000),
    (64 << 10, 400),
    (256 << 10, 100),
    (1 << 20, 48),
    (4 << 20, 16),
    (16 << 20, 8),
];
const WINDOWS: usize = 12;
/// What the rail sends before a payload, most of the time.
const HEAD_BYTES: usize = 24;
const OUTSTANDING: usize = 8;

/// Times of one run: a message of 8 bytes one way, p50 and mean, in ns; then a window of each
/// length, the best and the median, in seconds.
type Times = Vec<(String, f64)>;

fn block_bytes() -> usize {
    OUTSTANDING * WRITES.iter().map(|write| write.0).max().unwrap()
}

fn cpus() -> [usize; 2] {
    let words = std::env::var("XTIE_CPUS").unwrap_or("0,1".into());
    let mut all = words.split(',').map(|cpu| cpu.parse().unwrap());
    [all.next().unwrap(), all.next().unwrap()]
}

fn pin(cpu: usize) {
    // SAFETY: a set of CPUs is a plain number, of which zero is one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: inside the set, which is checked by the call.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: a set of the length that is said. A host with one CPU refuses, which does no harm.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
}

/// Polls once: how many writes ended, and the length of a message that came.
#[inline]
fn poll(end: &mut End) -> (usize, Option<u32>) {
    if end.next_id.is_multiple_of(64) {
        end.now = crosstie::base::units::Instant(end.start.elapsed().as_nanos() as u64);
    }
    end.next_id += 1;
    let count = end.rail.poll(&mut end.out, Bytes::kib(64), end.now);
    let (mut ended, mut came) = (0, None);
    for completion in &end.out[..count] {
        match completion {
            Completion::Done { result, .. } => {
                assert_eq!(*result, Ok(()));
                ended += 1;
            }
            Completion::Received { slot, length, .. } => {
                end.rail.received_release(PEER, *slot);
                came = Some(*length);
            }
            Completion::PeerDown { .. } => came = Some(u32::MAX),
            _ => {}
        }
    }
    (ended, came)
}

/// Takes the next message; its length, or `None` when the peer is down.
fn take(end: &mut End) -> Option<u32> {
    loop {
        match poll(end).1 {
            Some(u32::MAX) => return None,
            Some(length) => return Some(length),
            None => {}
        }
    }
}

/// Sends a message under a head as an endpoint's are where messages go to and fro (W1): number,
/// group and credits are not those of the one before.
fn send(end: &mut End, length: u32) {
    let payload = end.span(0, length as usize);
    let number = end.next_id as u32;
    let words = [1, 1, 0, 0, number, number, number + 48, 0];
    let mut head = [0; 32];
    for (place, word) in head.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    while !end.rail.send_now(PEER, &head, payload) {
        poll(end);
    }
}

/// Runs in children alone: an echo.
#[test]
fn child() {
    let Ok(provider) = std::env::var(WHICH) else { return };
    pin(cpus()[1]);
    let (mut to, mut from) = (pipe(3), std::io::stdin());
    let Some(mut end) = End::open(&provider, 0x5eed_0002, &mut to, &mut from) else { return };
    end.fill(0, end.block_bytes, 1);
    while let Some(length) = take(&mut end) {
        send(&mut end, length);
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        end.poll();
    }
}

fn latency(end: &mut End, length: u32) -> (f64, f64) {
    let start = Instant::now();
    let mut before = start;
    let mut took: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            send(end, length);
            take(end).unwrap();
            let at = Instant::now();
            let spent = at - std::mem::replace(&mut before, at);
            spent.as_nanos() as f64 / 2.0
        })
        .collect();
    let mean = start.elapsed().as_nanos() as f64 / 2.0 / ROUNDS as f64;
    took.sort_by(f64::total_cmp);
    (took[ROUNDS / 2], mean)
}

/// A window: seconds.
fn stream(end: &mut End, length: usize, ops: usize) -> f64 {
    let (start, mut posted, mut flying) = (Instant::now(), 0, 0);
    while posted < ops || flying > 0 {
        while posted < ops && flying < OUTSTANDING {
            let at = posted % OUTSTANDING * length;
            let source = Source::Span(end.span(at, length));
            let kind = OpKind::Write { source, target: end.far.plus(at as u64), immediate: None };
            let id = crosstie::fabric::OpId(posted as u64);
            match end.rail.post(&crosstie::fabric::Op { id, peer: PEER, kind }, end.now) {
                Ok(_) => flying += 1,
                Err(crosstie::fabric::PostError::Again) => break,
                Err(error) => panic!("{error:?}"),
            }
            posted += 1;
        }
        flying -= poll(end).0;
    }
    start.elapsed().as_secs_f64()
}

fn windows(name: String, mut seconds: Vec<f64>, times: &mut Times) {
    seconds.sort_by(f64::total_cmp);
    times.push((format!("{name}, best window"), seconds[0]));
    times.push((format!("{name}, median window"), seconds[seconds.len() / 2]));
}

fn ours(provider: &str) -> Option<Times> {
    let (mut child, mut end) = join_with(provider, block_bytes())?;
    end.fill(0, block_bytes(), 1);
    let mut times = Times::new();
    latency(&mut end, 8);
    let (p50, mean) = latency(&mut end, 8);
    times.push(("8 B, p50".into(), p50));
    times.push(("8 B, mean".into(), mean));
    times.push(("8 B, p50, bare with a head".into(), p50));
    for (length, ops) in WRITES {
        stream(&mut end, length, OUTSTANDING);
        let seconds = (0..WINDOWS).map(|_| stream(&mut end, length, ops)).collect();
        windows(format!("{} KiB x {OUTSTANDING}", length >> 10), seconds, &mut times);
    }
    end.rail.peer_fail(PEER, crosstie::fabric::DownCause::Closed);
    let fence = OpKind::Fence { generation: crosstie::base::ids::RailGeneration(1) };
    let fence = end.post(fence);
    assert!(end.ends_well(fence));
    assert_eq!(end.rail.peer_close(PEER), Ok(()));
    assert!(child.wait().unwrap().success());
    Some(times)
}

/// The bare driver's program, built with the C compiler.
fn bare_program() -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bench/bare_libfabric.c");
    if let Ok(built) = std::env::var("XTIE_BARE_LIBFABRIC") {
        return built;
    }
    let program = format!("{}/bare_libfabric", env!("CARGO_TARGET_TMPDIR"));
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", &program, source])
        .arg("-lfabric")
        .status();
    assert!(built.expect("a C compiler").success(), "the bare driver is built (libfabric-dev)");
    program
}

fn bare(program: &str, provider: &str) -> Times {
    let cpus = cpus();
    let mut child = Command::new(program)
        .args([provider, &format!("{},{}", cpus[0], cpus[1])])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the bare driver");
    let mut to = child.stdin.take().unwrap();
    let mut from = BufReader::new(child.stdout.take().unwrap());
    let mut ask = |question: String| -> Vec<f64> {
        writeln!(to, "{question}").unwrap();
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    };
    let mut times = Times::new();
    ask(format!("lat 8 {ROUNDS}"));
    let answer = ask(format!("lat 8 {ROUNDS}"));
    times.push(("8 B, p50".into(), answer[0]));
    times.push(("8 B, mean".into(), answer[1]));
    let answer = ask(format!("lat {} {ROUNDS}", HEAD_BYTES + 8));
    times.push(("8 B, p50, bare with a head".into(), answer[0]));
    for (length, ops) in WRITES {
        ask(format!("write {length} {OUTSTANDING} {OUTSTANDING}"));
        let window = |_| ask(format!("write {length} {ops} {OUTSTANDING}"))[0];
        let seconds = (0..WINDOWS).map(window).collect();
        windows(format!("{} KiB x {OUTSTANDING}", length >> 10), seconds, &mut times);
    }
    drop(to);
    assert!(child.wait().unwrap().success());
    times
}

/// Mean of 8 bytes one way in ns, as `fi_pingpong` says; `None`: it is not installed.
fn pingpong(provider: &str, port: u16) -> Option<f64> {
    let cpus = cpus();
    let run = |cpu: usize, more: &[&str]| {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "fi_pingpong", "-p", provider, "-e", "rdm"]);
        command.args(["-I", &ROUNDS.to_string(), "-S", "8"]).args(more);
        command.env("FI_TCP_IFACE", "lo").stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn()
    };
    let port = port.to_string();
    let mut server = run(cpus[1], &["-B", &port]).ok()?;
    let mut said = None;
    for _ in 0..50 {
        let client = run(cpus[0], &["-P", &port, "127.0.0.1"]).ok()?;
        let output = client.wait_with_output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let row = |line: &str| -> Option<f64> {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words.len() == 8 && words[0] == "8").then(|| words[6].parse().ok())?
        };
        said = text.lines().find_map(row);
        if said.is_some() || server.try_wait().ok()?.is_some() {
            break;
        }
    }
    let _ = server.kill();
    let _ = server.wait();
    said.map(|us| us * 1000.0)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// What one row of all runs says: GB/s for windows, ns for messages.
fn row(provider: &str, name: &str, ours: &[f64], bare: &[f64]) {
    let (own, theirs) = (median(ours.to_vec()), median(bare.to_vec()));
    let least = |numbers: &[f64]| numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let (own_best, their_best) = (least(ours), least(bare));
    match WRITES.iter().find(|write| name.starts_with(&format!("{} KiB", write.0 >> 10))) {
        Some((length, ops)) => {
            let speed = |seconds: f64| (length * ops) as f64 / seconds / 1e9;
            println!(
                "{provider:12} {name:32} {:7.2} GB/s, bare {:7.2}, of it {:.3}; best {:.2}, {:.2}, \
                 of it {:.3}",
                speed(own),
                speed(theirs),
                theirs / own,
                speed(own_best),
                speed(their_best),
                their_best / own_best,
            );
        }
        None => println!(
            "{provider:12} {name:32} {own:7.0} ns, bare {theirs:7.0}, of it {:.3}; best \
             {own_best:.0}, {their_best:.0}, of it {:.3}",
            own / theirs,
            own_best / their_best
        ),
    }
}

#[test]
fn speed_between_two_processes() {
    let Ok(wanted) = std::env::var("XTIE_MEASURE") else {
        println!("SKIP: XTIE_MEASURE is not set");
        return;
    };
    let runs: usize = std::env::var("XTIE_RUNS").map_or(5, |runs| runs.parse().unwrap());
    let program = bare_program();
    pin(cpus()[0]);
    for provider in PROVIDERS.into_iter().filter(|provider| wanted == "1" || wanted == *provider) {
        let (mut own, mut theirs, mut pings) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..runs {
            println!("{provider}: run {run}");
            theirs.push(bare(&program, provider));
            own.extend(ours(provider));
            pings.extend(pingpong(provider, 18600 + run as u16));
        }
        for at in 0..own.first().map_or(0, Vec::len) {
            let column = |all: &[Times]| all.iter().map(|times| times[at].1).collect::<Vec<_>>();
            row(provider, &own[0][at].0, &column(&own), &column(&theirs));
        }
        if !pings.is_empty() {
            let mean: Vec<f64> = own.iter().map(|times| times[1].1).collect();
            row(provider, "8 B, mean, fi_pingpong as bare", &mean, &pings);
        }
    }
}
