//! Windows of an RMA communicator over the strict fabric, in both scopes of registration: memory of
//! a domain, and memory that is bound to endpoints (`FI_MR_ENDPOINT`). The fabric ends the program
//! where memory is used by an endpoint that it was not bound to.
#![allow(dead_code)] // of the shared parts

mod host_support;
mod libfabric_support;

use crosstie::base::units::Span;
use crosstie::fabric::MemoryKind;
use crosstie::host::rma::{Comm, Listener, Memory, Opening, Side, Signal, Target, listener};
use crosstie::host::{DeviceKind, MemoryOptions, Options};
use crosstie::transport::Limits;
use host_support::pair::alone;
use libfabric_support::wait::wait_until;
use libfabric_support::{Layout, counts, strict, strict_environment};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of domains, by its address and by an offset; memory of endpoints, with keys of 8 and of
/// 4 bytes.
const SCOPES: [(&str, bool); 3] =
    [("strict-domain", false), ("strict", true), ("strict-short", true)];
const RANKS: usize = 2;
const BYTES: usize = 1 << 20;

/// All ranks come here; where one has failed, the others do.
#[derive(Default)]
struct Meeting(AtomicU64);

impl Meeting {
    fn wait(&self) {
        let round = self.0.fetch_add(1, Ordering::AcqRel) / RANKS as u64 + 1;
        let come = round * RANKS as u64;
        wait_until("another rank", || self.0.load(Ordering::Acquire) >= come);
    }
}

/// Memory of a rank that stays, and ends with a word.
fn memory() -> &'static [AtomicU64] {
    Box::leak((0..BYTES / 8 + 1).map(|_| AtomicU64::new(0)).collect())
}

fn value(rank: usize, round: usize, at: usize) -> u64 {
    (rank as u64) << 48 | (round as u64) << 32 | at as u64
}

fn register(comm: &Comm, memory: &[AtomicU64]) -> Memory {
    let place = (memory.as_ptr() as u64, size_of_val(memory) as u64);
    let (kind, dmabuf) = (MemoryKind::Host, None);
    let options = MemoryOptions { kind, device: None, dmabuf };
    // SAFETY: the memory stays for ever, and peers may write to it.
    unsafe { comm.register(place, &options) }.expect("a window")
}

/// Long puts with signals, and gets, between windows that come and go.
fn story(comm: &Comm, rank: usize, meet: &dyn Fn()) {
    let peer = (rank + 1) % RANKS;
    let target = |rank: usize| Target { list: 0, context: 0, rank: rank as u32 };
    let wait = |request: u64| {
        wait_until("the end of a request", || comm.test(request).expect("a test"));
    };
    for round in 0..3 {
        let (source, window) = (memory(), memory());
        let names = [source, window].map(|memory| register(comm, memory));
        for (at, word) in source[..BYTES / 8].iter().enumerate() {
            word.store(value(rank, round, at), Ordering::Relaxed);
        }
        let side = |which: usize| Side { memory: names[which], offset: 0 };
        let signal = Signal { at: Side { memory: names[1], offset: BYTES as u64 }, value: 3 };
        let put = comm.put(target(peer), BYTES as u64, (side(0), side(1)), Some(signal));
        wait(put.expect("a put"));
        wait_until("the peer's signal", || window[BYTES / 8].load(Ordering::Acquire) == 3);
        let is_of = |memory: &[AtomicU64], owner: usize| {
            let words = memory[..BYTES / 8].iter().enumerate();
            words.fold(true, |all, (at, word)| {
                all & (word.load(Ordering::Relaxed) == value(owner, round, at))
            })
        };
        assert!(is_of(window, peer), "bytes of a put");
        meet();
        // its own bytes come back from the peer's window
        source.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let get = comm.get(target(peer), BYTES as u64, (side(1), side(0)));
        wait(get.expect("a get"));
        assert!(is_of(source, rank), "bytes of a get");
        meet();
        names.into_iter().for_each(|name| comm.deregister(name).expect("its end"));
    }
}

/// Plays it over a provider; how many registrations the fabric had with windows, and after them.
fn play(provider: &str) {
    let Some(library) = strict(Layout::One) else { return };
    let _alone = alone();
    for (name, value) in strict_environment(library, provider) {
        host_support::set(name, value);
    }
    host_support::set("CROSSTIE_RAILS_REQUIRED", "libfabric");
    let before = counts(library);
    let options = listener::options(Options {
        device: DeviceKind::Host,
        limits: Limits { rails_max: 2, ..Limits::default() },
        variables: host_support::variables(),
        ..Options::default()
    });
    let (barrier, handles) = (Meeting::default(), Mutex::new(vec![[0; 128]; RANKS]));
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (barrier, handles, options) = (&barrier, &handles, &options);
            scope.spawn(move || {
                let listens = Listener::open(options).expect("a listener");
                handles.lock().unwrap()[rank] = *listens.handle();
                barrier.wait();
                let all = handles.lock().unwrap().clone();
                let timeout = Span::millis(30_000);
                let opening = Opening { handles: &all, rank, contexts: 1, timeout };
                let comm = Comm::connect(&listens, &opening).expect("the ranks come together");
                barrier.wait();
                let without = counts(library)[1];
                barrier.wait();
                let window = register(&comm, memory());
                barrier.wait();
                assert!(counts(library)[1] > without, "{provider} knows the window");
                comm.deregister(window).expect("its end");
                story(&comm, rank, &|| barrier.wait());
                barrier.wait();
            });
        }
    });
    assert!(counts(library)[0] > before[0]);
    assert_eq!(counts(library)[1], before[1], "{provider}: all that was registered has gone");
}

#[test]
fn windows_are_registered_in_the_scope_that_the_fabric_has() {
    for (provider, is_bound) in SCOPES {
        play(provider);
        println!(
            "{provider}: memory is bound to {}",
            if is_bound { "endpoints" } else { "domains" }
        );
    }
}
