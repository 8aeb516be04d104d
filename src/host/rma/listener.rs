//! An endpoint that listens for its ranks.

use super::error::RmaError;
use crate::base::units::Bytes;
use crate::connect::ListenerId;
use crate::host::Endpoint;
use crate::host::options::Options;
use crate::memory::{Reserve, locked};
use crate::transport::Limits;
use crate::wire::handle::HANDLE_BYTES;
use std::sync::Mutex;

/// Most ranks. The endpoint is opened before the user says how many there are; what is not used of
/// its block is address space alone.
pub const RANKS_MAX: u32 = 512;
/// Connections: two with each other rank, and both ends of two with itself.
const CONNECTIONS_MAX: u32 = 2 * (RANKS_MAX + 1);
/// Requests of one connection: frames, and long transfers.
const REQUESTS_MAX: u32 = 64;
/// Windows of a communicator.
pub(super) const WINDOWS_MAX: u32 = 512;
/// Regions: the windows, the group's frames, and the board.
const REGIONS_MAX: u32 = WINDOWS_MAX + 2;

/// What an endpoint of such a communicator needs of the user's options.
pub fn options(chosen: Options) -> Options {
    Options {
        limits: Limits {
            connections_max: CONNECTIONS_MAX,
            requests_max: REQUESTS_MAX,
            regions_max: REGIONS_MAX,
            rails_max: chosen.limits.rails_max,
        },
        heap_bytes: Bytes::ZERO,
        ..chosen
    }
}

/// An endpoint and its block, closed in this order.
pub(super) struct Opened {
    endpoint: Option<Endpoint>,
    _block: Reserve,
}

impl Opened {
    fn open(options: &Options) -> Result<Opened, RmaError> {
        let block = Reserve::create(options.bytes())?;
        // SAFETY: aligned to a page, zeroed, as long as told, and kept until the endpoint is closed
        // (`drop`); its memory does not move with it.
        let opened = unsafe { Endpoint::open_zeroed(block.start(), block.length(), options) };
        Ok(Opened { endpoint: Some(opened.map_err(RmaError::Open)?), _block: block })
    }

    /// The endpoint.
    pub fn endpoint(&mut self) -> &mut Endpoint {
        self.endpoint.as_mut().expect("open until it is dropped")
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close();
        }
    }
}

/// A listener of a rank; its handle goes to all others.
pub struct Listener {
    handle: [u8; HANDLE_BYTES],
    /// Until it has connected.
    waiting: Mutex<Option<(Opened, ListenerId)>>,
}

impl Listener {
    /// Opens an endpoint that listens. `options` are those of [`options`].
    ///
    /// *Errors*: [`RmaError::Open`], [`RmaError::Listen`], [`RmaError::System`].
    pub fn open(options: &Options) -> Result<Listener, RmaError> {
        let mut opened = Opened::open(options)?;
        let listened = opened.endpoint().shared.listen();
        let (listener, handle) = listened.map_err(RmaError::Listen)?;
        Ok(Listener { handle, waiting: Mutex::new(Some((opened, listener))) })
    }

    /// What the other ranks need to reach it.
    pub fn handle(&self) -> &[u8; HANDLE_BYTES] {
        &self.handle
    }

    /// The endpoint, for the one communicator that connects by it.
    pub(super) fn take(&self) -> Result<(Opened, ListenerId), RmaError> {
        let mut waiting = locked(&self.waiting);
        waiting.take().ok_or(RmaError::Argument("a listener that has connected before"))
    }
}
