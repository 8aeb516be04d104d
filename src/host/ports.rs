//! The ports of an endpoint, of RDMA and of libfabric: opened beside the other rails, and told to
//! peers.

extern crate std;

use super::log::{Level, say};
use super::machine::HostRail;
use super::settings::Environment;
use super::{libfabric, rdma};
use crate::fabric::{Domain, Region};
use crate::provider::beside::WithPorts;
use crate::provider::libfabric::choice::Nic;
use crate::provider::mixed::Mixed;
use crate::provider::port::{PortConfig, PortDomain};
use crate::transport::Limits;
use crate::transport::limits::KEPT_BYTES;
use crate::wire::pair::{PORTS_MAX, PortHello, PortList};
use crate::wire::report::REPORT_BYTES_MAX;
use std::format;
use std::string::String;
use std::vec::Vec;

/// Longest payload of a send: of the stream where it is kept to be sent again, or a report.
const PAYLOAD_BYTES_MAX: u32 = {
    let (kept, report) = (KEPT_BYTES / 4, REPORT_BYTES_MAX as u32);
    (if kept > report { kept } else { report }).next_multiple_of(64)
};

/// A port that is used.
#[derive(Clone, Debug)]
pub(super) enum Port {
    /// Of an RDMA device.
    Verbs(rdma::Port),
    /// Of libfabric.
    Libfabric(Nic),
}

impl Port {
    /// `RDMA port mlx5_0:1`.
    fn name(&self) -> String {
        match self {
            Port::Verbs(port) => format!("RDMA port {}", port.name()),
            Port::Libfabric(nic) => format!("libfabric's {}", libfabric::name_of(nic)),
        }
    }

    /// Whether it is libfabric's.
    pub(super) const fn is_libfabric(&self) -> bool {
        matches!(self, Port::Libfabric(_))
    }

    fn hello(&self) -> PortHello {
        match self {
            Port::Verbs(port) => rdma::hello_of(port),
            Port::Libfabric(nic) => libfabric::hello_of(nic),
        }
    }

    fn config<'a>(&'a self, environment: &'a Environment) -> PortConfig<'a> {
        match self {
            Port::Verbs(port) => PortConfig::Verbs(rdma::config_of(port, &environment.verbs)),
            Port::Libfabric(nic) => {
                PortConfig::Libfabric(libfabric::config_of(nic, &environment.libfabric))
            }
        }
    }
}

/// What peers are told of the ports.
pub(super) fn port_list(ports: &[Port]) -> PortList {
    let mut list = PortList { count: ports.len().min(PORTS_MAX), ..PortList::EMPTY };
    for (hello, port) in list.all.iter_mut().zip(ports) {
        *hello = port.hello();
    }
    list
}

/// Which of our ports make lanes with those of a peer: [`crate::connect::PairPorts`]. Those of RDMA
/// come first.
pub(super) fn pair_ports(
    ours: &[PortHello],
    theirs: &[PortHello],
    same_host: bool,
    out: &mut [u8; PORTS_MAX],
) -> usize {
    let count = rdma::pair_ports(ours, theirs, same_host, out);
    count + libfabric::pair_ports(ours, theirs, same_host, &mut out[count..])
}

/// Says that a port is left out.
fn left_out(port: &Port, why: &dyn core::fmt::Display) {
    let name = port.name();
    say(Level::Warning, &format!("{name} is not used: {why}; TCP is used instead"));
}

/// Opens the ports beside the other rails; those that cannot be opened are taken out of the list.
pub(super) fn open(
    mixed: Mixed<'static>,
    ports: &mut Vec<Port>,
    limits: &Limits,
    environment: &Environment,
) -> WithPorts<'static> {
    let lane_bits = limits.rails_max.trailing_zeros();
    let mut rail = WithPorts::new(mixed, limits.peers_max(), lane_bits);
    ports.retain(|port| {
        let config = port.config(environment);
        // the mailboxes are a region, too
        // SAFETY: domains are used by the endpoint's other half alone, which nobody uses when this
        // one is gone (`Endpoint::open`).
        match unsafe { rail.add(limits.regions_max + 1, PAYLOAD_BYTES_MAX, &config) } {
            Ok(connections) => {
                if connections < limits.connections_max {
                    let text = format!(
                        "{} has completions for {connections} connections; others take TCP",
                        port.name()
                    );
                    say(Level::Warning, &text);
                }
                true
            }
            Err(error) => {
                left_out(port, &error);
                false
            }
        }
    });
    rail
}

/// Registers the mailboxes with each port; ports that refuse are taken out of the list. Says by
/// which domains memory is registered.
///
/// # Safety
/// - as [`Domain::register`].
pub(super) unsafe fn mailboxes_register(
    rail: &mut impl HostRail,
    ports: &mut Vec<Port>,
    region: Region,
) -> Vec<PortDomain<'static>> {
    let mut domains = Vec::new();
    let Some(rail) = rail.ports_mut() else { return domains };
    let mut place = 0;
    ports.retain(|port| {
        let domain = rail.device_domain(place);
        // SAFETY: this function's contract.
        match unsafe { domain.register(region) } {
            Ok(key) => {
                rail.mailbox_key_set(place, key);
                domains.push(domain);
                place += 1;
                true
            }
            Err(error) => {
                left_out(port, &format!("it does not register memory ({error:?}; `ulimit -l`?)"));
                rail.remove(place);
                false
            }
        }
    });
    domains
}
