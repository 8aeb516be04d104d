//! Which ports are used, and why others are not.
//!
//! `CROSSTIE_IB_HCA` has the format of `NCCL_IB_HCA`, with commas between names:
//!
//! | text | means |
//! |---|---|
//! | `mlx5` | all devices whose names begin so |
//! | `mlx5_0:1` | one port of a device |
//! | `^mlx5_2` | all but these; `^` leads the whole list |
//! | `=mlx5_1`, `^=mlx5_1` | whole names instead of prefixes |
//! | `mlx5_0:1:3:0`, `mlx5_0::3` | port, rail and plane; each may be empty |
//!
//! Rail and plane say how the port is cabled. They choose nothing; NCCL uses them. Neither has
//! ranges of ports: `mlx5_0:1-2` is refused here. NCCL reads it as `mlx5_0:1`, because its `atoi`
//! stops at the dash.
#![forbid(unsafe_code)]

pub mod gid;
pub mod names;
pub mod ports;
pub mod rails;
pub mod settings;
pub(super) mod software;
pub mod speed;

use crate::base::words::said;
use core::fmt;
use core::net::IpAddr;
use gid::{GidEntry, LinkLayer, NoGid};
use names::PortName;
use ports::{Device, NodeType, Port, PortState};
use settings::Settings;
use std::string::{String, ToString};
use std::vec::Vec;

/// Devices and ports by name.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct HcaChoice {
    exclude: bool,
    exact: bool,
    names: Vec<Named>,
    /// Whether a program made it, and not the variable.
    is_given: bool,
}

/// One of the names.
#[derive(Clone, Eq, PartialEq, Debug)]
struct Named {
    device: String,
    port: Option<u8>,
    cabling: Cabling,
}

/// How a port is cabled, as its user says; `None`: nobody does.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Cabling {
    /// Ports of one rail lead to each other by the nearest switches.
    pub rail: Option<i16>,
    /// The network of several that is the port's.
    pub plane: Option<i16>,
}

/// Bit 14 is set in planes of devices that NCCL's own network makes of several.
const PLACE_MAX: i16 = (1 << 14) - 1;

said! {
    /// Why a choice is none.
    #[derive(Clone, Eq, PartialEq, Debug)]
    pub enum HcaError {
        /// No name stands between two commas.
        NameMissing => "the name of a device is missing",
        /// `^` or `=` stands behind a name, and would be for all.
        Sign(name: String) => "in {name}, ^ or = does not stand in front of all names",
        /// What stands behind the colon is no port.
        Port(name: String) =>
            "in {name}, no port from 1 to 255 follows the colon (for several ports, give several \
             names)",
        /// What stands behind the port is no rail and plane.
        Cabling(name: String) =>
            "in {name}, no rail and plane from 0 to {PLACE_MAX} follow the port",
    }
}

impl HcaChoice {
    /// All ports.
    pub const ALL: HcaChoice =
        HcaChoice { exclude: true, exact: false, names: Vec::new(), is_given: false };
    /// Not one: of a choice that was not understood.
    pub const NONE: HcaChoice =
        HcaChoice { exclude: false, exact: false, names: Vec::new(), is_given: false };

    /// Exactly these ports, whatever the variable says.
    pub fn these(ports: impl Iterator<Item = PortName>) -> HcaChoice {
        let named = |it: PortName| Named {
            device: it.device().into(),
            port: Some(it.number()),
            cabling: Cabling::default(),
        };
        HcaChoice { exclude: false, exact: true, names: ports.map(named).collect(), is_given: true }
    }

