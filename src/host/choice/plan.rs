//! What an endpoint uses, as it was chosen and opened: for people.
#![forbid(unsafe_code)]

use super::device::Rails;
use crate::provider::libfabric::choice::Nic;
use crate::provider::verbs::rails::RailEnd;
use std::string::String;
use std::vec::Vec;

/// What an endpoint uses.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The rails that its connections may take.
    pub rails: Rails,
    /// Its ports, in the order in which they are paired with a peer's.
    pub ports: Vec<PlannedPort>,
}

/// A port of an endpoint.
#[derive(Clone, Debug)]
pub enum PlannedPort {
    /// Of an RDMA device. One port stands here once for each of its queue pairs.
    Verbs(PlannedRdma),
    /// Of libfabric.
    Libfabric(Nic),
    /// Of a vendor, by its name.
    Vendor(String),
}

/// A port of an RDMA device.
#[derive(Clone, Debug)]
pub struct PlannedRdma {
    /// `mlx5_0:1`.
    pub name: String,
    /// Its address and subnet.
    pub end: RailEnd,
    /// Its GID in words, where that is no address of this network namespace.
    pub elsewhere: Option<String>,
}

impl Plan {
    /// Its RDMA ports, each once.
    pub fn rdma(&self) -> Vec<&PlannedRdma> {
        let mut ports: Vec<&PlannedRdma> = Vec::new();
        for port in &self.ports {
            if let PlannedPort::Verbs(port) = port
                && !ports.iter().any(|before| before.name == port.name)
            {
                ports.push(port);
            }
        }
        ports
    }

    /// Its domains of libfabric.
    pub fn libfabric(&self) -> Vec<Nic> {
        let nic = |port: &PlannedPort| match port {
            PlannedPort::Libfabric(nic) => Some(nic.clone()),
            PlannedPort::Verbs(_) | PlannedPort::Vendor(_) => None,
        };
        self.ports.iter().filter_map(nic).collect()
    }
}
