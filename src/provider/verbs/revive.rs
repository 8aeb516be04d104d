//! A rail whose GID has gone takes another one of its port: by new queue pairs, since those that
//! there were name the old one by its index.

extern crate std;

use super::Config;
use super::choice::gid::{self, GidEntry, GidRule, LinkLayer, Range};
use super::neighbour::{addresses, if_it_has};
use super::peer::State;
use super::rail::{Verbs, kind_of};
use super::sys::abi::Gid;
use super::sys::numbers as n;
use crate::base::units::{Instant, Span};
use core::net::IpAddr;
use std::vec::Vec;

/// How long, while the port is up, only a GID is taken that the peers surely reach: addresses come
/// back one after the other, and a rail does not change from one that works to a better one.
const GRACE: Span = Span::millis(5000);
/// How long the table of GIDs is left alone that had none, doubled each time up to the longest: it
/// has up to 256 entries, and reading one is a system call. The device tells of most changes.
const PAUSE: Span = Span::millis(20);
const PAUSE_MAX: Span = Span::millis(1000);

/// The search for a GID of a rail that has lost its own.
#[derive(Copy, Clone, Debug)]
pub(super) struct Search {
    /// The GID that the rail was opened with, and the length of its subnet.
    home: Range,
    rule: GidRule,
    /// Since when the port is up, as far as was looked.
    since: Option<Instant>,
    /// When it is looked next, and how long after that again.
    due: Instant,
    pause: Span,
}

impl Search {
    pub fn new(gid: Gid, config: &Config) -> Search {
        let home = Range { ip: gid::Gid(gid.0).ip(), prefix_bits: config.subnet_bits };
        Search { home, rule: config.gid_rule, since: None, due: Instant(0), pause: PAUSE }
    }

    /// Something has happened to the port: it is looked at at once.
    pub fn hasten(&mut self) {
        (self.due, self.pause) = (Instant(0), PAUSE);
    }

    /// The port has come up: its addresses come one after the other from now on.
    pub fn begin(&mut self) {
        self.since = None;
        self.hasten();
    }

    /// Whether it is time to look. If so, the next time is later.
    fn is_due(&mut self, now: Instant) -> bool {
        if now < self.due {
            return false;
        }
        self.due = now.after(self.pause);
        self.pause = PAUSE_MAX.min(Span(2 * self.pause.0));
        true
    }
}

/// A GID, `IBV_GID_TYPE_…` of it, and the number of its interface.
struct Found {
    entry: GidEntry,
    kind: u32,
    interface: u32,
}