    /// Reads a choice; an empty one is [`HcaChoice::ALL`].
    pub fn parse(text: &str) -> Result<HcaChoice, HcaError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(HcaChoice::ALL);
        }
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, names) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let names: Result<Vec<Named>, HcaError> =
            names.split(',').map(|name| named(name.trim())).collect();
        Ok(HcaChoice { exclude, exact, names: names?, is_given: false })
    }

    /// The same choice where NCCL's users wrote it: NCCL passes over names that are empty, and
    /// takes a choice without names for none (`parseStringList` in its `misc/utils.cc`).
    pub fn as_nccl_reads(text: &str) -> String {
        let names = text.trim_start_matches('^').trim_start_matches('=');
        let signs = &text[..text.len() - names.len()];
        let is_named = |name: &&str| !name.trim().is_empty() && !name.trim().starts_with(':');
        let names: Vec<&str> = names.split(',').filter(is_named).collect();
        match signs {
            "=" if names.is_empty() => String::new(),
            _ => std::format!("{signs}{}", names.join(",")),
        }
    }

    /// Whether the port may be used.
    pub fn allows(&self, device: &str, port: u8) -> bool {
        let listed = self.names.iter().any(|named| self.is_meant(named, device, port));
        listed != self.exclude
    }

    /// What is said of the port by the first name that it has.
    pub fn cabling(&self, device: &str, port: u8) -> Cabling {
        let named = self.names.iter().find(|named| self.is_meant(named, device, port));
        named.filter(|_| !self.exclude).map_or(Cabling::default(), |named| named.cabling)
    }

    fn is_meant(&self, named: &Named, device: &str, port: u8) -> bool {
        let by_name = match self.exact {
            true => device == named.device,
            false => device.starts_with(&named.device),
        };
        by_name && named.port.is_none_or(|its| its == port)
    }

    /// Whether it is of certain ports, or was meant to be, and not of all or of all but some.
    pub fn names_ports(&self) -> bool {
        !self.exclude
    }

    /// Whether a program made it of no port.
    pub fn wants_none(&self) -> bool {
        self.is_given && self.names.is_empty()
    }

    /// Who asks for its names, in words.
    pub fn asker(&self) -> &'static str {
        if self.is_given { "this endpoint is opened for it" } else { "CROSSTIE_IB_HCA asks for it" }
    }

    /// Why a port is not used that it does not allow.
    fn refusal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            _ if *self == HcaChoice::NONE => f.write_str("CROSSTIE_IB_HCA cannot be understood"),
            HcaChoice { is_given: true, .. } => {
                write!(f, "not among the ports that this endpoint is opened for, {self}")
            }
            HcaChoice { exclude: true, .. } => write!(f, "left out by CROSSTIE_IB_HCA={self}"),
            HcaChoice { exclude: false, .. } => write!(f, "not among CROSSTIE_IB_HCA={self}"),
        }
    }

    /// The names that were asked for and that no port of this host has. None of a choice that
    /// leaves out: that they are not there is its aim.
    pub fn unmatched(&self, devices: &[Device]) -> Vec<String> {
        let is_there = |named: &Named| {
            let mut ports = devices.iter().flat_map(|it| it.ports.iter().map(move |p| (it, p)));
            ports.any(|(device, port)| self.is_meant(named, &device.name, port.number))
        };
        let missing = self.names.iter().filter(|named| !self.exclude && !is_there(named));
        missing.map(ToString::to_string).collect()
    }
}

