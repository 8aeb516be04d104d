//! Long messages on a rail that pulls: the sender describes, the receiver reads.
#![forbid(unsafe_code)]

use super::eager::{OP_READ, op_id};
use super::endpoint::{Endpoint, MESSAGE_BYTES_MAX};
use super::push::Offer;
use super::rail::DataRail;
use super::records::{HeldMessage, NIL, SendState};
use super::request::RequestError;
use crate::base::seq::Seq;
use crate::fabric::{OpKind, PostError, Posted, Provider, RailKey, RemoteSpan};
use crate::wire::descriptor::{DESCRIPTOR_BYTES_MAX, Descriptor};
use crate::wire::head::KIND_DESCRIPTOR;

/// Length of a descriptor for the one data rail of this endpoint.
const DESCRIPTOR_BYTES: usize = Descriptor::bytes(1);

/// What became of an attempt to read a message.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Reading {
    /// The read is under way, or the receive has ended.
    Begun,
    /// The rail has no room.
    Again,
}

impl<P: Provider> Endpoint<'_, P> {
    /// Sends what is queued, in order; says whether some remains.
    pub(super) fn descriptors_step(&mut self, index: usize) -> bool {
        loop {
            let Some(record) = self.connections[index].send.queue.head else {
                return false;
            };
            let send = self.sends[self.send_at(index, record)];
            let left = if self.is_short(index, send.region, send.length) {
                self.eager_queued(index, None, record, Offer::NotYet)
            } else {
                self.descriptor_send(index, record)
            };
            if !left {
                self.watch.insert(index);
                return true;
            }
        }
    }

    fn descriptor_send(&mut self, index: usize, record: u8) -> bool {
        let at = self.send_at(index, record);
        let send = self.sends[at];
        let mut keys = [0; 8];
        keys[0] = self.regions.key(send.region, DataRail(0));
        let descriptor =
            Descriptor { address: send.address, length: send.length, keys, rails: 1 }.encode();
        let payload = self.scratch.fill(&descriptor[..DESCRIPTOR_BYTES]);
        let number = self.connections[index].send.number;
        if self.stream_post(index, KIND_DESCRIPTOR, send.tag, 0, payload).is_err() {
            return false;
        }
        self.queue_remove(index, None, record);
        self.sends[at].number = number;
        self.sends[at].state = SendState::Waiting;
        self.connections[index].send.waiting += 1;
        self.watch.insert(index);
        self.stats.pulled += 1;
        true
    }

    /// A descriptor was bound to a receive: reads the message, now or when the rail has room.
    pub(super) fn pull_begin(
        &mut self,
        index: usize,
        group: Seq,
        receive: u8,
        message: HeldMessage,
    ) {
        if self.connections[index].recv.messages.pulls.is_empty()
            && self.pull_read(index, group, receive, &message) == Reading::Begun
        {
            return;
        }
        // the descriptor stays in its slot; the record says which receive it is bound to
        let waiting = HeldMessage { tag: receive.into(), number: group, ..message };
        match self.held_acquire(index, waiting) {
            Some(record) => self.pulls_append(index, record),
            None => self.connection_fail(index, RequestError::Protocol),
        }
    }

    fn pulls_append(&mut self, index: usize, record: u8) {
        let tail = self.connections[index].recv.messages.pulls.tail;
        self.connections[index].recv.messages.pulls.tail = record;
        if tail == NIL {
            self.connections[index].recv.messages.pulls.head = record;
        } else {
            let at = self.held_at(index, tail);
            self.held[at].next = record;
        }
        self.work.insert(index);
    }

    /// Reads what is bound and waits, in order; says whether some remains.
    pub(super) fn pulls_step(&mut self, index: usize) -> bool {
        loop {
            let record = self.connections[index].recv.messages.pulls.head;
            if record == NIL {
                return false;
            }
            let message = self.held[self.held_at(index, record)];
            if self.pull_read(index, message.number, message.tag as u8, &message) == Reading::Again
            {
                return true;
            }
            let c = &mut self.connections[index];
            c.recv.messages.pulls.head = message.next;
            if message.next == NIL {
                c.recv.messages.pulls.tail = NIL;
            }
            self.held_release(index, record);
        }
    }

    /// What a descriptor says, whatever the number of its sender's rails.
    fn descriptor_read(&self, index: usize, message: &HeldMessage) -> Option<Descriptor> {
        let mut payload = [0; DESCRIPTOR_BYTES_MAX];
        let payload = payload.get_mut(..message.length as usize)?;
        let peer = self.lane_peer_of(index, message.lane);
        self.rail.received_peek(peer, message.slot, payload);
        Descriptor::decode(payload).ok()
    }

    fn pull_read(
        &mut self,
        index: usize,
        group: Seq,
        receive: u8,
        message: &HeldMessage,
    ) -> Reading {
        let sound = |descriptor: &Descriptor| descriptor.length <= MESSAGE_BYTES_MAX;
        let Some(descriptor) = self.descriptor_read(index, message).filter(sound) else {
            self.connection_fail(index, RequestError::Protocol);
            return Reading::Begun;
        };
        let group_at = self.group_at(index, group);
        let at = self.receive_at(group_at, receive);
        let record = self.receives[at];
        let room = record.length;
        self.receives[at].total = 1; // the sender waits to hear of it
        if descriptor.length > room {
            self.stats.truncated += 1;
            self.receives[at].length = descriptor.length;
            self.release(index, message);
            self.receive_end(index, group, receive, Some(RequestError::Truncated));
            return Reading::Begun;
        }
        let target =
            self.regions.span(record.region, record.address, descriptor.length, DataRail(0));
        let source = RemoteSpan { key: RailKey(descriptor.keys[0]), address: descriptor.address };
        let cell = group.cell(self.limits.requests_max) as u8;
        match self.post(index, op_id(OP_READ, cell, receive), OpKind::Read { target, source }) {
            Err(PostError::Again) => return Reading::Again,
            Err(PostError::PeerDown) => {
                // its completion is on its way up and ends the request
            }
            // longer than our end of the rail reads, while the peer's takes it
            Err(PostError::Unsupported) => {
                self.connection_fail(index, RequestError::Protocol);
                return Reading::Begun;
            }
            Ok(posted) => {
                self.receives[at].length = descriptor.length;
                if posted == Posted::Done {
                    self.receive_end(index, group, receive, None);
                }
            }
        }
        self.release(index, message);
        Reading::Begun
    }
}
