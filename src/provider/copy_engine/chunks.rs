//! A copy that goes through pinned cells, piece by piece.
//!
//! | from | to | how a piece goes |
//! |---|---|---|
//! | host memory of a peer | our GPU | read into a cell, copied in |
//! | mapped memory of a GPU | our host memory | copied out into a cell, copied by the CPU |
//! | a GPU that we cannot map | our GPU | the peer copies it out; read into a cell, copied in |
//! | a GPU that we cannot map | our host memory | the peer copies it out; read where it belongs |

use super::lanes::{CELL_BYTES, Lanes, Mark, Progress, Use};
use super::note::{BAD_KEY, GONE, Outcome, Word, failed};
use super::under::Under;
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{LocalSpan, Op, OpId, OpKind, PostError, RailKey, RemoteSpan};

/// Pieces that one copy has under way at a time.
pub(super) const CHUNKS: usize = 4;
/// In the id of a read of a piece.
const PIECE: u64 = 1 << 63;

/// One piece.
#[derive(Copy, Clone, Debug)]
struct Chunk {
    at: At,
    cell: Option<u8>,
    /// Whether the peer's cell has to be given back.
    owes: bool,
    length: u32,
    offset: u64,
}

/// Where a piece is.
#[derive(Copy, Clone, Debug)]
enum At {
    /// Nowhere: the place is free.
    Free,
    /// The peer copies it out.
    Lending,
    /// The peer has it there.
    Lent(RemoteSpan),
    /// It is being read.
    Reading,
    /// It was read, or could not be.
    Read(bool),
    /// A stream copies it into the cell, or out of it.
    Flying(Mark),
    /// It is where it belongs; there was no room to tell the peer that its cell is free.
    Owing,
}

/// The copy that the pieces are of.
#[derive(Copy, Clone, Debug)]
pub(super) struct Whole {
    pub peer: PeerIndex,
    /// Which record it has.
    pub number: u16,
    /// The peer's memory, and how much.
    pub source: RemoteSpan,
    pub length: u64,
    /// Where the source is mapped, if it is.
    pub from: Option<u64>,
    /// Whether the peer has to copy it out.
    pub is_lent: bool,
    /// Our memory.
    pub to: u64,
    pub to_key: RailKey,
    pub into_gpu: bool,
}

/// What pieces are moved with.
pub(super) struct Tools<'a> {
    pub under: &'a mut dyn Under,
    /// The streams of our GPU, where there is one.
    pub lanes: Option<&'a mut Lanes>,
    pub now: Instant,
}

/// The pieces of a copy that are under way.
#[derive(Copy, Clone, Debug)]
pub(super) struct Chunks {
    places: [Chunk; CHUNKS],
    /// Bytes that have a piece, or had one.
    begun: u64,
    /// Why no more is begun.
    failed: Option<Outcome>,
    /// The driver's code of a piece that it has refused.
    refused: Option<i32>,
}

/// The record and the place that a read of a piece was for, if its id is of one.
pub(super) const fn piece_of(id: OpId) -> Option<(u16, u8)> {
    if id.0 & PIECE == 0 {
        return None;
    }
    Some(((id.0 >> 8) as u16, id.0 as u8))
}

/// The same of a serial that a peer was told.
pub(super) const fn lent_to(serial: u32) -> (u16, u8) {
    ((serial >> 8) as u16, serial as u8)
}

impl Chunks {
    /// None yet.
    pub const NONE: Chunks = Chunks {
        places: [Chunk { at: At::Free, cell: None, owes: false, length: 0, offset: 0 }; CHUNKS],
        begun: 0,
        failed: None,
        refused: None,
    };

    /// The first piece is in a cell already.
    pub fn fill_first(&mut self, cell: u8, length: u32) {
        let chunk = Chunk { at: At::Read(true), cell: Some(cell), owes: false, length, offset: 0 };
        self.places[0] = chunk;
        self.begun = u64::from(length);
    }

    /// The driver's code, if it has refused to copy a piece.
    pub fn refused(&self) -> Option<i32> {
        self.refused
    }

    /// A read of a piece has ended.
    pub fn read_ended(&mut self, place: u8, is_ok: bool) {
        if let Some(chunk) = self.places.get_mut(usize::from(place)) {
            chunk.at = At::Read(is_ok);
        }
    }

