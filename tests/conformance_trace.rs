//! A traced provider behaves as it does without a trace, and the trace tells what it did.

mod common;

use common::OverLoopback;
use crosstie::base::carve::bytes_for;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::Provider;
use crosstie::provider::loopback::Loopback;
use crosstie_kit::trace::{Trace, TraceEvent, TraceKind, TraceResult, TraceRing};

const CELLS: usize = 64;

fn ring() -> TraceRing<'static> {
    let mut carver = common::carver(bytes_for::<TraceEvent>(CELLS));
    TraceRing::new(carver.slice(CELLS).unwrap())
}

impl OverLoopback for Trace<Loopback<'static>, TraceRing<'static>> {
    fn loopback(&mut self) -> &mut Loopback<'static> {
        self.inner_mut()
    }
}

#[test]
fn traced_provider_keeps_every_promise() {
    // a loopback detaches no peers
    common::run_all(|| common::over_loopback(|rail| Trace::new(rail, ring())), 2);
}

#[test]
fn trace_holds_post_and_arrival() {
    let mut rail = Trace::new(common::loopback(), ring());
    let mut out = [common::NOTHING; 4];
    rail.post(&common::empty_send(common::PEERS[0], 5), Instant(7)).unwrap();
    assert_eq!(rail.poll(&mut out, Bytes(0), Instant(8)), 1);
    let mut events = rail.sink().events();
    let sent = events.next().unwrap();
    assert_eq!((sent.at, sent.id, sent.kind), (Instant(7), 5, TraceKind::Send));
    let received = events.next().unwrap();
    assert_eq!((received.peer, received.kind), (common::PEERS[1], TraceKind::Received));
    assert_eq!(received.result, TraceResult::Ok);
    assert_eq!(rail.sink().count(TraceKind::Received), 1);
}
