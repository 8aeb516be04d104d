//! Ops under way: taking them, drawing their fate, and how fast ends carry them. How they land is
//! in [`super::landing`].

use super::TRANSFER_MAX;
use super::state::{Link, State};
use crosstie::base::carve::Zeroable;
use crosstie::base::units::{Instant, Span};
use crosstie::fabric::{
    DownCause, HEAD_BYTES, Head, LINE_BYTES, LocalSpan, Op, OpErrorKind, OpKind, PostError, Posted,
    RailKey, RemoteSpan, Source,
};
use crosstie::provider::touch;

const SECOND_NS: u128 = 1_000_000_000;

/// Where a flight is in its life.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub(super) enum Stage {
    Free,
    /// Lands when due.
    Moving,
    /// Has landed; completes when due.
    Late,
    /// Was reported as failed, and lands all the same.
    Ghost,
}

/// What was drawn for it at post.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub(super) enum Fate {
    Good,
    /// Fails without effect.
    Lost,
    /// Has its effect and fails.
    Unacknowledged,
}

/// One op under way.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub(super) struct Flight {
    pub(super) cargo: Cargo,
    pub(super) id: u64,
    pub(super) due: u64,
    /// When its last byte leaves.
    pub(super) left_at: u64,
    pub(super) serial: u64,
    /// The end that posted it.
    pub(super) end: u32,
    /// Table index plus one of our own region, which must stay; zero for none.
    pub(super) pin: u32,
    pub(super) stage: Stage,
    pub(super) fate: Fate,
    pub(super) failed: bool,
    pub(super) error: OpErrorKind,
    pub(super) code: i32,
}

/// What it does when it lands.
#[derive(Copy, Clone, Debug)]
#[repr(u32)]
pub(super) enum Cargo {
    Copy {
        from: u64,
        to: u64,
        left: u64,
        key: RailKey,
        far: u64,
        imm: u64,
        read: bool,
    },
    Line {
        target: RemoteSpan,
        line: [u8; LINE_BYTES],
        imm: u64,
    },
    Add {
        target: RemoteSpan,
        value: u64,
    },
    Send {
        head: Head,
        from: u64,
        length: u32,
    },
    Fence {
        generation: u32,
    },
    /// Our own key was wrong.
    Bad,
}

// SAFETY: integers, `bool`s and enums for which zero is a value.
unsafe impl Zeroable for Flight {}

impl Cargo {
    /// Bytes that the end carries. What a read brings counts as if it went the other way.
    const fn bytes(&self) -> u64 {
        match self {
            Cargo::Copy { left, .. } => *left,
            Cargo::Line { .. } => LINE_BYTES as u64,
            Cargo::Add { .. } => size_of::<u64>() as u64,
            Cargo::Send { length, .. } => HEAD_BYTES as u64 + *length as u64,
            Cargo::Fence { .. } | Cargo::Bad => 0,
        }
    }
}

const fn immediate_pack(immediate: Option<u32>) -> u64 {
    match immediate {
        Some(word) => 1 << 32 | word as u64,
        None => 0,
    }
}