impl Verbs<'_> {
    /// Whether the rail is of no use now, and could be again without being opened anew.
    pub fn may_revive(&self) -> bool {
        let has_entries = self.domain.shared().device().has_gid_entries();
        self.health.lost_code == libc::EADDRNOTAVAIL && has_entries
    }

    /// Goes on with a GID that the rules allow, if the port has one by now: with that of the subnet
    /// which has most bits in common with the one that the rail was opened with, or the last one at
    /// another place; after a while with that which an endpoint would be opened with. `false`: it
    /// has none, is down, the rail does not wait for one, or it is too early to look again.
    ///
    /// A rail that has its GID, and whose port is down, sees whether it still is.
    ///
    /// *Cost*: control path; a system call for each event of the device, and one for a port that is
    /// down; where it is time to look, allocates, and a system call for each entry of the port's
    /// table.
    pub fn revive(&mut self, now: Instant) -> bool {
        if !self.health.is_lost() {
            self.now = now;
            self.look_at_port();
            return false;
        }
        if !self.may_revive() {
            return false;
        }
        // a port that nobody polled has its news unread: that it has just come up, say
        self.now = now;
        let is_told = self.look_at_device();
        if !is_told || !self.may_revive() || !self.search.is_due(now) {
            return false;
        }
        let port = self.domain.shared().device().port(self.port);
        let Some(port) = port.ok().filter(|port| port.state == n::PORT_ACTIVE) else {
            self.search.since = None;
            return false;
        };
        let since = *self.search.since.get_or_insert(now);
        let is_late = now.since(since) >= GRACE;
        let Some(Found { entry, kind, interface }) = self.gid_find(port.gid_tbl_len, is_late)
        else {
            return false;
        };
        (self.gid, self.gid_index, self.interface) = (Gid(entry.gid.0), entry.index, interface);
        self.gid_kind = Some(kind);
        self.port_take(&port);
        (self.health.lost_code, self.health.port_down_since) = (0, None);
        self.health.revivals += 1;
        true
    }

    /// Whether the rail stands on a GID of another subnet, from which peers may not be reached, and
    /// would stand on one of its own if it were revived now. It stays where peers are reached.
    ///
    /// *Cost*: of a rail on another subnet, as [`Verbs::revive`].
    pub(super) fn may_go_home(&self) -> bool {
        let home = self.search.home;
        let has_peers = self.peers.iter().any(|peer| peer.state == State::Live);
        if home.has(gid::Gid(self.gid.0).ip()) || has_peers {
            return false;
        }
        let port = self.domain.shared().device().port(self.port);
        let port = port.ok().filter(|port| port.state == n::PORT_ACTIVE);
        let found = port.and_then(|port| self.gid_find(port.gid_tbl_len, false));
        found.is_some_and(|found| home.has(found.entry.gid.ip()))
    }

    /// The GID of the subnet that is nearest to the one of opening, or else the last one, or else,
    /// if it is late, the one that the rules choose.
    fn gid_find(&self, length: i32, is_late: bool) -> Option<Found> {
        let (last, Search { home, rule, .. }) = (gid::Gid(self.gid.0), self.search);
        let layer = match self.is_ethernet {
            true => LinkLayer::Ethernet,
            false => LinkLayer::InfiniBand,
        };
        let own = addresses();
        let here: Vec<IpAddr> = own.iter().map(|(_, ip)| *ip).collect();
        let table = self.gid_table(length, &own);
        let choose = |entries: &[GidEntry]| {
            gid::choose(entries, layer, &rule, &here).ok().map(|entry| entry.index)
        };
        let is_near = |it: &&Found| {
            let gid = it.entry.gid;
            // of InfiniBand and of an index that is asked for, the rule allows one alone
            let is_allowed = choose(core::slice::from_ref(&it.entry)).is_some();
            is_allowed && (gid == last || home.has(gid.ip()))
        };
        // those of the subnet come before a last one of another, whatever this namespace has
        let bits = |it: &&Found| {
            let ip = it.entry.gid.ip();
            (
                home.has(ip),
                here.contains(&ip),
                gid::bits_common(home.ip, ip).map_or(0, |bits| bits + 1),
            )
        };
        // of equals the first
        let near = table.iter().rev().filter(is_near).max_by_key(bits);
        let index = match near {
            Some(near) => near.entry.index,
            None if is_late => {
                let entries: Vec<GidEntry> = table.iter().map(|it| it.entry.clone()).collect();
                choose(&entries)?
            }
            None => return None,
        };
        table.into_iter().find(|it| it.entry.index == index)
    }

    fn gid_table(&self, length: i32, own: &[(u32, IpAddr)]) -> Vec<Found> {
        let device = self.domain.shared().device();
        let most = length.clamp(0, 1 << u8::BITS) as u32;
        let entry = |index: u32| {
            let found = device.gid_entry(self.port, index).ok()?;
            let gid = gid::Gid(found.gid.0);
            let is_used = found.gid != Gid::default();
            let (index, kind) = (index as u8, kind_of(found.gid_type));
            let entry = GidEntry { index, gid, kind, interface: None };
            let kind = found.gid_type;
            let interface = if_it_has(found.ndev_ifindex, gid.ip(), own);
            is_used.then_some(Found { entry, kind, interface })
        };
        (0..most).filter_map(entry).collect()
    }
}
