//! Closing over TCP while both directions are loaded: what a closing side was told is done, arrives
//! in the receives that wait for it, whatever that side leaves unread itself.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::host::endpoint::Closing;
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::{RequestId, SubmitError};
use host_support::{Memory, Node, Place, Random, Watch, joined, small};

const ROUNDS: u64 = 200;
const MESSAGES: usize = 24;
const LENGTH_MAX: usize = 200_000;
/// What the peer sends meanwhile, which nobody ever receives.
const UNREAD: usize = 4000;

fn options() -> Options {
    Options { device: DeviceKind::Tcp, ..small(1) }
}

/// Lengths of one round's messages: copied ones, long ones, and a short one at the end.
fn lengths(round: u64) -> [usize; MESSAGES] {
    let mut random = Random(round);
    let mut all = [0; MESSAGES].map(|_| {
        let bound = [9, 8192, LENGTH_MAX as u64][random.below(3) as usize];
        random.below(bound) as usize
    });
    all[MESSAGES - 1] = 8;
    all
}

/// Sends everything, and closes as soon as the last request is done: not one word of the peer's
/// has been received.
fn sends_and_closes(node: &mut Node, connection: Handle, memory: &Memory, round: u64) {
    let watch = Watch::start();
    let mut waiting: Vec<RequestId> = vec![];
    for (number, length) in lengths(round).into_iter().enumerate() {
        let id = round * MESSAGES as u64 + number as u64;
        let at = number * LENGTH_MAX;
        memory.fill(at, length, id);
        loop {
            match node.isend(connection, memory.outgoing(at, length, 3)) {
                Ok(request) => break waiting.push(request),
                Err(SubmitError::Again) => _ = node.progress(),
                Err(error) => panic!("{error:?}"),
            }
            watch.look("a send");
        }
    }
    for request in waiting {
        assert_eq!(node.wait(request).result, Ok(()));
    }
    while node.connection_close(connection) == Closing::Again {
        node.progress();
        watch.look("closing");
    }
}

/// All receives of one round: a closed peer's connection takes no new ones.
fn offered(node: &mut Node, connection: Handle, memory: &Memory) -> Vec<Option<RequestId>> {
    let watch = Watch::start();
    let mut all = vec![];
    while all.len() < MESSAGES {
        let into = memory.incoming(all.len() * LENGTH_MAX, LENGTH_MAX, 3);
        match node.irecv(connection, &[into]) {
            Ok(request) => all.push(Some(request)),
            // threads of the last connection may still have to let go of its number
            Err(SubmitError::Again) => _ = node.progress(),
            Err(error) => panic!("{error:?}"),
        }
        watch.look("receives");
    }
    all
}

/// Receives everything, although the peer may be gone; sends as much as it can meanwhile.
fn receives(
    node: &mut Node,
    connection: Handle,
    memory: &Memory,
    mut waiting: Vec<Option<RequestId>>,
    round: u64,
) -> usize {
    let watch = Watch::start();
    let lengths = lengths(round);
    let (mut sent, mut done) = (vec![], 0);
    while done < MESSAGES {
        if let Ok(request) =
            node.isend(connection, memory.outgoing(MESSAGES * LENGTH_MAX, UNREAD, 9))
        {
            sent.push(request);
        }
        for (number, slot) in waiting.iter_mut().enumerate() {
            let Some(request) = *slot else { continue };
            let Some(outcome) = node.test(request).expect("a live request") else { continue };
            let length = lengths[number];
            assert_eq!(outcome.result, Ok(()), "round {round}: message {number} of {length}");
            assert_eq!(outcome.lengths[0], length as u64);
            let id = round * MESSAGES as u64 + number as u64;
            memory.verify(number * LENGTH_MAX, length, id);
            *slot = None;
            done += 1;
        }
        watch.look("messages of a peer that closes");
    }
    // what nobody received ends too, by whatever name
    let count = sent.len();
    for request in sent {
        node.wait(request);
    }
    count
}

/// Streams and threads are the environment's to say, which is a process's.
#[test]
fn so_with_several_streams_and_with_a_thread() {
    for (streams, threads) in [("4", "0"), ("3", "1")] {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "what_was_done_before_a_close_has_arrived", "--nocapture"]);
        command.env("CROSSTIE_TCP_STREAMS", streams).env("CROSSTIE_TCP_THREADS", threads);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{streams} streams, {threads} threads: {text}");
    }
}

#[test]
fn what_was_done_before_a_close_has_arrived() {
    let (mut a, mut b) = (Node::open(&options()), Node::open(&options()));
    let (listener, handle) = b.shared.listen().unwrap();
    let from = Memory::new(&a, Place::Private, MESSAGES * LENGTH_MAX);
    let into = Memory::new(&b, Place::Private, MESSAGES * LENGTH_MAX + UNREAD);
    let mut unread = 0;
    for round in 0..ROUNDS {
        let attempt = a.shared.connect(&handle).unwrap();
        let to_b = a.connected(attempt).unwrap();
        let to_a = b.accepted(listener);
        let waiting = offered(&mut b, to_a, &into);
        std::thread::scope(|scope| {
            let (a, from) = (Moved(&mut a), Moved(&from));
            scope.spawn(move || {
                let (a, from) = (a, from);
                sends_and_closes(a.0, to_b, from.0, round);
            });
            unread += receives(&mut b, to_a, &into, waiting, round);
        });
        b.disconnect(to_a);
    }
    assert!(unread > 0);
}

/// Short messages that were done when they were sent, behind a long one that the peer is in the
/// middle of: a close dropped them, and said so to nobody.
#[test]
fn what_was_done_before_a_close_arrives_beside_a_long_send_that_is_not() {
    // more than the kernel takes, in fewer stripes than there are credits
    const LONG: usize = 24 << 20;
    const SHORT: usize = 1000;
    const COUNT: usize = 8;
    let (mut a, mut b) = (Node::open(&options()), Node::open(&options()));
    let (to_b, to_a) = joined(&mut a, &mut b);
    let from = Memory::new(&a, Place::Private, LONG + COUNT * SHORT);
    let into = Memory::new(&b, Place::Private, LONG + COUNT * SHORT);
    let watch = Watch::start();
    let long = b.irecv(to_a, &[into.incoming(0, LONG, 3)]).unwrap();
    let at = |number: usize| LONG + number * SHORT;
    let short: [RequestId; COUNT] = core::array::from_fn(|number| {
        b.irecv(to_a, &[into.incoming(at(number), SHORT, 3)]).unwrap()
    });
    let open = a.isend(to_b, from.outgoing(0, LONG, 3)).unwrap();
    while a.stats().pushed == 0 {
        a.progress();
        b.progress();
        watch.look("the long message to be under way");
    }
    for number in 0..COUNT {
        from.fill(at(number), SHORT, number as u64);
        let send = a.isend(to_b, from.outgoing(at(number), SHORT, 3)).unwrap();
        assert_eq!(a.test(send).unwrap().expect("it was copied").result, Ok(()));
    }
    assert!(a.test(open).unwrap().is_none(), "it is too long for the kernel to take whole");
    while a.connection_close(to_b) == Closing::Again {
        a.progress();
        b.progress();
        watch.look("closing");
    }
    for (number, request) in short.into_iter().enumerate() {
        assert_eq!(b.wait(request).result, Ok(()), "message {number}");
        into.verify(at(number), SHORT, number as u64);
    }
    b.wait(long);
    b.disconnect(to_a);
}

/// One thread at a time uses it.
struct Moved<T>(T);

// SAFETY: moved into one thread, whose end is awaited before anybody else uses what it borrows.
unsafe impl<T> Send for Moved<T> {}
