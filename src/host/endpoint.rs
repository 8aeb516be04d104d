//! The endpoint, and the half of it that belongs to one thread at a time.

use super::error::OpenError;
use super::options::Options;
use super::shared::Shared;
use crate::base::slab::Handle;
use crate::transport::request::RequestIdError;
use crate::transport::{Incoming, Outcome, Outgoing, Progress, RequestId, Stats, SubmitError};

/// An endpoint in a block of the caller's memory.
pub struct Endpoint {
    /// What any thread may use, also while another thread uses the rest.
    pub shared: Shared,
}

/// Whether a connection is closed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Closing {
    /// It is.
    Closed,
    /// Operations are being fenced: make progress, then call again.
    Again,
    /// No such connection.
    Stale,
}

impl Endpoint {
    /// Cuts an endpoint out of `block` and opens it.
    ///
    /// # Safety
    /// - `block` is aligned to 64 bytes and valid for reads and writes of `length` bytes until
    ///   [`Endpoint::close`] has returned, and nobody else touches it.
    pub unsafe fn open(
        block: *mut u8,
        length: usize,
        options: &Options,
    ) -> Result<Endpoint, OpenError> {
        let _ = (block, length, options);
        unreachable!()
    }

    /// Accepts a message for sending; see [`crate::transport::Endpoint::isend`].
    pub fn isend(
        &mut self,
        connection: Handle,
        message: Outgoing,
    ) -> Result<RequestId, SubmitError> {
        let _ = (connection, message);
        unreachable!()
    }

    /// Accepts a group of receives.
    pub fn irecv(
        &mut self,
        connection: Handle,
        buffers: &[Incoming],
    ) -> Result<RequestId, SubmitError> {
        let _ = (connection, buffers);
        unreachable!()
    }

    /// Asks how a request stands; makes progress when it is outstanding.
    pub fn test(&mut self, request: RequestId) -> Result<Option<Outcome>, RequestIdError> {
        let _ = request;
        unreachable!()
    }

    /// Asks for a request to end early.
    pub fn cancel(&mut self, request: RequestId) -> Result<(), RequestIdError> {
        let _ = request;
        unreachable!()
    }

    /// Moves everything on that can move.
    pub fn progress(&mut self) -> Progress {
        unreachable!()
    }

    /// Gives up a connection.
    pub fn connection_close(&mut self, connection: Handle) -> Closing {
        let _ = connection;
        unreachable!()
    }

    /// Arms the wait descriptor. `false`: something is there already, make progress instead.
    pub fn wait_arm(&mut self) -> bool {
        unreachable!()
    }

    /// Counts since open.
    pub fn stats(&self) -> Stats {
        unreachable!()
    }

    /// Ends everything: connections, listeners, the side band's thread.
    pub fn close(self) {
        unreachable!()
    }
}
