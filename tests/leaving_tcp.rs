//! Sends over TCP whose bytes the kernel does not take at once. Alone in its process, whose sockets
//! it changes.

mod host_support;

use crosstie::host::{DeviceKind, Options};
use host_support::{Memory, Node, Place, Watch, joined, small};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: both change what the process makes sockets with.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives all stream sockets of this process short buffers.
fn sockets_shrink() {
    for entry in std::fs::read_dir("/proc/self/fd").expect("proc") {
        let name = entry.expect("an entry").file_name();
        let fd: i32 = name.to_str().expect("digits").parse().expect("a number");
        for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            let bytes = &raw const SHORT;
            // SAFETY: four readable bytes; what is no socket refuses.
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, bytes.cast(), 4) };
        }
    }
}

static SHORT: i32 = 16 << 10;

/// A send had ended when a part of it was still staged, and whoever made no call after that kept
/// the peer waiting.
#[test]
fn long_message_has_left_when_its_request_has_ended() {
    let _alone = alone();
    const LENGTH: usize = 128 << 10;
    const COUNT: usize = 8;
    let options = Options { device: DeviceKind::Tcp, ..small(2) };
    let (mut a, mut b) = (Node::open(&options), Node::open(&options));
    let (to_b, to_a) = joined(&mut a, &mut b);
    sockets_shrink();
    let from = Memory::new(&a, Place::Private, LENGTH);
    let into = Memory::new(&b, Place::Private, LENGTH * COUNT);
    from.fill(0, LENGTH, 7);
    let mut looks = 0;
    for _ in 0..20 {
        // who has used a connection reads what comes
        let first = b.irecv(to_a, &[into.incoming(0, LENGTH, 0)]).unwrap();
        let mut sends: Vec<_> = (0..COUNT)
            .map(|n| a.isend(to_b, from.outgoing(0, LENGTH, n as i32)).expect("a send"))
            .collect();
        // what the kernel has no room for yet it has when the peer reads
        let watch = Watch::start();
        while !sends.is_empty() {
            sends.retain(|send| a.test(*send).expect("a send").is_none());
            if !sends.is_empty() {
                looks += 1;
                b.progress();
            }
            watch.look("the sends");
        }
        let mut receives = vec![first];
        for n in 1..COUNT {
            let room = into.incoming(n * LENGTH, LENGTH, n as i32);
            receives.push(b.irecv(to_a, &[room]).expect("a receive"));
        }
        for (n, receive) in receives.into_iter().enumerate() {
            assert_eq!(b.wait(receive).result, Ok(()));
            into.verify(n * LENGTH, LENGTH, 7);
        }
    }
    assert!(looks > 0, "the kernel took all at once");
    from.release(&a);
    into.release(&b);
}

/// The last bytes may leave in the call that makes ready for sleep, and nothing tells of it later:
/// whoever slept did until the side band's next word, a second later.
///
/// While a sender sleeps nothing of it leaves. So a message that its peer then has whole had left
/// before, and the sender must have been told.
#[test]
fn sleeper_is_told_that_its_long_message_has_left() {
    // of many lengths, so that the last bytes leave in each of the calls
    const LENGTHS: [usize; 2] = [96 << 10, 128 << 10];
    const COUNT: usize = 64;
    let _alone = alone();
    let options = Options { device: DeviceKind::Tcp, ..small(4) };
    let (mut a, mut b) = (Node::open(&options), Node::open(&options));
    // more than are read without asking which has something
    let ends: Vec<_> = (0..3).map(|_| joined(&mut a, &mut b)).collect();
    let into = Memory::new(&b, Place::Private, LENGTHS[1]);
    let from = Memory::new(&a, Place::Private, LENGTHS[1]);
    for (to_b, to_a) in &ends {
        let receive = b.irecv(*to_a, &[into.incoming(0, 8, 1)]).expect("a receive");
        let send = a.isend(*to_b, from.outgoing(0, 8, 1)).expect("a send");
        a.wait(send);
        b.wait(receive);
    }
    sockets_shrink();
    let (to_b, to_a) = ends[0];
    let (mut armed, mut refused) = (0, 0);
    for n in 0..COUNT {
        let length = LENGTHS[0] + n * (LENGTHS[1] - LENGTHS[0]) / COUNT;
        let receive = b.irecv(to_a, &[into.incoming(0, length, 1)]).expect("a receive");
        let send = a.isend(to_b, from.outgoing(0, length, 1)).expect("a send");
        let watch = Watch::start();
        let mut has_ended = false;
        while !has_ended {
            if a.wait_arm() {
                armed += 1;
                // now the kernel has room, which the call before the next sleep finds
                for _ in 0..50 {
                    b.progress();
                }
                let arrived = b.test(receive).expect("a receive");
                assert_eq!(arrived, None, "the sender was ready for sleep, and all had left");
            } else {
                refused += 1;
                has_ended = a.test(send).expect("a send").is_some();
            }
            watch.look("a send");
        }
        let arrived = b.wait(receive);
        assert_eq!(arrived.result, Ok(()));
    }
    println!("{armed} times ready for sleep, {refused} times not");
    assert!(armed >= COUNT, "the kernel took all at once");
    into.release(&b);
    from.release(&a);
}
