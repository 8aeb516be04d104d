//! Every way in which up to four rails can answer a flush.

use super::*;
use std::vec;
use std::vec::Vec;

/// Rails of a flush; fewer where each step is interpreted, since the code has no unsafe part.
const RAILS: usize = if cfg!(miri) { 2 } else { 4 };
/// How often a rail says Again before it takes its read: 0 to 2 times.
const AGAINS: usize = 3;
const GENERATION: RailGeneration = RailGeneration(5);
const OLDER: RailGeneration = RailGeneration(4);

/// What a rail does with its read once it has room.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Answer {
    Done,
    Pending,
    /// Taken, and ends with an error.
    Fails,
    Refuses,
}

const ANSWERS: [Answer; 4] = [Answer::Done, Answer::Pending, Answer::Fails, Answer::Refuses];

/// A rail as a test sees it.
#[derive(Copy, Clone, Debug)]
struct Rail {
    agains: usize,
    answer: Answer,
    asked: usize,
    taken: bool,
}

impl Rail {
    fn post(&mut self) -> Result<Posted, PostError> {
        assert!(!self.taken, "a rail was asked for a read that it has");
        self.asked += 1;
        if self.asked <= self.agains {
            return Err(PostError::Again);
        }
        self.taken = true;
        match self.answer {
            Answer::Done => Ok(Posted::Done),
            Answer::Pending | Answer::Fails => Ok(Posted::Pending),
            Answer::Refuses => Err(PostError::PeerDown),
        }
    }

    fn is_unsettled(&self) -> bool {
        self.taken && matches!(self.answer, Answer::Fails | Answer::Refuses)
    }
}

fn begin(count: usize) -> Flush {
    Flush::begin(((1u16 << count) - 1) as Rails, [GENERATION; RAILS_MAX])
}

/// All sequences of `count` numbers below `base`.
fn every(count: usize, base: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..base.pow(count as u32))
        .map(move |number| (0..count).map(|place| number / base.pow(place as u32) % base).collect())
}

/// Calls `run` with the rails of every count, pattern of Again and pattern of answers.
fn every_pattern(answers: usize, mut run: impl FnMut(&mut [Rail])) {
    for count in 1..=RAILS {
        for agains in every(count, AGAINS) {
            for chosen in every(count, answers) {
                let rail = |(agains, answer): (&usize, &usize)| Rail {
                    agains: *agains,
                    answer: ANSWERS[*answer],
                    asked: 0,
                    taken: false,
                };
                let mut rails: Vec<Rail> = agains.iter().zip(&chosen).map(rail).collect();
                run(&mut rails);
            }
        }
    }
}

fn step(flush: &mut Flush, rails: &mut [Rail]) -> bool {
    flush.step(|rail| rails[usize::from(rail)].post())
}

/// The bits of the rails for which something holds.
fn bits(rails: &[Rail], holds: impl Fn(&Rail) -> bool) -> Rails {
    rails.iter().enumerate().fold(0, |bits, (n, rail)| bits | (holds(rail) as Rails) << n)
}

#[test]
fn again_on_some_rails_goes_on_exactly_there() {
    every_pattern(2, |rails| {
        let mut flush = begin(rails.len());
        let most = rails.iter().map(|rail| rail.agains).max().unwrap();
        for call in 0..=most {
            let due = flush.due();
            assert_eq!(due, bits(rails, |rail| !rail.taken));
            let asked: Vec<usize> = rails.iter().map(|rail| rail.asked).collect();
            assert_eq!(step(&mut flush, rails), call < most);
            for (n, rail) in rails.iter().enumerate() {
                let once = usize::from(due >> n & 1 == 1);
                assert_eq!(rail.asked, asked[n] + once, "each rail that is due, once per step");
            }
            assert_eq!(flush.posted(), bits(rails, |rail| rail.taken));
            assert_eq!(flush.done(), bits(rails, |rail| rail.taken && rail.answer == Answer::Done));
        }
        let flying = bits(rails, |rail| rail.answer == Answer::Pending);
        assert_eq!((flush.flying(), flush.unsettled()), (flying, 0));
        assert_eq!(flush.end().is_some(), flying == 0);
    });
}

/// Completions in every order, between steps: the flush ends with the last of them and no earlier.
#[test]
fn flush_ends_with_its_last_read_in_whatever_order() {
    for agains in every(RAILS, AGAINS) {
        for order in every(RAILS, RAILS) {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..RAILS) {
                continue; // no permutation
            }
            let rail = |agains: &usize| Rail {
                agains: *agains,
                answer: Answer::Pending,
                asked: 0,
                taken: false,
            };
            let mut rails: Vec<Rail> = agains.iter().map(rail).collect();
            let mut flush = begin(RAILS);
            let mut left = order;
            while !left.is_empty() {
                assert_eq!(flush.end(), None);
                step(&mut flush, &mut rails);
                // the first in the order that has its read completes
                if let Some(at) = left.iter().position(|rail| rails[*rail].taken) {
                    flush.completed(left.remove(at) as u8, true);
                }
            }
            assert_eq!(flush.end(), Some(FlushEnd::Visible));
        }
    }
}

