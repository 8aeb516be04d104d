//! What the kernel of a dead process still sends, behind an outage in which it died.

#[path = "common/network.rs"]
mod common_network;
mod libfabric_support;

use common_network::{network, own_network};
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::fabric::{DownCause, OpKind, Provider};
use libfabric_support::PEER;
use libfabric_support::end::{End, WHICH, join_with, pipe};
use std::time::{Duration, Instant};

const BYTES: usize = 32 << 20;
/// So long that what is sent again is sent at intervals above two seconds.
const OUTAGE: Duration = Duration::from_millis(8500);
/// Longer than those: what a dead process had posted comes by then, if it comes.
const LATE: Duration = Duration::from_secs(5);

/// Writes for as long as it lives.
#[test]
fn child() {
    let Ok(provider) = std::env::var(WHICH) else { return };
    let (mut to, mut from) = (pipe(3), std::io::stdin());
    let Some(mut end) = End::open(&provider, 0x5eed_0002, &mut to, &mut from) else { return };
    end.fill(0, BYTES, 0x77);
    loop {
        let _ = end.write(0, BYTES, None);
        end.seen.clear();
    }
}

fn poll_for(end: &mut End, span: Duration) {
    let since = Instant::now();
    while since.elapsed() < span {
        end.poll();
    }
}

/// Nobody listens at its address as soon as the path is there again, and its kernel still has what
/// it had written: that was believed to be nothing.
#[test]
fn writes_of_a_peer_that_died_in_an_outage_come_before_its_fence_holds() {
    if std::env::var_os(WHICH).is_some() {
        return;
    }
    own_network().expect("a network of our own");
    let Some((mut child, mut end)) = join_with("net", BYTES) else { return };
    // another peer uses the endpoint, which is not closed for want of any
    let own = end.rail.peer_prepare(PeerIndex(1), 0x1111_1111).expect("an end");
    end.rail.peer_connect(PeerIndex(1), &own).expect("a peer");
    while end.byte(BYTES - 1) != 0x77 {
        end.poll();
    }
    let since = Instant::now();
    network(false);
    poll_for(&mut end, Duration::from_millis(500));
    child.kill().expect("a child");
    child.wait().expect("its end");
    end.rail.peer_fail(PEER, DownCause::Severed);
    let fence = OpKind::Fence { generation: RailGeneration(1) };
    let fence = end.post(fence).expect("a fence");
    while since.elapsed() < OUTAGE {
        end.poll();
        assert_eq!(end.result(fence), None, "nobody can have said anything");
    }
    network(true);
    let watch = Instant::now();
    while end.result(fence).is_none() {
        end.poll();
        assert!(watch.elapsed() < Duration::from_secs(60), "the fence does not hold");
    }
    end.fill(0, BYTES, 0xee);
    poll_for(&mut end, LATE);
    let late = (0..BYTES).find(|at| end.byte(*at) != 0xee);
    assert_eq!(late, None, "a byte came after the fence");
}
