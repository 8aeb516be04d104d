//! What the kernel of a dead process still sends, behind an outage in which it died, and that of
//! one whose endpoint was closed in it.

#[path = "common/network.rs"]
mod common_network;
mod libfabric_support;

use common_network::{network, own_network};
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::fabric::{DownCause, Op, OpId, OpKind, PeerLife, Provider, Source};
use libfabric_support::PEER;
use libfabric_support::end::{End, WHICH, join_with, pipe};
use std::io::Write;
use std::process::Child;
use std::time::{Duration, Instant};

const BYTES: usize = 32 << 20;
/// So long that what is sent again is sent at intervals above two seconds.
const OUTAGE: Duration = Duration::from_millis(8500);
/// So long behind its start that there is nothing of before on its way, and that who connects then
/// is heard as soon as it is over.
const SOON: Duration = Duration::from_millis(500);
const LATELY: Duration = Duration::from_millis(7800);
/// Longer than those: what a dead process had posted comes by then, if it comes.
const LATE: Duration = Duration::from_secs(5);

/// Writes for as long as it lives, or until it is told to open its endpoint anew.
#[test]
fn child() {
    let Ok(provider) = std::env::var(WHICH) else { return };
    let (mut to, mut from) = (pipe(3), std::io::stdin());
    let Some(mut end) = End::open(&provider, 0x5eed_0002, &mut to, &mut from) else { return };
    end.fill(0, BYTES, 0x77);
    while !is_told() {
        let source = Source::Span(end.span(0, BYTES));
        let kind = OpKind::Write { source, target: end.far, immediate: None };
        let _ = end.rail.post(&Op { id: OpId(1), peer: PEER, kind }, end.now);
        end.poll();
        end.seen.clear();
    }
    // the first time closes what there was; there is no address before the network is there again
    while end.rail.reopen().is_err() {}
    loop {
        end.poll();
    }
}

/// Whether something more has come by this process's input.
fn is_told() -> bool {
    let mut poll = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which lives until the call returns.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

fn poll_for(end: &mut End, span: Duration) {
    let since = Instant::now();
    while since.elapsed() < span {
        end.poll();
    }
}

/// In an outage the side band says `cause` of a writer, and so long behind the outage's start its
/// endpoint ends: nothing of its comes behind its fence.
fn is_fenced_behind_an_outage(cause: DownCause, ends_after: Duration, end: fn(&mut Child)) {
    let mut end_writer = Some(end);
    if std::env::var_os(WHICH).is_some() {
        return;
    }
    own_network().expect("a network of our own");
    let Some((mut child, mut end)) = join_with("tcp;ofi_rxm", BYTES) else { return };
    // another peer uses the endpoint, which is not closed for want of any
    let own = end.rail.peer_prepare(PeerIndex(1), 0x1111_1111).expect("an end");
    end.rail.peer_connect(PeerIndex(1), &own).expect("a peer");
    while end.byte(BYTES - 1) != 0x77 {
        end.poll();
    }
    let since = Instant::now();
    network(false);
    poll_for(&mut end, SOON);
    end.rail.peer_fail(PEER, cause);
    let fence = OpKind::Fence { generation: RailGeneration(1) };
    let fence = end.post(fence).expect("a fence");
    while since.elapsed() < OUTAGE {
        if since.elapsed() >= ends_after
            && let Some(end_writer) = end_writer.take()
        {
            end_writer(&mut child);
        }
        end.poll();
        assert_eq!(end.result(fence), None, "nobody can have said anything");
    }
    network(true);
    let watch = Instant::now();
    while end.result(fence).is_none() {
        end.poll();
        assert!(watch.elapsed() < Duration::from_secs(600), "the fence does not hold");
    }
    end.fill(0, BYTES, 0xee);
    poll_for(&mut end, LATE);
    let late = (0..BYTES).find(|at| end.byte(*at) != 0xee);
    assert_eq!(late, None, "a byte came after the fence");
    let _ = child.kill();
    child.wait().expect("its end");
}

fn kill(child: &mut Child) {
    child.kill().expect("a child");
    child.wait().expect("its end");
}

/// Nobody listens at its address as soon as the path is there again, and its kernel still has what
/// it had written: that was believed to be nothing.
#[test]
fn writes_of_a_peer_that_died_in_an_outage_come_before_its_fence_holds() {
    is_fenced_behind_an_outage(DownCause::Severed, SOON, kill);
}

/// It says by the side band that it closes, whose path was not away, and its process ends: its
/// fence held 2 s after that.
#[test]
fn writes_of_a_peer_that_closed_in_an_outage_come_before_its_fence_holds() {
    is_fenced_behind_an_outage(DownCause::Closed, SOON, kill);
}

/// It says from its new endpoint that the old one was closed, which comes by another connection,
/// before what the old one's sends again: its fence held 2 s after that.
#[test]
fn writes_of_an_endpoint_that_was_opened_anew_in_an_outage_come_before_its_fence_holds() {
    is_fenced_behind_an_outage(DownCause::Unheard, LATELY, |child| {
        child.stdin.as_mut().expect("a pipe").write_all(&[0]).expect("a child");
    });
}
