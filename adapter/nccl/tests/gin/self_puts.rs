//! Puts of a rank to itself: by the kernel, and by the detour where it does not start. The double
//! does in C what `copy.ptx` does, and holds kernels as if all multiprocessors were busy.

use super::{
    Count, FakeQueue, Rank, all_said, all_succeed, build_driver, count, driver, hold, is_child,
    own_file, read, start, start_over, wait_until, whole,
};
use crosstie::hca::entry::{Address, Segment, Work};
use std::path::Path;

const BYTES: usize = 3 << 20;

/// A rank with two windows of its own: one that it puts from, and one that it puts to.
struct Own {
    rank: Rank,
    queue: FakeQueue<'static>,
    from: (u64, u32),
    to: (u64, u32),
    memories: [super::Pointer; 2],
}

impl Own {
    fn open() -> Own {
        let rank = Rank::open();
        let queue = rank.device.queue(rank.device.rank, false);
        let (from, from_key, from_memory) = rank.window(BYTES);
        let (to, to_key, to_memory) = rank.window(BYTES);
        let memories = [from_memory, to_memory];
        Own { rank, queue, from: (from, from_key), to: (to, to_key), memories }
    }

    /// The same, once the launch at connect has ended, so that kernels are used.
    fn with_kernel() -> Own {
        let own = Own::open();
        let first = own.first_kernels();
        wait_until("the first launches", || count(Count::KernelsEnded) == first);
        own
    }

    /// At connect there is one for each rank that can be copied to, this one among them.
    fn first_kernels(&self) -> u64 {
        self.rank.device.ranks as u64
    }

    fn fill(&self, seed: usize) {
        for at in 0..BYTES {
            // SAFETY: a byte of the window, which nothing else touches now.
            unsafe { ((self.from.0 + at as u64) as *mut u8).write(byte(seed, at)) };
        }
    }

    fn post(&mut self, to: usize, from: usize, bytes: usize) -> u64 {
        wait_until("room in the queue", || self.queue.has_room());
        let remote = Address { key: self.to.1, offset: to as u64 };
        self.queue.post(&Work::Write { remote, local: whole(self.from.1, from, bytes) })
    }

    fn post_value(&mut self, to: usize, value: u64) -> u64 {
        wait_until("room in the queue", || self.queue.has_room());
        let mut data = [0; 28];
        data[..8].copy_from_slice(&value.to_le_bytes());
        let remote = Address { key: self.to.1, offset: to as u64 };
        self.queue.post(&Work::WriteInline { remote, data, bytes: 8 })
    }

    fn wait(&self, index: u64) {
        wait_until("a put", || self.queue.poll(index).is_some());
        assert_eq!(self.queue.poll(index), Some(Ok(())));
    }

    fn put(&mut self, to: usize, from: usize, bytes: usize) {
        let index = self.post(to, from, bytes);
        self.wait(index);
    }

    fn assert_target(&self, to: usize, seed: usize, from: usize, bytes: usize) {
        for at in 0..bytes {
            let got: u8 = read(self.to.0 + (to + at) as u64);
            assert_eq!(got, byte(seed, from + at), "byte {at} of {bytes} from {from} to {to}");
        }
    }

    /// Ends when every rank has come here.
    fn close(self) {
        let ranks = self.rank.device.ranks as u64;
        let (left, signal) = self.rank.device.signal(1);
        for peer in 0..self.rank.device.ranks {
            let mut queue = match peer == self.rank.device.rank {
                true => self.rank.device.queue(peer, true),
                false => self.rank.device.queue(peer, false),
            };
            let index = queue.post(&self.rank.device.add(signal, 1));
            wait_until("an add", || queue.poll(index) == Some(Ok(())));
        }
        wait_until("the other ranks", || left.load(super::Ordering::Acquire) == ranks);
        assert!(!self.rank.has_failed());
        self.rank.close(&self.memories);
    }
}

fn byte(seed: usize, at: usize) -> u8 {
    (seed * 89 + at % 241) as u8
}

/// Runs a test over the host as detour, and over another GPU.
fn both_ways(test: &str) {
    for (version, ranks) in [(11, 1), (14, 2)] {
        all_succeed(start(test, version, ranks));
    }
}

/// Aligned and not, from no byte to more than all blocks take at once.
#[test]
fn kernel_copies_whatever_its_length_and_place() {
    if !is_child() {
        return both_ways("self_puts::kernel_copies_whatever_its_length_and_place");
    }
    let mut own = Own::with_kernel();
    own.fill(1);
    let sizes = [(0, 0, 1), (16, 32, 128), (5, 3, 70_001), (64, 64, 1 << 20), (1, 2, BYTES - 2)];
    for (number, (to, from, bytes)) in sizes.into_iter().enumerate() {
        wait_until("an end", || count(Count::KernelsEnded) == number as u64 + own.first_kernels());
        own.put(to, from, bytes);
        own.assert_target(to, 1, from, bytes);
        assert_eq!(count(Count::KernelsCopied), number as u64 + 1);
    }
    // a value of no bytes; a segment of no bytes means 2 GiB, as on the adapter
    let remote = Address { key: own.to.1, offset: 0 };
    let index = own.queue.post(&Work::WriteInline { remote, data: [0; 28], bytes: 0 });
    own.wait(index);
    own.assert_target(1, 1, 2, BYTES - 2);
    assert_eq!(count(Count::KernelsCopied), sizes.len() as u64);
    own.close();
}

