//! The GIN tables as NCCL drives them, in several processes, over a double of the CUDA driver
//! (`cuda_double/cuda.c`). A fake GPU writes the queue entries of each rank, at the addresses that
//! the plugin tells device code.

#[path = "gin/thread.rs"]
mod thread;

use crosstie::hca::entry::{Address, Segment, Work};
use crosstie::hca::fake_gpu::FakeQueue;
use crosstie_nccl::abi::gin::{ConfigV13, ConfigV14};
use crosstie_nccl::abi::table::Pointer;
use crosstie_nccl::birth::{gin_v11, gin_v13, gin_v14};
use crosstie_nccl::one_sided::{GIN_V11, GIN_V13, GIN_V14};
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use wait::{WATCHDOG, wait_until};

#[path = "gin/bad_input.rs"]
mod bad_input;
#[path = "gin/copies.rs"]
mod copies;
#[path = "gin/hosts.rs"]
mod hosts;
#[allow(dead_code)] // shared
#[path = "support/log.rs"]
mod log;
#[path = "gin/self_puts.rs"]
mod self_puts;
#[path = "../../../tests/common/wait.rs"]
mod wait;
#[path = "support/wires.rs"]
mod wires;

const RANK: &str = "GIN_RANK";
const RANKS: &str = "GIN_RANKS";
const VERSION: &str = "GIN_VERSION";
const FOLDER: &str = "GIN_FOLDER";
/// A window holds a part for each rank; each part is over the size that self puts are staged in.
const PART: usize = 1_500_000;
const SIGNALS: c_int = 8;
const COUNTERS: c_int = 2;

// ------------------------------------------------------------------ the parent

/// A file of this test program.
fn own_file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gin");
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

/// The folder of the double, built once for this program.
fn driver() -> PathBuf {
    let folder = own_file("driver");
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(|| build_driver(&folder, &[]));
    folder
}

