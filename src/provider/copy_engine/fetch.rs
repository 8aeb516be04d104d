//! The record of one copy, and how it moves on.

use super::chunks::{Chunks, Tools, Whole};
use super::imports::{Look, Wanted};
use super::keys::is_device;
use super::lanes::{Mark, Progress};
use super::note::{BAD_KEY, CANCELED, GONE, Outcome, failed};
use super::peers::{Link, TURNS_MAX};
use super::shared::Shared;
use super::under::Under;
use crate::base::ids::PeerIndex;
use crate::base::units::Instant;
use crate::fabric::{OpId, RailKey, RemoteSpan};

/// Who wants a copy.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Origin {
    /// A read of ours.
    Read(OpId),
    /// A message in a slot.
    Received(OpId),
    /// A write of ours, which the peer carries out.
    Write(OpId),
    /// A write of the peer's: its number for it, and what is reported when the bytes are there.
    Asked { serial: u32, immediate: Option<u32> },
}

/// How far it is.
#[derive(Copy, Clone, Debug)]
pub(super) enum Stage {
    /// It has not begun.
    New,
    /// The peer has been asked to copy.
    Asked,
    /// The peer's memory is being mapped, or the GPU has enough to copy.
    Mapping,
    /// A stream copies.
    Flying(Mark),
    /// It goes piece by piece.
    Staged,
    /// It has ended.
    Ended(Outcome),
}

/// One copy.
#[derive(Copy, Clone, Debug)]
pub(super) struct Fetch {
    pub origin: Origin,
    pub peer: PeerIndex,
    pub stage: Stage,
    /// Which use of this record it is: for the peer's answer.
    pub serial: u32,
    /// The peer's memory.
    pub source: RemoteSpan,
    /// Our memory.
    pub to: u64,
    pub to_key: RailKey,
    pub length: u64,
    /// The GPU whose streams copy.
    pub gpu: u8,
    /// Our region, which is pinned.
    pub region: Option<u32>,
    /// The entry of the peer's memory, which is held.
    pub import: Option<u32>,
    /// Where the source lies here, once it is mapped.
    from: Option<u64>,
    /// Whether the peer has to copy the source out, and whether it is this copy's turn there.
    is_lent: bool,
    pub has_turn: bool,
    pub chunks: Chunks,
}

/// What copies are moved on with.
pub(super) struct Work<'a> {
    pub shared: &'a Shared,
    pub under: &'a mut dyn Under,
    pub now: Instant,
}

impl Fetch {
    /// Not in use.
    pub const FREE: Fetch = Fetch {
        origin: Origin::Read(OpId(0)),
        peer: PeerIndex(0),
        stage: Stage::New,
        serial: 0,
        source: RemoteSpan { key: RailKey(0), address: 0 },
        to: 0,
        to_key: RailKey(0),
        length: 0,
        gpu: 0,
        region: None,
        import: None,
        from: None,
        is_lent: false,
        has_turn: false,
        chunks: Chunks::NONE,
    };

    /// Begins a use of the record.
    pub fn begin(&mut self, peer: PeerIndex, origin: Origin) {
        *self = Fetch { peer, origin, serial: self.serial, ..Fetch::FREE };
    }

    /// What the next write that has this record, of that number, is called at the peer.
    pub const fn serial_next(&self, number: u16) -> u32 {
        (self.serial >> 16).wrapping_add(1) << 16 | number as u32
    }

    /// Whether it waits for the peer's answer of that serial.
    pub fn awaits(&self, serial: u32) -> bool {
        self.serial == serial && matches!(self.stage, Stage::Asked)
    }

    /// Whether the bytes went from GPU to GPU without the host.
    pub fn is_by_engine(&self) -> bool {
        is_device(self.to_key) && self.from.is_some()
    }

    /// Moves it on.
    pub fn advance(&mut self, number: u16, link: &mut Link, work: &mut Work<'_>) {
        let stopped = match (self.origin, link.is_fenced, link.is_down) {
            // its bytes are here
            (Origin::Received(_), ..) | (_, false, false) => None,
            (_, true, _) => Some(CANCELED),
            (_, false, true) => Some(GONE),
        };
        self.stage = match (self.stage, stopped) {
            (stage @ Stage::Ended(_), _) | (stage @ Stage::Asked, None) => stage,
            (Stage::New | Stage::Mapping | Stage::Asked, Some(outcome)) => Stage::Ended(outcome),
            (Stage::New, None) => self.begin_moving(link, work),
            (Stage::Mapping, None) => self.look_at_import(work),
            (Stage::Flying(mark), stopped) => self.look_at_stream(mark, stopped, work),
            (Stage::Staged, stopped) => self.advance_pieces(number, (link, stopped), work),
        };
    }

