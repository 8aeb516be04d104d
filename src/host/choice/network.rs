//! What an endpoint is reached by from other hosts: rails, addresses, the shared key.
#![forbid(unsafe_code)]

use super::device::{DeviceKind, Rails};
use super::options::Options;
use super::ports::Port;
use super::settings::{Environment, KEY_FILE, Wrong};
use super::vendor::VendorRail;
use super::{libfabric, rdma, vendor as vendors};
use crate::connect::descriptor_limit;
use crate::connect::interfaces::{self, InterfaceAddress, InterfaceError};
use crate::connect::key::Key;
use crate::host::error::OpenError;
use crate::host::log::event::tell;
use crate::host::log::network::{Gone, Lacking, NetworkEvent, VendorOut};
use crate::host::log::settings::SettingEvent;
use crate::host::log::{Level, news};
use crate::memory::{CpuSet, probe};
use crate::provider::tcp;
use crate::wire::hello::{
    AddressList, RAIL_LIBFABRIC, RAIL_SHM, RAIL_TCP, RAIL_VENDOR, RAIL_VERBS,
};
use core::fmt::Display;
use std::format;
use std::string::ToString;
use std::vec::Vec;

/// The part of the descriptors that the process may have which are in use when connections get one
/// socket, where nobody asks for more: a thread has a copy of each beside the first, and the peer
/// may ask for as many connections as we.
const DESCRIPTORS_PART: u64 = 4;

/// Sockets of TCP, and threads that move what is long over them.
#[derive(Copy, Clone)]
pub(in crate::host) struct Streams {
    /// Sockets of each connection that this side opens.
    pub(in crate::host) each: u32,
    /// Descriptors of the process from which on that is one all the same.
    pub(in crate::host) descriptors_max: u64,
    /// Threads; each moves one or more beside the first.
    pub(in crate::host) threads: u32,
    /// Their CPUs; empty: they inherit the opener's.
    pub(in crate::host) cpus: CpuSet,
}

/// All of it.
pub(in crate::host) struct Network {
    /// The rails that are left.
    pub(in crate::host) rails: Rails,
    /// TCP would be among them, but there is no interface for it.
    pub(in crate::host) without_interface: bool,
    /// Our addresses, the best first; the side band knows the ports.
    pub(in crate::host) addresses: AddressList,
    /// Addresses of interfaces that `CROSSTIE_SOCKET_IFNAME` leaves out.
    pub(in crate::host) excluded: Vec<InterfaceAddress>,
    /// Those of them that are used where none of the others leads.
    pub(in crate::host) spare: Vec<InterfaceAddress>,
    /// What peers must have too.
    pub(in crate::host) key: Option<Key>,
    /// Sockets and threads of TCP.
    pub(in crate::host) streams: Streams,
    /// Ports of RDMA, libfabric and vendors.
    pub(in crate::host) ports: Vec<Port>,
}

impl Network {
    /// What the device and the environment allow, and this host has. Says what is missing.
    pub(in crate::host) fn choose(
        options: &Options,
        environment: &Environment,
        vendor: Vec<VendorRail>,
    ) -> Result<Network, OpenError> {
        let allowed = options.device.rails().and(environment.rails);
        if allowed.is_empty() {
            return Err(OpenError::Rails);
        }
        // before anything is said of what is done without
        required_allowed(options.device, environment)?;
        // asked of peers on this host, too
        let key = key(environment)?;
        let mut network = Network {
            rails: allowed,
            without_interface: false,
            addresses: AddressList::EMPTY,
            excluded: Vec::new(),
            spare: Vec::new(),
            key,
            streams: Streams::ONE,
            ports: Vec::new(),
        };
        if !allowed.tcp || !allowed.vendor {
            let here = options.device.rails().vendor;
            let why = if here { VendorOut::Rails } else { VendorOut::Device };
            vendors::left_out(&vendor, why);
        } else if environment.vendor_named && vendor.is_empty() {
            tell(&NetworkEvent::NoVendorRail);
        }
        if !allowed.tcp {
            network.shm_look(environment)?;
            return Ok(network);
        }
        let choice = environment.socket_ifname.as_deref().unwrap_or("");
        if !choice.trim().is_empty() && !choice.trim().starts_with('^') {
            news::own_host_meant();
        }
        let patience = options.handshake_deadline;
        match interfaces::settled_addresses_of(options.family, choice, patience) {
            Ok((found, late)) => {
                unmatched_tell(options, choice);
                if let Some(late) = late {
                    tell(&NetworkEvent::Tentative(&late));
                }
                room_tell(&found);
                network.addresses = interfaces::address_list(&found);
                if !choice.trim().is_empty() {
                    network.excluded = excluded(&found);
                    network.spare = spare(options, &network.excluded);
                }
            }
            Err(error) => network.without(options, choice, &error)?,
        }
        network.shm_look(environment)?;
        network.ports_choose(options, environment, vendor);
        // ports carry what is long
        let most = tcp::THREADS_MAX as u32;
        let threads = if network.ports.is_empty() { options.tcp_threads.min(most) } else { 0 };
        network.streams = Streams::choose(threads, environment);
        Ok(network)
    }

