//! What carries the records of a group: an endpoint with two connections for each pair of ranks.
#![forbid(unsafe_code)]

use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::fabric::Provider;
use crate::transport::endpoint::ConnectionCloseError;
use crate::transport::request::RequestIdError;
use crate::transport::{Endpoint, Incoming, Outcome, Outgoing, RequestId, SubmitError};

/// Names an add to a word of a GPU's memory.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Add(pub u64);

/// Why a word does not grow.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum AddError {
    /// There is no room now.
    Again,
    /// The carrier cannot add to such memory, or its GPU has failed.
    Memory,
}

/// Two-sided messages, as [`Endpoint`] has them. Reliable, in order for each connection, exactly
/// once, also when rails die: all that a group promises on top of that stands on this.
pub trait Carrier {
    /// Names a connection.
    type Link: Copy + core::fmt::Debug;

    /// [`Endpoint::isend`].
    fn isend(&mut self, link: Self::Link, message: Outgoing) -> Result<RequestId, SubmitError>;

    /// [`Endpoint::irecv`].
    fn irecv(&mut self, link: Self::Link, rooms: &[Incoming]) -> Result<RequestId, SubmitError>;

    /// [`Endpoint::test`]; makes no progress.
    fn test(&mut self, request: RequestId) -> Result<Option<Outcome>, RequestIdError>;

    /// Checks that a buffer lies in a registered region; says whether that is memory of a GPU.
    fn locate(&self, region: Handle, address: u64, length: u64) -> Result<bool, SubmitError>;

    /// Whether messages of a connection may lie in memory of GPUs.
    fn reaches_device(&self, link: Self::Link) -> bool;

    /// Begins to add to an aligned word of a GPU's memory, as far as there is room. Adds to one
    /// word are done one after the other.
    fn word_add(&mut self, _region: Handle, _address: u64, _value: u64) -> Result<Add, AddError> {
        Err(AddError::Memory)
    }

    /// Whether an add has ended; an error: what the word is now is not known.
    fn word_added(&mut self, _add: Add) -> Result<bool, AddError> {
        Err(AddError::Memory)
    }

    /// Gives up a connection, however often it is called; `true` once none of its requests touches
    /// memory any more. Carriers whose requests touch none after one has failed need not know.
    fn stop(&mut self, _link: Self::Link) -> bool {
        true
    }
}

impl<P: Provider> Carrier for Endpoint<'_, P> {
    type Link = ConnectionIndex;

    #[inline]
    fn isend(&mut self, link: Self::Link, message: Outgoing) -> Result<RequestId, SubmitError> {
        Endpoint::isend(self, link, message)
    }

    #[inline]
    fn irecv(&mut self, link: Self::Link, rooms: &[Incoming]) -> Result<RequestId, SubmitError> {
        Endpoint::irecv(self, link, rooms)
    }

    #[inline]
    fn test(&mut self, request: RequestId) -> Result<Option<Outcome>, RequestIdError> {
        Endpoint::test(self, request)
    }

    #[inline]
    fn locate(&self, region: Handle, address: u64, length: u64) -> Result<bool, SubmitError> {
        Endpoint::locate(self, region, address, length)
    }

    fn reaches_device(&self, link: Self::Link) -> bool {
        Endpoint::reaches_device(self, link)
    }

    fn stop(&mut self, link: Self::Link) -> bool {
        self.connection_close(link) != Err(ConnectionCloseError::Again)
    }
}