    /// Begins: asks for the peer's memory, or reads it.
    fn begin_moving(&mut self, link: &mut Link, work: &mut Work<'_>) -> Stage {
        if !is_device(self.source.key) {
            return Stage::Staged;
        }
        // who uses no GPU has no thread that maps
        if !work.under.is_near(self.peer) || work.shared.imports.wake().is_none() {
            self.is_lent = true;
            return Stage::Staged;
        }
        let Some(exporter) = link.exporter_ask(work.under, self.peer, work.now) else {
            return Stage::New;
        };
        if exporter.name == 0 {
            return Stage::Ended(BAD_KEY); // the peer has no memory of GPUs
        }
        let wanted = Wanted { exporter, key: self.source.key.0, gpu: self.gpu.into() };
        self.import = work.shared.imports.hold(&wanted);
        self.look_at_import(work)
    }

    /// Whether only a marker or a note of the peer moves it on.
    pub const fn is_told(&self) -> bool {
        matches!(self.stage, Stage::Flying(_) | Stage::Asked)
    }

    /// The peer's memory is mapped, or not yet, or cannot be.
    fn look_at_import(&mut self, work: &mut Work<'_>) -> Stage {
        let Some(import) = self.import else { return Stage::New };
        let mapped = match work.shared.imports.look(import) {
            Look::Pending => return Stage::Mapping,
            Look::Failed(_) => {
                // without access the peer copies it out for us, if there is such a region
                self.is_lent = true;
                return Stage::Staged;
            }
            Look::Ready(mapped) => mapped,
        };
        let offset = self.source.address.wrapping_sub(mapped.theirs);
        if offset > mapped.length || self.length > mapped.length - offset {
            return Stage::Ended(BAD_KEY);
        }
        let from = mapped.ours + offset;
        if !is_device(self.to_key) {
            self.from = Some(from);
            return Stage::Staged;
        }
        let Some(mut lanes) = work.shared.lanes(self.gpu) else {
            return Stage::Ended(failed(-libc::ENODEV));
        };
        if !mapped.is_within && !lanes.has_room(self.length) {
            return Stage::Mapping;
        }
        self.from = Some(from);
        // SAFETY: the source lies in an entry that is held, the target in a region that is pinned,
        // both until the copy was reported.
        match unsafe { lanes.copy((self.to, from), self.length, mapped.is_within) } {
            Ok(mark) => Stage::Flying(mark),
            Err(error) => Stage::Ended(failed(error.code as i32)),
        }
    }

    fn look_at_stream(
        &mut self,
        mark: Mark,
        stopped: Option<Outcome>,
        work: &mut Work<'_>,
    ) -> Stage {
        let Some(mut lanes) = work.shared.lanes(self.gpu) else {
            return Stage::Ended(failed(-libc::ENODEV));
        };
        let progress = lanes.progress(mark);
        if progress != Progress::Flying {
            lanes.copied(mark, self.length);
        }
        match (progress, stopped) {
            (Progress::Flying, _) => Stage::Flying(mark),
            (Progress::Done, _) => Stage::Ended(Ok(())),
            (Progress::Refused(code), None) => self.go_round(code, work),
            (Progress::Refused(code) | Progress::Failed(code), _) => Stage::Ended(failed(code)),
        }
    }

    /// The driver has refused to copy what is mapped, and no stream has anything of it: the peer
    /// copies it out for us, from the first byte on.
    fn go_round(&mut self, code: i32, work: &Work<'_>) -> Stage {
        work.shared.refuse(code);
        (self.from, self.is_lent, self.chunks) = (None, true, Chunks::NONE);
        Stage::Staged
    }

    fn advance_pieces(
        &mut self,
        number: u16,
        (link, stopped): (&mut Link, Option<Outcome>),
        work: &mut Work<'_>,
    ) -> Stage {
        if self.is_lent && !self.has_turn {
            match stopped {
                Some(outcome) => return Stage::Ended(outcome),
                None if link.turns >= TURNS_MAX => return Stage::Staged,
                None => (self.has_turn, link.turns) = (true, link.turns + 1),
            }
        }
        let whole = Whole {
            peer: self.peer,
            number,
            source: self.source,
            length: self.length,
            from: self.from,
            is_lent: self.is_lent,
            to: self.to,
            to_key: self.to_key,
            into_gpu: is_device(self.to_key),
        };
        let mut lanes = work.shared.lanes(self.gpu);
        let mut tools = Tools { under: work.under, lanes: lanes.as_deref_mut(), now: work.now };
        let ended = self.chunks.advance(&whole, &mut tools, stopped);
        drop(lanes);
        match (ended, self.chunks.refused(), stopped) {
            (Some(Err(_)), Some(code), None) if self.from.is_some() => self.go_round(code, work),
            (Some(outcome), ..) => Stage::Ended(outcome),
            (None, ..) => Stage::Staged,
        }
    }
}
