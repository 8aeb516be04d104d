//! `ncclNetProperties` of each version.

use super::{VPropsV9, VPropsV12, layout};
use core::ffi::{c_char, c_int};

/// The first with grouped receives.
#[repr(C)]
pub struct PropsV6 {
    /// The device's name, which is its key in NCCL's topology.
    pub name: *const c_char,
    /// Its PCI function in `/sys`, resolved; NULL: it has none.
    pub pci_path: *const c_char,
    /// The chip.
    pub guid: u64,
    /// Kinds of memory, one bit each.
    pub ptr_support: c_int,
    /// Mbit/s.
    pub speed: c_int,
    /// The chip's port.
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// Most connections.
    pub max_comms: c_int,
    /// Most receives in a group.
    pub max_recvs: c_int,
}

layout!(PropsV6, 48 / 8, name 0, pci_path 8, guid 16, ptr_support 24, speed 28, port 32, latency 36,
    max_comms 40, max_recvs 44);

/// Tells who unpacks messages.
#[repr(C)]
pub struct PropsV7 {
    /// The device's name, which is its key in NCCL's topology.
    pub name: *const c_char,
    /// Its PCI function in `/sys`, resolved; NULL: it has none.
    pub pci_path: *const c_char,
    /// The chip.
    pub guid: u64,
    /// Kinds of memory, one bit each.
    pub ptr_support: c_int,
    /// Mbit/s.
    pub speed: c_int,
    /// The chip's port.
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// Most connections.
    pub max_comms: c_int,
    /// Most receives in a group.
    pub max_recvs: c_int,
    /// Who unpacks messages; 0: the host.
    pub net_device_type: c_int,
    /// Of that.
    pub net_device_version: c_int,
}

layout!(PropsV7, 56 / 8, name 0, pci_path 8, guid 16, ptr_support 24, speed 28, port 32, latency 36,
    max_comms 40, max_recvs 44, net_device_type 48, net_device_version 52);

/// Tells, in the middle, what a registration reaches.
#[repr(C)]
pub struct PropsV8 {
    /// The device's name, which is its key in NCCL's topology.
    pub name: *const c_char,
    /// Its PCI function in `/sys`, resolved; NULL: it has none.
    pub pci_path: *const c_char,
    /// The chip.
    pub guid: u64,
    /// Kinds of memory, one bit each.
    pub ptr_support: c_int,
    /// Whether a registration on one connection makes others of its range cheap.
    pub reg_is_global: c_int,
    /// Mbit/s.
    pub speed: c_int,
    /// The chip's port.
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// Most connections.
    pub max_comms: c_int,
    /// Most receives in a group.
    pub max_recvs: c_int,
    /// Who unpacks messages; 0: the host.
    pub net_device_type: c_int,
    /// Of that.
    pub net_device_version: c_int,
}

layout!(PropsV8, 64 / 8, name 0, pci_path 8, guid 16, ptr_support 24, reg_is_global 28, speed 32,
    port 36, latency 40, max_comms 44, max_recvs 48, net_device_type 52, net_device_version 56);

/// Tells more in the middle and at the end. v10 has the same.
#[repr(C)]
pub struct PropsV9 {
    /// The device's name, which is its key in NCCL's topology.
    pub name: *const c_char,
    /// Its PCI function in `/sys`, resolved; NULL: it has none.
    pub pci_path: *const c_char,
    /// The chip.
    pub guid: u64,
    /// Kinds of memory, one bit each.
    pub ptr_support: c_int,
    /// Whether a registration on one connection makes others of its range cheap.
    pub reg_is_global: c_int,
    /// Whether receives into GPU memory must be flushed always.
    pub force_flush: c_int,
    /// Mbit/s.
    pub speed: c_int,
    /// The chip's port.
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// Most connections.
    pub max_comms: c_int,
    /// Most receives in a group.
    pub max_recvs: c_int,
    /// Who unpacks messages; 0: the host.
    pub net_device_type: c_int,
    /// Of that.
    pub net_device_version: c_int,
    /// The physical devices that it is made of.
    pub v_props: VPropsV9,
    /// Longest message in bytes.
    pub max_p2p_bytes: usize,
    /// Longest message of a collective network in bytes.
    pub max_coll_bytes: usize,
}