/// The put is done although the kernel does not start, and the kernel does nothing once it starts.
#[test]
fn kernel_that_does_not_start_copies_nothing_later() {
    if !is_child() {
        return both_ways("self_puts::kernel_that_does_not_start_copies_nothing_later");
    }
    let mut own = Own::with_kernel();
    hold(true);
    own.fill(2);
    own.put(8, 8, BYTES - 8);
    own.assert_target(8, 2, 8, BYTES - 8);
    // nothing waits for the kernel that does not start: not other puts, nor a window's end
    own.put(0, 8, 8);
    own.assert_target(0, 2, 8, 8);
    own.fill(3);
    hold(false);
    wait_until("the late kernel", || count(Count::KernelsEnded) == own.first_kernels() + 1);
    own.assert_target(8, 2, 8, BYTES - 8);
    assert_eq!(count(Count::KernelsCopied), 0);
    // kernels are tried again
    wait_until("a copy by the kernel", || {
        own.put(0, 0, BYTES);
        count(Count::KernelsCopied) > 0
    });
    own.assert_target(0, 3, 0, BYTES);
    own.close();
}

/// A communicator ends while its kernel waits; the kernel then finds its memory in place.
#[test]
fn kernel_that_does_not_start_outlives_its_communicator() {
    if !is_child() {
        let test = "self_puts::kernel_that_does_not_start_outlives_its_communicator";
        return all_succeed(start(test, 11, 1));
    }
    let mut own = Own::with_kernel();
    hold(true);
    own.fill(4);
    own.put(0, 0, 4096);
    own.assert_target(0, 4, 0, 4096);
    let first = own.first_kernels();
    own.close();
    hold(false);
    wait_until("the late kernel", || count(Count::KernelsEnded) == first + 1);
    assert_eq!(count(Count::KernelsCopied), 0);
}

/// Puts of all sizes and values in between, over and over, while kernels start and do not: each
/// place has what was put there last.
#[test]
fn puts_of_one_queue_keep_their_order_whether_kernels_start_or_not() {
    if !is_child() {
        let test = "self_puts::puts_of_one_queue_keep_their_order_whether_kernels_start_or_not";
        return both_ways(test);
    }
    let mut own = Own::with_kernel();
    own.fill(5);
    const PLACES: usize = 4;
    const PLACE: usize = 300_000;
    let mut last = [(0, 0); PLACES];
    for round in 0..400 {
        hold(round % 50 >= 40);
        let (place, from) = (round % PLACES, round * 7 % 1000);
        let bytes = [64, PLACE - 1, 5000][round % 3];
        own.post(place * PLACE, from, PLACE - 8);
        own.post(place * PLACE, from + 1, bytes);
        let index = own.post_value((place + 1) * PLACE - 8, round as u64);
        last[place] = (from, bytes);
        if round % 20 == 19 {
            own.wait(index);
            for (place, (from, bytes)) in last.into_iter().enumerate() {
                let (start, bytes) = (place * PLACE, bytes.min(PLACE - 8));
                own.assert_target(start, 5, from + 1, bytes);
                own.assert_target(start + bytes, 5, from + bytes, PLACE - 8 - bytes);
            }
            let value: u64 = read(own.to.0 + ((place + 1) * PLACE - 8) as u64);
            assert_eq!(value, round as u64);
        }
    }
    hold(false);
    assert!(count(Count::KernelsCopied) > 0);
    own.close();
}

/// Two segments of one put, and a read of the own rank.
#[test]
fn both_segments_and_reads_are_copied() {
    if !is_child() {
        return both_ways("self_puts::both_segments_and_reads_are_copied");
    }
    let mut own = Own::with_kernel();
    own.fill(6);
    let (key, remote) = (own.from.1, Address { key: own.to.1, offset: 100 });
    let segment = |at: u64, bytes| Segment { at: Address { key, offset: at }, bytes };
    let local = [segment(5000, 70), segment(9000, 40_000)];
    let index = own.queue.post(&Work::Write { remote, local });
    own.wait(index);
    own.assert_target(100, 6, 5000, 70);
    own.assert_target(170, 6, 9000, 40_000);
    let remote = Address { key, offset: 1 << 20 };
    let index =
        own.queue.post(&Work::Read { remote, local: whole(own.to.1, 0, BYTES - (1 << 20)) });
    own.wait(index);
    own.assert_target(0, 6, 1 << 20, BYTES - (1 << 20));
    assert!(count(Count::KernelsCopied) > 0);
    own.close();
}

/// Without a kernel every put takes the detour, and one line says why.
#[test]
fn without_a_kernel_puts_take_the_detour_and_a_line_says_why() {
    let test = "self_puts::without_a_kernel_puts_take_the_detour_and_a_line_says_why";
    if !is_child() {
        let without = own_file("driver-without-kernels");
        build_driver(&without, &["-DNO_KERNELS"]);
        let whole = driver();
        let cases: [(&Path, (&str, &str), &str); 3] = [
            (
                &without,
                ("CUDA_LAUNCH_BLOCKING", "0"),
                "the driver is too old, it has no cuModuleLoadData",
            ),
            (&whole, ("GIN_REFUSED", "1"), "cuModuleLoadData: CUDA_ERROR_INVALID_VALUE (error 1)"),
            (&whole, ("CUDA_LAUNCH_BLOCKING", "1"), "CUDA_LAUNCH_BLOCKING is set"),
        ];
        for (driver, variable, why) in cases {
            for said in all_said(start_over(driver, test, 14, 2, &[variable])) {
                let line =
                    said.lines().find(|line| line.contains("no kernel copies within the GPU"));
                assert!(line.is_some_and(|line| line.contains(why)), "{why}:\n{said}");
            }
        }
        return;
    }
    let mut own = Own::open();
    own.fill(7);
    own.put(3, 1, BYTES - 3);
    own.assert_target(3, 7, 1, BYTES - 3);
    assert_eq!(count(Count::KernelsEnded), 0);
    own.close();
}
