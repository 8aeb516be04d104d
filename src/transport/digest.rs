//! Everything that decides what the machine does next, for the proof.
#![forbid(unsafe_code)]

use core::hash::{Hash, Hasher};

use super::limits::{EARLY_MAX, STREAM_KEPT};
use super::records::{ConnectionState, NIL, Queue, SendState};
use super::snapshot::View;
use crate::base::seq::Seq;
use crate::fabric::Provider;

impl<P: Provider> View<'_, '_, P> {
    /// Everything that decides what the machine does next, but for its mailboxes, its regions
    /// and time.
    pub(in crate::transport) fn digest(&self, out: &mut impl Hasher) {
        for index in 0..self.net.connections.len() {
            if self.net.connections[index].state != ConnectionState::Free {
                self.connection_digest(index, out);
            }
        }
    }

    fn connection_digest(&self, index: usize, out: &mut impl Hasher) {
        let c = &self.net.connections[index];
        c.hash(out);
        let sets = [&self.net.due.work, &self.net.due.watch, &self.net.due.troubled];
        sets.map(|set| set.next_from(index) == Some(index)).hash(out);
        for lane in 0..c.rails.count {
            let entry = self.net.lane(index, lane);
            (entry.state, entry.fence, entry.peer_fenced, entry.peer_past).hash(out);
            (entry.closed, entry.probe, entry.answer).hash(out);
            (entry.generation, entry.ops_in_flight).hash(out);
            let at = self.net.lane_at(index, lane);
            self.net.lanes.meters.get(at).map(|meter| meter.load.flying).hash(out);
            (self.net.lanes.down.next_from(at) == Some(at)).hash(out);
        }
        self.requests_digest(index, out);
        self.stream_digest(index, out);
        self.held_digest(index, c.recv.messages.unexpected, out);
        self.held_digest(index, c.recv.messages.ahead, out);
    }

    fn requests_digest(&self, index: usize, out: &mut impl Hasher) {
        for record in self.net.records() {
            let at = self.net.send_at(index, record);
            let send = &self.sends.records[at];
            if send.state != SendState::Free {
                let lanes = 1 << self.net.lanes.bits;
                (record, send, &self.sends.carried[at * lanes..(at + 1) * lanes]).hash(out);
            }
            let group = &self.recvs.groups[at];
            if group.count != 0 {
                (record, group).hash(out);
                self.recvs.receives_of(at, group.count).for_each(|receive| receive.hash(out));
            }
        }
    }

    fn stream_digest(&self, index: usize, out: &mut impl Hasher) {
        let c = &self.net.connections[index];
        let first = index * EARLY_MAX as usize;
        self.sends.early[first..first + usize::from(c.send.cursor.early)].hash(out);
        let mut number = c.send.stream.taken_through;
        while c.rails.fails_over() && number.before(c.send.stream.number) {
            self.sends.stream[index * STREAM_KEPT as usize + Seq(number.0).cell(STREAM_KEPT)]
                .hash(out);
            number = number.next();
        }
    }

    fn held_digest(&self, index: usize, queue: Queue, out: &mut impl Hasher) {
        let mut record = queue.head;
        while record != NIL {
            let message = self.recvs.held.get(index, record);
            message.hash(out);
            record = message.next;
        }
    }
}
