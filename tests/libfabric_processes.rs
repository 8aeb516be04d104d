//! Two processes over each provider of libfabric: what ends in one process does not show, such as
//! mappings of one's own, and a peer that is killed.

mod libfabric_support;

use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::fabric::{Completion, DownCause, OpKind, PeerLife, Provider};
use crosstie::provider::libfabric::{Config, Limits};
use libfabric_support::end::{End, WHICH, join, pipe};
use libfabric_support::{LIMITS, PEER, World, reaches_its_own_process, skip};
use std::io::Read;
use std::process::Child;

const PROVIDERS: [&str; 3] = ["tcp", "tcp;ofi_rxm", "shm"];

/// First byte of the head of a message whose reader stops, outside of the library.
const STOPS: u8 = 255;

/// Runs in children alone: answers every message with a message, and every word with a write.
#[test]
fn child() {
    let Ok(provider) = std::env::var(WHICH) else { return };
    // the harness says something on its standard output before the test does: hellos go by another
    let (mut to, mut from) = (pipe(3), std::io::stdin());
    let Some(mut end) = End::open(&provider, 0x5eed_0002, &mut to, &mut from) else { return };
    let mut answered = 0;
    loop {
        end.poll_politely();
        while answered < end.seen.len() {
            let seen = end.seen[answered];
            answered += 1;
            match seen {
                Completion::Received { head: [STOPS, ..], .. } => {
                    // SAFETY: a number.
                    unsafe { libc::raise(libc::SIGSTOP) };
                }
                Completion::Received { peer, slot, mut head, length } => {
                    let payload = end.span(0, length as usize);
                    end.rail.received_take(peer, slot, payload);
                    head[0] = head[0].wrapping_add(1);
                    let _ = end.post(OpKind::Send { head, payload });
                }
                Completion::Immediate { immediate, .. } => {
                    let byte = end.byte(immediate as usize).wrapping_add(1);
                    end.fill(immediate as usize, 4096, byte);
                    let _ = end.write(immediate as usize, 4096, Some(immediate));
                }
                Completion::PeerDown { .. } => {
                    // the other end is answered as long as it is there
                    let is_over = std::thread::spawn(move || from.read_to_end(&mut Vec::new()));
                    while !is_over.is_finished() {
                        end.poll_politely();
                    }
                    return;
                }
                Completion::Done { .. } | Completion::Fenced { .. } => {}
            }
        }
    }
}

#[test]
fn messages_writes_and_words_reach_another_process_and_come_back() {
    for provider in PROVIDERS {
        let Some((mut child, mut end)) = join(provider) else { continue };
        println!("over {provider}");
        for n in 0..40u8 {
            let length = [0, 8, 200, 8192][usize::from(n) % 4];
            end.fill(0, length, n);
            let payload = end.span(0, length);
            end.post(OpKind::Send { head: [n; 32], payload }).unwrap();
            let came = end.seen.len();
            end.until("an answer", |end| {
                end.seen[came..].iter().any(|seen| matches!(seen, Completion::Received { .. }))
            });
            let Some(Completion::Received { slot, head, length: got, .. }) =
                end.seen.iter().rfind(|seen| matches!(seen, Completion::Received { .. })).copied()
            else {
                panic!()
            };
            assert_eq!((head[0], got as usize), (n + 1, length));
            end.fill(0, length, 0xee);
            end.rail.received_take(PEER, slot, payload);
            assert!((0..length).all(|at| end.byte(at) == n), "message {n} came back otherwise");
        }
        for round in 0..20u8 {
            let at = 65536 + 4096 * usize::from(round);
            end.fill(at, 4096, round);
            let id = end.write(at, 4096, Some(at as u32));
            assert!(end.ends_well(id));
            end.until("a word comes back", |end| {
                let words = end.seen.iter().filter_map(|seen| match seen {
                    Completion::Immediate { immediate, .. } => Some(*immediate as usize),
                    _ => None,
                });
                words.into_iter().any(|word| word == at)
            });
            assert!((at..at + 4096).all(|at| end.byte(at) == round + 1), "a word before its data");
        }
        let target = end.span(0, 4096);
        let id = end.post(OpKind::Read { target, source: end.far.plus(65536) });
        assert!(end.ends_well(id));
        assert!((0..4096).all(|at| end.byte(at) == 1), "a read brought something else");
        let fence = end.post(OpKind::Fence { generation: RailGeneration(1) });
        assert!(end.ends_well(fence));
        assert_eq!(end.rail.peer_close(PEER), Ok(()));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success(), "the child of {provider} failed");
    }
}

/// All threads of a child have stopped when this returns.
fn wait_until_stopped(child: &Child) {
    let mut status = 0;
    // SAFETY: a number and a place for one.
    unsafe { libc::waitpid(child.id() as i32, &mut status, libc::WUNTRACED) };
    assert!(libc::WIFSTOPPED(status));
}