/// Every pattern of Again with every pattern of ends: what failed or was refused is settled by a
/// fence of its rail, and by nothing else.
#[test]
fn unsettled_flush_is_settled_by_a_fence() {
    every_pattern(ANSWERS.len(), |rails| {
        let mut flush = begin(rails.len());
        while step(&mut flush, rails) {}
        for (n, rail) in rails.iter().enumerate() {
            match rail.answer {
                Answer::Pending => flush.completed(n as u8, true),
                Answer::Fails => flush.completed(n as u8, false),
                Answer::Done | Answer::Refuses => {}
            }
        }
        let unsettled = bits(rails, Rail::is_unsettled);
        assert_eq!(flush.unsettled(), unsettled);
        assert_eq!(flush.end().is_some(), unsettled == 0);
        for n in 0..rails.len() {
            let before = flush;
            flush.fenced(n as u8, OLDER);
            flush.completed(n as u8, unsettled >> n & 1 == 0);
            assert_eq!(flush, before, "an older fence and a late word say nothing");
        }
        let mut settled = bits(rails, |rail| !rail.is_unsettled());
        for n in (0..rails.len()).rev().filter(|n| unsettled >> n & 1 == 1) {
            assert_eq!(flush.end(), None);
            flush.fenced(n as u8, GENERATION);
            settled |= 1 << n;
            assert_eq!(flush.done(), settled);
        }
        assert_eq!(flush.end(), Some(FlushEnd::Visible));
        assert!(!step(&mut flush, rails), "nothing is posted again");
    });
}

/// The same where no fence comes in time: the flush ends, and its memory stays taken by the reads
/// that were posted until their fences hold after all.
#[test]
fn flush_without_its_fence_ends_unfenced_and_keeps_its_memory() {
    every_pattern(ANSWERS.len(), |rails| {
        let mut flush = begin(rails.len());
        while step(&mut flush, rails) {}
        for (n, rail) in rails.iter().enumerate() {
            flush.completed(n as u8, rail.answer == Answer::Pending);
        }
        flush.give_up();
        let unsettled = bits(rails, Rail::is_unsettled);
        let expected = if unsettled == 0 { FlushEnd::Visible } else { FlushEnd::Unfenced };
        assert_eq!(flush.end(), Some(expected));
        assert_eq!(flush.flying(), bits(rails, |rail| rail.answer == Answer::Fails));
        for n in 0..rails.len() {
            flush.fenced(n as u8, RailGeneration(6));
        }
        assert_eq!((flush.end(), flush.flying()), (Some(expected), 0));
    });
}

/// A rail that dies while its read is due or flying: at each point of every pattern of Again.
#[test]
fn rail_that_dies_at_any_step_wants_its_fence() {
    for count in 1..=RAILS {
        for agains in every(count, AGAINS) {
            for (steps, dead) in (0..AGAINS).flat_map(|s| (0..count).map(move |d| (s, d))) {
                let rail = |agains: &usize| Rail {
                    agains: *agains,
                    answer: Answer::Pending,
                    asked: 0,
                    taken: false,
                };
                let mut rails: Vec<Rail> = agains.iter().map(rail).collect();
                let mut flush = begin(count);
                for _ in 0..steps {
                    step(&mut flush, &mut rails);
                }
                flush.failed(dead as u8);
                let asked = rails[dead].asked;
                while step(&mut flush, &mut rails) {}
                assert_eq!(rails[dead].asked, asked, "a dead rail is asked for nothing");
                for n in 0..count {
                    flush.completed(n as u8, true);
                }
                assert_eq!(flush.unsettled(), 1 << dead, "a good end behind a failure is none");
                assert_eq!(flush.end(), None);
                flush.fenced(dead as u8, GENERATION);
                assert_eq!(flush.end(), Some(FlushEnd::Visible));
            }
        }
    }
}

#[test]
fn flush_of_no_rails_has_ended() {
    let mut flush = Flush::begin(0, [GENERATION; RAILS_MAX]);
    assert_eq!(flush.end(), Some(FlushEnd::Visible));
    let mut asked = vec![];
    assert!(!flush.step(|rail| {
        asked.push(rail);
        Ok(Posted::Done)
    }));
    assert_eq!(asked, []);
    flush.fenced(0, GENERATION);
    flush.failed(3);
    flush.give_up();
    assert_eq!(flush.end(), Some(FlushEnd::Visible), "other rails are none of its business");
}
