//! Attributes of GPUs, and those that a test has set.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Mutex;

/// Attributes: dma-bufs are supported.
const DMA_BUF: u32 = 124;

/// Attributes that a GPU has, beside the numbers of its bus.
const ATTRIBUTES: &[(u32, c_int)] = &[
    (16, 132), // multiprocessors
    (34, 0),   // its device on the bus
    (40, 3),   // copy engines
    (41, 1),   // unified addresses
    (50, 0),   // the bus's domain
    (75, 9),   // compute capability
    (76, 0),
    (83, 1),    // managed memory
    (91, 1),    // registered memory has the host's addresses
    (102, 1),   // mapping by hand
    (103, 1),   // handles that are descriptors
    (110, 1),   // RDMA to memory that is mapped by hand
    (115, 1),   // pools
    (116, 1),   // RDMA
    (118, 100), // what NICs have written is there for the GPU's kernels
    (122, 1),   // 64-bit words of streams
    (DMA_BUF, 1),
    (128, 1), // fabric handles, which are not permitted all the same
];
/// The greatest attribute that the driver knows.
const ATTRIBUTE_MAX: u32 = 147;
/// The attribute that is the number of the bus.
const BUS: u32 = 33;

static OVERRIDES: Mutex<BTreeMap<(usize, u32), c_int>> = Mutex::new(BTreeMap::new());

/// An attribute of a GPU; `None`: the driver does not know it.
pub fn attribute_of(device: usize, attribute: u32, bus: usize) -> Option<c_int> {
    let set =
        OVERRIDES.lock().expect("no panic while it is locked").get(&(device, attribute)).copied();
    if set.is_some() {
        return set;
    }
    if attribute == BUS {
        return Some(bus as c_int);
    }
    let known = ATTRIBUTES.iter().find(|(known, _)| *known == attribute);
    let other = (1..=ATTRIBUTE_MAX).contains(&attribute).then_some(0);
    known.map(|(_, value)| *value).or(other)
}

/// Sets an attribute.
pub fn set(device: usize, attribute: u32, value: c_int) {
    OVERRIDES.lock().expect("no panic while it is locked").insert((device, attribute), value);
}

/// Whether memory of a GPU can be had as a dma-buf.
pub fn has_dma_buf(device: usize) -> bool {
    attribute_of(device, DMA_BUF, 0) == Some(1)
}
