//! Copies to another rank, which go to the driver in batches. The double does a batch from its end
//! on, since the driver promises no order.

use super::*;

const BYTES: usize = 1 << 16;

/// The next number of a sequence that looks random.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

fn byte(at: usize) -> u8 {
    (at * 37 + at / 251) as u8
}

/// Posts a round of overlapping puts under one doorbell, and does the same to `expected`.
fn round(queue: &mut FakeQueue<'static>, key: u32, state: &mut u64, expected: &mut [u8]) -> u64 {
    const AREA: usize = 4096;
    let mut last = 0;
    for _ in 0..40 {
        let bytes = 1 + next(state) % 300;
        let (to, from) = (next(state) % (AREA - bytes), next(state) % (BYTES - bytes));
        let remote = Address { key, offset: to as u64 };
        last = match next(state) % 5 {
            0 => {
                let mut data = [0; 28];
                let value = [byte(from), byte(from + 1), 3, 4];
                data[..4].copy_from_slice(&value);
                expected[to / 4 * 4..][..4].copy_from_slice(&value);
                let remote = Address { key, offset: (to / 4 * 4) as u64 };
                queue.write(&Work::WriteInline { remote, data, bytes: 4 }, 0)
            }
            _ => {
                for at in 0..bytes {
                    expected[to + at] = byte(from + at);
                }
                queue.write(&Work::Write { remote, local: whole(key, AREA + from, bytes) }, 0)
            }
        };
    }
    queue.ring();
    last
}

/// The first part of a window is what the peer puts to, the rest what it puts.
pub fn overlapping_puts() {
    let rank = Rank::open();
    let peer = 1 - rank.device.rank;
    let (window, key, memory) = rank.window(4096 + BYTES);
    for at in 0..BYTES {
        // SAFETY: a byte of the window that nobody else touches now.
        unsafe { ((window + 4096 + at as u64) as *mut u8).write(byte(at)) };
    }
    let (arrived, signal) = rank.device.signal(0);
    let mut queue = rank.device.queue(peer, false);
    let (mut sent, mut got) = (vec![0; 4096], vec![0; 4096]);
    for number in 1..=20 {
        let last = round(&mut queue, key, &mut (number * 2 + rank.device.rank as u64), &mut sent);
        wait_until("a round", || queue.poll(last) == Some(Ok(())));
        queue.post(&rank.device.add(signal, 1));
        wait_until("the peer's round", || arrived.load(Ordering::Acquire) == number);
        expect_of_peer(number * 2 + peer as u64, &mut got);
        let seen: Vec<u8> = (0..4096).map(|at| read(window + at)).collect();
        let at = seen.iter().zip(&got).position(|(seen, got)| seen != got);
        assert_eq!(at, None, "round {number}");
        // the peer may go on
        let (read_by, done) = rank.device.signal(1);
        let told = queue.post(&rank.device.add(done, 1));
        wait_until("a flush", || queue.poll(told) == Some(Ok(())));
        wait_until("the peer's look", || read_by.load(Ordering::Acquire) == number);
    }
    rank.close(&[memory]);
}

#[test]
fn puts_of_a_batch_keep_their_order_where_they_overlap() {
    if !is_child() {
        let name = "copies::puts_of_a_batch_keep_their_order_where_they_overlap";
        return all_succeed(start(name, 14, 2));
    }
    overlapping_puts();
    assert!(count(Count::Batches) > 20, "the driver got no batch");
}

/// Posts 58 puts beside each other under one doorbell, then some and a value over them, and does
/// the same to `expected`. The last entry's index.
fn many(queue: &mut FakeQueue<'static>, key: u32, state: &mut u64, expected: &mut [u8]) -> u64 {
    let first = *state;
    let mut put = |queue: &mut FakeQueue<'static>, to: usize, from: usize| {
        (0..16).for_each(|at| expected[to + at] = byte(from + at));
        let remote = Address { key, offset: to as u64 };
        queue.write(&Work::Write { remote, local: whole(key, 4096 + from, 16) }, 0)
    };
    for slot in 0..58 {
        put(queue, slot * 32, next(state) % (BYTES - 16));
    }
    // a value of one byte is copied; then it comes right behind the kernel's copies
    let (over, bytes) = if (first / 2).is_multiple_of(2) { (4, 8) } else { (0, 1) };
    for _ in 0..over {
        put(queue, next(state) % (58 * 32 - 16), next(state) % (BYTES - 16));
    }
    let value = first.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    expected[64..64 + bytes].copy_from_slice(&value[..bytes]);
    let mut data = [0; 28];
    data[..bytes].copy_from_slice(&value[..bytes]);
    let remote = Address { key, offset: 64 };
    let last = queue.write(&Work::WriteInline { remote, data, bytes: bytes as u8 }, 0);
    queue.ring();
    last
}