fn build_driver(folder: &Path, options: &[&str]) {
    std::fs::create_dir_all(folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_double/cuda.c");
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"])
        .args(["-fvisibility=hidden", "-o"])
        .arg(folder.join("libcuda.so.1"))
        .arg(&source)
        .args(options)
        .arg("-lpthread")
        .output()
        .expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// Runs a test of this program as `ranks` processes.
fn start(test: &str, version: u32, ranks: usize) -> Vec<Child> {
    start_over(&driver(), test, version, ranks, &[])
}

/// The same, over the double in `driver`, with more variables.
fn start_over(
    driver: &Path,
    test: &str,
    version: u32,
    ranks: usize,
    variables: &[(&str, &str)],
) -> Vec<Child> {
    let values: Vec<_> = variables.iter().map(|(_, value)| value.replace('/', "_")).collect();
    let folder = own_file(&format!("{test}-{version}-{ranks}-{}", values.join("-")));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let child = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env("LD_LIBRARY_PATH", driver)
            .env("CROSSTIE_GIN", "1")
            .env(RANK, rank.to_string())
            .env(RANKS, ranks.to_string())
            .env(VERSION, version.to_string())
            .env(FOLDER, &folder)
            .envs((version != 13).then_some(("GIN_GPUS", "each")))
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (0..ranks).map(child).collect()
}

fn all_succeed(children: Vec<Child>) {
    all_said(children);
}

/// What processes that succeed have said.
fn all_said(children: Vec<Child>) -> Vec<String> {
    let said = |(rank, child): (usize, Child)| {
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        assert!(status.success(), "rank {rank}: {status}\n{text}");
        text
    };
    children.into_iter().enumerate().map(said).collect()
}

fn is_child() -> bool {
    std::env::var_os(RANK).is_some()
}

// ------------------------------------------------------------------ one rank

fn number(name: &str) -> usize {
    std::env::var(name).unwrap().parse().unwrap()
}

fn word(address: u64) -> &'static AtomicU64 {
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    unsafe { &*(address as *const AtomicU64) }
}

fn read<T: Copy>(address: u64) -> T {
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    unsafe { (address as *const T).read_unaligned() }
}

/// A function of the double.
fn double(name: &CStr) -> *mut c_void {
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    let handle = unsafe { dlopen(c"libcuda.so.1".as_ptr(), 2) };
    // SAFETY: as NCCL and its kernels use what the plugin, or the double, has given.
    let symbol = unsafe { dlsym(handle, name.as_ptr()) };
    assert!(!symbol.is_null());
    symbol
}

/// Sets one of the double's switches.
fn switch(name: &CStr, on: bool) {
    // SAFETY: the double's switches have this type.
    let set: extern "C" fn(c_int) = unsafe { std::mem::transmute(double(name)) };
    set(on.into());
}

/// What the double counts.
#[derive(Copy, Clone)]
enum Count {
    KernelsEnded,
    KernelsCopied,
    Batches,
}

fn count(which: Count) -> u64 {
    // SAFETY: the double's function of this name has this type.
    let count: extern "C" fn(c_int) -> u64 =
        unsafe { std::mem::transmute(double(c"double_count")) };
    count(which as c_int)
}

/// Holds kernels as if all multiprocessors were busy.
fn hold(held: bool) {
    switch(c"double_hold", held);
}

fn double_alloc(bytes: usize) -> u64 {
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    let alloc: extern "C" fn(usize) -> *mut c_void =
        unsafe { std::mem::transmute(double(c"double_alloc")) };
    alloc(bytes) as u64
}

unsafe extern "C" {
    fn dlopen(name: *const std::ffi::c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const std::ffi::c_char) -> *mut c_void;
}

/// What device code knows of a context. Offsets are those of NCCL's headers.
struct Device {
    version: usize,
    rank: usize,
    ranks: usize,
    context: u64,
}

impl Device {
    fn pair_bytes(&self) -> u64 {
        if self.version == 11 { 280 } else { 296 }
    }

    /// The queue to `peer`, or its companion.
    fn queue(&self, peer: usize, companion: bool) -> FakeQueue<'static> {
        let pairs: u64 = read(self.context + if companion { 8 } else { 0 });
        let pair = pairs + peer as u64 * self.pair_bytes();
        let number: u32 = read(pair + 24);
        let depth: u16 = read(pair + if self.version == 11 { 56 } else { 60 });
        let (ring, doorbell): (u64, u64) = (read(pair + 64), read(pair + 80));
        let completions: u64 = read(pair + 160);
        assert_eq!(read::<u32>(pair + 172), u32::from(depth));
        assert_eq!(read::<u32>(pair + 36).swap_bytes(), number << 8 | 1);
        // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
        let words = |at: u64| unsafe {
            std::slice::from_raw_parts(at as *const AtomicU64, usize::from(depth) * 8)
        };
        FakeQueue::new(words(ring), words(completions), word(doorbell), number)
    }

    fn table(&self, at: u64, index: u64) -> (&'static AtomicU64, u32, u64) {
        let words: u64 = read(self.context + at);
        let keys: u64 = read(self.context + at + 8);
        let offset: u32 = if self.version == 11 { 0 } else { read(self.context + at + 20) };
        (word(words + 8 * index), read(keys), 8 * (index + u64::from(offset)))
    }

    /// The own word of a signal, and how others address it.
    fn signal(&self, index: u64) -> (&'static AtomicU64, Address) {
        let (word, key, offset) = self.table(40, index);
        (word, Address { key, offset })
    }

    fn counter(&self, index: u64) -> (&'static AtomicU64, Address) {
        let (word, key, offset) = self.table(16, index);
        (word, Address { key, offset })
    }

    fn sink(&self) -> Segment {
        Segment { at: Address { key: read(self.context + 64), offset: 0 }, bytes: 8 }
    }

    fn add(&self, remote: Address, add: u64) -> Work {
        Work::FetchAdd { remote, add, local: self.sink() }
    }
}

/// A rank as NCCL is one.
struct Rank {
    device: Device,
    init: Pointer,
    coll: Pointer,
    context: Pointer,
}

