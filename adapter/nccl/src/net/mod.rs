//! The plugin without versions: what each table's functions are translated to.
//!
//! A process has one list of devices and any number of *contexts*, one for each communicator of
//! NCCL from v11 on, and one for all others. A context has rooms ([`room`]), which have
//! connections ([`comm`]). What lives no longer than set-up (contexts, listeners, attempts) is
//! named by numbers, so that a call which comes too late finds nothing; what the data path uses is
//! reached by pointers.

mod abandoned;
pub mod close;
pub mod comm;
mod contexts;
mod crew;
pub mod device;
mod fault;
pub mod kind;
pub mod log;
pub mod memory;
mod nics;
mod ports;
pub mod process;
pub mod profile;
pub mod room;
pub mod setup;
mod tender;
mod threads;
mod unheard;

pub use contexts::{Context, device, device_count, patience};
use crosstie::memory::Variables;
pub use fault::Fault;

use crate::abi::Logger;
use crate::cuda;
use crate::net::kind::Kind;
use crate::variables;
use contexts::{State, common, state};
use crosstie::base::integer::of_c;
use crosstie::base::units::Span;
use crosstie::host::Options;
use crosstie::host::settings::{self, Environment};
use device::Device;
use std::time::Duration;
use threads::ends;

/// Contexts of its own that NCCL counts for the plugin, so that it is never unloaded.
const NCCL_STAYS: &str = "NCCL_NET_PLUGIN_REF_COUNT";

/// Opens the plugin for a table that knows no communicators: NCCL does so when it loads it.
pub fn init(logger: Option<Logger>) -> Result<(), Fault> {
    opened(&mut state(), logger)
}

/// Opens the plugin once more. The first looks for devices, and says one line for each.
fn opened(state: &mut State, logger: Option<Logger>) -> Result<(), Fault> {
    if logger.is_some() || state.uses == 0 {
        log::set(logger);
    }
    if state.uses == 0 {
        if state.devices.is_empty() || !stays_loaded() {
            surveyed(state)?;
        }
        state.shown = state.physical;
        cuda::variables_set();
        variables::keep_devices(&state.devices[..state.physical]);
        let its = settings::environment();
        state.patience = Duration::from_nanos(connect_timeout(&its).0);
        for (number, device) in state.devices[..state.physical].iter().enumerate() {
            log::info(&line(number, device, &its));
            cuda::nics_say(device);
        }
    }
    state.uses += 1;
    Ok(())
}

/// Whether NCCL has opened the plugin, and there are devices.
pub fn is_open() -> bool {
    let state = state();
    state.uses > 0 && state.physical > 0
}

/// Looks for devices. Where they are others than before, the numbers of those have no meaning any
/// more: who loads the plugin asks for the new ones.
///
/// *Errors*: a setting of ours cannot be meant, of which a line tells; NCCL goes on without us.
fn surveyed(state: &mut State) -> Result<(), Fault> {
    let wrong = settings::wrong();
    wrong.iter().for_each(|it| log::warn(&it.to_string()));
    if !wrong.is_empty() {
        return Err(Fault::Usage);
    }
    let devices = device::survey()?;
    unheard::say();
    if !state.devices[..state.physical].iter().copied().eq(&devices) {
        state.devices = devices.into_iter().map(device::device_kept).collect();
        state.physical = state.devices.len();
    }
    Ok(())
}

/// Whether NCCL keeps the plugin when its last communicator has ended. It then counts no devices
/// for the next (from 2.28.7 on: `ncclNetPluginInit` in its `plugin/net.cc`), and the numbers that
/// it has must mean what they did, as those of its own networks do.
fn stays_loaded() -> bool {
    let text = Variables::of_process().text(NCCL_STAYS).unwrap_or_default();
    of_c(text.trim()).is_some_and(|(count, _)| count > 0)
}

