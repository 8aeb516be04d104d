//! Pieces of our GPUs' memory that peers cannot map: we copy them out, and they read them.

use super::chunks::CHUNKS;
use super::fetch::Work;
use super::keys::{gpu_of, handle_of};
use super::lanes::{CELL_BYTES, Mark, Progress, Use};
use super::note::{BAD_KEY, Outcome, Word, failed};
use super::peers::{Link, TURNS_MAX};
use crate::base::ids::PeerIndex;
use crate::base::regions::RegionTable;
use crate::fabric::RemoteSpan;
use std::vec::Vec;

/// Pieces that a peer may ask for at a time: those of each copy that has its turn.
pub(super) const LENDS_MAX: u32 = CHUNKS as u32 * TURNS_MAX;

/// One piece.
#[derive(Copy, Clone, Debug)]
struct Lend {
    peer: PeerIndex,
    /// The peer's number for it.
    serial: u32,
    source: RemoteSpan,
    length: u64,
    at: At,
}

/// How far it is.
#[derive(Copy, Clone, Debug)]
enum At {
    /// It was asked for.
    New,
    /// A stream copies it out of the region into a cell.
    Flying { gpu: u8, cell: u8, region: u32, mark: Mark },
    /// The peer is to be told, and what.
    Telling { gpu: u8, cell: Option<u8>, outcome: Outcome },
    /// The peer reads it.
    Held { gpu: u8, cell: u8 },
    /// It is over.
    Over,
}

/// All pieces.
#[derive(Debug)]
pub(super) struct Lends(Vec<Lend>);

impl Lends {
    /// None; room for those of so many peers.
    pub fn new(peers_max: usize) -> Lends {
        Lends(Vec::with_capacity(peers_max * LENDS_MAX as usize))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A peer asks for a piece. `false`: for too many, or for too much.
    pub fn ask(
        &mut self,
        link: &mut Link,
        peer: PeerIndex,
        serial: u32,
        (source, length): (RemoteSpan, u64),
    ) -> bool {
        let fits = link.lends < LENDS_MAX && length <= CELL_BYTES as u64;
        if fits {
            (link.lends, link.in_flight) = (link.lends + 1, link.in_flight + 1);
            self.0.push(Lend { peer, serial, source, length, at: At::New });
        }
        fits
    }

    /// A peer has read a piece. `false`: it has none of that number.
    pub fn free(&mut self, link: &mut Link, peer: PeerIndex, serial: u32, work: &Work<'_>) -> bool {
        let of = |lend: &Lend| {
            lend.peer == peer && lend.serial == serial && matches!(lend.at, At::Held { .. })
        };
        let Some(at) = self.0.iter().position(of) else { return false };
        self.0.remove(at).give_back(work);
        // at once: what it asks for next may have come with this
        (link.lends, link.in_flight) = (link.lends - 1, link.in_flight - 1);
        true
    }

    /// Moves all on. Of peers that are down, fenced or closed nothing stays but what a stream is
    /// about to copy. Each that is over counts in its peer's `in_flight` no more.
    pub fn advance(&mut self, regions: RegionTable<'_>, links: &mut [Link], work: &mut Work<'_>) {
        self.0.retain_mut(|lend| {
            let link = &mut links[lend.peer.as_usize()];
            lend.advance(regions, link.takes_ops(), work);
            let is_over = matches!(lend.at, At::Over);
            link.in_flight -= u32::from(is_over);
            link.lends -= u32::from(is_over);
            !is_over
        });
    }
}

impl Lend {
    fn advance(&mut self, regions: RegionTable<'_>, is_wanted: bool, work: &mut Work<'_>) {
        match self.at {
            At::New if is_wanted => self.begin(regions, work),
            At::New => self.at = At::Over,
            At::Flying { gpu, cell, region, mark } => {
                let progress = work.shared.lanes(gpu).map(|lanes| lanes.progress(mark));
                let outcome = match progress {
                    Some(Progress::Flying) => return,
                    Some(Progress::Done) => Ok(()),
                    Some(Progress::Refused(code) | Progress::Failed(code)) => failed(code),
                    None => failed(-libc::ENODEV),
                };
                regions.pin(region, -1);
                self.at = At::Telling { gpu, cell: Some(cell), outcome };
                self.tell(is_wanted, work);
            }
            At::Telling { .. } => self.tell(is_wanted, work),
            At::Held { .. } if !is_wanted => self.give_back(work),
            At::Held { .. } | At::Over => {}
        }
    }

    fn begin(&mut self, regions: RegionTable<'_>, work: &mut Work<'_>) {
        let handle = handle_of(self.source.key);
        let refused = At::Telling { gpu: 0, cell: None, outcome: BAD_KEY };
        let lanes = |gpu| work.shared.lanes(gpu).map(|lanes| (gpu, lanes));
        let Some((gpu, mut lanes)) = gpu_of(regions, self.source.key).and_then(lanes) else {
            self.at = refused;
            return;
        };
        let Some(cell) = lanes.cell_take(Use::Lend) else { return };
        if regions.hold(handle, self.source.address, self.length).is_none() {
            lanes.cell_give(cell);
            self.at = refused;
            return;
        }
        // SAFETY: the cell was taken above; the source lies in a region that is pinned until the
        // stream has copied it.
        match unsafe { lanes.copy_out(cell, self.source.address, self.length) } {
            Ok(mark) => self.at = At::Flying { gpu, cell, region: handle.index, mark },
            Err(error) => {
                regions.pin(handle.index, -1);
                let outcome = failed(error.code as i32);
                self.at = At::Telling { gpu, cell: Some(cell), outcome };
            }
        }
    }

    /// Tells the peer where the piece is, or why it is nowhere.
    fn tell(&mut self, is_wanted: bool, work: &mut Work<'_>) {
        let At::Telling { gpu, cell, outcome } = self.at else { return };
        let place = match (cell, outcome, work.shared.lanes(gpu)) {
            (Some(cell), Ok(()), Some(lanes)) => {
                // SAFETY: our cell, which is only read until it is given back.
                let span = unsafe { lanes.span(cell, self.length) };
                Some(RemoteSpan { key: span.key(), address: span.address() })
            }
            _ => None,
        };
        let word = match place {
            Some(place) => Word::Lent { serial: self.serial, outcome, place },
            None => Word::not_lent(self.serial, outcome),
        };
        if is_wanted && !work.under.note_send(self.peer, &word.encode(), work.now) {
            return;
        }
        match (is_wanted, place, cell) {
            (true, Some(_), Some(cell)) => self.at = At::Held { gpu, cell },
            _ => self.give_back(work),
        }
    }

    fn give_back(&mut self, work: &Work<'_>) {
        let held = match self.at {
            At::Held { gpu, cell } | At::Telling { gpu, cell: Some(cell), .. } => Some((gpu, cell)),
            _ => None,
        };
        if let Some((gpu, cell)) = held
            && let Some(mut lanes) = work.shared.lanes(gpu)
        {
            lanes.cell_give(cell);
        }
        self.at = At::Over;
    }
}
