//! Each planted fault is found, by the model or by the simulator, in a search that finds nothing
//! where no fault is planted.

use std::time::Instant;

use crosstie::tool::sim::proof;
use crosstie::transport::mutant::Mutant;

use crate::check::{Depth, Failover};
use crate::plans;
use crate::world::Plan;

#[test]
fn table() {
    for mutant in Mutant::ALL {
        let plans: [&'static Plan; 3] = [&plans::STRIPES, &plans::STRIPES_LOCAL, &plans::GROUPS];
        for plan in plans {
            let start = Instant::now();
            let found = Failover { plan, mutant: Some(mutant) }.check(Depth::States(100_000));
            println!(
                "{mutant:?} {} {} states {:?}: {}",
                plan.name,
                found.states,
                start.elapsed(),
                found.wrong.map_or("-".into(), |w| w
                    .to_string()
                    .chars()
                    .take(700)
                    .collect::<String>())
            );
        }
        let start = Instant::now();
        let more = if mutant == Mutant::SequenceNarrow { 10_000 } else { 0 };
        let seed = (1..if more == 0 { 2000 } else { 40 }).find(|seed| {
            std::panic::catch_unwind(|| {
                proof::run(*seed, more, Some(mutant)).inspect_err(|e| println!("{e}")).is_err()
            })
            .unwrap_or(true)
        });
        println!("{mutant:?} sim {seed:?} {:?}", start.elapsed());
    }
}
