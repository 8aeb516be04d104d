//! The plugin without versions: what each table's functions are translated to.
//!
//! A process has one list of devices and any number of *contexts*, one for each communicator of
//! NCCL from v11 on, and one for all others. A context has rooms ([`room`]), which have
//! connections ([`comm`]). What lives no longer than set-up (contexts, listeners, attempts) is
//! named by numbers, so that a call which comes too late finds nothing; what the data path uses is
//! reached by pointers.

pub mod close;
pub mod comm;
pub mod device;
mod fault;
pub mod log;
pub mod memory;
pub mod room;
pub mod setup;

pub use fault::Fault;

use crate::abi::Logger;
use crosstie::host::settings::SETTINGS;
use device::Device;
use room::Rooms;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A communicator of NCCL's, or all those of a table that does not tell them apart.
pub struct Context {
    /// Its rooms.
    pub rooms: Rooms,
    /// Connections that are being made.
    pub attempts: Mutex<Vec<setup::Pending>>,
}

impl Context {
    fn new() -> Arc<Context> {
        Arc::new(Context { rooms: Rooms::default(), attempts: Mutex::new(Vec::new()) })
    }
}

struct State {
    /// Calls of init without their finalize.
    uses: u64,
    devices: &'static [Device],
    /// The context of tables that have none.
    common: Option<Arc<Context>>,
    contexts: BTreeMap<u64, Arc<Context>>,
    next: u64,
}

static STATE: Mutex<State> =
    Mutex::new(State { uses: 0, devices: &[], common: None, contexts: BTreeMap::new(), next: 1 });

fn state() -> MutexGuard<'static, State> {
    locked(&STATE)
}

fn locked<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the plugin once more. The first looks for devices, and says one line for each.
pub fn init(logger: Option<Logger>) -> Result<(), Fault> {
    let mut state = state();
    if logger.is_some() || state.uses == 0 {
        log::set(logger);
    }
    if state.uses == 0 {
        let devices = device::survey()?;
        if state.devices != devices {
            state.devices = devices.leak();
        }
        for (number, device) in state.devices.iter().enumerate() {
            log::info(&line(number, device));
        }
    }
    state.uses += 1;
    Ok(())
}

fn line(number: usize, device: &Device) -> String {
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    format!(
        "device {number} is {}: {} Mbit/s, PCI {}, {} on other hosts, shared memory on this one; \
         crosstie {}, {}",
        text(device.name),
        device.speed_mbps,
        device.pci_path.map_or("none".into(), text),
        device.interface.map_or("nobody", |_| "TCP"),
        env!("CARGO_PKG_VERSION"),
        settings(),
    )
}

/// The variables that are set, with what they are set to.
fn settings() -> String {
    let names = SETTINGS.iter().map(|setting| setting.name).chain([device::NCCL_CHOICE]);
    let set: Vec<String> = names
        .filter_map(|name| std::env::var(name).ok().map(|value| format!("{name}={value}")))
        .collect();
    if set.is_empty() { "settings as by default".into() } else { set.join(" ") }
}

/// Opens the plugin once more, for a communicator; its number.
pub fn context_open(logger: Option<Logger>) -> Result<u64, Fault> {
    init(logger)?;
    let mut state = state();
    let number = state.next;
    state.next += 1;
    state.contexts.insert(number, Context::new());
    Ok(number)
}

/// Ends a communicator's context. Connections that stand stay, because another communicator may
/// share them; attempts and listeners are given up.
pub fn context_close(number: u64) -> Result<(), Fault> {
    let (context, last) = {
        let mut state = state();
        let Some(context) = state.contexts.remove(&number) else { return Ok(()) };
        state.uses = state.uses.saturating_sub(1);
        (context, state.uses == 0)
    };
    setup::abandon(&context);
    setup::listeners_close(number);
    drop(context);
    close::finish();
    if last {
        log::set(None);
    }
    Ok(())
}

/// The context of a number; that of all others when it is zero or has ended, since communicators
/// that share resources may outlive the one that opened them.
pub fn context(number: u64) -> Result<Arc<Context>, Fault> {
    let mut state = state();
    if let Some(context) = state.contexts.get(&number) {
        return Ok(Arc::clone(context));
    }
    Ok(Arc::clone(state.common.get_or_insert_with(Context::new)))
}

/// How many devices there are; 0 before init.
pub fn device_count() -> usize {
    state().devices.len()
}

/// A device.
pub fn device(number: i32) -> Result<(usize, &'static Device), Fault> {
    let devices = state().devices;
    let place = usize::try_from(number).map_err(|_| Fault::Argument)?;
    devices.get(place).map(|device| (place, device)).ok_or(Fault::Argument)
}
