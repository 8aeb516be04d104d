//! Which network device carries an interface, by how interfaces lie upon each other.

use super::address::InterfaceName;
use std::path::Path;
use std::string::String;
use std::vec::Vec;

/// Interfaces that lie upon each other, as the kernel stacks them (`MAX_NEST_DEV`).
const STACK_MAX: usize = 8;

/// What is known of an interface's place among the others.
#[derive(Clone, Debug)]
pub struct Link {
    pub name: InterfaceName,
    /// Those that lie below it in its namespace, as a VLAN, a macvlan, a bond and a bridge have.
    pub lower: Vec<InterfaceName>,
    /// Whether it is a bridge.
    pub bridge: bool,
    /// Whether it is hardware.
    pub hardware: bool,
}

/// The device below an interface, which may be itself, and whether the interface is a bridge of
/// which no port is a NIC.
pub fn below(links: &[Link], name: InterfaceName) -> (InterfaceName, bool) {
    let mut device = name;
    for _ in 0..STACK_MAX {
        let Some(link) = find(links, device) else { break };
        let mut lower = link.lower.clone();
        if link.bridge {
            lower.retain(|port| is_nic(links, *port, STACK_MAX));
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

fn find(links: &[Link], name: InterfaceName) -> Option<&Link> {
    links.iter().find(|link| link.name == name)
}

/// Whether an interface is hardware, or lies upon it.
fn is_nic(links: &[Link], name: InterfaceName, depth: usize) -> bool {
    let Some(link) = find(links, name) else { return false };
    let on_nic = |below: &InterfaceName| depth > 0 && is_nic(links, *below, depth - 1);
    link.hardware || link.lower.iter().any(on_nic)
}

/// An interface as the kernel's files say. `net`: the folder where it lists interfaces.
///
/// *Source*: `netdev_adjacent_sysfs_add` in Linux's `net/core/dev.c`: an interface has a link
/// `lower_NAME` for each that lies below it.
pub fn of_files(net: &Path, name: InterfaceName) -> Link {
    let folder = net.join(name.as_str());
    let of = |entry: std::fs::DirEntry| {
        let file = entry.file_name();
        Some(InterfaceName::new(file.to_str()?.strip_prefix("lower_")?.as_bytes()))
    };
    let lower = std::fs::read_dir(&folder).into_iter().flatten().flatten().filter_map(of).collect();
    let has = |file| folder.join(file).exists();
    Link { name, lower, bridge: has("bridge"), hardware: has("device") }
}

/// Whether the kernel's files are of the interface that has this number and this hardware address,
/// and not of another network's that is called the same.
pub fn is_of_files(net: &Path, name: InterfaceName, number: u32, hardware: [u8; 6]) -> bool {
    let folder = net.join(name.as_str());
    let file = |of| std::fs::read_to_string(folder.join(of)).unwrap_or_default();
    let bytes = hardware.map(|byte| std::format!("{byte:02x}"));
    // some have longer addresses, and some none
    let said: Vec<String> = file("address").trim().split(':').map(String::from).collect();
    let alike = said.iter().zip(&bytes).all(|(said, byte)| said.is_empty() || said == byte);
    file("ifindex").trim().parse() == Ok(number) && alike
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
        let entries = std::fs::read_dir(&net).unwrap().flatten();
        let names = entries.map(|entry| named(entry.file_name().to_str().unwrap()));
        let links: Vec<Link> = names.map(|name| of_files(&net, name)).collect();
        let is = |name, device, inner| {
            assert_eq!(below(&links, named(name)), (named(device), inner), "{name}");
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

    #[test]
    fn files_of_another_networks_interface_of_that_name_are_not_its() {
        let net = std::env::temp_dir().join(std::format!("xtie-own-{}", std::process::id()));
        let eth0 = net.join("eth0");
        std::fs::create_dir_all(&eth0).unwrap();
        let is_of =
            |number, hardware| is_of_files(&net, InterfaceName::new(b"eth0"), number, hardware);
        assert!(!is_of(7, [0; 6]), "there are no files");
        std::fs::write(eth0.join("ifindex"), "7\n").unwrap();
        assert!(is_of(7, [0; 6]), "one without a hardware address");
        std::fs::write(eth0.join("address"), "02:00:00:00:00:0a\n").unwrap();
        assert!(is_of(7, [2, 0, 0, 0, 0, 10]));
        assert!(!is_of(8, [2, 0, 0, 0, 0, 10]) && !is_of(7, [2, 0, 0, 0, 0, 11]));
        std::fs::remove_dir_all(net).unwrap();
    }
}
