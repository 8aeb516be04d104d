//! Two ends on one processor, where a thread runs only while the other has given it up. The calls
//! that give it up are this program's own: they run the other end, and nothing else ever does.

#[path = "common/shm_pair.rs"]
#[allow(dead_code)]
mod shm_pair;

use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::*;
use crosstie::provider::shm::Shm;
use shm_pair::{PairConfig, PairMemory};
use std::cell::{Cell, RefCell};

const PEER: PeerIndex = PeerIndex(0);
const NOTHING: Completion = Completion::PeerDown { peer: PEER, cause: DownCause::Closed };
/// Empty polls in a row after which an end must have given the processor up.
const SPIN_MAX: u32 = 4096;

thread_local! {
    /// What the other end does while it has the processor.
    static OTHER: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    /// How often this thread has given it up.
    static GIVEN_UP: Cell<u32> = const { Cell::new(0) };
}

fn give_up() -> i32 {
    GIVEN_UP.set(GIVEN_UP.get() + 1);
    // the other end runs until it gives the processor up in its turn, which finds it taken out
    let other = OTHER.take();
    if let Some(mut other) = other {
        let before = GIVEN_UP.get();
        while GIVEN_UP.get() == before {
            other();
        }
        OTHER.set(Some(other));
    }
    0
}

/// In the place of the C library's.
#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> i32 {
    give_up()
}

/// As above: of who sleeps the processor is free, too.
#[unsafe(no_mangle)]
extern "C" fn nanosleep(_: *const libc::timespec, _: *mut libc::timespec) -> i32 {
    give_up()
}

fn poll(shm: &mut Shm) -> Option<Completion> {
    let mut out = [NOTHING];
    (shm.poll(&mut out, Bytes::kib(256), Instant(0)) == 1).then_some(out[0])
}

fn register(shm: &Shm, bytes: &mut [u8]) -> RailKey {
    let (address, length) = (bytes.as_mut_ptr() as u64, Bytes::of(bytes.len()));
    // SAFETY: the tests keep their buffers longer than their providers.
    unsafe { shm.domain().register(Region { address, length, kind: MemoryKind::Host }) }.unwrap()
}

/// Each kept its processor until the scheduler took it, once for every ring of 64 KiB.
#[test]
fn ends_of_one_processor_move_a_long_message_in_two_copies() {
    let mut source: Vec<u8> = (0..1 << 20).map(|byte: u32| (byte >> 3) as u8).collect();
    let mut target = vec![0; source.len()];
    let config = PairConfig { kernel_copy: false, heaps: false, ..PairConfig::default() };
    let memory = Box::leak(Box::new(PairMemory::new(config)));
    let [mut reader, mut owner] = memory.open();
    let (to, from) = (register(&reader, &mut target), register(&owner, &mut source));
    OTHER.set(Some(Box::new(move || {
        poll(&mut owner);
    })));
    // SAFETY: `target` outlives the providers' use of it.
    let target_span =
        unsafe { LocalSpan::new(target.as_mut_ptr() as u64, Bytes::of(target.len()), to) };
    let source_span = RemoteSpan { key: from, address: source.as_ptr() as u64 };
    let kind = OpKind::Read { target: target_span, source: source_span };
    reader.post(&Op { id: OpId(1), peer: PEER, kind }, Instant(0)).unwrap();
    let mut spun = 0;
    let done = loop {
        let before = GIVEN_UP.get();
        if let Some(completion) = poll(&mut reader) {
            break completion;
        }
        spun = if GIVEN_UP.get() == before { spun + 1 } else { 0 };
        assert!(spun < SPIN_MAX, "a waiting end keeps its processor");
    };
    assert!(matches!(done, Completion::Done { result: Ok(()), .. }), "{done:?}");
    assert_eq!(reader.pulled(PEER).unwrap().ring_bytes, source.len() as u64);
    assert!(source == target);
    drop(OTHER.take());
}

/// A message waited for one more offer than there were messages otherwise.
#[test]
fn end_that_finds_something_now_and_then_keeps_its_processor() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut sender, mut receiver] = memory.open();
    for _ in 0..1000 {
        let kind = OpKind::Send { head: [7; HEAD_BYTES], payload: LocalSpan::EMPTY };
        sender.post(&Op { id: OpId(1), peer: PEER, kind }, Instant(0)).unwrap();
        for _ in 0..8 {
            if let Some(Completion::Received { slot, .. }) = poll(&mut receiver) {
                receiver.received_release(PEER, slot);
            }
        }
        poll(&mut sender);
    }
    assert_eq!(GIVEN_UP.get(), 0);
}
