//! Registrations for the endpoint of one peer ([`Scope::Connection`]).
//!
//! Some providers bind registrations to connected endpoints (`FI_MR_ENDPOINT` with `FI_EP_MSG`).
//! There, a region has one registration for each peer that uses it, each with its own key.
//!
//! - **Made late**: the rail's thread makes it when a post first needs the region as source or
//!   target. It also makes it when a peer asks for the region's key; the answer carries the key for
//!   that peer.
//! - **The peer's part of the area**, its receives and staging, is registered when its endpoint
//!   opens.
//! - **Closed before the endpoint**, whichever side ends the connection. The next connection has
//!   registrations of its own. One is closed earlier if its region is deregistered, or if its place
//!   in the table is needed.
//! - **`Busy`**: a registration holds its region. So `deregister` says `Busy` until the rail's next
//!   poll has closed the unused registrations.
//! - **One thread**: only the rail's thread makes and closes them. So no other thread meets an
//!   endpoint that closes.

use super::area::SENDS;
use super::domain::Scope;
use super::peer::KEYS;
use super::rail::Libfabric;
use super::report::ErrorReport;
use super::sys::{Code, Endpoint, Registration};
use super::turns::Act;
use crate::base::regions::Range;
use crate::fabric::{DownCause, LocalSpan, PostError};
use core::ffi::c_void;
use core::ptr::null_mut;

/// Regions that are registered for one peer's endpoint at a time: as many as it was told of, and
/// one for each op that the library may have. So there always is one that nothing uses.
pub(super) const BOUND: usize = KEYS + SENDS;

/// A region that is registered for a peer's endpoint.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub(super) struct Bound {
    /// The library's registration, as a number.
    registration: u64,
    /// The region, plus one; 0: the place is free.
    region: u32,
}

/// The places of a peer in the order in which a region is looked for, and for room for it.
fn places(index: usize, region: u32) -> impl Iterator<Item = usize> {
    let first = region as usize;
    (0..BOUND).map(move |n| index * BOUND + (first + n) % BOUND)
}