fn named(text: &str) -> Result<Named, HcaError> {
    let mut parts = text.split(':');
    let device = parts.next().unwrap_or("");
    if device.is_empty() {
        return Err(HcaError::NameMissing);
    }
    if text.contains(['^', '=']) {
        return Err(HcaError::Sign(text.to_string()));
    }
    let (port, places) = (parts.next(), [parts.next(), parts.next()]);
    let port = match port {
        None => None,
        Some("") if places[0].is_some() => None,
        Some(number) => match number.parse() {
            Ok(number) if number > 0 => Some(number),
            Ok(_) | Err(_) => return Err(HcaError::Port(text.to_string())),
        },
    };
    let place = |text: Option<&str>| match text {
        None | Some("") => Some(None),
        Some(number) => number.parse().ok().filter(|it| (0..=PLACE_MAX).contains(it)).map(Some),
    };
    match (places.map(place), parts.next()) {
        ([Some(rail), Some(plane)], None) => {
            Ok(Named { device: device.to_string(), port, cabling: Cabling { rail, plane } })
        }
        _ => Err(HcaError::Cabling(text.to_string())),
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        let Cabling { rail, plane } = self.cabling;
        let all = [self.port.map(i32::from), rail.map(i32::from), plane.map(i32::from)];
        let said = all.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        for number in &all[..said] {
            f.write_str(":")?;
            if let Some(number) = number {
                write!(f, "{number}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for HcaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.exclude {
            f.write_str("^")?;
        }
        if self.exact {
            f.write_str("=")?;
        }
        let names: Vec<String> = self.names.iter().map(ToString::to_string).collect();
        f.write_str(&names.join(","))
    }
}

said! {
    /// Why a port is not used.
    #[derive(Clone, Eq, PartialEq, Debug)]
    pub enum Unusable {
        Disabled => "CROSSTIE_IB_DISABLE leaves out all",
        /// `CROSSTIE_IB_HCA` leaves it out, or the program; the choice.
        NotChosen(choice: HcaChoice) => |f| choice.refusal(f),
        Node(node: NodeType) =>
            "the device is of another kind ({node}): write with immediate is missing",
        Layer => "the link is neither InfiniBand nor Ethernet",
        /// It carries nothing; its state, the link's, and the layer, which says whose task that is.
        State(state: PortState, link: String, layer: LinkLayer) => |f| match (state, layer) {
            (PortState::Initialize, LinkLayer::InfiniBand) => {
                f.write_str("the port is initializing: no subnet manager has set it up")
            }
            _ => write!(f, "the port is {state} (the link: {link})"),
        },
        /// The partition key that is asked for is not there; the index, and how many there are.
        Pkey(index: u16, count: u32) => |f| {
            let most = count.saturating_sub(1);
            write!(f, "CROSSTIE_IB_PKEY={index}: its partition keys have indices 0 to {most}")
        },
        /// No GID may be used.
        Gid(why: NoGid) => "{why}",
    }
}

/// The GID by which a port is used: of those that may be, one of the addresses `here` if there is
/// such a one.
///
/// *Errors*: why it is not; the first of several reasons.
pub fn usable<'p>(
    device: &Device,
    port: &'p Port,
    settings: &Settings,
    here: &[IpAddr],
) -> Result<&'p GidEntry, Unusable> {
    if settings.disabled {
        return Err(Unusable::Disabled);
    }
    if !settings.hca.allows(&device.name, port.number) {
        return Err(Unusable::NotChosen(settings.hca.clone()));
    }
    if device.node != NodeType::ChannelAdapter {
        return Err(Unusable::Node(device.node));
    }
    if port.layer == LinkLayer::Other {
        return Err(Unusable::Layer);
    }
    if !matches!(port.state, PortState::Active) {
        return Err(Unusable::State(port.state, port.physical.clone(), port.layer));
    }
    if u32::from(settings.pkey_index) >= port.pkeys {
        return Err(Unusable::Pkey(settings.pkey_index, port.pkeys));
    }
    gid::choose(&port.gids, port.layer, &settings.gid, here).map_err(Unusable::Gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::verbs::gid::{Gid, GidKind};
    use std::vec;

    fn allowed(choice: &str) -> Vec<&'static str> {
        let choice = HcaChoice::parse(choice).unwrap();
        let all = ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1", "irdma0:1"];
        let allows = |text: &&str| {
            let (device, port) = text.split_once(':').unwrap();
            choice.allows(device, port.parse().unwrap())
        };
        all.into_iter().filter(|text| allows(text)).collect()
    }

    #[test]
    fn devices_are_chosen_as_users_of_nccl_know_it() {
        assert_eq!(allowed("").len(), 5);
        assert_eq!(allowed("mlx5"), ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]);
        assert_eq!(allowed("mlx5_1"), ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]);
        assert_eq!(allowed("=mlx5_1"), ["mlx5_1:1", "mlx5_1:2"]);
        assert_eq!(allowed("=mlx5_1:2, irdma0"), ["mlx5_1:2", "irdma0:1"]);
        assert_eq!(allowed("^mlx5_1"), ["mlx5_0:1", "irdma0:1"]);
        assert_eq!(allowed("^=mlx5_1"), ["mlx5_0:1", "mlx5_10:1", "irdma0:1"]);
        assert_eq!(allowed("^=mlx5_1:1"), ["mlx5_0:1", "mlx5_1:2", "mlx5_10:1", "irdma0:1"]);
        assert_eq!(allowed("=mlx5_0:1:3:1"), ["mlx5_0:1"]);
        assert_eq!(allowed("=mlx5_1::3"), ["mlx5_1:1", "mlx5_1:2"]);
        assert!(allowed("nobodys").is_empty());
        assert!(!HcaChoice::NONE.allows("mlx5_0", 1));
    }

    #[test]
    fn choices_that_cannot_be_meant_are_named() {
        let error = |text| HcaChoice::parse(text).unwrap_err();
        for empty in ["^", "=", "mlx5_0,", ",mlx5_0", ":1"] {
            assert_eq!(error(empty), HcaError::NameMissing, "{empty}");
        }
        for sign in ["mlx5_0,=mlx5_1", "mlx5_0,^mlx5_1", "=^mlx5_0"] {
            assert!(matches!(error(sign), HcaError::Sign(_)), "{sign}");
        }
        for port in ["mlx5_0:", "mlx5_0:0", "mlx5_0:x", "mlx5_0:256", "mlx5_0:1-2"] {
            assert_eq!(error(port), HcaError::Port(port.into()));
        }
        let range = error("rxe0:1-2").to_string();
        assert!(range.contains("rxe0:1-2") && range.contains("several ports"), "{range}");
        for cabling in ["mlx5_0:1:x", "mlx5_0:1:-1", "mlx5_0:1:0:16384", "mlx5_0:1:0:0:0"] {
            assert_eq!(error(cabling), HcaError::Cabling(cabling.into()));
        }
    }

    #[test]
    fn rail_and_plane_are_those_of_the_first_name_that_is_meant() {
        let choice = HcaChoice::parse("mlx5_0:1:3:1,mlx5_1:2:4,mlx5_1:::2,mlx5:1").unwrap();
        let of = |device, port| {
            let Cabling { rail, plane } = choice.cabling(device, port);
            (rail, plane)
        };
        assert_eq!(of("mlx5_0", 1), (Some(3), Some(1)));
        assert_eq!(of("mlx5_1", 2), (Some(4), None));
        assert_eq!(of("mlx5_1", 1), (None, Some(2)));
        assert_eq!((of("mlx5_7", 1), of("irdma0", 1)), ((None, None), (None, None)));
        let left_out = HcaChoice::parse("^mlx5_0:1:3:1").unwrap();
        assert_eq!(left_out.cabling("mlx5_0", 1), Cabling::default());
    }

    #[test]
    fn choices_are_shown_as_they_were_written() {
        for text in ["mlx5", "^=mlx5_1:1,mlx5_2", "=mlx5_0", "mlx5_0:1:3:1,mlx5_1::4,mlx5_2:::1"] {
            assert_eq!(HcaChoice::parse(text).unwrap().to_string(), text);
        }
    }

    fn device() -> Device {
        let gid = Gid::from(core::net::IpAddr::from([10, 0, 0, 1]));
        let gids = vec![GidEntry { index: 3, gid, kind: GidKind::RoceV2, interface: None }];
        let port = Port {
            number: 1,
            state: PortState::Active,
            physical: "LinkUp".into(),
            layer: LinkLayer::Ethernet,
            speed_mbit_s: 100_000,
            gids,
            pkeys: 1,
            mtu_bytes: 0,
        };
        Device {
            name: "mlx5_0".into(),
            node: NodeType::ChannelAdapter,
            guid: String::new(),
            pci: None,
            physical: None,
            numa: None,
            file: None,
            ports: vec![port],
        }
    }

    fn why(change: fn(&mut Device, &mut Settings)) -> String {
        let (mut device, mut settings) = (device(), Settings::default());
        change(&mut device, &mut settings);
        usable(&device, &device.ports[0], &settings, &[]).unwrap_err().to_string()
    }

    #[test]
    fn working_port_is_used_by_its_gid() {
        let device = device();
        let gid = usable(&device, &device.ports[0], &Settings::default(), &[]);
        assert_eq!(gid.unwrap().index, 3);
    }

    #[test]
    fn each_reason_against_a_port_is_named() {
        let down = why(|device, _| {
            device.ports[0].state = PortState::Down;
            device.ports[0].physical = "Disabled".into();
        });
        assert_eq!(down, "the port is down (the link: Disabled)");
        let manager = why(|device, _| {
            device.ports[0].state = PortState::Initialize;
            device.ports[0].layer = LinkLayer::InfiniBand;
        });
        assert!(manager.contains("subnet manager"), "{manager}");
        let gid = why(|device, _| device.ports[0].gids.clear());
        assert!(gid.contains("no GID"), "{gid}");
        let iwarp = why(|device, _| device.node = NodeType::Iwarp);
        assert!(iwarp.contains("iWARP"), "{iwarp}");
        let layer = why(|device, _| device.ports[0].layer = LinkLayer::Other);
        assert!(layer.contains("neither InfiniBand nor Ethernet"), "{layer}");
        let pkey = why(|_, settings| settings.pkey_index = 1);
        assert_eq!(pkey, "CROSSTIE_IB_PKEY=1: its partition keys have indices 0 to 0");
        let off = why(|_, settings| settings.disabled = true);
        assert!(off.contains("CROSSTIE_IB_DISABLE"), "{off}");
    }

    /// Of one that is left out it was said that it is "not among ^mlx5_0"; of another device's, by
    /// programs that choose ports themselves, what the variable does not say.
    #[test]
    fn port_that_is_not_chosen_is_told_by_whom_and_how() {
        let by = |text: &str| {
            let settings = Settings { hca: HcaChoice::parse(text).unwrap(), ..Settings::default() };
            let device = device();
            usable(&device, &device.ports[0], &settings, &[]).unwrap_err().to_string()
        };
        assert_eq!(by("^mlx5_0"), "left out by CROSSTIE_IB_HCA=^mlx5_0");
        assert_eq!(by("^=mlx5_0"), "left out by CROSSTIE_IB_HCA=^=mlx5_0");
        assert_eq!(by("mlx5_1"), "not among CROSSTIE_IB_HCA=mlx5_1");
        assert_eq!(by("=mlx5_1"), "not among CROSSTIE_IB_HCA==mlx5_1");
        let given = why(|_, settings| {
            settings.hca = HcaChoice::these(PortName::new("mlx5_1", 1).into_iter());
        });
        assert_eq!(given, "not among the ports that this endpoint is opened for, =mlx5_1:1");
        let none = why(|_, settings| settings.hca = HcaChoice::NONE);
        assert_eq!(none, "CROSSTIE_IB_HCA cannot be understood");
    }

    #[test]
    fn names_that_match_nothing_are_found() {
        let devices = [device()];
        let missing = |text| HcaChoice::parse(text).unwrap().unmatched(&devices);
        assert_eq!(missing("mlx5_0,mlx5_7,mlx5_0:2"), ["mlx5_7", "mlx5_0:2"]);
        assert!(missing("^mlx5_7").is_empty() && missing("").is_empty());
    }
}