    /// Ports make lanes of connections over TCP, which is their reserve. Those of vendors, which
    /// the program brings, come first; those of libfabric are taken where there are none of RDMA,
    /// or where somebody asks for them.
    fn ports_choose(
        &mut self,
        options: &Options,
        environment: &Environment,
        vendor: Vec<VendorRail>,
    ) {
        let asked = environment.libfabric_named || environment.libfabric.provider.is_some();
        let named = environment.verbs_named || asked || !vendor.is_empty();
        self.rails.verbs &= self.rails.tcp;
        self.rails.libfabric &= self.rails.tcp;
        self.rails.vendor &= self.rails.tcp && !vendor.is_empty();
        let wanted = self.rails.verbs || self.rails.libfabric || self.rails.vendor;
        if wanted && options.limits.rails_max < 2 {
            let level = if named { Level::Warning } else { Level::Info };
            if self.rails.vendor {
                vendors::left_out(&vendor, VendorOut::RailsMax);
            } else {
                tell(&NetworkEvent::NoRailForPorts(level));
            }
        } else if wanted {
            if self.rails.vendor {
                self.ports.extend(vendor.into_iter().map(Port::Vendor));
            }
            let of_vendors = self.ports.len();
            if self.rails.verbs {
                let ports = rdma::choose(environment);
                self.ports.extend(ports.into_iter().map(Port::Verbs));
            }
            if self.rails.libfabric && (self.ports.len() == of_vendors || asked) {
                let nics = libfabric::choose(environment);
                self.ports.extend(nics.into_iter().map(Port::Libfabric));
            }
            // who chooses devices itself, as the NCCL plugin does, knows what it leaves out
            let own = options.nics.is_none() && options.ports.is_none();
            if own && !asked && !self.ports.iter().any(|port| matches!(port, Port::Libfabric(_))) {
                for text in environment.libfabric.unused_words() {
                    tell(&NetworkEvent::LibfabricUnused(&text));
                }
            }
        }
        self.rails_of_ports();
    }

    /// Of the rails of ports those are left of which there are ports.
    pub(in crate::host) fn rails_of_ports(&mut self) {
        let (verbs, libfabric, vendor) = (false, false, false);
        self.rails = Rails { verbs, libfabric, vendor, ..self.rails };
        self.ports.iter().for_each(|port| port.add_to(&mut self.rails));
    }

    /// Refuses an endpoint of all rails that lacks one which must be there. Why it does was said
    /// where it was looked for.
    pub(in crate::host) fn required_check(
        &self,
        device: DeviceKind,
        environment: &Environment,
    ) -> Result<(), OpenError> {
        lacking_tell(device, environment, self.rails, Lacking::Absent)
    }

    /// The rails as a hello says them.
    pub(in crate::host) fn rail_bits(&self) -> u32 {
        let shm = if self.rails.shm { RAIL_SHM } else { 0 };
        let tcp = if self.rails.tcp { RAIL_TCP } else { 0 };
        let verbs = if self.rails.verbs { RAIL_VERBS } else { 0 };
        let libfabric = if self.rails.libfabric { RAIL_LIBFABRIC } else { 0 };
        let vendor = if self.rails.vendor { RAIL_VENDOR } else { 0 };
        shm | tcp | verbs | libfabric | vendor
    }

    /// Where the kernel refuses what shared memory needs, peers of this host take TCP, if that is
    /// allowed.
    fn shm_look(&mut self, environment: &Environment) -> Result<(), OpenError> {
        if !self.rails.shm {
            return Ok(());
        }
        let Err((call, errno)) = probe::shared_memory() else { return Ok(()) };
        if !self.rails.tcp {
            let no_address = self.without_interface;
            return Err(OpenError::SharedMemory { call, code: errno.0, no_address });
        }
        let tcp_instead = !environment.requires(Rails { shm: true, ..Rails::NONE });
        tell(&NetworkEvent::NoSharedMemory { call, errno, tcp_instead });
        self.rails.shm = false;
        Ok(())
    }

    /// No address: shared memory alone, if that is allowed.
    fn without(
        &mut self,
        options: &Options,
        choice: &str,
        error: &InterfaceError,
    ) -> Result<(), OpenError> {
        if let InterfaceError::Choice(_) = error {
            tell(&NetworkEvent::Choice(error));
            return Err(OpenError::InterfaceChoice);
        }
        let gone = match error {
            // it names all that was asked for, and all that there is
            InterfaceError::NoMatch(..) => gone(options, choice),
            _ => {
                unmatched_tell(options, choice);
                None
            }
        };
        let why: &dyn Display = gone.as_ref().map_or(error, |gone| gone);
        tell(&NetworkEvent::NoAddress { why, alone: !self.rails.shm });
        if !self.rails.shm {
            return Err(match error {
                InterfaceError::System(code @ (libc::EMFILE | libc::ENFILE)) => {
                    OpenError::System(*code)
                }
                InterfaceError::System(code) => OpenError::Interfaces(*code),
                _ => OpenError::Interface,
            });
        }
        self.rails.tcp = false;
        self.without_interface = true;
        Ok(())
    }
}