impl Libfabric<'_> {
    /// Pins the region of ours that a range lies in, and registers it for a peer's endpoint if it
    /// is not yet: its index, and what the library's calls name it by. `None`: there is none, or
    /// all peers have one registration of it.
    ///
    /// *Cost*: a walk over the places of the peer, from the region's own; the library's call the
    /// first time.
    #[cold]
    #[inline(never)]
    pub(super) fn hold_bound(
        &mut self,
        index: usize,
        span: LocalSpan,
    ) -> Result<Option<(u32, *mut c_void)>, PostError> {
        if self.traits.scope != Scope::Connection {
            return Ok(None);
        }
        let (key, address, length) = (span.key(), span.address(), span.length().0);
        let Some((region, range)) = self.domain.hold_unregistered(key, address, length) else {
            return Ok(None);
        };
        let bound = self.bound(index, region, range);
        if !matches!(bound, Ok(Some(_))) {
            self.domain.release(region);
        }
        Ok(bound?.map(|registration| (region, registration.descriptor())))
    }

    /// The registration for a peer's endpoint of a region that is pinned; it is made if there is
    /// none. `None`: there is none, and its owner has given the region up, whose memory may have
    /// gone.
    ///
    /// *Errors*: `Again`: there is no endpoint, or no room now; `PeerDown`: the library refuses,
    /// and the peer ends.
    pub(super) fn bound(
        &mut self,
        index: usize,
        region: u32,
        range: Range,
    ) -> Result<Option<Registration>, PostError> {
        let is_it = |place: &usize| self.bound[*place].region == region + 1;
        if let Some(place) = places(index, region).find(is_it) {
            return Ok(Some(Registration::from_raw(self.bound[place].registration)));
        }
        let endpoint = self.links[index].endpoint.as_ref().map(Endpoint::as_ptr);
        let place = self.bound_room(index, region);
        let (Some(endpoint), Some(place)) = (endpoint, place) else {
            return Err(PostError::Again);
        };
        let range = (range.start, range.length as usize);
        let domain = self.domain;
        // SAFETY: `make_pinned` calls it where the memory is there, and the registration keeps it;
        // that is closed before its endpoint. This is the rail's thread, and the domain is open.
        let make = || unsafe { domain.make_for(range, Some(endpoint)) };
        match domain.make_pinned(region, make) {
            Ok(Some(made)) => {
                self.bound[place] = Bound { registration: made.into_raw(), region: region + 1 };
                Ok(Some(made))
            }
            Ok(None) => Ok(None),
            Err(Code::AGAIN) => Err(PostError::Again),
            Err(code) => {
                self.unregistered(index, code);
                self.end(index, DownCause::Broken(code.0));
                Err(PostError::PeerDown)
            }
        }
    }

    /// A free place for a region, or the first one whose region nothing uses, which is closed.
    fn bound_room(&mut self, index: usize, region: u32) -> Option<usize> {
        let is_free = |place: &usize| self.bound[*place].region == 0;
        if let Some(place) = places(index, region).find(is_free) {
            return Some(place);
        }
        places(index, region).find(|place| self.bound_drop(index, *place))
    }

    /// Closes the registration at a place, if nothing uses it; whether the place is free now.
    fn bound_drop(&mut self, index: usize, place: usize) -> bool {
        let Bound { registration, region } = self.bound[place];
        let ops = &self.sent[index * SENDS..(index + 1) * SENDS];
        let told = &self.told[index * KEYS..(index + 1) * KEYS];
        if ops.iter().any(|op| op.pin == region) || told.iter().any(|it| it.region == region) {
            return false;
        }
        let turn = self.domain.turn(Act::Register);
        let closed = Registration::from_raw(registration).close();
        drop(turn);
        if closed.is_ok() {
            self.bound[place] = Bound::default();
            self.domain.release_whole(region - 1);
        }
        closed.is_ok()
    }

    /// Closes what is registered of regions that are wanted back and that no peer holds; whether
    /// there was some.
    pub(super) fn bound_close_wanted(&mut self) -> bool {
        if self.traits.scope != Scope::Connection {
            return false;
        }
        let mut was_some = false;
        for place in 0..self.bound.len() {
            let region = self.bound[place].region;
            if region != 0 && self.domain.wants(region - 1) {
                was_some = true;
                self.bound_drop(place / BOUND, place);
            }
        }
        was_some
    }

    /// Registers a peer's part of the area for its endpoint, which has just been opened.
    pub(super) fn part_bind(&mut self, index: usize) -> Result<(), Code> {
        let endpoint = self.links[index].endpoint.as_ref().map(Endpoint::as_ptr);
        if self.traits.scope != Scope::Connection || endpoint.is_none() {
            return Ok(());
        }
        let range = self.area.part(index);
        // SAFETY: a part of the reserve, which outlives the registration; that is closed before its
        // endpoint. This is the rail's thread, and the domain is open.
        let made = unsafe { self.domain.make_for(range, endpoint) }?;
        let part = &mut self.parts[index];
        (part.registration, part.descriptor) = (made.into_raw(), made.descriptor());
        Ok(())
    }

    /// Closes all that is registered for a peer's endpoint, which is closed next.
    pub(super) fn bound_close(&mut self, index: usize) {
        if self.traits.scope != Scope::Connection {
            return;
        }
        let _turn = self.domain.turn(Act::Register);
        for place in index * BOUND..(index + 1) * BOUND {
            let Bound { registration, region } = core::mem::take(&mut self.bound[place]);
            if region != 0 {
                // nothing can be done about a refusal: the endpoint goes
                let _ = Registration::from_raw(registration).close();
                self.domain.release_whole(region - 1);
            }
        }
        let part = &mut self.parts[index];
        if part.registration != 0 {
            // as above
            let _ = Registration::from_raw(part.registration).close();
            (part.registration, part.descriptor) = (0, null_mut());
        }
    }

    /// Keeps why a peer ends: the library has refused memory for its endpoint.
    #[cold]
    pub(super) fn unregistered(&mut self, index: usize, code: Code) {
        let report = ErrorReport { unregistered: true, ..ErrorReport::new(code.0, 0) };
        self.peers[index].report.get_or_insert(report);
    }
}