fn exchange(rank: usize, ranks: usize, handle: &[u8; 128]) -> Vec<[u8; 128]> {
    exchange_in("", rank, ranks, handle)
}

/// The same, in a folder within that of the test.
fn exchange_in(within: &str, rank: usize, ranks: usize, handle: &[u8; 128]) -> Vec<[u8; 128]> {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap()).join(within);
    std::fs::create_dir_all(&folder).unwrap();
    let (part, whole) = (folder.join(format!("part-{rank}")), folder.join(format!("{rank}")));
    std::fs::write(&part, handle).unwrap();
    std::fs::rename(part, whole).unwrap();
    let of = |rank: usize| {
        let path = folder.join(format!("{rank}"));
        wait_until("a handle", || path.exists());
        std::fs::read(path).unwrap().try_into().unwrap()
    };
    (0..ranks).map(of).collect()
}

/// Opens the plugin and a listener of a table; its handle.
fn listen(version: usize) -> (Pointer, Pointer, [u8; 128]) {
    let (mut init, mut listener) = (null_mut(), null_mut());
    let mut devices = 0;
    let mut handle = [0u8; 128];
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    unsafe {
        assert_eq!(gin_v11::init(&mut init, 0, log::logger()), 0);
        let rc = match version {
            11 => gin_v11::devices::<GIN_V11>(&mut devices),
            13 => gin_v11::devices::<GIN_V13>(&mut devices),
            _ => gin_v11::devices::<GIN_V14>(&mut devices),
        };
        assert_eq!(rc, 0);
        assert!(devices > 0, "no GIN device");
        let to = handle.as_mut_ptr().cast();
        let rc = match version {
            11 => gin_v11::listen::<GIN_V11>(init, 0, to, &mut listener),
            13 => gin_v11::listen::<GIN_V13>(init, 0, to, &mut listener),
            _ => gin_v11::listen::<GIN_V14>(init, 0, to, &mut listener),
        };
        assert_eq!(rc, 0);
    }
    (init, listener, handle)
}

/// Brings the ranks together, and closes the listener.
fn connect(listener: Pointer, mut handles: Vec<[u8; 128]>, rank: usize) -> Result<Pointer, c_int> {
    let mut coll = null_mut();
    let mut pointers: Vec<Pointer> =
        handles.iter_mut().map(|handle| handle.as_mut_ptr().cast()).collect();
    let (n, own, list) = (pointers.len() as c_int, rank as c_int, pointers.as_mut_ptr());
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    unsafe {
        let rc = gin_v11::connect(null_mut(), list, n, own, listener, &mut coll);
        assert_eq!(gin_v11::close_listen(listener), 0);
        if rc == 0 { Ok(coll) } else { Err(rc) }
    }
}

impl Rank {
    fn open() -> Rank {
        let (rank, ranks, version) = (number(RANK), number(RANKS), number(VERSION));
        let (init, listener, handle) = listen(version);
        let coll = connect(listener, exchange(rank, ranks, &handle), rank).expect("the ranks");
        let (context, address) = contexts(coll, version);
        let device = Device { version, rank, ranks, context: address };
        Rank { device, init, coll, context }
    }

    /// Registers `bytes`; their address and key.
    fn window(&self, bytes: usize) -> (u64, u32, Pointer) {
        let address = double_alloc(bytes);
        let (memory, handle) = self.try_window(address, bytes).expect("a window");
        let key: u32 = read(handle + 8);
        let keys: u64 = read(handle);
        for peer in 0..self.device.ranks as u64 {
            assert_eq!(read::<u32>(keys + 4 * peer), key);
        }
        (address, key, memory)
    }

    /// Registers memory of the GPU: a window, and what a kernel names it by.
    fn try_window(&self, address: u64, bytes: usize) -> Option<(Pointer, u64)> {
        let (mut memory, mut handle) = (null_mut(), null_mut());
        let data = address as Pointer;
        let rc =
            // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
            unsafe { gin_v11::reg_mr_sym(self.coll, data, bytes, 2, 0, &mut memory, &mut handle) };
        assert_eq!(rc == 0, !memory.is_null());
        (rc == 0).then_some((memory, handle as u64))
    }

