//! Peers that close their connection while their endpoint lives, and whose last word never comes:
//! of an end that was never joined to ours, or of a number that was given anew meanwhile.

mod libfabric_support;

use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{Completion, DownCause, Op, OpId, OpKind, PeerLife, Provider};
use crosstie::provider::libfabric::Libfabric;
use libfabric_support::{NOTHING, OTHER, World, let_library_work};

const STEP: Span = Span::millis(5);
/// Steps of a clock by hand, which are 30 s: a fence that has not come then does not.
const STEPS: u32 = 6000;

/// Hears that its peer has closed in good order, and whether the fence comes while all poll.
fn is_fenced(rail: &mut Libfabric, others: &mut [&mut Libfabric], now: Instant) -> bool {
    rail.peer_fail(OTHER, DownCause::Closed);
    let kind = OpKind::Fence { generation: RailGeneration(1) };
    rail.post(&Op { id: OpId(7), peer: OTHER, kind }, now).expect("a fence");
    let (mut now, mut out) = (now, [NOTHING; 16]);
    for _ in 0..STEPS {
        now = now.after(STEP);
        for other in others.iter_mut() {
            other.poll(&mut out, Bytes::kib(64), now);
        }
        let count = rail.poll(&mut out, Bytes::kib(64), now);
        if out[..count].iter().any(|it| matches!(it, Completion::Fenced { .. })) {
            return true;
        }
        let_library_work();
    }
    false
}

/// Such a connection was never closed: its word was asked for over a rail on which nobody knew of
/// it, and the peer's address was still listened at.
#[test]
fn end_that_its_peer_never_joined_is_fenced() {
    for is_given_anew in [false, true] {
        let Some(World { rails: [mut rail, mut other], keys, now, .. }) = World::of_sockets(3)
        else {
            return;
        };
        // ours tells of a region, as endpoints do of their mailbox
        rail.peer_prepare_telling(OTHER, 0x1234_5678, keys[0]).unwrap();
        let theirs = other.peer_prepare_telling(OTHER, 0x2345_6789, keys[1]).unwrap();
        rail.peer_connect(OTHER, &theirs).unwrap();
        // the other has not taken in our hello yet, and closes
        other.peer_close(OTHER).unwrap();
        if is_given_anew {
            other.peer_prepare(OTHER, 0x3456_789a).unwrap();
        }
        assert!(is_fenced(&mut rail, &mut [&mut other], now), "given anew: {is_given_anew}");
    }
}

/// Both ends have joined; the other closes, and gives its number anew while this one computes.
#[test]
fn end_whose_last_word_has_found_no_room_is_fenced() {
    let Some(World { rails: [mut live, mut other], keys, mut now, .. }) = World::of_sockets(3)
    else {
        return;
    };
    let Some(World { rails: [mut rail, _unused], .. }) = World::of_sockets(3) else { return };
    let ours = rail.peer_prepare_telling(OTHER, 0x1234_5678, keys[0]).unwrap();
    let theirs = other.peer_prepare_telling(OTHER, 0x2345_6789, keys[1]).unwrap();
    rail.peer_connect(OTHER, &theirs).unwrap();
    other.peer_connect(OTHER, &ours).unwrap();
    // another peer of ours lives, so that the endpoint stays as it is
    let beside = PeerIndex(2);
    let far = live.peer_prepare(OTHER, 0x77).unwrap();
    let near = rail.peer_prepare(beside, 0x78).unwrap();
    rail.peer_connect(beside, &far).unwrap();
    live.peer_connect(OTHER, &near).unwrap();
    let mut out = [NOTHING; 16];
    other.poll(&mut out, Bytes::kib(64), now);
    other.peer_close(OTHER).unwrap();
    for _ in 0..50 {
        now = now.after(STEP);
        other.poll(&mut out, Bytes::kib(64), now);
        let_library_work();
    }
    let _ = other.peer_prepare(OTHER, 0x3456_789a);
    rail.poll(&mut out, Bytes::kib(64), now);
    assert!(is_fenced(&mut rail, &mut [&mut other, &mut live], now));
}
