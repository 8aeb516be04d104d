//! Counters that a NIC adds to: 64-bit words in registered memory of this process.
//!
//! An endpoint has them that is opened with [`crate::host::Options::companions`]. Each RDMA port
//! then has a companion ([`crate::provider::verbs::companion`]). A program posts an add when the
//! data that it counts has ended: nothing here waits for data.
//!
//! Only the adds of one port to a word are atomic among each other. So connections that share a
//! counter are on one port. A processor reads it at any time, and writes it while no adds are on
//! their way.
//!
//! Connections of such an endpoint end when they lose their RDMA rail, since the outcome of an add
//! that was lost cannot be repaired (`doc/decisions/0026-companions.md`).
#![forbid(unsafe_code)]

use super::endpoint::Endpoint;
use super::machine::Machine;
use crate::base::slab::Handle;
use crate::base::words::said;
use crate::fabric::RailKey;
use crate::provider::rail_set::{PortRail, RailSet};
use crate::provider::verbs::companion::{AddError, AddNumber, Companion, CompanionError};
use crate::transport::mr::SpanError;

pub use crate::provider::verbs::companion::OutcomeUnknown;

/// Bytes of a counter.
const WORD_BYTES: u64 = 8;

/// Names an add of one endpoint.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct CounterTicket {
    place: u8,
    number: AddNumber,
}

said! {
    /// Why an add was not posted. Nothing was changed.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum NicCounterError {
        /// The endpoint was opened without [`crate::host::Options::companions`].
        NoCompanions => "the endpoint was opened without companions",
        Connection => "the connection is not in use, or has ended",
        NoRdmaRail => "the connection has no RDMA rail that is up",
        NoAtomics => "the RDMA device of the connection has no atomics",
        /// The port of its rail has no companion for another reason.
        Refused(why: CompanionError) => "the RDMA port of the connection has no companion: {why}",
        Unaligned => "the counter is not aligned to 8 bytes",
        Region => "the handle names no registered region",
        Range => "the counter does not lie in the region",
        NotRegistered =>
            "the RDMA port has refused to register the region, or to register it for adds",
        /// Add again later.
        Again => "as many adds are on their way as there may be",
        /// An add of this port has failed before, or the port has: there will be no more.
        Lost => "the companion of the RDMA port has failed",
        Device(code: i32) => "the RDMA device refused the add (errno {code})",
    }
}

impl From<AddError> for NicCounterError {
    fn from(error: AddError) -> NicCounterError {
        match error {
            AddError::Again => NicCounterError::Again,
            AddError::Unaligned => NicCounterError::Unaligned,
            // another thread has deregistered it since it was looked up
            AddError::Region => NicCounterError::Region,
            AddError::NoAdds => NicCounterError::NotRegistered,
            AddError::Lost => NicCounterError::Lost,
            AddError::Refused(errno) => NicCounterError::Device(errno.0),
        }
    }
}

/// Has the NIC of a connection's RDMA rail add `value` to the word at `address`, modulo 2^64. The
/// region is busy until the add has ended, which only [`test()`] finds.
///
/// *Errors*: nothing was posted.
///
/// *Cost*: a doorbell.
pub fn add(
    endpoint: &mut Endpoint,
    connection: Handle,
    region: Handle,
    address: u64,
    value: u64,
) -> Result<CounterTicket, NicCounterError> {
    let (place, key) = check(endpoint, connection, region, address)?;
    let Machine::Host(machine) = &mut endpoint.machine else {
        return Err(NicCounterError::NoRdmaRail);
    };
    let rail = machine.rail_mut();
    if companion_of(rail, place)?.is_full() {
        rail.companion_poll(place);
    }
    let number = companion_of(rail, place)?.add(key, address, value)?;
    Ok(CounterTicket { place: place as u8, number })
}

/// The errors of [`add`] that are known before: the port, and what it calls the word's region.
pub(super) fn check(
    endpoint: &mut Endpoint,
    connection: Handle,
    region: Handle,
    address: u64,
) -> Result<(usize, RailKey), NicCounterError> {
    if !endpoint.lanes.end_with_rdma() {
        return Err(NicCounterError::NoCompanions);
    }
    let place = rail_of(endpoint, connection)?;
    let regions = endpoint.shared.regions;
    let Machine::Host(machine) = &mut endpoint.machine else {
        return Err(NicCounterError::NoRdmaRail);
    };
    companion_of(machine.rail_mut(), place)?;
    if !address.is_multiple_of(WORD_BYTES) {
        return Err(NicCounterError::Unaligned);
    }
    // the first of a region's keys is that of all other rails
    let key = regions.key_of(region, address, WORD_BYTES, place + 1);
    let key = key.map_err(|error| match error {
        SpanError::Region => NicCounterError::Region,
        SpanError::Range => NicCounterError::Range,
    })?;
    if key == RailKey(0) { Err(NicCounterError::NotRegistered) } else { Ok((place, key)) }
}

/// The companion of a port of an endpoint that was opened with companions.
fn companion_of<'e>(
    rail: &'e mut RailSet<'static>,
    place: usize,
) -> Result<&'e mut Companion<'static>, NicCounterError> {
    match rail.companion_mut(place) {
        Some(Ok(companion)) => Ok(companion),
        Some(Err(CompanionError::Atomics)) => Err(NicCounterError::NoAtomics),
        Some(Err(why)) => Err(NicCounterError::Refused(why)),
        None => Err(NicCounterError::NoCompanions),
    }
}

/// How an add has ended; `None`: it has not. May be asked again, with the same answer.
///
/// *Errors*: the device or its port failed first, and nobody knows whether the add was carried out.
pub fn test(endpoint: &mut Endpoint, ticket: CounterTicket) -> Option<Result<(), OutcomeUnknown>> {
    let CounterTicket { place, number } = ticket;
    let Machine::Host(machine) = &mut endpoint.machine else { return Some(Err(OutcomeUnknown)) };
    let (rail, place) = (machine.rail_mut(), usize::from(place));
    rail.companion_poll(place);
    match rail.companion(place) {
        Some(Ok(companion)) => companion.outcome(number),
        Some(Err(_)) | None => Some(Err(OutcomeUnknown)),
    }
}

/// Whether the port at a place of the endpoint's [plan](Endpoint::plan) has a companion, or why
/// not; `None`: it is no RDMA port, or was asked for none.
pub fn of_port(endpoint: &Endpoint, place: usize) -> Option<Result<(), CompanionError>> {
    match &endpoint.machine {
        Machine::Host(machine) => Some(machine.rail().companion(place)?.map(|_| ())),
        Machine::Loopback(_) => None,
    }
}

/// The place of the RDMA port that a connection's rail is on.
fn rail_of(endpoint: &Endpoint, connection: Handle) -> Result<usize, NicCounterError> {
    let index = endpoint.used(connection).ok_or(NicCounterError::Connection)?;
    let known = &endpoint.known[connection.index as usize];
    if known.gone.is_some() {
        return Err(NicCounterError::Connection);
    }
    let machine = &endpoint.machine;
    let is_rdma = |lane| matches!(machine.port(index.0, lane), Some(PortRail::Verbs(_)));
    let is_up = |lane: &u8| is_rdma(*lane) && machine.is_up(index.0, *lane);
    let lane = (1..known.params.lanes).find(is_up);
    let place = lane.and_then(|lane| machine.port_place(index.0, lane));
    place.ok_or(NicCounterError::NoRdmaRail)
}