/// Many puts of one doorbell go by a kernel, and by the driver's copies where it does not start.
/// Either way later ones come later, and a kernel that starts late copies nothing.
#[test]
fn many_puts_keep_their_order_whether_kernels_start_or_not() {
    if !is_child() {
        let name = "copies::many_puts_keep_their_order_whether_kernels_start_or_not";
        return all_succeed(start(name, 14, 2));
    }
    let rank = Rank::open();
    let (me, peer) = (rank.device.rank as u64, 1 - rank.device.rank);
    let (window, key, memory) = rank.window(4096 + BYTES);
    for at in 0..BYTES {
        // SAFETY: a byte of the window that nobody else touches now.
        unsafe { ((window + 4096 + at as u64) as *mut u8).write(byte(at)) };
    }
    let (arrived, signal) = rank.device.signal(0);
    let (read_by, done) = rank.device.signal(1);
    let mut queue = rank.device.queue(peer, false);
    let (mut sent, mut got) = (vec![0; 4096], vec![0; 4096]);
    let mut number = 0;
    // a kernel that was taken back is left out for a while
    while number < 40 || (count(Count::KernelsCopied) == 0 && number < 100_000) {
        number += 1;
        hold(number % 8 < 2);
        let last = many(&mut queue, key, &mut (number * 2 + me), &mut sent);
        wait_until("a round", || queue.poll(last) == Some(Ok(())));
        queue.post(&rank.device.add(signal, 1));
        wait_until("the peer's round", || arrived.load(Ordering::Acquire) >= number);
        let mut nobody = nobody();
        many(&mut nobody, 0, &mut (number * 2 + peer as u64), &mut got);
        let seen: Vec<u8> = (0..4096).map(|at| read(window + at)).collect();
        let at = seen.iter().zip(&got).position(|(seen, got)| seen != got);
        assert_eq!(at, None, "round {number}");
        let told = queue.post(&rank.device.add(done, 1));
        wait_until("a flush", || queue.poll(told) == Some(Ok(())));
        wait_until("the peer's look", || read_by.load(Ordering::Acquire) >= number);
    }
    hold(false);
    assert!(count(Count::KernelsCopied) > 0, "no kernel has copied");
    rank.close(&[memory]);
}

/// A queue that nobody executes.
fn nobody() -> FakeQueue<'static> {
    let words =
        || -> &'static [AtomicU64] { Vec::leak((0..64 * 8).map(|_| AtomicU64::new(0)).collect()) };
    FakeQueue::new(words(), words(), &words()[0], 1)
}

/// What the peer's round with that seed does to `expected`: the same, on a queue of nobody's.
fn expect_of_peer(seed: u64, expected: &mut [u8]) {
    let mut nobody = nobody();
    round(&mut nobody, 0, &mut { seed }, expected);
}

/// Copies that the driver refuses are errors of their queue, and of later ones to that rank; the
/// rank's own queue goes on.
#[test]
fn copies_that_the_driver_refuses_are_error_completions() {
    if !is_child() {
        return all_succeed(start(
            "copies::copies_that_the_driver_refuses_are_error_completions",
            14,
            2,
        ));
    }
    let rank = Rank::open();
    let peer = 1 - rank.device.rank;
    let (_, key, memory) = rank.window(BYTES);
    let mut queue = rank.device.queue(peer, false);
    let put = |at: u64| {
        let remote = Address { key, offset: at };
        Work::Write { remote, local: whole(key, 0, 64) }
    };
    let good = queue.post(&put(64));
    wait_until("a good put", || queue.poll(good) == Some(Ok(())));
    switch(c"double_refuse", true);
    let first = queue.write(&put(128), 0);
    let second = queue.write(&put(256), 0);
    queue.ring();
    wait_until("an error", || queue.poll(first) == Some(Err(0x14)));
    wait_until("a flush", || queue.poll(second) == Some(Err(0x05)));
    switch(c"double_refuse", false);
    assert!(rank.has_failed());
    let mut own = rank.device.queue(rank.device.rank, false);
    let index = own.post(&Work::Nop);
    wait_until("another queue", || own.poll(index) == Some(Ok(())));
    let (_, _, met) = rank.window(BYTES); // both ranks have come here
    rank.close(&[memory, met]);
}

