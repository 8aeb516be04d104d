//! Which network device carries an interface, as the kernel's files say.
//!
//! *Source*: `netdev_adjacent_sysfs_add` in Linux's `net/core/dev.c`: an interface has a link
//! `lower_NAME` for each that lies below it in its namespace, as a VLAN, a macvlan, a bond and a
//! bridge have.

use super::InterfaceName;
use std::path::Path;
use std::vec::Vec;

/// Interfaces that lie upon each other, as the kernel stacks them (`MAX_NEST_DEV`).
const STACK_MAX: usize = 8;

/// The device below an interface, which may be itself, and whether the interface is a bridge of
/// which no port is a NIC. `net`: where the kernel lists interfaces.
pub fn below(net: &Path, name: InterfaceName) -> (InterfaceName, bool) {
    let mut device = name;
    for _ in 0..STACK_MAX {
        let mut lower = lower(net, device);
        if is_bridge(net, device) {
            lower.retain(|port| is_nic(net, *port, STACK_MAX));
            if lower.is_empty() {
                return (device, true);
            }
        }
        // those of a bond share no cable with one of them alone
        let [one] = lower[..] else { break };
        device = one;
    }
    (device, false)
}

fn is_bridge(net: &Path, name: InterfaceName) -> bool {
    net.join(name.as_str()).join("bridge").exists()
}

/// Whether an interface is hardware, or lies upon it.
fn is_nic(net: &Path, name: InterfaceName, depth: usize) -> bool {
    let on_nic = |below: &InterfaceName| depth > 0 && is_nic(net, *below, depth - 1);
    net.join(name.as_str()).join("device").exists() || lower(net, name).iter().any(on_nic)
}

fn lower(net: &Path, name: InterfaceName) -> Vec<InterfaceName> {
    let Ok(entries) = std::fs::read_dir(net.join(name.as_str())) else { return Vec::new() };
    let of = |entry: std::fs::DirEntry| {
        let file = entry.file_name();
        Some(InterfaceName::new(file.to_str()?.strip_prefix("lower_")?.as_bytes()))
    };
    entries.flatten().filter_map(of).collect()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn vlans_and_bridges_of_one_nic_are_its_and_bonds_are_their_own() {
        let net = std::env::temp_dir().join(std::format!("xtie-net-{}", std::process::id()));
        for folder in [
            "eth0/device",
            "eth1/device",
            "eth0.7/lower_eth0",
            "mac0/lower_eth0.7",
            "br0/bridge",
            "br0/lower_eth0",
            "br0/lower_veth1",
            "veth1",
            "bond0/lower_eth0",
            "bond0/lower_eth1",
            "docker0/bridge",
            "docker0/lower_veth1",
            "loop0/lower_loop0",
        ] {
            std::fs::create_dir_all(net.join(folder)).unwrap();
        }
        let named = |name: &str| InterfaceName::new(name.as_bytes());
        let is = |name, device, inner| {
            assert_eq!(below(&net, named(name)), (named(device), inner), "{name}");
        };
        is("eth0", "eth0", false);
        is("eth0.7", "eth0", false);
        is("mac0", "eth0", false);
        is("br0", "eth0", false);
        is("bond0", "bond0", false);
        is("docker0", "docker0", true);
        is("veth1", "veth1", false);
        is("nosuch", "nosuch", false);
        is("loop0", "loop0", false);
        std::fs::remove_dir_all(net).unwrap();
    }
}
