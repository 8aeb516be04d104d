//! What a peer that has ended leaves behind: short messages that have come, and that nobody had
//! asked for. Their sender was told that they are done, so whoever asks for them later has them;
//! what finds none of them ends as everything else does on a lost connection.
#![forbid(unsafe_code)]

use super::endpoint::{Endpoint, Incoming};
use super::records::{ConnectionState, NIL, Queue};
use super::request::{RequestId, RequestKind, SubmitError};
use crate::base::ids::ConnectionIndex;
use crate::fabric::Provider;
use crate::wire::head::KIND_EAGER;

impl<P: Provider> Endpoint<'_, P> {
    /// Of the messages that nobody has asked for, keeps those that lie here whole, up to the first
    /// that would have to be read at the peer's. None once the user has closed the connection.
    pub(super) fn left_keep(&mut self, index: usize) {
        let c = &self.connections[index];
        let mut kept = Queue::EMPTY;
        if c.state == ConnectionState::Failing && c.outlived() {
            let mut record = c.recv.messages.unexpected.head;
            while record != NIL {
                let message = self.held[self.held_at(index, record)];
                if message.kind != KIND_EAGER {
                    break;
                }
                if kept.head == NIL {
                    kept.head = record;
                }
                kept.tail = record;
                record = message.next;
            }
        }
        if kept.tail != NIL {
            let last = self.held_at(index, kept.tail);
            self.held[last].next = NIL;
        }
        self.connections[index].recv.messages.unexpected = kept;
    }

    /// A receive on a connection that is not open, which `refusal` is the answer to where nothing
    /// is left.
    #[cold]
    #[inline(never)]
    pub(super) fn irecv_left(
        &mut self,
        connection: ConnectionIndex,
        buffers: &[Incoming],
        refusal: SubmitError,
    ) -> Result<RequestId, SubmitError> {
        let index = connection.as_usize();
        let Some(c) = self.connections.get_mut(index) else { return Err(refusal) };
        if !c.outlived() || c.recv.messages.unexpected.is_empty() {
            return Err(refusal);
        }
        match c.state {
            ConnectionState::Failing => return Err(SubmitError::Again), // what is posted is fenced
            ConnectionState::Failed => {}
            _ => return Err(refusal),
        }
        // nobody is offered anything any more
        (c.recv.offers.next, c.recv.offers.passed) = (c.recv.post, c.recv.post);
        self.oldest_advance(index);
        let request = self.group_take(connection, index, buffers)?;
        if let Some(RequestKind::Receive { record, .. }) = request.unpack() {
            let (at, error) = (self.send_at(index, record), self.connections[index].failure.0);
            self.group_end(index, at, error);
        }
        Ok(request)
    }
}
