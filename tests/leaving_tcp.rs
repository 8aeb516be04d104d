//! Sends over TCP whose bytes the kernel does not take at once. Alone in its process, whose sockets
//! it changes.

mod host_support;

use crosstie::host::{DeviceKind, Options};
use host_support::{Memory, Node, Place, Watch, joined, small};

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

static SHORT: i32 = 32 << 10;

/// A send had ended when a part of it was still staged, and whoever made no call after that kept
/// the peer waiting.
#[test]
fn long_message_has_left_when_its_request_has_ended() {
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
