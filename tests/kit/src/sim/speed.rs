//! How fast ends of connections carry what was posted.
#![forbid(unsafe_code)]

use super::flight::{Cargo, Stage};
use super::state::State;
use crosstie::base::units::{Instant, Span};
use crosstie::fabric::{HEAD_BYTES, LINE_BYTES};

const SECOND_NS: u128 = 1_000_000_000;

impl Cargo {
    /// Bytes that the end carries. What a read brings counts as if it went the other way.
    pub(super) const fn bytes(&self) -> u64 {
        match self {
            Cargo::Copy { left, .. } => *left,
            Cargo::Line { .. } => LINE_BYTES as u64,
            Cargo::Add { .. } => size_of::<u64>() as u64,
            Cargo::Send { length, .. } => HEAD_BYTES as u64 + *length as u64,
            Cargo::Fence { .. } | Cargo::Bad => 0,
        }
    }
}

impl State<'_> {
    /// An end takes so many bytes more; says when the last of them will have left.
    pub(super) fn carry(&mut self, end: usize, bytes: u64, now: Instant) -> Instant {
        let end = &mut self.ends[end];
        if end.speed == 0 || bytes == 0 {
            return now;
        }
        let taken = u128::from(bytes) * SECOND_NS / u128::from(end.speed);
        end.free_at = Instant(end.free_at.max(now.0)).after(Span(taken as u64)).0;
        Instant(end.free_at)
    }

    /// Changes the speed of an end, also for what has not left it.
    pub(super) fn speed_set(&mut self, end: usize, speed: u64, now: Instant) {
        let old = core::mem::replace(&mut self.ends[end].speed, speed);
        let again = |left_at: u64| {
            let wait = u128::from(left_at.saturating_sub(now.0)) * u128::from(old);
            let wait = wait.checked_div(u128::from(speed)).unwrap_or(0);
            now.after(Span(wait as u64)).0
        };
        let (mut last_due, mut serial) = (0, 0);
        while let Some(index) = self.moving_after(end, serial) {
            let flight = &mut self.flights[index];
            if flight.left_at > now.0 {
                let left_at = again(flight.left_at);
                flight.due = flight.due - flight.left_at + left_at;
                flight.left_at = left_at;
            }
            if self.config.ordered {
                flight.due = flight.due.max(last_due);
            }
            (last_due, serial) = (flight.due, flight.serial);
        }
        let end = &mut self.ends[end];
        end.last_due = last_due;
        if end.free_at > now.0 {
            end.free_at = again(end.free_at);
        }
    }

    /// The oldest flight of an end that was posted after another and has not landed.
    fn moving_after(&self, end: usize, serial: u64) -> Option<usize> {
        let flights = self.flights.iter().enumerate().filter(|(_, flight)| {
            let ours = flight.end as usize == end && flight.stage == Stage::Moving;
            ours && flight.serial > serial
        });
        flights.min_by_key(|(_, flight)| flight.serial).map(|(index, _)| index)
    }

    /// When the next flight is due.
    pub(super) fn next_time(&self) -> Option<Instant> {
        let busy = self.flights.iter().filter(|flight| flight.stage != Stage::Free);
        busy.map(|flight| Instant(flight.due)).min()
    }
}
