//! The half of an endpoint that any thread may use: registration and set-up.

use super::error::{AcceptError, ConnectError, DeregisterError, ListenError, RegisterError};
use crate::base::slab::Handle;
use crate::base::units::Bytes;
use crate::connect::ListenerId;
use crate::fabric::MemoryKind;
use crate::wire::handle::HANDLE_BYTES;

/// An attempt to connect that is under way.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Attempt(pub Handle);

/// Registration and set-up. All functions may be called from any thread and never block.
pub struct Shared {}

impl Shared {
    /// Makes memory known to the rails. Its handle goes with every request that uses it.
    ///
    /// # Safety
    /// - the range stays valid for reads and writes until it was deregistered with success, and
    ///   while a request stands nobody else touches what it was given.
    pub unsafe fn register(
        &self,
        address: u64,
        length: Bytes,
        kind: MemoryKind,
    ) -> Result<Handle, RegisterError> {
        let _ = (address, length, kind);
        unreachable!()
    }

    /// Forgets memory. `Busy` while requests that use it stand.
    pub fn deregister(&self, region: Handle) -> Result<(), DeregisterError> {
        let _ = region;
        unreachable!()
    }

    /// Allocates shared memory that peers reach without a system call, and registers it.
    pub fn allocate(&self, length: Bytes) -> Result<(*mut u8, Handle), RegisterError> {
        let _ = length;
        unreachable!()
    }

    /// Deregisters and frees memory of [`Shared::allocate`].
    pub fn free(&self, region: Handle) -> Result<(), DeregisterError> {
        let _ = region;
        unreachable!()
    }

    /// Opens a listener; the bytes reach it from other endpoints.
    pub fn listen(&self) -> Result<(ListenerId, [u8; HANDLE_BYTES]), ListenError> {
        unreachable!()
    }

    /// Closes a listener. Connections that nobody accepted are closed with it.
    pub fn listener_close(&self, listener: ListenerId) -> Result<(), AcceptError> {
        let _ = listener;
        unreachable!()
    }

    /// Starts to connect to the listener that made `handle`.
    pub fn connect(&self, handle: &[u8; HANDLE_BYTES]) -> Result<Attempt, ConnectError> {
        let _ = handle;
        unreachable!()
    }

    /// Asks how an attempt stands: the connection's handle once it is made.
    pub fn connect_poll(&self, attempt: Attempt) -> Result<Option<Handle>, ConnectError> {
        let _ = attempt;
        unreachable!()
    }

    /// Gives an attempt up.
    pub fn connect_abandon(&self, attempt: Attempt) {
        let _ = attempt;
        unreachable!()
    }

    /// Takes a connection that a peer has made to a listener.
    pub fn accept(&self, listener: ListenerId) -> Result<Option<Handle>, AcceptError> {
        let _ = listener;
        unreachable!()
    }

    /// Writes the peer's name (program, process id, host) as UTF-8; returns its length in bytes.
    pub fn peer_text(&self, connection: Handle, out: &mut [u8]) -> usize {
        let _ = (connection, out);
        unreachable!()
    }

    /// The descriptor that becomes readable after [`super::Endpoint::wait_arm`].
    pub fn wait_fd(&self) -> i32 {
        unreachable!()
    }
}
