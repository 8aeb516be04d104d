//! Kernels' queues between two hosts over the strict fabric, in both scopes of registration: memory
//! of a domain, and memory that is bound to endpoints (`FI_MR_ENDPOINT`). The fabric ends the
//! program where memory is used by an endpoint that it was not bound to. A fake GPU writes the
//! queues, and windows are memory of the double's GPUs.
#![allow(dead_code)] // of the shared parts

mod cuda_support;
mod libfabric_support;

use crosstie::hca::entry::{Address, Segment, Work};
use crosstie::hca::fake_gpu::FakeQueue;
use crosstie::host::gin::{self, Comm, Config, Engine, Layout as Structures};
use crosstie::host::settings::environment;
use cuda_support::driver::{cuMemcpyDtoH_v2, cuMemcpyHtoD_v2};
use cuda_support::steps::{BLOCK, POSIX, create, map, ok, on};
use cuda_support::with_double;
use libfabric_support::wait::{WATCHDOG, wait_until};
use libfabric_support::{Layout, counts, strict, strict_environment};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

const RANKS: usize = 2;
const BYTES: usize = 1 << 20;
const ROUNDS: u64 = 3;

/// What lies at a device address.
fn read<const N: usize>(address: u64) -> [u8; N] {
    let mut bytes = [0; N];
    ok(cuMemcpyDtoH_v2(bytes.as_mut_ptr(), address, N));
    bytes
}

fn word(address: u64) -> u64 {
    u64::from_le_bytes(read(address))
}

fn half(address: u64) -> u32 {
    u32::from_le_bytes(read(address))
}

/// Words of host memory that device code reads.
fn words(address: u64, count: usize) -> &'static [AtomicU64] {
    // SAFETY: pinned memory of contexts that stand, touched as atomics alone.
    unsafe { std::slice::from_raw_parts(address as *const AtomicU64, count) }
}

/// The queue to a rank, as NCCL 2.30.7 finds it.
fn queue(context: u64, peer: u64) -> FakeQueue<'static> {
    let pair = word(context) + peer * 296;
    let depth = half(pair + 60) as usize & 0xffff;
    let [ring, doorbell, completions] = [64, 80, 160].map(|at| word(pair + at));
    let of = |at| words(at, depth * 8);
    FakeQueue::new(of(ring), of(completions), &words(doorbell, 1)[0], half(pair + 24))
}

fn whole(key: u32) -> [Segment; 2] {
    let at = Address { key, offset: 0 };
    [Segment { at, bytes: BYTES as u64 }, Segment::default()]
}

fn pattern(rank: usize, round: u64) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + at / 251 + rank * 7 + round as usize * 13) as u8).collect()
}

/// Long puts with signals, and gets, between windows that come and go.
fn story(comm: &Comm, rank: usize, meet: &dyn Fn(), open: &dyn Fn() -> usize) {
    let layout = Structures::Nccl30Gets;
    let config = Config { signals: 4, counters: 1, contexts: 1, depth: 64, layout };
    let (number, context) = comm.context(&config).expect("contexts");
    let peer = 1 - rank;
    let mut queue = queue(context, peer as u64);
    let arrived = &words(word(context + 40), 1)[0];
    let signal =
        Address { key: half(word(context + 48)), offset: 8 * u64::from(half(context + 60)) };
    let sink = Segment { at: Address { key: half(context + 64), offset: 0 }, bytes: 8 };
    let gpu = rank as i32;
    let [source, target] = [(); 2].map(|()| map(create(gpu, POSIX, BLOCK), gpu, BLOCK));
    meet();
    let without = open();
    meet();
    for round in 1..=ROUNDS {
        let windows = [source, target].map(|at| comm.register(at, BLOCK).expect("a window"));
        meet();
        assert!(open() > without, "the fabric knows the windows");
        let mine = pattern(rank, round);
        ok(cuMemcpyHtoD_v2(source, mine.as_ptr(), BYTES));
        let [from, to] = windows.map(|window| window.key);
        let remote = Address { key: to, offset: 0 };
        queue.write(&Work::Write { remote, local: whole(from) }, 0);
        let last = queue.post(&Work::FetchAdd { remote: signal, add: 1, local: sink });
        wait_until("a signal", || arrived.load(Ordering::Acquire) == round);
        let mut got = vec![0; BYTES];
        ok(cuMemcpyDtoH_v2(got.as_mut_ptr(), target, BYTES));
        assert!(got == pattern(peer, round), "bytes of a put");
        wait_until("a completion", || queue.poll(last) == Some(Ok(())));
        meet();
        // its own bytes come back from the peer's window
        ok(cuMemcpyHtoD_v2(source, vec![0; BYTES].as_ptr(), BYTES));
        let last = queue.post(&Work::Read { remote, local: whole(from) });
        wait_until("a get", || queue.poll(last) == Some(Ok(())));
        ok(cuMemcpyDtoH_v2(got.as_mut_ptr(), source, BYTES));
        assert!(got == mine, "bytes of a get");
        meet();
        windows.iter().for_each(|window| comm.deregister(window.key));
    }
    meet();
    assert!(!comm.has_failed(number));
    comm.context_end(number);
}

fn two_hosts(library: &CStr) {
    let before = counts(library);
    let (barrier, handles) = (Barrier::new(RANKS), Mutex::new(vec![[0; 128]; RANKS]));
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (barrier, handles) = (&barrier, &handles);
            scope.spawn(move || {
                on(rank as i32);
                let mut settings = environment();
                settings.node_id = Some(71 + rank as u64);
                let listener = gin::listen(&settings, false).expect("a listener");
                handles.lock().unwrap()[rank] = *listener.handle();
                barrier.wait();
                let all = handles.lock().unwrap().clone();
                let made = Comm::connect(&listener, &all, rank, Some(WATCHDOG));
                let comm = Arc::new(made.expect("the ranks come together"));
                let engine = Engine::start(&settings).expect("a thread");
                engine.add(comm.clone());
                let meet = || _ = barrier.wait();
                story(&comm, rank, &meet, &|| counts(library)[1]);
                meet();
                engine.remove(&comm);
                drop(engine);
                drop(comm);
            });
        }
    });
    assert!(counts(library)[0] > before[0]);
    assert_eq!(counts(library)[1], before[1], "all that was registered has gone");
}

fn over(test: &str, provider: &str) {
    let Some(library) = strict(Layout::One) else { return };
    let required = [("CROSSTIE_RAILS_REQUIRED", "libfabric")];
    let settings = [&strict_environment(library, provider)[..], &required].concat();
    with_double(test, &settings, || two_hosts(library));
}

#[test]
fn windows_are_bound_to_endpoints_where_the_fabric_wants_it() {
    over("windows_are_bound_to_endpoints_where_the_fabric_wants_it", "strict-gpus");
}

#[test]
fn windows_are_registered_once_where_the_fabric_takes_that() {
    over("windows_are_registered_once_where_the_fabric_takes_that", "strict-gpus-domain");
}
