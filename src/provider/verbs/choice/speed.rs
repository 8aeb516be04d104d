//! How fast ports are now, as libibverbs says where it can be asked (rdma-core 62): of ports that
//! work together, or on part of their lanes, what sysfs shows is too much.

use super::super::sys::{Device, Library};
use super::ports::Device as Found;
use super::settings::Settings;
use super::usable;

/// Corrects the speed of the ports that are used. What cannot be asked stays as it is.
///
/// *Cost*: opens each device that has such a port, where the library can be asked. For open.
pub fn correct(devices: &mut [Found], settings: &Settings) {
    let Ok(library) = Library::load() else { return };
    if library.query_port_speed.is_none() {
        return;
    }
    for device in devices {
        let is_used = |n: usize| usable(device, &device.ports[n], settings, &[]).is_ok();
        let used = (0..device.ports.len()).map(is_used).collect::<std::vec::Vec<_>>();
        if !used.contains(&true) {
            continue;
        }
        let Ok(opened) = Device::open(library, &device.name) else { continue };
        for (port, _) in device.ports.iter_mut().zip(used).filter(|(_, used)| *used) {
            match opened.speed_mbit_s(port.number) {
                Ok(speed) if speed > 0 => port.speed_mbit_s = speed,
                Ok(_) | Err(_) => {} // a driver, or a kernel, that does not know
            }
        }
    }
}
