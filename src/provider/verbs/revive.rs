//! A rail whose GID has gone takes another one of its port: by new queue pairs, since those that
//! there were name the old one by its index.

extern crate std;

use super::gid::{self, GidEntry, GidKind, LinkLayer};
use super::queue::mtu_bytes;
use super::rail::Verbs;
use super::sys::abi::Gid;
use super::sys::numbers as n;
use std::vec::Vec;

/// A GID, and the number of its interface.
struct Found {
    entry: GidEntry,
    interface: u32,
}

impl Verbs<'_> {
    /// Whether the rail is of no use now, and could be again without being opened anew.
    pub fn may_revive(&self) -> bool {
        self.health.lost_code == libc::EADDRNOTAVAIL
    }

    /// Goes on with a GID that the rules allow, if the port has one by now: with the old one at
    /// another place, or the one that has most bits in common with it. `false`: it has none, is
    /// down, or the rail does not wait for one.
    ///
    /// *Cost*: control path; allocates, and a system call for each entry of the port's table.
    pub fn revive(&mut self) -> bool {
        if !self.may_revive() {
            return false;
        }
        let Ok(port) = self.domain.shared().device().port(self.port) else { return false };
        if port.state != n::PORT_ACTIVE {
            return false;
        }
        let Some(Found { entry, interface }) = self.gid_find(port.gid_tbl_len) else {
            return false;
        };
        (self.gid, self.gid_index, self.interface) = (Gid(entry.gid.0), entry.index, interface);
        (self.lid, self.mtu_bytes) = (port.lid, mtu_bytes(port.active_mtu));
        (self.health.lost_code, self.health.port_down_since) = (0, None);
        self.health.revivals += 1;
        true
    }

    /// The GID that is nearest to the one that has gone.
    fn gid_find(&self, length: i32) -> Option<Found> {
        let old = gid::Gid(self.gid.0);
        let layer = match self.is_ethernet {
            true => LinkLayer::Ethernet,
            false => LinkLayer::InfiniBand,
        };
        let mut table = self.gid_table(length);
        // of InfiniBand and of an index that is asked for, the rule allows one alone
        table.retain(|it| {
            gid::choose(core::slice::from_ref(&it.entry), layer, &self.gid_rule).is_ok()
        });
        let bits = |it: &Found| gid::bits_common(old.ip(), it.entry.gid.ip()).map_or(0, |b| b + 1);
        // of equals the first
        table.into_iter().rev().max_by_key(bits)
    }

    fn gid_table(&self, length: i32) -> Vec<Found> {
        let device = self.domain.shared().device();
        let most = length.clamp(0, 1 << u8::BITS) as u32;
        let kind = |number| match number {
            n::GID_ROCE_V1 => GidKind::RoceV1,
            n::GID_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::InfiniBand,
        };
        let entry = |index: u32| {
            let found = device.gid_entry(self.port, index).ok()?;
            let gid = gid::Gid(found.gid.0);
            let (index, kind) = (index as u8, kind(found.gid_type));
            let is_used = found.gid != Gid::default();
            let entry = GidEntry { index, gid, kind, interface: None };
            is_used.then_some(Found { entry, interface: found.ndev_ifindex })
        };
        (0..most).filter_map(entry).collect()
    }
}