/// Refuses what must be there and may not be.
fn required_allowed(device: DeviceKind, environment: &Environment) -> Result<(), OpenError> {
    lacking_tell(device, environment, environment.rails, Lacking::Forbidden)
}

/// Refuses an endpoint of all rails for which `rails` are not all of those that must be there; says
/// which are not, and why.
fn lacking_tell(
    device: DeviceKind,
    environment: &Environment,
    rails: Rails,
    why: Lacking,
) -> Result<(), OpenError> {
    let required = environment.required;
    if device != DeviceKind::Host || rails.has(required) {
        return Ok(());
    }
    tell(&NetworkEvent::Lacking { rails: required.without(rails), why });
    Err(OpenError::Required)
}

/// The addresses of all other interfaces than those of `found`.
fn excluded(found: &[InterfaceAddress]) -> Vec<InterfaceAddress> {
    let mut all = interfaces::all_addresses().unwrap_or_default();
    all.retain(|address| found.iter().all(|chosen| chosen.name != address.name));
    all
}

/// Of chosen interfaces that are not there.
fn unmatched_tell(options: &Options, choice: &str) {
    if options.interfaces.exact_choice().is_none() {
        if let Some(text) = interfaces::unmatched_text(choice) {
            tell(&NetworkEvent::Unmatched(&text));
        }
    } else if let Some(gone) = gone(options, choice) {
        tell(&NetworkEvent::Unmatched(&gone));
    }
}

/// That interfaces of a device are gone, which no variable names.
fn gone(options: &Options, choice: &str) -> Option<Gone> {
    options.interfaces.exact_choice()?;
    let (missing, there) = interfaces::unmatched(choice)?;
    Some(Gone { missing, there })
}

/// Those of them that the options allow where nothing else leads to a peer.
fn spare(options: &Options, excluded: &[InterfaceAddress]) -> Vec<InterfaceAddress> {
    let Some(choice) = options.interfaces_spare else { return Vec::new() };
    let mut found = interfaces::local_addresses_of(options.family, choice).unwrap_or_default();
    found.retain(|address| excluded.iter().any(|other| other.ip == address.ip));
    found
}

/// Of addresses that no peer is told, as there are too many. Those that peers can hardly use are
/// the first to go.
fn room_tell(found: &[InterfaceAddress]) {
    let out = interfaces::without_room(found);
    if out.is_empty() {
        return;
    }
    let word = |it: &InterfaceAddress| format!("{} ({})", it.ip, it.name.as_str());
    let words: Vec<_> = out.iter().map(word).collect();
    let (out, of) = (out.len(), found.len());
    tell(&NetworkEvent::NoRoom { out, of, addresses: &words.join(", ") });
}

impl Streams {
    /// One socket, and no threads.
    pub(in crate::host) const ONE: Streams =
        Streams { each: 1, descriptors_max: u64::MAX, threads: 0, cpus: CpuSet::EMPTY };

    /// As the environment says, or with so many threads. Each wants a stream of its own to each
    /// peer, beside the first. Whether the CPUs can be
    /// had is seen when the rail is opened.
    fn choose(threads: u32, environment: &Environment) -> Streams {
        let (each, threads) = environment.tcp(threads);
        let mut cpus = environment.tcp_thread_cpus;
        if !cpus.is_empty() && threads == 0 {
            tell(&SettingEvent::TcpThreadCpus);
            cpus = CpuSet::EMPTY;
        }
        let asked = environment.tcp_threads.is_some() || environment.tcp_streams.is_some();
        let descriptors_max = match asked {
            true => u64::MAX,
            false => descriptor_limit() / DESCRIPTORS_PART,
        };
        Streams { each, descriptors_max, threads, cpus }
    }
}

/// Who names a provider of libfabric's wants it used, which another setting may not let it be. The
/// environment is as it was read: programs choose among NICs by other means.
pub(in crate::host) fn libfabric_unused_tell(environment: &Environment) {
    let Some(provider) = &environment.libfabric.provider else { return };
    if !environment.rails.libfabric {
        tell(&SettingEvent::OfiProvider(&provider.to_string_lossy()));
    }
}

fn key(environment: &Environment) -> Result<Option<Key>, OpenError> {
    let Some(path) = &environment.key_file else { return Ok(None) };
    match Key::read(path) {
        Ok(key) => Ok(Some(key)),
        Err(error) => {
            // it was another one when the settings were read
            let (name, value) = (KEY_FILE, path.to_string_lossy().into_owned());
            tell(&SettingEvent::Wrong(&Wrong { name, value, why: error.to_string() }));
            Err(OpenError::Setting(name))
        }
    }
}
