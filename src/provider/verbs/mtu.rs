//! How long packets are: the codes of the library, what a port takes, and what two ends make of it.

use super::choice::ports::Device as Found;
use super::sys::numbers as n;
use super::sys::{Device, Library};
use core::ffi::c_int;

/// `IBV_MTU_…` of packets of so many bytes.
pub(super) fn mtu_code(bytes: u32) -> c_int {
    bytes.ilog2() as c_int - 7
}

/// The inverse of [`mtu_code`].
pub(super) fn mtu_bytes(code: c_int) -> u32 {
    128 << code.clamp(n::MTU_256, n::MTU_4096)
}

/// What the ports of the two ends of a queue pair take. Packets are as long as the smaller takes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Packets {
    /// Most bytes of a packet at our port.
    pub ours_bytes: u32,
    /// At the peer's.
    pub theirs_bytes: u32,
}

/// Asks for the MTU of each port. What cannot be asked stays as it is.
///
/// *Cost*: opens each device. For people who look.
pub fn ask(library: &Library, devices: &mut [Found]) {
    for device in devices {
        let Ok(opened) = Device::open(*library, &device.name) else { continue };
        for port in &mut device.ports {
            if let Ok(attr) = opened.port(port.number) {
                port.mtu_bytes = mtu_bytes(attr.active_mtu);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_sizes_are_coded_as_the_library_does() {
        for (code, bytes) in
            [(n::MTU_256, 256), (2, 512), (3, 1024), (4, 2048), (n::MTU_4096, 4096)]
        {
            assert_eq!((mtu_code(bytes), mtu_bytes(code)), (code, bytes));
        }
        assert_eq!(mtu_bytes(0), 256, "what a device should not say");
    }
}
