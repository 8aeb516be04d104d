//! A rail whose GID has gone takes another one of its port: by new queue pairs, since those that
//! there were name the old one by its index.

use super::Config;
use super::choice::gid::{self, GidEntry, GidKind, GidRule, LinkLayer, Range};
use super::neighbour::{addresses, if_it_has};
use super::sys::abi::{Gid, PortAttr};
use super::sys::{Device, numbers as n};
use crate::base::integer::bits_common;
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

/// What packets of a GID of this `IBV_GID_TYPE_…` look like.
pub(super) fn kind_of(number: u32) -> GidKind {
    match number {
        n::GID_ROCE_V1 => GidKind::RoceV1,
        n::GID_ROCE_V2 => GidKind::RoceV2,
        _ => GidKind::InfiniBand,
    }
}

/// A GID of a port that a rail may stand on.
#[derive(Copy, Clone, Debug)]
pub(super) struct Place {
    pub index: u8,
    pub gid: Gid,
    /// `IBV_GID_TYPE_…`; `None`: the library does not tell it.
    pub kind: Option<u32>,
    /// The interface of the GID; 0: none.
    pub interface: u32,
}

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
    pub fn is_due(&mut self, now: Instant) -> bool {
        if now < self.due {
            return false;
        }
        self.due = now.after(self.pause);
        self.pause = PAUSE_MAX.min(Span(2 * self.pause.0));
        true
    }

    /// Whether a GID is of the subnet that the rail was opened in.
    pub fn is_home(&self, gid: Gid) -> bool {
        self.home.has(gid::Gid(gid.0).ip())
    }

    /// Whether the port has been up for so long, as far as was looked, that any GID will do.
    pub fn is_late(&mut self, now: Instant, is_up: bool) -> bool {
        self.since = is_up.then(|| self.since.unwrap_or(now));
        self.since.is_some_and(|since| now.since(since) >= GRACE)
    }

    /// The GID of the subnet that is nearest to the one of opening, or else the last one, or else,
    /// if it is late, the one that the rules choose.
    pub fn find(
        &self,
        (device, number): (&Device, u8),
        port: &PortAttr,
        last: Gid,
        is_late: bool,
    ) -> Option<Place> {
        let (last, Search { home, rule, .. }) = (gid::Gid(last.0), *self);
        let layer = match port.link_layer {
            n::LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::InfiniBand,
        };
        let own = addresses();
        let here: Vec<IpAddr> = own.iter().map(|(_, ip)| *ip).collect();
        let table = table(device, number, port.gid_tbl_len, &own);
        let choose = |entries: &[GidEntry]| {
            gid::choose(entries, layer, &rule, &here).ok().map(|entry| entry.index)
        };
        let is_near = |(it, _): &&(GidEntry, Place)| {
            let gid = it.gid;
            // of InfiniBand and of an index that is asked for, the rule allows one alone
            let is_allowed = choose(core::slice::from_ref(it)).is_some();
            is_allowed && (gid == last || home.has(gid.ip()))
        };
        // those of the subnet come before a last one of another, whatever this namespace has
        let bits = |(it, _): &&(GidEntry, Place)| {
            let ip = it.gid.ip();
            (home.has(ip), here.contains(&ip), bits_common(home.ip, ip).map_or(0, |bits| bits + 1))
        };
        // of equals the first
        let near = table.iter().rev().filter(is_near).max_by_key(bits);
        let index = match near {
            Some((near, _)) => near.index,
            None if is_late => {
                let entries: Vec<GidEntry> = table.iter().map(|(it, _)| it.clone()).collect();
                choose(&entries)?
            }
            None => return None,
        };
        table.into_iter().map(|(_, place)| place).find(|place| place.index == index)
    }
}

/// The entries of a port's table that are in use.
fn table(
    device: &Device,
    number: u8,
    length: i32,
    own: &[(u32, IpAddr)],
) -> Vec<(GidEntry, Place)> {
    let most = length.clamp(0, 1 << u8::BITS) as u32;
    let entry = |at: u32| {
        let found = device.gid_entry(number, at).ok()?;
        let (index, gid) = (at as u8, gid::Gid(found.gid.0));
        let entry = GidEntry { index, gid, kind: kind_of(found.gid_type), interface: None };
        let interface = if_it_has(found.ndev_ifindex, gid.ip(), own);
        let place = Place { index, gid: found.gid, kind: Some(found.gid_type), interface };
        (found.gid != Gid::default()).then_some((entry, place))
    };
    (0..most).filter_map(entry).collect()
}