    /// Ends a window.
    fn end(&self, memory: Pointer) {
        // SAFETY: what the plugin has given, once.
        assert_eq!(unsafe { gin_v11::dereg_mr_sym(self.coll, memory) }, 0);
    }

    fn has_failed(&self) -> bool {
        let mut failed = false;
        // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
        assert_eq!(unsafe { gin_v11::query_last_error(self.context, &mut failed) }, 0);
        failed
    }

    fn close(self, windows: &[Pointer]) {
        // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
        unsafe {
            assert_eq!(gin_v11::destroy_context(self.context), 0);
            for window in windows {
                assert_eq!(gin_v11::dereg_mr_sym(self.coll, *window), 0);
            }
            assert_eq!(gin_v11::close_coll(self.coll), 0);
            assert_eq!(gin_v11::finalize(self.init), 0);
        }
        assert!(!threads().contains(&"crosstie-gin".to_string()), "the thread has not ended");
    }
}

fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(name).map(|name| name.trim().to_string()).collect()
}

/// The last context of those that the version makes, so that offsets count.
fn contexts(coll: Pointer, version: usize) -> (Pointer, u64) {
    try_contexts(coll, version).expect("contexts")
}

fn try_contexts(coll: Pointer, version: usize) -> Option<(Pointer, u64)> {
    let (mut context, mut handle) = (null_mut(), null_mut());
    let base = ConfigV13 {
        signals: SIGNALS,
        counters: COUNTERS,
        contexts: 2,
        queue_depth: 64,
        traffic_class: -1,
    };
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    let rc = unsafe {
        match version {
            11 => gin_v11::create_context(coll, SIGNALS, COUNTERS, &mut context, &mut handle),
            13 => gin_v13::create_context(coll, &base, &mut context, &mut handle),
            _ => {
                let with = ConfigV14 { base, backend_version: 2, rank_stride: 1 };
                gin_v14::create_context(coll, &with, &mut context, &mut handle)
            }
        }
    };
    if rc != 0 {
        return None;
    }
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    let handle = unsafe { &*handle };
    assert_eq!(handle.device_type, 3);
    assert_eq!(handle.device_version, if version == 11 { 100 } else { 200 });
    let last = match version {
        11 => 0,
        13 => 72,
        _ => 88,
    };
    Some((context, handle.handle as u64 + last))
}

fn value(from: usize, to: usize, at: usize) -> u8 {
    (from * 31 + to * 7 + at % 251) as u8
}

fn whole(key: u32, at: usize, bytes: usize) -> [Segment; 2] {
    let at = Address { key, offset: at as u64 };
    [Segment { at, bytes: bytes as u64 }, Segment::default()]
}

/// Every rank puts a part into every window, its own included, and signals; every byte arrives
/// before its signal. Then values, counters, reads, and 3 laps of a ring.
fn every_rank_to_every_rank() {
    let rank = Rank::open();
    let device = &rank.device;
    let (own, ranks) = (device.rank, device.ranks);
    let (source, source_key, source_memory) = rank.window(ranks * PART);
    // behind the parts, a word for each rank, and one that all add to
    let (target, target_key, target_memory) = rank.window(ranks * (PART + 8) + 8);
    for to in 0..ranks {
        for at in 0..PART {
            // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
            unsafe { ((source + (to * PART + at) as u64) as *mut u8).write(value(own, to, at)) };
        }
    }
    let mut queues: Vec<_> = (0..ranks).map(|peer| device.queue(peer, false)).collect();
    let (arrived, signal) = device.signal(0);
    for (to, queue) in queues.iter_mut().enumerate() {
        let remote = Address { key: target_key, offset: (own * PART) as u64 };
        let local = whole(source_key, to * PART, PART);
        queue.write(&Work::Write { remote, local }, 0);
        queue.post(&device.add(signal, 1));
    }
    wait_until("a part of each rank", || arrived.load(Ordering::Acquire) == ranks as u64);
    for from in 0..ranks {
        for at in 0..PART {
            let got: u8 = read(target + (from * PART + at) as u64);
            assert_eq!(got, value(from, own, at), "byte {at} of rank {from}");
        }
    }
    laps(device, &mut queues, target_key, target);
    reads(device, &mut queues, [source_key, target_key], target);
    words_of_windows(device, &mut queues, target_key, target);
    // nobody leaves while others still read
    let (left, signal) = device.signal(1);
    for queue in &mut queues {
        wait_until("room in a queue", || queue.has_room());
        let index = queue.post(&device.add(signal, 1));
        wait_until("a flush", || queue.poll(index) == Some(Ok(())));
    }
    wait_until("the last word of each rank", || left.load(Ordering::Acquire) == ranks as u64);
    assert!(!rank.has_failed());
    rank.close(&[source_memory, target_memory]);
}

