//! Putting one send into the stream.
#![forbid(unsafe_code)]

use super::eager::{Blocked, OP_STREAM, op_id};
use super::endpoint::Endpoint;
use super::limits::CREDITS_FOR_STARTS;
use crate::fabric::{LocalSpan, PostError, Posted, Provider};
use crate::wire::head::{KIND_EAGER, KIND_START, SendHead};

impl<P: Provider> Endpoint<'_, P> {
    /// Puts one send into the stream; the rail copies it at post. `stripes` is for starts.
    pub(super) fn stream_post(
        &mut self,
        index: usize,
        kind: u8,
        tag: i32,
        stripes: u8,
        payload: LocalSpan,
    ) -> Result<(), Blocked> {
        let kept_at = self.stream_room(index, kind, payload.length().0)?;
        let fields = self.connections[index].head(kind, tag, stripes);
        self.stream_hand(index, &fields, payload)?;
        self.stream_left(index, &fields, kept_at, payload);
        let c = &self.connections[index];
        if P::SEVERAL_LANES && c.is_taken_worth() && self.rail.is_leaving(c.peer) {
            self.work.insert(index);
        }
        Ok(())
    }

    /// Whether the next send of the stream may leave: where it is kept, if it is.
    #[inline(always)]
    pub(super) fn stream_room(
        &mut self,
        index: usize,
        kind: u8,
        length: u64,
    ) -> Result<Option<u32>, Blocked> {
        // where nothing is bound by starts, nothing is kept for them
        let spare = kind == KIND_START || self.connections[index].pull;
        let reserve = if spare { 0 } else { CREDITS_FOR_STARTS };
        let long = kind != KIND_EAGER;
        if !self.may_consume(index, reserve) || (long && !self.connections[index].may_number()) {
            return Err(Blocked);
        }
        let c = &self.connections[index];
        match P::SEVERAL_LANES && c.fails_over() {
            false => Ok(None),
            true if c.control_blocked || c.resend.is_some() => Err(Blocked),
            true => Ok(Some(self.keep_room(index, length).ok_or(Blocked)?)),
        }
    }

    /// Posts it.
    #[inline(always)]
    pub(super) fn stream_hand(
        &mut self,
        index: usize,
        fields: &SendHead,
        payload: LocalSpan,
    ) -> Result<(), Blocked> {
        let c = &self.connections[index];
        let (id, peer, control) = (op_id(OP_STREAM, 0, 0), c.peer, c.control);
        match self.rail.post_send(id, peer, &fields.encode(), payload, self.now) {
            Ok(Posted::Done) => Ok(()),
            Ok(Posted::Pending) => {
                self.lane_mut(index, control).ops_in_flight += 1;
                Ok(())
            }
            Err(error) => {
                self.stats.again += u64::from(error == PostError::Again);
                Err(Blocked)
            }
        }
    }

    /// Accounts for it, and keeps it where another lane may have to carry it again.
    #[inline(always)]
    pub(super) fn stream_left(
        &mut self,
        index: usize,
        fields: &SendHead,
        kept_at: Option<u32>,
        payload: LocalSpan,
    ) {
        if let Some(kept_at) = kept_at {
            self.keep(index, fields, kept_at, payload);
        }
        self.connections[index].head_left(fields.kind != KIND_EAGER);
    }
}
