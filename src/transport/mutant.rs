//! Planted faults, each a mistake that this protocol could have been written with: proofs show that
//! they find every one (`tool/tests/model`). In a build without the feature `proof` the question
//! whether one is planted is the constant `false`.
#![forbid(unsafe_code)]

use super::endpoint::Endpoint;
use crate::fabric::Provider;

/// A fault.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Mutant {
    /// A failed lane counts as fenced at once.
    FenceSkipped,
    /// A report says that a lane is fenced while its fence is under way.
    AnswerBeforeFence,
    /// Numbers of the stream are read as if they had 10 bits.
    SequenceNarrow,
    /// The stream is sent again from its start, whatever the peer has taken in.
    CursorIgnored,
    /// What a report says of deliveries is not looked at.
    DeliveriesIgnored,
    /// A send ends when its stripes have been written.
    ReleaseOnLocal,
    /// Control moves on before the old control lane is fenced, so that slots are written again.
    ControlUnfenced,
    /// Stripes take the lanes in turn, however fast those are. Nothing is lost by it but time
    /// (`tool/sim/throttle.rs`).
    WeightsEqual,
    /// A rail's: no fence of it holds. Requests end unfenced, and reports say so (`doc/stalls.md`).
    FenceNever,
    /// A report says of a fenced lane that its fence is under way. The peer of who does that gives
    /// the connection up by name.
    AnswerNever,
    /// A rail's: slots are said to be written, and are not. Reports say so.
    SlotUnwritten,
}

#[cfg(feature = "proof")]
impl Mutant {
    /// All that break the protocol; one that is slow does not, and what a rail does wrong, the
    /// protocol tells of.
    pub const ALL: [Mutant; 7] = [
        Mutant::FenceSkipped,
        Mutant::AnswerBeforeFence,
        Mutant::SequenceNarrow,
        Mutant::CursorIgnored,
        Mutant::DeliveriesIgnored,
        Mutant::ReleaseOnLocal,
        Mutant::ControlUnfenced,
    ];
}

/// What [`Mutant::SequenceNarrow`] leaves of a number.
pub(super) const NARROW: u32 = (1 << 10) - 1;

impl<P: Provider> Endpoint<'_, P> {
    #[cfg(not(feature = "proof"))]
    #[inline(always)]
    pub(super) const fn is_mutant(&self, _mutant: Mutant) -> bool {
        false
    }

    #[cfg(feature = "proof")]
    pub(super) fn is_mutant(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

#[cfg(feature = "proof")]
mod proof {
    use super::{Endpoint, Mutant};
    use crate::base::seq::Seq;
    use crate::fabric::Provider;
    use crate::transport::limits::{EARLY_MAX, STREAM_KEPT};
    use crate::transport::records::{ConnectionState, NIL, Queue, SendState};
    use core::hash::{Hash, Hasher};

    impl<P: Provider> Endpoint<'_, P> {
        /// Plants a fault.
        pub fn mutant_set(&mut self, mutant: Option<Mutant>) {
            self.mutant = mutant;
        }

        /// Everything that decides what the machine does next, but for its mailboxes, its regions
        /// and time.
        pub fn digest(&self, out: &mut impl Hasher) {
            for index in 0..self.connections.len() {
                if self.connections[index].state != ConnectionState::Free {
                    self.connection_digest(index, out);
                }
            }
        }

        fn connection_digest(&self, index: usize, out: &mut impl Hasher) {
            let c = &self.connections[index];
            c.hash(out);
            let sets = [&self.work, &self.watch, &self.troubled];
            sets.map(|set| set.next_from(index) == Some(index)).hash(out);
            for lane in 0..c.rails.count {
                let entry = self.lane(index, lane);
                (entry.state, entry.fence, entry.peer_fenced, entry.peer_past).hash(out);
                (entry.closed, entry.probe, entry.answer).hash(out);
                (entry.generation, entry.ops_in_flight).hash(out);
                let at = self.lane_at(index, lane);
                self.meters.get(at).map(|meter| meter.load.flying).hash(out);
                (self.lanes_down.next_from(at) == Some(at)).hash(out);
            }
            self.requests_digest(index, out);
            self.stream_digest(index, out);
            self.held_digest(index, c.recv.messages.unexpected, out);
            self.held_digest(index, c.recv.messages.ahead, out);
        }

        fn requests_digest(&self, index: usize, out: &mut impl Hasher) {
            for record in self.records() {
                let at = self.send_at(index, record);
                let send = &self.sends[at];
                if send.state != SendState::Free {
                    let lanes = 1 << self.lane_bits;
                    (record, send, &self.carried[at * lanes..(at + 1) * lanes]).hash(out);
                }
                let group = &self.groups[at];
                if group.count != 0 {
                    (record, group).hash(out);
                    self.receives_of(at, group.count).for_each(|receive| receive.hash(out));
                }
            }
        }

        fn stream_digest(&self, index: usize, out: &mut impl Hasher) {
            let c = &self.connections[index];
            let first = index * EARLY_MAX as usize;
            self.early[first..first + usize::from(c.send.cursor.early)].hash(out);
            let mut number = c.send.stream.taken_through;
            while c.rails.fails_over() && number.before(c.send.stream.number) {
                self.stream[index * STREAM_KEPT as usize + Seq(number.0).cell(STREAM_KEPT)]
                    .hash(out);
                number = number.next();
            }
        }

        fn held_digest(&self, index: usize, queue: Queue, out: &mut impl Hasher) {
            let mut record = queue.head;
            while record != NIL {
                let message = &self.held[self.held_at(index, record)];
                message.hash(out);
                record = message.next;
            }
        }
    }
}
