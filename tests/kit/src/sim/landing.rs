//! Ops under way: landing them when they are due, completing and canceling them.

use super::config::Breach;
use super::flight::{Cargo, Fate, Flight, Stage};
use super::state::{Event, Link, State};
use crosstie::base::units::Instant;
use crosstie::fabric::{DownCause, Head, LINE_BYTES, OpError, OpErrorKind, RemoteSpan};
use crosstie::provider::touch;

/// Work-completion status of a receiver that was not ready (IBV_WC_RNR_RETRY_EXC_ERR).
const RECEIVER_NOT_READY: i32 = 13;
/// Code of errors that were drawn, so that a test tells them from others.
const DRAWN: i32 = 9999;

type Landed = Result<(), OpError>;

const fn error<T>(kind: OpErrorKind, code: i32) -> Result<T, OpError> {
    Err(OpError { kind, code })
}

impl State<'_> {
    /// Lands what is due, the earliest first, until the budget is spent.
    pub(super) fn run(&mut self, mut budget: u64, now: Instant) {
        while let Some(index) = self.next_due(now) {
            let spent = match self.flights[index].stage {
                Stage::Late => {
                    self.complete(index);
                    0
                }
                _ if budget == 0 => return,
                _ => self.step(index, budget, now),
            };
            budget = budget.saturating_sub(spent);
        }
    }

    fn next_due(&self, now: Instant) -> Option<usize> {
        let busy = |flight: &Flight| {
            flight.stage != Stage::Free && flight.due <= now.0 && !self.is_held(flight)
        };
        let due = self.flights.iter().enumerate().filter(|(_, flight)| busy(flight));
        due.min_by_key(|(_, flight)| (flight.due, flight.serial)).map(|(index, _)| index)
    }

    /// Whether a flight goes no further, although no rail may keep it.
    fn is_held(&self, flight: &Flight) -> bool {
        match self.breach {
            Breach::None | Breach::Lines => false,
            Breach::Fences => matches!(flight.cargo, Cargo::Fence { .. }),
            // a ghost has left its rail
            Breach::Writes => {
                flight.stage == Stage::Moving && matches!(flight.cargo, Cargo::Copy { .. })
            }
        }
    }

    /// Moves a flight on by at most `budget` bytes, or lands it. Returns the bytes moved.
    fn step(&mut self, index: usize, budget: u64, now: Instant) -> u64 {
        let flight = self.flights[index];
        if flight.fate == Fate::Lost {
            self.land(index, error(OpErrorKind::Fabric, DRAWN), now);
            return 0;
        }
        let end = flight.end as usize;
        let (spent, landed) = match flight.cargo {
            Cargo::Copy { .. } => return self.step_copy(index, budget, now),
            Cargo::Line { target, line, imm } => (64, self.land_line(end, target, &line, imm, now)),
            Cargo::Add { target, value } => (8, self.land_add(target, value)),
            Cargo::Send { head, from, length } => {
                (length.into(), self.land_send(end, &head, from, length, now))
            }
            Cargo::Fence { generation } => {
                self.fence_end(index, generation, now);
                return 0;
            }
            Cargo::Bad => (0, error(OpErrorKind::Key, 0)),
        };
        self.land(index, landed, now);
        spent
    }

    fn step_copy(&mut self, index: usize, budget: u64, now: Instant) -> u64 {
        let flight = &mut self.flights[index];
        let end = flight.end as usize;
        let Cargo::Copy { from, to, left, key, far, imm, read } = &mut flight.cargo else {
            return 0;
        };
        let (imm, read) = (*imm, *read);
        if *left > 0 && self.domain.find(*key, *far, *left).is_none() {
            self.land(index, error(OpErrorKind::Key, 0), now);
            return 0;
        }
        let part = budget.min(*left);
        // SAFETY: our own region is pinned, the far one was found registered just above.
        unsafe { touch::copy(*from, *to, part) };
        (*from, *to, *far, *left) = (*from + part, *to + part, *far + part, *left - part);
        self.counts.bytes += part;
        if *left == 0 {
            *(if read { &mut self.counts.reads } else { &mut self.counts.writes }) += 1;
            let ghost = flight.stage == Stage::Ghost;
            let landed = if ghost { Ok(()) } else { self.announce(end, imm, now) };
            self.land(index, landed, now);
        }
        part
    }

    fn land_line(
        &mut self,
        end: usize,
        target: RemoteSpan,
        line: &[u8; LINE_BYTES],
        imm: u64,
        now: Instant,
    ) -> Landed {
        if self.domain.find(target.key, target.address, LINE_BYTES as u64).is_none() {
            return error(OpErrorKind::Key, 0);
        }
        if self.breach == Breach::Lines {
            return Ok(());
        }
        // SAFETY: the range was found registered just above.
        unsafe { touch::copy_out(line, target.address) };
        self.counts.bytes += LINE_BYTES as u64;
        self.counts.writes += 1;
        if self.ends[end].link == Link::Open { self.announce(end, imm, now) } else { Ok(()) }
    }

    fn land_add(&mut self, target: RemoteSpan, value: u64) -> Landed {
        if self.domain.find(target.key, target.address, 8).is_none() {
            return error(OpErrorKind::Key, 0);
        }
        // SAFETY: registered as found just above, aligned as checked at post.
        unsafe { touch::add(target.address, value) };
        self.counts.adds += 1;
        Ok(())
    }

    fn land_send(
        &mut self,
        end: usize,
        head: &Head,
        from: u64,
        length: u32,
        now: Instant,
    ) -> Landed {
        let Some((to, slot)) = self.slot_take_at_partner(end) else {
            return self.violated(end, now);
        };
        self.slot_fill(to, slot, head, from, length);
        self.counts.sends += 1;
        self.event_push(to, Event::Received { end: to as u32, slot });
        Ok(())
    }

    /// Reports the immediate of a write, which takes a receive until it is polled.
    fn announce(&mut self, end: usize, imm: u64, now: Instant) -> Landed {
        if imm == 0 {
            return Ok(());
        }
        let Some((to, slot)) = self.slot_take_at_partner(end) else {
            return self.violated(end, now);
        };
        self.event_push(to, Event::Immediate { end: to as u32, slot, immediate: imm as u32 });
        Ok(())
    }

    fn violated(&mut self, end: usize, now: Instant) -> Landed {
        self.counts.violations += 1;
        self.link_break(end, DownCause::Failed, now);
        error(OpErrorKind::Fabric, RECEIVER_NOT_READY)
    }

    /// A flight has landed, well or badly: completes it now or late.
    fn land(&mut self, index: usize, landed: Landed, now: Instant) {
        let flight = &mut self.flights[index];
        match flight.stage {
            Stage::Free | Stage::Late => return,
            Stage::Ghost => return self.vanish(index),
            Stage::Moving => {}
        }
        let unacknowledged = flight.fate == Fate::Unacknowledged;
        let drawn = OpError { kind: OpErrorKind::Fabric, code: DRAWN };
        let failure = landed.err().or(unacknowledged.then_some(drawn));
        if let Some(failure) = failure {
            self.counts.key_errors += u64::from(failure.kind == OpErrorKind::Key);
            (flight.failed, flight.error, flight.code) = (true, failure.kind, failure.code);
        }
        if self.random.chance(self.config.faults.late_completion) {
            self.counts.late_completions += 1;
            let late = 1 + self.random.below(4 * self.config.delay_max.0 + 1);
            let flight = &mut self.flights[index];
            (flight.stage, flight.due) = (Stage::Late, now.0 + late);
            return;
        }
        self.complete(index);
    }

    fn complete(&mut self, index: usize) {
        let Flight { end, id, failed, error: kind, code, .. } = self.flights[index];
        let event =
            if failed { Event::Failed { end, id, kind, code } } else { Event::Ended { end, id } };
        self.vanish(index);
        self.event_push(end as usize, event);
    }

    /// Frees a flight and its hold on our own region.
    pub(super) fn vanish(&mut self, index: usize) {
        let flight = &mut self.flights[index];
        flight.stage = Stage::Free;
        if flight.pin != 0 {
            self.domain.pin(flight.pin - 1, -1);
            flight.pin = 0;
        }
    }

    /// Ends all ops of an end with an error; fences under way go on. Some of the writes may land
    /// nevertheless, if ghosts are wanted.
    pub(super) fn cancel(&mut self, end: usize, kind: OpErrorKind, ghosts: bool, now: Instant) {
        for index in 0..self.flights.len() {
            let flight = self.flights[index];
            let fence = matches!(flight.cargo, Cargo::Fence { .. });
            let ours = flight.end as usize == end && !fence;
            if !ours || !matches!(flight.stage, Stage::Moving | Stage::Late) {
                continue;
            }
            let end_number = end as u32;
            self.event_push(end, Event::Failed { end: end_number, id: flight.id, kind, code: 0 });
            if ghosts && self.becomes_ghost(&flight) {
                let late = self.random.below(4 * self.config.delay_max.0 + 1);
                let flight = &mut self.flights[index];
                (flight.stage, flight.due) = (Stage::Ghost, now.0.max(flight.due) + late);
            } else {
                self.vanish(index);
            }
        }
    }

    fn becomes_ghost(&mut self, flight: &Flight) -> bool {
        let lands = matches!(flight.cargo, Cargo::Copy { .. } | Cargo::Line { .. });
        let moving = flight.stage == Stage::Moving && flight.fate != Fate::Lost;
        let ghost = lands && moving && self.random.chance(self.config.faults.ghost);
        self.counts.ghosts += u64::from(ghost);
        ghost
    }

    /// Stops the ghosts of an end.
    pub(super) fn exorcise(&mut self, end: usize) {
        for index in 0..self.flights.len() {
            let flight = &self.flights[index];
            if flight.stage == Stage::Ghost && flight.end as usize == end {
                self.vanish(index);
            }
        }
    }
}