    /// The peer has copied a piece out, or could not. `false`: it was not asked.
    pub fn lent(&mut self, place: u8, outcome: Outcome, span: RemoteSpan) -> bool {
        let Some(chunk) = self.places.get_mut(usize::from(place)) else { return false };
        if !matches!(chunk.at, At::Lending) {
            return false;
        }
        chunk.owes = outcome.is_ok();
        match outcome {
            Ok(()) => chunk.at = At::Lent(span),
            outcome => {
                self.failed = self.failed.or(Some(outcome));
                chunk.at = At::Read(false);
            }
        }
        true
    }

    /// Moves the pieces on. `stopped`: nothing more comes from the peer. How the copy has ended, if
    /// it has.
    pub fn advance(
        &mut self,
        whole: &Whole,
        tools: &mut Tools<'_>,
        stopped: Option<Outcome>,
    ) -> Option<Outcome> {
        self.failed = self.failed.or(stopped);
        for place in 0..CHUNKS {
            self.advance_one(whole, tools, place, stopped.is_some());
        }
        let is_quiet = self.places.iter().all(|chunk| matches!(chunk.at, At::Free));
        match (is_quiet, self.failed) {
            (true, Some(outcome)) => Some(outcome),
            (true, None) if self.begun == whole.length => Some(Ok(())),
            _ => None,
        }
    }

    fn advance_one(
        &mut self,
        whole: &Whole,
        tools: &mut Tools<'_>,
        place: usize,
        is_stopped: bool,
    ) {
        let chunk = &mut self.places[place];
        if chunk.owes && !matches!(chunk.at, At::Lent(_) | At::Reading) {
            let free = Word::Free { serial: serial_of(whole.number, place) }.encode();
            // of a peer that is gone nothing is asked any more
            chunk.owes = !is_stopped && !tools.under.note_send(whole.peer, &free, tools.now);
        }
        match chunk.at {
            At::Free => self.begin(whole, tools, place),
            // it comes no more
            At::Lending | At::Lent(_) if is_stopped => self.end(tools, place),
            At::Lending | At::Reading => {}
            At::Lent(span) => self.read(whole, tools, place, span),
            At::Read(true) if self.failed.is_none() && whole.into_gpu => {
                self.copy_in(whole, tools, place);
            }
            At::Read(is_ok) => {
                if !is_ok {
                    self.failed = self.failed.or(Some(BAD_KEY));
                }
                if !chunk.owes {
                    self.end(tools, place);
                }
            }
            At::Flying(mark) => self.look(whole, tools, place, mark),
            At::Owing if chunk.owes => {}
            At::Owing => self.end(tools, place),
        }
    }

    /// A piece is over.
    fn end(&mut self, tools: &mut Tools<'_>, place: usize) {
        let chunk = &mut self.places[place];
        if let (Some(cell), Some(lanes)) = (chunk.cell.take(), &mut tools.lanes) {
            lanes.cell_give(cell);
        }
        chunk.at = At::Free;
    }

    /// Begins the next piece, if there is one, and room for it.
    fn begin(&mut self, whole: &Whole, tools: &mut Tools<'_>, place: usize) {
        let (offset, left) = (self.begun, whole.length - self.begun);
        if left == 0 || self.failed.is_some() {
            return;
        }
        let length = left.min(CELL_BYTES as u64);
        let needs_cell = whole.into_gpu || whole.from.is_some();
        let cell = match (&mut tools.lanes, needs_cell) {
            (_, false) => None,
            (Some(lanes), true) => match lanes.cell_take(Use::Fetch) {
                Some(cell) => Some(cell),
                None => return,
            },
            (None, true) => {
                self.failed = Some(failed(-libc::ENODEV));
                return;
            }
        };
        let chunk = Chunk { at: At::Free, cell, owes: false, length: length as u32, offset };
        self.places[place] = chunk;
        let source = whole.source.plus(offset);
        if whole.is_lent {
            let serial = serial_of(whole.number, place);
            let word = Word::Lend { serial, source, length };
            if tools.under.note_send(whole.peer, &word.encode(), tools.now) {
                self.places[place].at = At::Lending;
            }
        } else if let Some(from) = whole.from {
            self.copy_out(tools, place, from + offset);
        } else {
            self.read(whole, tools, place, source);
        }
        match self.places[place].at {
            At::Free => self.end(tools, place),
            _ => self.begun += length,
        }
    }

