//! Sentences about the rails and addresses that an endpoint is opened on.
#![forbid(unsafe_code)]

use super::Level;
use super::event::Event;
use crate::base::words::said;
use crate::connect::interfaces::InterfaceError;
use crate::host::choice::device::Rails;
use crate::memory::Errno;
use core::fmt;
use std::string::String;

/// What is to be said when the rails and addresses of an endpoint are chosen.
pub(in crate::host) enum NetworkEvent<'a> {
    /// Rails of vendors are asked for, and there is none.
    NoVendorRail,
    /// A rail of a vendor's is left out.
    VendorOut { rail: &'a str, why: VendorOut },
    /// Connections have no rail for ports.
    NoRailForPorts(Level),
    /// What the settings of libfabric ask for in vain.
    LibfabricUnused(&'a str),
    /// The kernel refuses shared memory. `tcp_instead`: peers of this host are reached by TCP.
    NoSharedMemory { call: &'a str, errno: Errno, tcp_instead: bool },
    /// The kernel refuses shared memory for the heap.
    PrivateHeap { call: &'a str, errno: Errno },
    /// The choice of interfaces cannot be understood.
    Choice(&'a InterfaceError),
    /// There is no address. `alone`: and no other rail.
    NoAddress { why: &'a dyn fmt::Display, alone: bool },
    /// Chosen interfaces are not there.
    Unmatched(&'a dyn fmt::Display),
    /// Rails that must be there are not.
    Lacking { rails: Rails, why: Lacking },
    /// Addresses that the kernel has not released for use in time.
    Tentative(&'a str),
    /// Addresses that no peer is told, as there are too many.
    NoRoom { out: usize, of: usize, addresses: &'a str },
}

said! {
    /// Why a rail of a vendor's is left out.
    #[derive(Copy, Clone)]
    pub(in crate::host) enum VendorOut {
        /// By `CROSSTIE_RAILS`.
        Rails => "CROSSTIE_RAILS leaves out vendor, or tcp, its backup",
        Device => "this device has no rails of vendors; host0 has",
        /// Connections have one rail.
        RailsMax => "it needs rails_max of 2 or more",
    }
}

said! {
    /// Why a rail that must be there is not.
    #[derive(Copy, Clone)]
    pub(in crate::host) enum Lacking {
        /// It may not be.
        Forbidden => "CROSSTIE_RAILS or the device leaves out",
        /// It cannot be had.
        Absent => "cannot be used here",
    }
}

/// An interface of a device that is gone, and those that there are.
pub(in crate::host) struct Gone {
    pub(in crate::host) missing: String,
    pub(in crate::host) there: String,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gone { missing, there } = self;
        write!(f, "the device's interface {missing} is gone; there are {there}")
    }
}

impl Event for NetworkEvent<'_> {
    fn level(&self) -> Level {
        match self {
            NetworkEvent::NoRailForPorts(level) => *level,
            // where that costs a rail, a warning says so
            NetworkEvent::PrivateHeap { .. } => Level::Info,
            NetworkEvent::Choice(_)
            | NetworkEvent::Lacking { .. }
            | NetworkEvent::NoAddress { alone: true, .. } => Level::Error,
            NetworkEvent::NoVendorRail
            | NetworkEvent::VendorOut { .. }
            | NetworkEvent::LibfabricUnused(_)
            | NetworkEvent::NoSharedMemory { .. }
            | NetworkEvent::NoAddress { alone: false, .. }
            | NetworkEvent::Unmatched(_)
            | NetworkEvent::Tentative(_)
            | NetworkEvent::NoRoom { .. } => Level::Warning,
        }
    }

    fn is_once(&self) -> bool {
        match self {
            NetworkEvent::NoVendorRail
            | NetworkEvent::LibfabricUnused(_)
            | NetworkEvent::NoSharedMemory { .. }
            | NetworkEvent::PrivateHeap { .. }
            | NetworkEvent::Tentative(_)
            | NetworkEvent::NoRoom { .. } => true,
            NetworkEvent::VendorOut { .. }
            | NetworkEvent::NoRailForPorts(_)
            | NetworkEvent::Choice(_)
            | NetworkEvent::NoAddress { .. }
            | NetworkEvent::Unmatched(_)
            | NetworkEvent::Lacking { .. } => false,
        }
    }
}

impl fmt::Display for NetworkEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkEvent::NoVendorRail => f.write_str(
                "vendor is named in the settings, but the program gives no vendor's rail",
            ),
            NetworkEvent::VendorOut { rail, why } => {
                write!(f, "vendor's rail {rail} is left out: {why}")
            }
            NetworkEvent::NoRailForPorts(_) => f.write_str(
                "RDMA ports and libfabric domains are not used: they need rails_max of 2 or more, \
                 since TCP takes one rail",
            ),
            NetworkEvent::LibfabricUnused(text) => f.write_str(text),
            NetworkEvent::NoSharedMemory { call, errno, tcp_instead } => {
                let then =
                    if *tcp_instead { "; peers of this host are reached over TCP" } else { "" };
                write!(
                    f,
                    "the kernel refuses to make shared memory ({call}: {errno}); the usual cause \
                     is a seccomp filter of the container or service{then}"
                )
            }
            NetworkEvent::PrivateHeap { call, errno } => write!(
                f,
                "the kernel refuses to make shared memory ({call}: {errno}); the endpoint's heap \
                 is private memory"
            ),
            NetworkEvent::Choice(error) => error.fmt(f),
            NetworkEvent::NoAddress { why, alone: true } => why.fmt(f),
            NetworkEvent::NoAddress { why, alone: false } => {
                write!(f, "{why}: other hosts cannot be reached")
            }
            NetworkEvent::Unmatched(text) => text.fmt(f),
            NetworkEvent::Lacking { rails, why } => {
                f.write_str("CROSSTIE_RAILS_REQUIRED names ")?;
                for (at, name) in rails.names().enumerate() {
                    write!(f, "{}{name}", if at == 0 { "" } else { ", " })?;
                }
                write!(f, ", which {why}; the endpoint is not opened")
            }
            NetworkEvent::Tentative(addresses) => write!(
                f,
                "addresses that are still tentative are not used: {addresses}; the kernel is still \
                 checking whether another host has them"
            ),
            NetworkEvent::NoRoom { out, of, addresses } => write!(
                f,
                "addresses of this host: {out} of {of} have no room in a handle, so that no peer \
                 uses them: {addresses}; CROSSTIE_SOCKET_IFNAME chooses others"
            ),
        }
    }
}
