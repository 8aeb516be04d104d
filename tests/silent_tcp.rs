//! Silent peers of other hosts: one that is stopped is reported and its connections stay; one whose
//! packets vanish is dead within the deadline.
#![allow(dead_code)] // of the shared parts

mod connect_support;

use connect_support::*;
use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::connect::*;
use crosstie::fabric::completion::DownCause;
use crosstie::wire::handle::ListenHandle;
use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Everything that bands of this process have said.
static SAID: Mutex<Vec<Note>> = Mutex::new(Vec::new());

fn listen_to_notes(note: Note) {
    SAID.lock().unwrap().push(note);
}

fn stopped(pid: u32) -> usize {
    let of = |note: &&Note| matches!(note, Note::Stopped { peer, .. } if peer.pid == pid);
    SAID.lock().unwrap().iter().filter(of).count()
}

fn resumed(pid: u32) -> usize {
    let of = |note: &&Note| matches!(note, Note::Resumed { peer, .. } if peer.pid == pid);
    SAID.lock().unwrap().iter().filter(of).count()
}

/// A connection to a process of its own, over TCP, and that process.
fn connected(name: &str, deadline_ms: u64) -> (Node, Handle, [u8; 128], Child) {
    let dir = directory(name);
    let limits =
        Limits { peer_deadline: Span::millis(deadline_ms), note: listen_to_notes, ..Limits::tcp() };
    let a = Node::new(&limits);
    let (child, handle) = start_child("listen", &dir);
    let pending = a.band.connect_begin(&handle).unwrap();
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    let _ = std::fs::remove_dir_all(&dir);
    (a, here, handle, child)
}

/// Writes into a data stream until it takes no more, and says with which code.
fn filled(stream: i32) -> i32 {
    let bytes = [0u8; 65536];
    loop {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: readable bytes.
        let sent = unsafe { libc::send(stream, bytes.as_ptr().cast(), bytes.len(), flags) };
        if sent < 0 {
            return std::io::Error::last_os_error().raw_os_error().unwrap();
        }
    }
}

#[test]
fn a_stopped_peer_over_tcp_is_reported_once_and_its_connections_stay() {
    let (mut a, here, handle, mut child) = connected("silent_tcp", 200);
    let data = a.established(here).unwrap().streams[0];
    for round in 1..3 {
        signal(&child, libc::SIGSTOP);
        until("report", || (stopped(child.id()) == round).then_some(()));
        // asked for during the silence: its kernel takes the question
        let pending = a.band.connect_begin(&handle).unwrap();
        assert_eq!(a.band.connect_poll(pending), Ok(None));
        // it reads nothing: the window of the data stream closes
        assert_eq!(filled(data), libc::EAGAIN);
        // much longer than it takes to declare a peer dead
        passed(1500);
        assert_eq!(filled(data), libc::EAGAIN);
        assert_eq!((a.gone(here), resumed(child.id())), (None, round - 1));
        signal(&child, libc::SIGCONT);
        until("resumed", || (resumed(child.id()) == round).then_some(()));
        until("connect", || a.band.connect_poll(pending).unwrap());
        assert_eq!(stopped(child.id()), round);
    }
    assert_eq!((a.band.counters().links, a.gone(here)), (1, None));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(until("gone", || a.gone(here)), DownCause::Severed);
}

/// What it says of others then would be about its own time.
#[test]
fn a_process_that_was_stopped_says_so_when_it_goes_on() {
    let dir = directory("paused");
    let limits =
        Limits { peer_deadline: Span::millis(200), note: listen_to_notes, ..Limits::tcp() };
    let mut a = Node::new(&limits);
    let (mut child, handle) = start_child("listen_paused", &dir);
    let pending = a.band.connect_begin(&handle).unwrap();
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    let _ = std::fs::remove_dir_all(&dir);
    signal(&child, libc::SIGSTOP);
    until("report", || (stopped(child.id()) == 1).then_some(()));
    signal(&child, libc::SIGCONT);
    until("resumed", || (resumed(child.id()) == 1).then_some(()));
    let of = |note: &Note| match note {
        Note::Resumed { peer, silent, owed } if peer.pid == child.id() => Some((*silent, *owed)),
        _ => None,
    };
    let (silent, owed) = SAID.lock().unwrap().iter().find_map(of).unwrap();
    assert!(owed > Span(0) && owed <= silent, "{owed:?} of {silent:?}");
    assert_eq!(a.gone(here), None);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success(), "it says nothing of its stop");
}

/// Its kernel has acknowledged all the time, so that the peer had not given us up.
#[test]
fn a_peer_that_is_killed_while_it_is_stopped_is_dead() {
    let (mut a, here, _, mut child) = connected("stopped_dead", 400);
    signal(&child, libc::SIGSTOP);
    until("report", || (stopped(child.id()) == 1).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(until("gone", || a.gone(here)), DownCause::Severed);
}

fn passed(ms: u64) {
    let later = Instant::now() + Duration::from_millis(ms);
    until("a while", || (Instant::now() > later).then_some(()));
}

/// Runs `ip` in the namespace that this process is in.
fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).status().is_ok_and(|status| status.success())
}

#[test]
fn a_peer_whose_packets_vanish_is_dead_within_the_deadline() {
    // the loopback of a network of its own is a link that can be taken down
    let mut command = Command::new("unshare");
    command.arg("--net").arg(std::env::current_exe().unwrap());
    command.args(["--exact", "role_vanish", "--nocapture"]).env(ROLE, "vanish");
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return skipped(&error.to_string()),
    };
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("unshare failed") {
        return skipped(&text);
    }
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("no loopback") {
        return skipped("ip is missing");
    }
    assert!(output.status.success() && said.contains("vanished"), "{said}{text}");
}

fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: no network namespace of our own: {why}");
}

#[test]
fn role_vanish() {
    if std::env::var(ROLE).as_deref() != Ok("vanish") {
        return;
    }
    if !ip("link set lo up") {
        println!("no loopback");
        return;
    }
    // idle when it happens, and with a question under way
    for asks in [false, true] {
        let (mut a, here, handle, mut child) = connected("vanish", 800);
        // its kernel is heard on a data stream later than its process on the link
        let data = a.established(here).unwrap().streams[0];
        passed(120);
        let began = Instant::now();
        carry_into_nothing(data);
        passed(60);
        assert!(ip("link set lo down"));
        let pending = asks.then(|| a.band.connect_begin(&handle).unwrap());
        assert_eq!(until("gone", || a.gone(here)), DownCause::Unheard);
        if let Some(pending) = pending {
            let error = until("an end", || a.band.connect_poll(pending).err());
            println!("asked: {error}");
        }
        match a.band.peer_ending(here) {
            // the kernel counts in its own steps
            Some(Ending::Silent(Span(silent))) => {
                let most = began.elapsed() + Duration::from_millis(20);
                assert!(u128::from(silent) <= most.as_nanos(), "{silent} ns, {most:?} since");
            }
            Some(Ending::Broken(libc::ETIMEDOUT)) => {}
            other => panic!("{other:?}"),
        }
        // dead, not stopped
        assert_eq!(stopped(child.id()), 0);
        assert!(ip("link set lo up"));
        child.kill().unwrap();
        child.wait().unwrap();
        a.band.connection_close(here).unwrap();
        until("free", || a.all_free());
        ListenHandle::decode(&handle).unwrap();
    }
    let (cause, ending) = std::iter::repeat_with(late).flatten().next().unwrap();
    assert_eq!(cause, DownCause::Unheard, "{ending:?}");
    assert!(matches!(ending, Some(Ending::Late(_))), "{ending:?}");
    println!("vanished");
}

/// A peer that gives us up closes its end, too. Behind a silence of its kernel, that its end is not
/// there any more says nothing of its process. `None`: this process was not run for a while, and
/// the silence may have been its own.
fn late() -> Option<(DownCause, Option<Ending>)> {
    let (mut a, here, _, mut child) = connected("late_end", 8000);
    let began = Instant::now();
    let (mut looked, mut longest) = (began, Duration::ZERO);
    let mut look = || {
        longest = longest.max(looked.elapsed());
        looked = Instant::now();
        looked - began
    };
    carry_into_nothing(a.established(here).unwrap().streams[0]);
    assert!(ip("link set lo down"));
    // a ping is due after a half at the latest, and its silence is long after that, too
    until("a while", || (look() > Duration::from_secs(5)).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ip("link set lo up"));
    let cause = until("gone", || {
        look();
        a.gone(here)
    });
    (longest < Duration::from_secs(1)).then(|| (cause, a.band.peer_ending(here)))
}

fn stalls() -> usize {
    let of = |note: &&Note| matches!(note, Note::Stalled { .. });
    SAID.lock().unwrap().iter().filter(of).count()
}

#[test]
fn a_stream_whose_packets_vanish_ends_its_connection_alone_although_the_link_answers() {
    let deadline = Span::millis(800);
    let limits =
        Limits { peer_deadline: deadline, note: listen_to_notes, streams: 3, ..Limits::tcp() };
    let (mut a, mut b) = (Node::new(&limits), Node::new(&limits));
    let (listener, handle) = b.band.listen().unwrap();
    let bytes = handle.encode();
    let mut all = [0; 3].map(|_| pair(&a, &b, listener, &bytes));
    // the first is full of what nobody reads, the second idle; the last one's second stream
    // leads nowhere
    let lanes = all.map(|(here, there)| {
        (a.established(here).unwrap().streams[1], b.established(there).unwrap().streams[1])
    });
    for (near, far) in lanes {
        carry(near, far);
    }
    assert_eq!(filled(lanes[0].0), libc::EAGAIN);
    black_hole(lanes[2].1);
    assert_eq!(filled(lanes[2].0), libc::EAGAIN);
    for round in 1..3 {
        let (here, there) = all[2];
        assert_eq!(until("gone", || a.gone(here)), DownCause::Silent);
        assert_eq!(stalls(), round);
        assert_eq!((a.gone(all[0].0), a.gone(all[1].0), b.gone(there)), (None, None, None));
        carry(lanes[1].0, lanes[1].1);
        // closed as any other; its peer hears of it over the link
        a.band.connection_close(here).unwrap();
        assert_eq!(until("closed", || b.gone(there)), DownCause::Closed);
        b.band.connection_close(there).unwrap();
        all[2] = pair(&a, &b, listener, &bytes);
        let far = b.established(all[2].1).unwrap().streams[0];
        black_hole(far);
        carry_into_nothing(a.established(all[2].0).unwrap().streams[0]);
    }
    assert_eq!(a.band.counters().links_lost + b.band.counters().links_lost, 0);
}

/// Sends a byte.
fn carry_into_nothing(stream: i32) {
    // SAFETY: one readable byte.
    assert_eq!(unsafe { libc::send(stream, [0u8].as_ptr().cast(), 1, 0) }, 1);
}

/// Peers over TCP, with one stream.
const STREAMS: u32 = 1;

include!("connect_support/roles.rs");