layout!(PropsV9, 104 / 8, name 0, pci_path 8, guid 16, ptr_support 24, reg_is_global 28,
    force_flush 32, speed 36, port 40, latency 44, max_comms 48, max_recvs 52, net_device_type 56,
    net_device_version 60, v_props 64, max_p2p_bytes 88, max_coll_bytes 96);

/// One more field at the end.
#[repr(C)]
pub struct PropsV11 {
    /// The device's name, which is its key in NCCL's topology.
    pub name: *const c_char,
    /// Its PCI function in `/sys`, resolved; NULL: it has none.
    pub pci_path: *const c_char,
    /// The chip.
    pub guid: u64,
    /// Kinds of memory, one bit each.
    pub ptr_support: c_int,
    /// Whether a registration on one connection makes others of its range cheap.
    pub reg_is_global: c_int,
    /// Whether receives into GPU memory must be flushed always.
    pub force_flush: c_int,
    /// Mbit/s.
    pub speed: c_int,
    /// The chip's port.
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// Most connections.
    pub max_comms: c_int,
    /// Most receives in a group.
    pub max_recvs: c_int,
    /// Who unpacks messages; 0: the host.
    pub net_device_type: c_int,
    /// Of that.
    pub net_device_version: c_int,
    /// The physical devices that it is made of.
    pub v_props: VPropsV9,
    /// Longest message in bytes.
    pub max_p2p_bytes: usize,
    /// Longest message of a collective network in bytes.
    pub max_coll_bytes: usize,
    /// Not used by NCCL.
    pub max_multi_request_size: c_int,
}

layout!(PropsV11, 112 / 8, name 0, pci_path 8, guid 16, ptr_support 24, reg_is_global 28,
    force_flush 32, speed 36, port 40, latency 44, max_comms 48, max_recvs 52, net_device_type 56,
    net_device_version 60, v_props 64, max_p2p_bytes 88, max_coll_bytes 96,
    max_multi_request_size 104);

/// Eight members instead of four, which moves what follows.
#[repr(C)]
pub struct PropsV12 {
    /// The device's name, which is its key in NCCL's topology.
    pub name: *const c_char,
    /// Its PCI function in `/sys`, resolved; NULL: it has none.
    pub pci_path: *const c_char,
    /// The chip.
    pub guid: u64,
    /// Kinds of memory, one bit each.
    pub ptr_support: c_int,
    /// Whether a registration on one connection makes others of its range cheap.
    pub reg_is_global: c_int,
    /// Whether receives into GPU memory must be flushed always.
    pub force_flush: c_int,
    /// Mbit/s.
    pub speed: c_int,
    /// The chip's port.
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// Most connections.
    pub max_comms: c_int,
    /// Most receives in a group.
    pub max_recvs: c_int,
    /// Who unpacks messages; 0: the host.
    pub net_device_type: c_int,
    /// Of that.
    pub net_device_version: c_int,
    /// The physical devices that it is made of.
    pub v_props: VPropsV12,
    /// Longest message in bytes.
    pub max_p2p_bytes: usize,
    /// Longest message of a collective network in bytes.
    pub max_coll_bytes: usize,
    /// Not used by NCCL.
    pub max_multi_request_size: c_int,
    /// −1: not known.
    pub rail_id: i16,
    /// −1: not known.
    pub plane_id: i16,
}

layout!(PropsV12, 128 / 8, name 0, pci_path 8, guid 16, ptr_support 24, reg_is_global 28,
    force_flush 32, speed 36, port 40, latency 44, max_comms 48, max_recvs 52, net_device_type 56,
    net_device_version 60, v_props 64, max_p2p_bytes 104, max_coll_bytes 112,
    max_multi_request_size 120, rail_id 124, plane_id 126);