/// What was posted before the GPU failed never ends by itself: its queue fails, and the
/// communicator ends.
#[test]
fn a_gpu_that_has_failed_is_an_error_completion() {
    if !is_child() {
        let name = "copies::a_gpu_that_has_failed_is_an_error_completion";
        return all_succeed(start(name, 14, 2));
    }
    let rank = Rank::open();
    let (_, key, memory) = rank.window(BYTES);
    for peer in 0..2 {
        let mut queue = rank.device.queue(peer, false);
        let remote = Address { key, offset: 64 };
        switch(c"double_fail", true);
        let index = queue.post(&Work::Write { remote, local: whole(key, 0, 64) });
        wait_until("an error", || queue.poll(index) == Some(Err(0x14)));
        switch(c"double_fail", false);
    }
    assert!(rank.has_failed());
    let (_, _, met) = rank.window(BYTES); // both ranks have come here
    rank.close(&[memory, met]);
}

/// A window ends although puts that were posted later are under way, and others come without pause.
#[test]
fn a_window_ends_while_puts_of_others_go_on() {
    if !is_child() {
        let name = "copies::a_window_ends_while_puts_of_others_go_on";
        for said in all_said(start(name, 14, 2)) {
            assert!(!said.contains("copies under way do not end"), "{said}");
        }
        return;
    }
    let rank = Rank::open();
    let (_, key, memory) = rank.window(BYTES);
    for peer in 0..2 {
        let (_, _, other) = rank.window(BYTES);
        let mut queue = rank.device.queue(peer, false);
        let remote = Address { key, offset: 64 };
        let mut put = move || {
            // all of one pass have one marker, which the double then keeps
            switch(c"double_delay", queue.has_room());
            wait_until("room in a queue", || queue.has_room());
            queue.post(&Work::Write { remote, local: whole(key, 0, 64) });
        };
        let (posted, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while ended.load(Ordering::Relaxed) == 0 {
                    put();
                    posted.fetch_add(1, Ordering::Relaxed);
                }
            });
            wait_until("puts", || posted.load(Ordering::Relaxed) > 200);
            rank.end(other);
            ended.store(1, Ordering::Relaxed);
        });
        switch(c"double_delay", false);
    }
    assert!(!rank.has_failed());
    let (_, _, met) = rank.window(BYTES); // both ranks have come here
    rank.close(&[memory, met]);
}

/// What NCCL's barrier of GIN relies on: a value is there when a signal is that was posted after
/// it, in every round, and nobody is more than a round ahead.
#[test]
fn a_value_is_there_before_a_signal_that_was_posted_after_it() {
    if !is_child() {
        for version in [11, 14] {
            let name = "copies::a_value_is_there_before_a_signal_that_was_posted_after_it";
            all_succeed(start(name, version, 2));
        }
        return;
    }
    let rank = Rank::open();
    let peer = 1 - rank.device.rank;
    let (window, key, memory) = rank.window(4096);
    let (arrived, signal) = rank.device.signal(3);
    let mut queue = rank.device.queue(peer, false);
    for round in 1..=500u64 {
        wait_until("room in a queue", || queue.has_room());
        let mut data = [0; 28];
        data[..8].copy_from_slice(&round.to_le_bytes());
        queue.post(&Work::WriteInline { remote: Address { key, offset: 64 }, data, bytes: 8 });
        wait_until("room in a queue", || queue.has_room());
        let last = queue.post(&rank.device.add(signal, 1));
        wait_until("the peer", || arrived.load(Ordering::Acquire) >= round);
        let seen = word(window + 64).load(Ordering::Acquire);
        assert!((round..=round + 1).contains(&seen), "{seen} in round {round}");
        if round == 500 {
            wait_until("a flush", || queue.poll(last) == Some(Ok(())));
        }
    }
    rank.close(&[memory]);
}
