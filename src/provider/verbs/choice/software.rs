//! Devices that are made of software: a doorbell is a system call there.

use std::path::Path;

/// Whether a device is one: it stands on no bus, or says by which interface it sends, as soft-RoCE
/// alone does. That borrowed the bus of its interface before Linux 5.11.
///
/// *Source*: `rxe_register_device` and `parent_show` in Linux's
/// `drivers/infiniband/sw/rxe/rxe_verbs.c`.
pub(in crate::provider::verbs) fn is_software(sysfs: &Path, device: &str) -> bool {
    let device = sysfs.join("class/infiniband").join(device);
    !device.join("device").exists() || device.join("parent").exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// On a kernel of before 5.11, of an Ethernet port with a PCI function, it passed for hardware.
    #[cfg(not(miri))]
    #[test]
    fn soft_roce_is_software_whether_or_not_its_port_stands_on_a_bus() {
        let root = std::env::temp_dir().join(std::format!("crosstie-rxe-{}", std::process::id()));
        let class = root.join("class/infiniband");
        for made in ["rxe0", "rxe1/device", "mlx5_0/device"] {
            fs::create_dir_all(class.join(made)).unwrap();
        }
        for device in ["rxe0", "rxe1"] {
            fs::write(class.join(device).join("parent"), "eth0\n").unwrap();
        }
        let of = |device| is_software(&root, device);
        assert_eq!(["rxe0", "rxe1", "mlx5_0"].map(of), [true, true, false]);
        fs::remove_dir_all(&root).unwrap();
    }
}
