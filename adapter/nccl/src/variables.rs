//! NCCL's own variables, which the plugin's first init sets where they are not set. NCCL reads them
//! after the first call of a plugin, once for the process.

use crate::net::device::Device;
use crate::net::log;
use crosstie::memory::Variables;
use std::ffi::CStr;

/// Says which devices NCCL merges into one by itself.
const MERGE: &CStr = c"NCCL_NET_MERGE_LEVEL";

/// Sets a variable, and says so after `why`.
///
/// Called by the first init alone.
pub fn set(name: &CStr, value: &CStr, why: &str) {
    let shown = name.to_string_lossy();
    if Variables::of_process().text(&shown).is_some() {
        return;
    }
    // SAFETY: texts that end with a zero. NCCL calls the first init of a plugin before it starts
    // threads of its own, and we have started none.
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 0) };
    let value = value.to_string_lossy();
    log::info(&format!("{why}: {shown}={value} is set"));
}

/// Whether NCCL would lose devices by merging them. It takes those without a PCI function for ports
/// of one NIC, and does not find again what it has merged of them (2.28.9, 2.30.7).
fn merging_loses(has_pci: impl Iterator<Item = bool>) -> bool {
    has_pci.filter(|has_pci| !has_pci).count() > 1
}

/// Keeps NCCL from merging devices that it would lose.
pub fn keep_devices(devices: &[&Device]) {
    if merging_loses(devices.iter().map(|device| device.pci_path.is_some())) {
        set(MERGE, c"LOC", "interfaces without a PCI function stay devices of their own");
    }
}

#[cfg(test)]
mod tests {
    use super::merging_loses;

    /// NCCL 2.28.9 and 2.30.7, two interfaces of a container: "Could not find any local path from
    /// gpu 0 to net".
    #[test]
    fn devices_without_a_pci_function_are_not_merged() {
        assert!(merging_loses([false, false].into_iter()));
        assert!(merging_loses([true, false, true, false].into_iter()));
        assert!(!merging_loses([true, true, false].into_iter()));
        assert!(!merging_loses([].into_iter()));
    }
}
