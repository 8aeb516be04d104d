//! The two halves of an endpoint in two threads: one moves messages, the other registers,
//! allocates, listens, connects and accepts on the same endpoints. Data stays right, and what the
//! second thread makes works in the first. ThreadSanitizer reads this test too.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::connect::ListenerId;
use crosstie::fabric::MemoryKind;
use crosstie::host::{Endpoint, Half, Shared};
use host_support::{Memory, Node, Place, Random, Watch, joined, small, wait_both};
use static_assertions::assert_impl_all;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

const LONG: usize = 100_000;
const SIZES: [usize; 7] = [0, 8, 25, 4096, 8193, 30_000, LONG];
/// Connections that the second thread makes while messages cross.
const MADE: usize = if cfg!(debug_assertions) { 60 } else { 300 };

/// Both ends of a connection.
type Ends = (Handle, Handle);

/// The half of a node that any thread may use.
fn half(node: &Node) -> &'static Shared {
    // SAFETY: the threads of a test have ended when its endpoints are closed.
    unsafe { node.shared.place().as_ref() }
}

// The halves go where they may.
assert_impl_all!(Half: Send, Sync);
assert_impl_all!(Shared: Send, Sync);
assert_impl_all!(Endpoint: Send);

#[test]
fn set_up_and_registration_do_not_disturb_messages_of_another_thread() {
    let (mut a, mut b) = (Node::open(&small(8)), Node::open(&small(8)));
    let (to_b, to_a) = joined(&mut a, &mut b);
    let (from, into) =
        (Memory::new(&a, Place::Shared, LONG), Memory::new(&b, Place::Private, LONG));
    let (halves, done) = ((half(&a), half(&b)), AtomicBool::new(false));
    // room for one: more connections than the tables hold would be refused
    let (made, take) = sync_channel(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _done = Done(&done);
            set_up(halves, made);
        });
        let mut number = 0;
        while !done.load(Ordering::Acquire) {
            number += 1;
            exchange(&mut a, &mut b, (to_b, to_a), (&from, &into), number);
            taken(&mut a, &mut b, &take, (&from, &into));
        }
        taken(&mut a, &mut b, &take, (&from, &into));
        assert!(number > 0);
    });
    a.disconnect(to_b);
    b.disconnect(to_a);
    from.release(&a);
    into.release(&b);
}

/// Ends the data thread's loop also when the other thread panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The second thread: everything that any thread may call.
fn set_up((a, b): (&Shared, &Shared), made: SyncSender<Ends>) {
    let (listener, handle) = b.listen().unwrap();
    for round in 0..MADE {
        registered(a, round);
        registered(b, round);
        let (to_b, to_a) = connected(a, b, listener, &handle);
        assert!(b.peer_text(to_a, &mut [0; 64]) > 0);
        assert!(a.is_live(to_b));
        made.send((to_b, to_a)).unwrap();
        let (other, _) = a.listen().unwrap();
        a.listener_close(other).unwrap();
    }
    b.listener_close(listener).unwrap();
}

fn registered(half: &Shared, round: usize) {
    let mut bytes = vec![0u8; 4096 + round];
    let address = bytes.as_mut_ptr().expose_provenance() as u64;
    let length = Bytes(bytes.len() as u64);
    // SAFETY: no request names it, and it is deregistered below.
    let region = unsafe { half.register(address, length, MemoryKind::Host) }.unwrap();
    let (start, allocated) = half.allocate(Bytes(10_000)).unwrap();
    // SAFETY: allocated, and no request names it.
    unsafe { start.write_bytes(round as u8, 10_000) };
    half.deregister(region).unwrap();
    half.free(allocated).unwrap();
    assert!(half.deregister(region).is_err());
}

fn connected(a: &Shared, b: &Shared, listener: ListenerId, handle: &[u8; 128]) -> Ends {
    let attempt = a.connect(handle).unwrap();
    let (mut to_b, mut to_a) = (None, None);
    let watch = Watch::start();
    while to_b.is_none() || to_a.is_none() {
        to_b = to_b.or_else(|| a.connect_poll(attempt).unwrap());
        to_a = to_a.or_else(|| b.accept(listener).unwrap());
        watch.look("a connection between the endpoints");
        std::thread::yield_now();
    }
    (to_b.unwrap(), to_a.unwrap())
}

/// Messages each way, of a size and a length of group that the number decides.
fn exchange(a: &mut Node, b: &mut Node, ends: Ends, memory: (&Memory, &Memory), number: u64) {
    let mut random = Random(number);
    let size = SIZES[random.below(SIZES.len() as u64) as usize];
    memory.0.fill(0, size, number);
    let receive = b.irecv(ends.1, &[memory.1.incoming(0, LONG, 1)]).unwrap();
    let send = a.isend(ends.0, memory.0.outgoing(0, size, 1)).unwrap();
    let outcome = wait_both(b, a, receive);
    assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), size as u64));
    assert_eq!(wait_both(a, b, send).result, Ok(()));
    memory.1.verify(0, size, number);
    let back = a.irecv(ends.0, &[memory.0.incoming(0, LONG, 2)]).unwrap();
    let send = b.isend(ends.1, memory.1.outgoing(0, size, 2)).unwrap();
    assert_eq!(wait_both(a, b, back).result, Ok(()));
    assert_eq!(wait_both(b, a, send).result, Ok(()));
    memory.0.verify(0, size, number);
}

/// Takes the second thread's connections into use, and closes them.
fn taken(a: &mut Node, b: &mut Node, take: &Receiver<Ends>, memory: (&Memory, &Memory)) {
    for (number, ends) in take.try_iter().enumerate() {
        exchange(a, b, ends, memory, 1 << 20 | number as u64);
        a.disconnect(ends.0);
        b.disconnect(ends.1);
    }
}
