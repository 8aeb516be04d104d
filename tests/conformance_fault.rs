//! A provider behind the fault injector still keeps the contract.

mod common;

use common::OverLoopback;
use crosstie::base::units::Span;
use crosstie::fabric::Provider;
use crosstie::provider::loopback::Loopback;
use crosstie_kit::conformance::{Outcome, entries};
use crosstie_kit::fault::{Fault, Rates};
use crosstie_kit::random::CERTAIN;

const DELAY_MAX: Span = Span::micros(20);
const MILD: Rates = Rates { again: CERTAIN / 4, delay: CERTAIN / 2, error: 0, death: 0 };

type Faulty = Fault<Loopback<'static>, 16>;

impl OverLoopback for Faulty {
    fn loopback(&mut self) -> &mut Loopback<'static> {
        self.inner_mut()
    }
}

fn pair(rates: Rates, seed: u64) -> common::Pair<Faulty> {
    common::over_loopback(|rail| Fault::new(rail, seed, rates, DELAY_MAX))
}

#[test]
fn delays_and_agains_keep_every_promise() {
    for seed in 0..8 {
        println!("seed {seed}");
        common::run_all(move || pair(MILD, seed), 2); // as over a loopback
    }
}

#[test]
fn injected_errors_leave_each_op_with_one_completion() {
    let rates = Rates { error: CERTAIN / 4, ..MILD };
    let tried = ["accepted_op_completes_once", "death_completes_everything"];
    for entry in entries().iter().filter(|entry| tried.contains(&entry.name)) {
        let mut rig = common::PairRig::new(std::rc::Rc::new(move || pair(rates, 3)));
        assert_eq!((entry.run)(&mut rig), Ok(Outcome::Passed));
    }
}

#[test]
fn injected_death_takes_nothing_and_is_reported() {
    let mut pair = pair(Rates { death: CERTAIN, ..Rates::default() }, 1);
    let send = common::empty_send(pair.peers[0], 1);
    let now = crosstie::base::units::Instant(0);
    let rail = &mut pair.providers[0];
    assert_eq!(rail.post(&send, now), Err(crosstie::fabric::PostError::PeerDown));
    assert_eq!(rail.counts().deaths, 1);
    let mut out = [common::NOTHING; 4];
    assert_eq!(rail.poll(&mut out, crosstie::base::units::Bytes(0), now), 2);
}