/// Inline values with counters by the companions, over and over.
fn laps(device: &Device, queues: &mut [FakeQueue<'static>], key: u32, target: u64) {
    let next = (device.rank + 1) % device.ranks;
    let before = (device.rank + device.ranks - 1) % device.ranks;
    let mut companion = device.queue(next, true);
    let (count, counter) = device.counter(1);
    let queue = &mut queues[next];
    let (arrived, signal) = device.signal(2);
    const ROUNDS: u64 = 200;
    for round in 0..ROUNDS {
        wait_until("room in a queue", || queue.has_room() && companion.has_room());
        let mut data = [0; 28];
        data[..8].copy_from_slice(&(round << 8 | device.rank as u64).to_le_bytes());
        let remote = Address { key, offset: (device.ranks * PART + 8 * device.rank) as u64 };
        let bytes = if round % 2 == 0 { 8 } else { 4 };
        queue.post(&Work::WriteInline { remote, data, bytes });
        wait_until("room in a queue", || queue.has_room());
        let index = queue.post(&device.add(signal, 1));
        companion.post(&Work::Wait { queue: queue.number(), index: index as u32 });
        wait_until("room in a companion", || companion.has_room());
        companion.post(&device.add(counter, 1));
    }
    wait_until("every counter", || count.load(Ordering::Acquire) == ROUNDS);
    wait_until("every signal", || arrived.load(Ordering::Acquire) == ROUNDS);
    let last: u32 = read(target + (device.ranks * PART + 8 * before) as u64);
    assert_eq!(last, ((ROUNDS - 1) << 8 | before as u64) as u32);
}

/// Reads the next rank's source into the own target.
fn reads(device: &Device, queues: &mut [FakeQueue<'static>], keys: [u32; 2], target: u64) {
    let next = (device.rank + 1) % device.ranks;
    let queue = &mut queues[next];
    let remote = Address { key: keys[0], offset: (device.rank * PART) as u64 };
    wait_until("room in a queue", || queue.has_room());
    let index = queue.post(&Work::Read { remote, local: whole(keys[1], 0, PART) });
    wait_until("a read", || queue.poll(index) == Some(Ok(())));
    for at in 0..PART {
        assert_eq!(read::<u8>(target + at as u64), value(next, device.rank, at));
    }
}

/// All ranks add to a word in the window of each, over and over: no add is lost.
fn words_of_windows(device: &Device, queues: &mut [FakeQueue<'static>], key: u32, target: u64) {
    const ROUNDS: u64 = 150;
    let offset = (device.ranks * (PART + 8)) as u64;
    for round in 0..ROUNDS {
        for queue in queues.iter_mut() {
            wait_until("room in a queue", || queue.has_room());
            queue.post(&device.add(Address { key, offset }, round << 32 | 1));
        }
    }
    let sum = device.ranks as u64 * ((ROUNDS * (ROUNDS - 1) / 2) << 32 | ROUNDS);
    wait_until("every add", || word(target + offset).load(Ordering::Acquire) == sum);
}

/// The owner looks at each add that a peer asks for, whatever the peer takes for good.
#[test]
fn an_add_to_a_window_that_its_owner_gave_back_is_an_error() {
    if !is_child() {
        return all_succeed(start(
            "an_add_to_a_window_that_its_owner_gave_back_is_an_error",
            14,
            2,
        ));
    }
    window_given_back(|_, key, device| device.add(Address { key, offset: 8 }, 1));
}

/// The window of rank 1 goes, and then rank 0 asks for what `work` makes of its key and that of
/// another window: an error of its queue alone.
fn window_given_back(work: impl Fn(u32, u32, &Device) -> Work) {
    let rank = Rank::open();
    let device = &rank.device;
    let peer = 1 - device.rank;
    let (_, own_key, own) = rank.window(4096);
    let (_, key, memory) = rank.window(4096);
    let (arrived, signal) = device.signal(0);
    let mut queue = device.queue(peer, false);
    if device.rank == 1 {
        // SAFETY: a window that stands.
        assert_eq!(unsafe { gin_v11::dereg_mr_sym(rank.coll, memory) }, 0);
    }
    queue.post(&device.add(signal, 1));
    wait_until("the peer", || arrived.load(Ordering::Acquire) == 1);
    if device.rank == 0 {
        let index = queue.write(&work(own_key, key, device), 0);
        let (_, raised) = device.signal(1);
        let behind = queue.post(&device.add(raised, 1));
        wait_until("an error", || queue.poll(index) == Some(Err(0x13)));
        wait_until("what is behind it", || queue.poll(behind) == Some(Err(0x05)));
        assert!(rank.has_failed());
        let mut other = device.queue(0, false);
        let index = other.post(&device.add(signal, 1));
        wait_until("another queue", || other.poll(index) == Some(Ok(())));
    }
    // the owner answers until the other is done with it
    let done = PathBuf::from(std::env::var_os(FOLDER).unwrap()).join("done");
    if device.rank == 0 {
        std::fs::write(&done, "").unwrap();
    }
    wait_until("the other rank", || done.exists());
    let (raised, _) = device.signal(1);
    assert_eq!(raised.load(Ordering::Acquire), 0, "a signal of what did not come");
    let windows = [own, memory];
    rank.close(&windows[..2 - number(RANK)]);
}

#[test]
fn every_rank_puts_signals_counts_and_reads() {
    if is_child() {
        return every_rank_to_every_rank();
    }
    for (version, ranks) in [(11, 2), (13, 2), (14, 2), (11, 1), (14, 8)] {
        all_succeed(start("every_rank_puts_signals_counts_and_reads", version, ranks));
    }
}

/// A key that names nothing is an error of its queue, at once; other queues go on.
#[test]
fn a_bad_key_is_an_error_completion_and_a_last_error() {
    if !is_child() {
        return all_succeed(start("a_bad_key_is_an_error_completion_and_a_last_error", 11, 2));
    }
    let rank = Rank::open();
    let device = &rank.device;
    let (_, key, memory) = rank.window(4096);
    let peer = 1 - device.rank;
    let (mut queue, mut own) = (device.queue(peer, false), device.queue(device.rank, false));
    assert!(!rank.has_failed());
    let beyond = Address { key, offset: 4000 };
    let index = queue.post(&Work::Write { remote: beyond, local: whole(key, 0, 97) });
    wait_until("an error", || queue.poll(index) == Some(Err(0x13)));
    let later = queue.post(&Work::Nop);
    wait_until("a flush", || queue.poll(later) == Some(Err(0x05)));
    assert!(rank.has_failed());
    let good = own.post(&Work::Nop);
    wait_until("another queue", || own.poll(good) == Some(Ok(())));
    rank.close(&[memory]);
}

/// What is posted to a process that has ended fails, and so says the context.
#[test]
fn a_peer_that_ends_is_an_error_completion() {
    if is_child() {
        return peer_that_ends();
    }
    all_but_the_second_succeed(start("a_peer_that_ends_is_an_error_completion", 11, 2));
}

fn peer_that_ends() {
    let rank = Rank::open();
    let (_, key, memory) = rank.window(4096);
    if rank.device.rank == 1 {
        std::process::abort();
    }
    let mut queue = rank.device.queue(1, false);
    let mut failed = None;
    wait_until("an error", || {
        // looked for first: all that was posted may have ended while this thread did not run
        let is_error = failed.is_some_and(|index| matches!(queue.poll(index), Some(Err(_))));
        if !is_error && queue.has_room() {
            let remote = Address { key, offset: 0 };
            failed = Some(queue.post(&Work::Write { remote, local: whole(key, 0, 64) }));
        }
        is_error
    });
    assert!(rank.has_failed());
    rank.close(&[memory]);
}

/// Other memory of the same call: with a dma-buf, which stays NCCL's, and with strong order.
#[test]
fn memory_with_a_dma_buf_and_with_flags_is_a_window_like_others() {
    const FORCE_SO: u64 = 1;
    if !is_child() {
        let name = "memory_with_a_dma_buf_and_with_flags_is_a_window_like_others";
        return [11, 13, 14].into_iter().for_each(|version| all_succeed(start(name, version, 2)));
    }
    let rank = Rank::open();
    let device = &rank.device;
    let (own, peer, address) = (device.rank, 1 - device.rank, double_alloc(4096));
    let (mut memory, mut handle) = (null_mut(), null_mut());
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let (coll, data, descriptor) = (rank.coll, address as Pointer, file.as_raw_fd());
    let (out, key_out) = (&raw mut memory, &raw mut handle);
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    let rc = unsafe {
        gin_v11::reg_mr_sym_dma_buf(coll, data, 4096, 2, 0, descriptor, FORCE_SO, out, key_out)
    };
    assert_eq!(rc, 0);
    assert!(file.metadata().is_ok(), "the descriptor is NCCL's");
    let key: u32 = read(handle as u64 + 8);
    for at in 0..64 {
        // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
        unsafe { ((address + at) as *mut u8).write(value(own, peer, at as usize)) };
    }
    let (arrived, signal) = device.signal(0);
    let mut queue = device.queue(peer, false);
    let remote = Address { key, offset: 1024 };
    queue.write(&Work::Write { remote, local: whole(key, 0, 64) }, 0);
    let last = queue.post(&device.add(signal, 1));
    wait_until("the peer's bytes", || arrived.load(Ordering::Acquire) == 1);
    for at in 0..64 {
        assert_eq!(read::<u8>(address + 1024 + at), value(peer, own, at as usize));
    }
    wait_until("a flush", || queue.poll(last) == Some(Ok(())));
    bad_input::leave(&rank);
    rank.close(&[memory]);
}

fn all_but_the_second_succeed(mut children: Vec<Child>) {
    let killed = children.remove(1).wait_with_output().unwrap();
    assert!(!killed.status.success());
    all_succeed(children);
}

/// The table offers nothing where the driver is missing, and says why.
#[test]
fn without_a_driver_there_are_no_devices() {
    if !is_child() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "without_a_driver_there_are_no_devices", "--nocapture"])
            .env(RANK, "0")
            .env("CROSSTIE_GIN", "1")
            .env_remove("LD_LIBRARY_PATH")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        return all_succeed(vec![child.unwrap()]);
    }
    if Path::new("/dev/nvidiactl").exists() {
        return println!("SKIP: this machine has a driver");
    }
    let (mut init, mut devices) = (null_mut(), -1);
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    unsafe {
        assert_eq!(gin_v11::init(&mut init, 0, None), 0);
        assert_eq!(gin_v11::devices::<GIN_V11>(&mut devices), 0);
        assert_eq!(devices, 0);
        assert_eq!(gin_v11::finalize(init), 0);
        assert_eq!(gin_v11::finalize(null_mut()), 0);
    }
}