/// Makes one device of several physical ones; its number, the same for who makes it again.
pub fn fuse(members: &[i32]) -> Result<i32, Fault> {
    let members_known = device::Members::of(members).ok_or(Fault::Argument)?;
    let mut state = state();
    let physical = |number: &i32| {
        let place = usize::try_from(*number).ok().filter(|place| *place < state.physical);
        place.map(|place| state.devices[place]).ok_or(Fault::Argument)
    };
    let devices: Vec<&'static Device> = members.iter().map(physical).collect::<Result<_, _>>()?;
    let made = &state.devices[state.physical..state.shown];
    if let Some(place) = made.iter().position(|it| it.members == members_known) {
        return Ok((state.physical + place) as i32);
    }
    let number = state.shown;
    // made already, by an NCCL that has loaded the plugin before
    let is_there = state.devices.get(number).is_some_and(|it| it.members == members_known);
    if !is_there {
        let fused = device::fused(members_known, &devices, &state.devices[..state.physical])
            .ok_or(Fault::Argument)?;
        state.devices.truncate(number);
        state.devices.push(device::device_kept(fused));
    }
    state.shown += 1;
    log::info(&line(number, state.devices[number], &settings::environment()));
    Ok(number as i32)
}

fn line(number: usize, device: &Device, its: &Environment) -> String {
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    format!(
        "device {number} is {}: {} Mbit/s, PCI {}, {}{}; crosstie {}, {}",
        text(device.name),
        cuda::speed_mbps(device),
        device.pci_path.map_or("none".into(), text),
        device.kind.rails_text(its),
        device.cabling_text(),
        env!("CARGO_PKG_VERSION"),
        told(device, its),
    )
}

fn connect_timeout(its: &Environment) -> Span {
    its.connect_timeout.unwrap_or(Options::default().handshake_deadline)
}

/// What the variables come to, and those that are set with what they are set to.
fn told(device: &Device, its: &Environment) -> String {
    let by_subnet = || "by subnet".to_string();
    let rails = if its.tcp_rails == 0 { by_subnet() } else { its.tcp_rails.to_string() };
    let (streams, threads) = its.tcp(match device.kind {
        Kind::Alone | Kind::Interfaces(_) => crew::tcp_threads(),
        Kind::Ports { .. } | Kind::Nics { .. } => 0,
    });
    let effective = format!(
        "rails {}, TCP rails {rails}, streams {}, threads {}, threads of shared memory {}, connect \
         timeout {} ms, peer timeout {} ms, stalls after {} ms",
        its.rails,
        streams,
        threads,
        its.shm_threads.unwrap_or_else(crew::shm_threads),
        connect_timeout(its).0 / 1_000_000,
        its.peer_timeout.0 / 1_000_000,
        its.stall.0 / 1_000_000,
    );
    let names = settings::names().chain([device::NCCL_CHOICE, device::NCCL_FAMILY, NCCL_STAYS]);
    let set: Vec<String> = names
        .filter_map(|name| {
            Variables::of_process().text(name).map(|value| format!("{name}={value}"))
        })
        .collect();
    if set.is_empty() { effective } else { format!("{effective} ({})", set.join(" ")) }
}

/// Opens the plugin once more, for a communicator; its number.
pub fn context_open(logger: Option<Logger>, traffic_class: Option<i32>) -> Result<u64, Fault> {
    let mut state = state();
    opened(&mut state, logger)?;
    let number = state.next;
    state.next += 1;
    *ends() += 1;
    state.contexts.insert(number, Context::new(true, traffic_class));
    Ok(number)
}

/// Ends a communicator's context. Connections that stand stay, because another communicator may
/// share them, and with them NCCL's log; attempts and listeners are given up.
pub fn context_close(number: u64) -> Result<(), Fault> {
    let (context, is_last) = {
        let mut state = state();
        let Some(context) = state.contexts.remove(&number) else { return Ok(()) };
        state.uses = state.uses.saturating_sub(1);
        (context, state.uses == 0)
    };
    setup::abandon(&context);
    if is_last && let Some(common) = common() {
        // attempts of communicators that had outlived the one they name
        setup::abandon(&common);
    }
    setup::listeners_close(number, is_last);
    abandoned::finish();
    drop(context);
    close::finish(number, is_last);
    tender::finish();
    // that took its time: another communicator may have begun since
    let state = state();
    *ends() -= 1;
    if state.uses == 0 && room::standing() == 0 {
        log::set(None);
    }
    Ok(())
}