    /// Reads a piece of host memory: into its cell, or where it belongs.
    fn read(&mut self, whole: &Whole, tools: &mut Tools<'_>, place: usize, source: RemoteSpan) {
        let chunk = &mut self.places[place];
        let length = u64::from(chunk.length);
        let target = match (chunk.cell, &tools.lanes) {
            // SAFETY: the cell is kept until the read has ended.
            (Some(cell), Some(lanes)) => unsafe { lanes.span(cell, length) },
            // SAFETY: a part of the target, whose region is pinned until the copy was reported.
            _ => unsafe { LocalSpan::new(whole.to + chunk.offset, Bytes(length), whole.to_key) },
        };
        let id = OpId(PIECE | u64::from(whole.number) << 8 | place as u64);
        let kind = OpKind::Read { target, source };
        match tools.under.post(&Op { id, peer: whole.peer, kind }, tools.now) {
            Ok(_) => chunk.at = At::Reading,
            Err(PostError::Again) => {}
            Err(PostError::PeerDown | PostError::Unsupported) => {
                self.failed = self.failed.or(Some(GONE));
                chunk.at = At::Read(false);
            }
        }
    }

    fn copy_in(&mut self, whole: &Whole, tools: &mut Tools<'_>, place: usize) {
        let chunk = &mut self.places[place];
        let (Some(cell), Some(lanes)) = (chunk.cell, &mut tools.lanes) else { return };
        let (to, length) = (whole.to + chunk.offset, u64::from(chunk.length));
        // SAFETY: the cell is ours, and the target lies in a region that is pinned until the copy
        // was reported.
        match unsafe { lanes.copy_in(to, cell, length) } {
            Ok(mark) => chunk.at = At::Flying(mark),
            Err(error) => self.failed = Some(failed(error.code as i32)),
        }
    }

    fn copy_out(&mut self, tools: &mut Tools<'_>, place: usize, from: u64) {
        let chunk = &mut self.places[place];
        let (Some(cell), Some(lanes)) = (chunk.cell, &mut tools.lanes) else { return };
        // SAFETY: the cell is ours, and the source is mapped until the copy was reported.
        match unsafe { lanes.copy_out(cell, from, chunk.length.into()) } {
            Ok(mark) => chunk.at = At::Flying(mark),
            Err(error) => self.failed = Some(failed(error.code as i32)),
        }
    }

    /// Looks whether a stream has copied a piece.
    fn look(&mut self, whole: &Whole, tools: &mut Tools<'_>, place: usize, mark: Mark) {
        let chunk = &self.places[place];
        let (Some(cell), Some(lanes)) = (chunk.cell, &mut tools.lanes) else { return };
        match lanes.progress(mark) {
            Progress::Flying => return,
            Progress::Done if whole.into_gpu => {}
            Progress::Done => {
                // SAFETY: the bytes are in the cell, which is ours, and the target lies in a region
                // that is pinned, whose owner leaves it to us.
                unsafe {
                    let from = lanes.span(cell, chunk.length.into()).address() as *const u8;
                    let to = (whole.to + chunk.offset) as *mut u8;
                    from.copy_to_nonoverlapping(to, chunk.length as usize);
                }
            }
            Progress::Refused(_) if Lanes::is_of_words(mark) => {
                let (to, length) = (whole.to + chunk.offset, u64::from(chunk.length));
                // SAFETY: as in `copy_in`: the bytes are in the cell still.
                match unsafe { lanes.copy_in_whole(to, cell, length) } {
                    Ok(mark) => return self.places[place].at = At::Flying(mark),
                    Err(error) => self.failed = Some(failed(error.code as i32)),
                }
            }
            Progress::Refused(code) => {
                self.failed = Some(failed(code));
                self.refused = self.refused.or(Some(code));
            }
            Progress::Failed(code) => self.failed = Some(failed(code)),
        }
        // the peer's cell, if there was one, was given back long ago, or is when there is room
        match self.places[place].owes {
            true => self.places[place].at = At::Owing,
            false => self.end(tools, place),
        }
    }
}

/// What the peer is told of a piece.
const fn serial_of(number: u16, place: usize) -> u32 {
    (number as u32) << 8 | place as u32
}
