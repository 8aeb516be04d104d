//! Opens endpoints as a program would, and remembers what the log says of them.
#![forbid(unsafe_code)]

use crate::Failure;
use crate::owned::{Location, Owned};
use crosstie::host::log::{self, Level};
use crosstie::host::nic_counter;
use crosstie::host::plan::{Plan, PlannedPort};
use crosstie::host::{DeviceKind, Options};
use crosstie::provider::verbs::companion::CompanionError;
use crosstie::wire::RAILS_MAX;
use std::sync::{Mutex, PoisonError};

/// What was said while endpoints were opened here, instead of to standard error.
static SAID: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());

/// The sink of the log that remembers what it says.
pub fn listen(_: usize, level: Level, text: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.push((level, text.to_string()));
}

/// Opens an endpoint as a program would, so that nothing is called available that is refused then.
///
/// *Errors*: why it was refused.
pub fn opens(kind: DeviceKind) -> Result<(), Failure> {
    opened(&Options { device: kind, ..Options::default() }).map(|_| ())
}

fn opened(options: &Options) -> Result<Owned, Failure> {
    let before = said().len();
    match Owned::open(options, Location::Host) {
        Ok(owned) => Ok(owned),
        Err(error) => {
            // the log says which file, and which interfaces there are
            let errors = said().into_iter().skip(before);
            let last = errors.rev().find(|(level, _)| *level == Level::Error);
            Err(last.map_or_else(|| error.to_string(), |(_, text)| text))
        }
    }
}

/// What an endpoint on host0 uses that has as many rails as there may be.
///
/// *Errors*: why none opens.
pub fn plan() -> Result<Plan, Failure> {
    log::sink_set(Some((listen, 0)));
    let mut options = Options::default();
    options.limits.rails_max = RAILS_MAX as u32;
    let plan = opened(&options).map(|mut owned| owned.endpoint().plan().clone());
    log::sink_set(None);
    plan
}

/// The RDMA ports of an endpoint on host0 that asks for companions, and why one has none. Where no
/// such endpoint opens, there are none.
pub fn companions() -> Vec<(String, Result<(), CompanionError>)> {
    log::sink_set(Some((listen, 0)));
    let opened = opened(&Options { companions: true, ..Options::default() });
    log::sink_set(None);
    let Ok(mut owned) = opened else { return Vec::new() };
    let endpoint = owned.endpoint();
    let each = endpoint.plan().ports.iter().enumerate().filter_map(|(place, port)| match port {
        PlannedPort::Verbs(port) => {
            Some((port.name.clone(), nic_counter::of_port(endpoint, place)?))
        }
        PlannedPort::Libfabric(_) | PlannedPort::Vendor(_) => None,
    });
    each.collect()
}

/// What the log has said.
pub fn said() -> Vec<(Level, String)> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