impl State<'_> {
    /// Takes an op, or refuses it before anything has changed.
    pub(super) fn post(&mut self, port: u32, op: &Op, now: Instant) -> Result<Posted, PostError> {
        let end = self.end_open(port, op)?;
        self.check_caps(&op.kind)?;
        let chance = self.config.faults.again;
        if self.random.chance(chance) {
            self.counts.agains += 1;
            return Err(PostError::Again);
        }
        let full = self.ports[port as usize].inflight >= self.config.flights_max;
        let index = self.flights.iter().position(|flight| flight.stage == Stage::Free);
        let index = index.filter(|_| !full).ok_or(PostError::Again)?;
        let load = self.load(index, &op.kind);
        self.take_off(index, end, op.id.0, load, now);
        self.ends[end].inflight += 1;
        self.ports[port as usize].inflight += 1;
        self.counts.accepted += 1;
        self.maybe_die(end, now);
        Ok(Posted::Pending)
    }

    fn end_open(&self, port: u32, op: &Op) -> Result<usize, PostError> {
        let end = self.end(port, op.peer).ok_or(PostError::PeerDown)?;
        match (self.ends[end].link, &op.kind) {
            (Link::Open, _) => Ok(end),
            (Link::Down | Link::Fenced, OpKind::Fence { .. }) => Ok(end),
            (Link::Closed | Link::Down | Link::Fenced, _) => Err(PostError::PeerDown),
        }
    }

    fn check_caps(&self, kind: &OpKind) -> Result<(), PostError> {
        let config = &self.config;
        let allowed = match kind {
            OpKind::Send { payload, .. } => payload.length() <= config.payload_max,
            OpKind::Write { source, immediate, .. } => {
                let short = match source {
                    Source::Line(_) => true,
                    Source::Span(span) => span.length() <= TRANSFER_MAX,
                };
                short && (config.immediate || immediate.is_none())
            }
            OpKind::Read { target, .. } => config.pull && target.length() <= TRANSFER_MAX,
            OpKind::Add { target, .. } => target.address.is_multiple_of(8),
            OpKind::Fence { .. } => true,
        };
        if allowed { Ok(()) } else { Err(PostError::Unsupported) }
    }

    /// Turns an op into cargo, and pins our own region.
    fn load(&mut self, index: usize, kind: &OpKind) -> (Cargo, u32) {
        match *kind {
            OpKind::Send { head, payload } => self.load_send(index, head, payload),
            OpKind::Write { source: Source::Line(line), target, immediate } => {
                (Cargo::Line { target, line, imm: immediate_pack(immediate) }, 0)
            }
            OpKind::Write { source: Source::Span(source), target, immediate } => {
                let (from, to, left) = (source.address(), target.address, source.length().0);
                let (key, imm) = (target.key, immediate_pack(immediate));
                self.pinned(source, Cargo::Copy { from, to, left, key, far: to, imm, read: false })
            }
            OpKind::Read { target, source } => {
                let (from, to, left) = (source.address, target.address(), target.length().0);
                let key = source.key;
                self.pinned(
                    target,
                    Cargo::Copy { from, to, left, key, far: from, imm: 0, read: true },
                )
            }
            OpKind::Add { target, value } => (Cargo::Add { target, value }, 0),
            OpKind::Fence { generation } => (Cargo::Fence { generation: generation.0 }, 0),
        }
    }

    fn load_send(&mut self, index: usize, head: Head, payload: LocalSpan) -> (Cargo, u32) {
        let length = payload.length().0 as u32;
        if !self.config.copies_at_post {
            return self.pinned(payload, Cargo::Send { head, from: payload.address(), length });
        }
        let cell = self.flight_payload(index);
        // SAFETY: the span's maker vouches for it; the cell holds `payload_max` bytes of our block.
        unsafe { touch::copy(payload.address(), cell, length.into()) };
        (Cargo::Send { head, from: cell, length }, 0)
    }

    fn pinned(&mut self, local: LocalSpan, cargo: Cargo) -> (Cargo, u32) {
        if local.length().0 == 0 {
            return (cargo, 0);
        }
        match self.domain.find(local.key(), local.address(), local.length().0) {
            Some(region) => {
                self.domain.pin(region, 1);
                (cargo, region + 1)
            }
            None => (Cargo::Bad, 0),
        }
    }

    fn take_off(&mut self, index: usize, end: usize, id: u64, load: (Cargo, u32), now: Instant) {
        let (cargo, pin) = load;
        let left = self.carry(end, cargo.bytes(), now);
        let (left_at, due) = (left.0, self.draw_due(end, left));
        let fate = match cargo {
            Cargo::Fence { .. } | Cargo::Bad => Fate::Good,
            _ => self.draw_fate(),
        };
        if let Cargo::Fence { .. } = cargo {
            self.fence_begin(end);
        }
        self.serial += 1;
        let (stage, serial) = (Stage::Moving, self.serial);
        let error = OpErrorKind::Fabric;
        let end = end as u32;
        let (failed, code) = (false, 0);
        self.flights[index] =
            Flight { cargo, id, due, left_at, serial, end, pin, stage, fate, failed, error, code };
    }

    fn draw_due(&mut self, end: usize, left: Instant) -> u64 {
        let config = self.config;
        let mut due = left.after(config.latency).0;
        if self.random.chance(config.faults.delay) {
            self.counts.delayed += 1;
            due += self.random.below(config.delay_max.0 + 1);
        }
        if config.ordered {
            due = due.max(self.ends[end].last_due);
            self.ends[end].last_due = due;
        } else if self.random.chance(config.faults.reorder) {
            self.counts.reordered += 1;
            due += self.random.below(config.delay_max.0 + 1);
        }
        due
    }

    fn draw_fate(&mut self) -> Fate {
        if !self.random.chance(self.config.faults.error) {
            return Fate::Good;
        }
        self.counts.errors += 1;
        if self.random.below(2) == 0 { Fate::Lost } else { Fate::Unacknowledged }
    }

    fn maybe_die(&mut self, end: usize, now: Instant) {
        if self.random.chance(self.config.faults.rail_death) && self.ends[end].link == Link::Open {
            self.counts.deaths += 1;
            self.link_break(end, DownCause::Died, now);
        }
    }

    /// An end takes so many bytes more; says when the last of them will have left.
    fn carry(&mut self, end: usize, bytes: u64, now: Instant) -> Instant {
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