/// Who is killed with ops under way leaves nobody waiting: each ends, and the peer is down once.
#[test]
fn ops_to_a_killed_process_end() {
    for provider in PROVIDERS {
        let Some((mut child, mut end)) = join(provider) else { continue };
        println!("over {provider}");
        let first = end.write(0, 4096, None);
        assert!(end.ends_well(first));
        // its processes lock each other's memory, and who is killed with a lock keeps it
        if provider == "shm" {
            let payload = end.span(0, 0);
            end.post(OpKind::Send { head: [STOPS; 32], payload }).unwrap();
            wait_until_stopped(&child);
        }
        let mut ids = Vec::new();
        for n in 0..8 {
            ids.extend(end.write(n * 65536, 65536, None));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        ids.extend(end.write(0, 65536, None));
        // as the side band says
        end.rail.peer_fail(PEER, DownCause::Died);
        end.until("every op ends", |end| ids.iter().all(|id| end.result(*id).is_some()));
        end.until("the end is told", |end| {
            end.seen.iter().any(|seen| matches!(seen, Completion::PeerDown { .. }))
        });
        assert!(end.write(0, 64, None).is_none(), "an op to a dead peer was taken");
        let fence = end.post(OpKind::Fence { generation: RailGeneration(1) }).unwrap();
        end.rail.reopen().unwrap();
        end.until("a closed endpoint fences everything", |end| end.result(fence) == Some(true));
        assert_eq!(end.rail.peer_close(PEER), Ok(()));
    }
}

/// Providers whose endpoints listen at addresses of sockets.
const LISTENERS: [&str; 2] = ["tcp", "tcp;ofi_rxm"];

/// The side band's sockets have ended, and the library goes on saying that there is no room: the
/// kernel of the dead says that nobody listens there any more.
#[test]
fn fence_of_a_killed_process_holds_though_its_library_says_again_for_ever() {
    for provider in LISTENERS {
        let Some((mut child, mut end)) = join(provider) else { continue };
        let first = end.write(0, 4096, None);
        assert!(end.ends_well(first));
        child.kill().unwrap();
        child.wait().unwrap();
        end.rail.peer_fail(PEER, DownCause::Severed);
        let fence = end.post(OpKind::Fence { generation: RailGeneration(1) });
        assert!(end.ends_well(fence), "{provider}");
        assert_eq!(end.rail.health().reopened, 0, "{provider}");
    }
}

/// The same of a process that is stopped: what it has posted may come when it goes on.
#[test]
fn fence_of_a_stopped_process_waits_for_its_word() {
    for provider in LISTENERS {
        let Some((mut child, mut end)) = join(provider) else { continue };
        let first = end.write(0, 4096, None);
        assert!(end.ends_well(first));
        // SAFETY: numbers.
        unsafe { libc::kill(child.id() as i32, libc::SIGSTOP) };
        wait_until_stopped(&child);
        end.rail.peer_fail(PEER, DownCause::Severed);
        let fence = end.post(OpKind::Fence { generation: RailGeneration(1) });
        let since = std::time::Instant::now();
        // less than an endpoint waits that reaches nobody
        while since.elapsed() < std::time::Duration::from_millis(1500) {
            end.poll();
        }
        assert_eq!(end.result(fence.unwrap()), None, "{provider}: it lives");
        // SAFETY: as above.
        unsafe { libc::kill(child.id() as i32, libc::SIGCONT) };
        assert!(end.ends_well(fence), "{provider}: its word");
        assert_eq!(end.rail.health().reopened, 0, "{provider}");
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success(), "the child of {provider} failed");
    }
}

/// An endpoint of shm knows 256 others at most; connections to one of them share its address.
#[test]
fn three_hundred_connections_over_shm_carry_messages_and_writes() {
    const COUNT: u32 = 300;
    let config = Config { provider: Some(c"shm"), ..Config::DEFAULT };
    let mut world = match World::open_with(&config, Limits { peers_max: COUNT, ..LIMITS }) {
        Ok(world) => world,
        Err(why) => return skip(&format!("shm: {why}")),
    };
    if !reaches_its_own_process(&world.rails[0]) {
        return println!("SKIP: shm of this version does not work within a process");
    }
    (1..COUNT).for_each(|peer| world.join(PeerIndex(peer), 1000 * peer));
    world.fill(0, 0, 64 * COUNT as usize, 7);
    for peer in 0..COUNT {
        for side in 0..2 {
            let (mut head, payload) = ([0; 32], world.local(side, 0, 8));
            head[..4].copy_from_slice(&peer.to_le_bytes());
            world.post_to(side, PeerIndex(peer), OpKind::Send { head, payload });
        }
        let write = world.write_kind(0, 64 * peer as usize, 64);
        let write = world.post_to(0, PeerIndex(peer), write);
        assert!(world.end(0, write) && world.holds(1, 64 * peer as usize, 64, 7));
    }
    for side in 0..2 {
        let heard = |world: &World| -> Vec<(u32, u32)> {
            let message = |seen: &Completion| match seen {
                Completion::Received { peer, head, .. } => {
                    Some((peer.0, u32::from_le_bytes(*head.first_chunk().unwrap())))
                }
                _ => None,
            };
            world.seen[side].iter().filter_map(message).collect()
        };
        world.until("every message comes", |world| heard(world).len() == COUNT as usize);
        let mut heard = heard(&world);
        heard.sort();
        assert!(heard.iter().copied().eq((0..COUNT).map(|peer| (peer, peer))), "{heard:?}");
    }
}
