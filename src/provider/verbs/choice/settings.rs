//! The `CROSSTIE_IB_` variables: one table. Each has the name, the meaning and the default of
//! NCCL's `NCCL_IB_` variable, where NCCL has it; who serves NCCL's users lets those count where
//! ours are not set ([`Names::WithNccl`]).
//!
//! *Source*: NCCL's user guide, "Environment Variables"; numbers are read as there: decimal,
//! hexadecimal behind `0x`, octal behind `0` (`ncclLoadParam` in its `misc/param.cc`).

use super::HcaChoice;
use super::gid::{Family, GidKind, GidRule, LinkLayer, Range};
use crate::base::integer::of_c;
use core::fmt;
use core::ops::RangeInclusive;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

/// What is wanted of RDMA devices.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Settings {
    /// Not one is used.
    pub disabled: bool,
    /// The ports that may be used.
    pub hca: HcaChoice,
    /// Which of their GIDs.
    pub gid: GidRule,
    /// How long a packet is unanswered before it is sent again: 4.096 us times two to this power
    /// (InfiniBand specification 1, 9.9.2.1.1, Local ACK Timeout).
    pub timeout: u8,
    /// How often it is sent again.
    pub retries: u8,
    /// Place of the partition key in the port's table.
    pub pkey_index: u16,
    /// Service level; `None`: the device's own choice, 0.
    pub service_level: Option<u8>,
    /// Traffic class, of which RoCE puts the upper six bits into packets as DSCP; `None`: 0.
    pub traffic_class: Option<u8>,
    /// Vendors' extensions are agreed upon when connections are made (enhanced connection
    /// establishment).
    pub ece: bool,
    /// Whether devices may write data out of order; `None`: where they can. Memory that a peer's
    /// words are polled in is never registered so.
    pub relaxed_ordering: Option<bool>,
    /// Whether packets of a queue pair may take several ways, so that writes land in any order, and
    /// a message is told of by a write of its own; `None`: on InfiniBand, and not on Ethernet.
    pub adaptive_routing: Option<bool>,
    /// Longest data that goes with its word all the same.
    pub plain_bytes_max: u64,
    /// Requests are posted by the extended interface, where library and driver have it.
    pub extended_post: bool,
    /// Queue pairs of one connection and rail.
    pub queue_pairs: u16,
    /// Virtual functions of a card are that card.
    pub merge_vfs: bool,
    /// The variables whose values have NCCL's names, one bit for each place in [`VARIABLES`].
    pub named_as_nccl: u32,
}

const _: () = assert!(VARIABLES.len() <= 32);

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            disabled: false,
            hca: HcaChoice::ALL,
            gid: GidRule::DEFAULT,
            timeout: 20,
            retries: 7,
            pkey_index: 0,
            service_level: None,
            traffic_class: None,
            ece: true,
            relaxed_ordering: None,
            adaptive_routing: None,
            plain_bytes_max: 8192,
            extended_post: false,
            queue_pairs: 1,
            merge_vfs: true,
            named_as_nccl: 0,
        }
    }
}

impl Settings {
    /// Whether a port may be used, as far as its name goes.
    pub fn means(&self, device: &str, port: u8) -> bool {
        !self.disabled && self.hca.allows(device, port)
    }

    /// Whether a port must have something that not each has, so that who finds none should hear
    /// why. Who wants no port at all need not.
    pub fn narrows(&self) -> bool {
        let must_have = self.gid != GidRule::DEFAULT || self.pkey_index != 0;
        !self.disabled && !self.hca.wants_none() && (must_have || self.hca.names_ports())
    }

    /// A sentence with each variable called as whoever set it did.
    pub fn as_set(&self, text: &str) -> String {
        let mut said = text.to_string();
        for (place, variable) in VARIABLES.iter().enumerate() {
            if self.named_as_nccl & 1 << place == 0 {
                continue;
            }
            let parts: Vec<&str> = said.split(variable.name).collect();
            let Some((first, others)) = parts.split_first() else { continue };
            let mut written = (*first).to_string();
            for part in others {
                let is_longer = part.starts_with(|it: char| it == '_' || it.is_alphanumeric());
                written += &if is_longer { variable.name.to_string() } else { nccl_name(variable) };
                written += part;
            }
            said = written;
        }
        said
    }

    /// What holds where the variables say nothing: a number as NCCL's communicators have it, which
    /// is the service level, too, where it can be one.
    pub fn traffic_class_default(&mut self, class: u8) {
        self.traffic_class.get_or_insert(class);
        if class <= SERVICE_LEVEL_MAX {
            self.service_level.get_or_insert(class);
        }
    }

    /// From which length on data is told of by a write of its own; 0: never, since packets take one
    /// way.
    pub fn adaptive_from(&self, layer: LinkLayer) -> u64 {
        match self.adaptive_routing.unwrap_or(layer == LinkLayer::InfiniBand) {
            true => self.plain_bytes_max + 1,
            false => 0,
        }
    }
}

/// One variable.
#[derive(Copy, Clone)]
pub struct Variable {
    /// Its name in the environment.
    pub name: &'static str,
    /// Takes a value over, or says why it cannot be one.
    set: fn(&mut Settings, &str) -> Result<(), String>,
}

/// Most queue pairs of one connection and rail (NCCL's limit).
pub const QUEUE_PAIRS_MAX: u16 = 128;
/// What the field of a queue pair can say (ibv_modify_qp(3)); 0 would wait for ever.
const SERVICE_LEVEL_MAX: u8 = 15;
const TIMEOUT: RangeInclusive<i64> = 1..=31;
const RETRIES: RangeInclusive<i64> = 0..=7;

const fn variable(
    name: &'static str,
    set: fn(&mut Settings, &str) -> Result<(), String>,
) -> Variable {
    Variable { name, set }
}

/// All variables.
pub const VARIABLES: &[Variable] = &[
    variable("CROSSTIE_IB_DISABLE", |settings, text| flag(text).map(|on| settings.disabled = on)),
    variable("CROSSTIE_IB_HCA", |settings, text| {
        // what is not understood must not become all devices
        settings.hca = HcaChoice::NONE;
        settings.hca = HcaChoice::parse(text).map_err(|error| error.to_string())?;
        Ok(())
    }),
    variable("CROSSTIE_IB_GID_INDEX", |settings, text| {
        let index = number(text, -1..=255)?;
        settings.gid.index = u8::try_from(index).ok();
        Ok(())
    }),
    variable("CROSSTIE_IB_ADDR_FAMILY", |settings, text| {
        settings.gid.family = Some(family(text)?);
        Ok(())
    }),
    variable("CROSSTIE_IB_ADDR_RANGE", |settings, text| {
        let why = "it is not an address, / and the bits of a prefix";
        settings.gid.range = Some(Range::parse(text).ok_or(why)?);
        Ok(())
    }),
    variable("CROSSTIE_IB_ROCE_VERSION_NUM", |settings, text| {
        let first = number(text, 1..=2)? == 1;
        settings.gid.kind = if first { GidKind::RoceV1 } else { GidKind::RoceV2 };
        Ok(())
    }),
    variable("CROSSTIE_IB_TIMEOUT", |settings, text| {
        number(text, TIMEOUT).map(|n| settings.timeout = n as u8)
    }),
    variable("CROSSTIE_IB_RETRY_CNT", |settings, text| {
        number(text, RETRIES).map(|n| settings.retries = n as u8)
    }),
    variable("CROSSTIE_IB_PKEY", |settings, text| {
        number(text, 0..=65535).map(|n| settings.pkey_index = n as u16)
    }),
    variable("CROSSTIE_IB_SL", |settings, text| {
        settings.service_level =
            u8::try_from(number(text, -1..=i64::from(SERVICE_LEVEL_MAX))?).ok();
        Ok(())
    }),
    variable("CROSSTIE_IB_TC", |settings, text| {
        settings.traffic_class = u8::try_from(number(text, -1..=255)?).ok();
        Ok(())
    }),
    variable("CROSSTIE_IB_ECE_ENABLE", |settings, text| flag(text).map(|on| settings.ece = on)),
    variable("CROSSTIE_IB_PCI_RELAXED_ORDERING", |settings, text| {
        let mode = number(text, 0..=2)?;
        settings.relaxed_ordering = (mode != 2).then_some(mode == 1);
        Ok(())
    }),
    variable("CROSSTIE_IB_ADAPTIVE_ROUTING", |settings, text| {
        settings.adaptive_routing = match number(text, -2..=1)? {
            -2 => None,
            0 => Some(false),
            1 => Some(true),
            _ => return Err("it may be -2, 0 or 1".into()),
        };
        Ok(())
    }),
    variable("CROSSTIE_IB_AR_THRESHOLD", |settings, text| {
        number(text, 0..=i64::MAX).map(|n| settings.plain_bytes_max = n as u64)
    }),
    variable("CROSSTIE_IB_EXTENDED_POST", |settings, text| {
        flag(text).map(|on| settings.extended_post = on)
    }),
    variable("CROSSTIE_IB_QPS_PER_CONNECTION", |settings, text| {
        let most = i64::from(QUEUE_PAIRS_MAX);
        number(text, 1..=most).map(|n| settings.queue_pairs = n as u16)
    }),
    variable("CROSSTIE_IB_MERGE_VFS", |settings, text| {
        flag(text).map(|on| settings.merge_vfs = on)
    }),
];

fn flag(text: &str) -> Result<bool, String> {
    number(text, 0..=1).map(|number| number == 1)
}

fn family(text: &str) -> Result<Family, String> {
    match text {
        "AF_INET" => Ok(Family::V4),
        "AF_INET6" => Ok(Family::V6),
        _ => Err("it may be AF_INET or AF_INET6".into()),
    }
}

fn number(text: &str, range: RangeInclusive<i64>) -> Result<i64, String> {
    let value = match of_c(text) {
        Some((value, "")) => i64::try_from(value).ok(),
        Some((0, _)) if text.starts_with('0') => {
            return Err("it is not a number (one that begins with 0 is octal)".into());
        }
        Some(_) | None => return Err("it is not a number".into()),
    };
    let (least, most) = (range.start(), range.end());
    let most = if *most == i64::MAX { "above".to_string() } else { most.to_string() };
    let within = value.filter(|value| range.contains(value));
    within.ok_or_else(|| format!("it may be from {least} to {most}"))
}

/// Whose names count.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Names {
    /// Ours alone.
    Own,
    /// NCCL's too, where ours are not set.
    WithNccl,
}

/// A value that was not understood, so that the default holds; of `_IB_HCA` that no port is used.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Complaint {
    /// The variable.
    pub name: String,
    /// What it is set to.
    pub value: String,
    /// Why that cannot be.
    pub why: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Complaint { name, value, why } = self;
        match name.ends_with("_IB_HCA") {
            true => write!(f, "{name}={value} leaves no RDMA port: {why}"),
            false => write!(f, "{name}={value} is ignored: {why}"),
        }
    }
}

/// What the variables say, by `value_of` a name, and which of them cannot be understood. Empty ones
/// are not set.
pub fn read(value_of: impl Fn(&str) -> Option<String>, names: Names) -> (Settings, Vec<Complaint>) {
    let mut settings = Settings::default();
    let (mut complaints, mut range_of_nccl) = (Vec::new(), None);
    for (place, variable) in VARIABLES.iter().enumerate() {
        let set = |name: String| {
            let value = value_of(&name)?.trim().to_string();
            (!value.is_empty()).then_some((name, value))
        };
        let ours = set(variable.name.to_string());
        let found = match names {
            Names::Own => ours,
            Names::WithNccl => ours.or_else(|| set(nccl_name(variable))),
        };
        let Some((name, value)) = found else { continue };
        settings.named_as_nccl |= u32::from(name != variable.name) << place;
        if let Err(why) = (variable.set)(&mut settings, &meant(&name, &value)) {
            complaints.push(Complaint { name, value, why });
        } else if name == NCCL_RANGE {
            range_of_nccl = Some(value);
        }
    }
    if let Some(value) = range_of_nccl
        && let Err(why) = range_fits(&settings.gid)
    {
        settings.gid.range = None;
        complaints.push(Complaint { name: NCCL_RANGE.into(), value, why: why.into() });
    }
    (settings, complaints)
}

/// What the value of a variable means to our readers: of NCCL's, which it is lenient about, without
/// what it passes over, as the rest behind a number.
fn meant(name: &str, value: &str) -> String {
    match name.strip_prefix("NCCL_IB_") {
        Some("HCA") => HcaChoice::as_nccl_reads(value),
        Some("ADDR_FAMILY" | "ADDR_RANGE") | None => value.into(),
        Some(_) => {
            let rest = of_c(value).map_or("", |(_, rest)| rest);
            value[..value.len() - rest.len()].into()
        }
    }
}

const NCCL_RANGE: &str = "NCCL_IB_ADDR_RANGE";

/// Whether NCCL takes the range, which it reads as one of the family alone, that of IPv4 where
/// nobody asks for another (`envIbAddrRange` in its `transport/net_ib/connect.cc`); why not.
fn range_fits(gid: &GidRule) -> Result<(), &'static str> {
    let family = gid.family.unwrap_or(Family::V4);
    match gid.range {
        Some(range) if Family::of(range.ip) != family => Err(match family {
            Family::V4 => {
                "it is of IPv6, but IPv4 is used unless NCCL_IB_ADDR_FAMILY asks for IPv6"
            }
            Family::V6 => "it is of IPv4, but NCCL_IB_ADDR_FAMILY asks for IPv6",
        }),
        Some(_) | None => Ok(()),
    }
}

/// What NCCL calls a variable.
pub fn nccl_name(variable: &Variable) -> String {
    variable.name.replacen("CROSSTIE_", "NCCL_", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(pairs: &[(&str, &str)], names: Names) -> (Settings, Vec<Complaint>) {
        let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| *v);
        read(|name| value(name).map(ToString::to_string), names)
    }

    /// One variable alone, understood.
    fn with(name: &str, value: &str) -> Settings {
        let (settings, complaints) = read_of(&[(name, value)], Names::Own);
        assert!(complaints.is_empty(), "{complaints:?}");
        settings
    }

    #[test]
    fn defaults_are_those_of_nccl() {
        let (settings, complaints) = read_of(&[], Names::WithNccl);
        assert!(complaints.is_empty());
        assert_eq!(settings, Settings::default());
        let it = settings;
        assert_eq!((it.timeout, it.retries, it.pkey_index, it.queue_pairs), (20, 7, 0, 1));
        assert_eq!((it.service_level, it.traffic_class), (None, None));
        assert!(it.ece && it.merge_vfs && !it.disabled);
        assert_eq!(it.gid, GidRule::DEFAULT);
        assert_eq!((it.relaxed_ordering, it.adaptive_routing), (None, None));
    }

    #[test]
    fn variables_are_called_as_they_were_set() {
        let pairs = [
            ("NCCL_IB_HCA", "mlx5_7"),
            ("NCCL_IB_ADDR_FAMILY", "AF_INET6"),
            ("CROSSTIE_IB_PKEY", "3"),
            ("NCCL_IB_PKEY", "4"),
        ];
        let (settings, _) = read_of(&pairs, Names::WithNccl);
        let text = "CROSSTIE_IB_HCA=mlx5_7 (CROSSTIE_IB_PKEY, CROSSTIE_IB_ADDR_RANGE; \
                    CROSSTIE_IB_HCA_ALL, CROSSTIE_IB_ADDR_FAMILY";
        let said = "NCCL_IB_HCA=mlx5_7 (CROSSTIE_IB_PKEY, CROSSTIE_IB_ADDR_RANGE; \
                    CROSSTIE_IB_HCA_ALL, NCCL_IB_ADDR_FAMILY";
        assert_eq!(settings.as_set(text), said);
        assert_eq!(Settings::default().as_set(text), text);
        assert!(settings.narrows() && !Settings::default().narrows());
        assert!(!with("CROSSTIE_IB_HCA", "^mlx5_7").narrows(), "it is to be without them");
    }

    #[test]
    fn traffic_class_of_a_communicator_holds_where_the_variables_say_nothing() {
        let asked = |pairs: &[(&str, &str)], class| {
            let mut settings = read_of(pairs, Names::WithNccl).0;
            settings.traffic_class_default(class);
            (settings.traffic_class, settings.service_level)
        };
        assert_eq!(asked(&[], 106), (Some(106), None), "no service level");
        assert_eq!(asked(&[], 3), (Some(3), Some(3)));
        assert_eq!(asked(&[("NCCL_IB_TC", "8")], 3), (Some(8), Some(3)));
        assert_eq!(asked(&[("CROSSTIE_IB_SL", "0")], 3), (Some(3), Some(0)));
    }

    #[test]
    fn every_variable_changes_its_own_setting_and_no_other() {
        let base = Settings::default();
        let expect = |name, value, change: fn(&mut Settings)| {
            let mut expected = base.clone();
            change(&mut expected);
            assert_ne!(expected, base, "{name}");
            assert_eq!(with(name, value), expected, "{name}");
        };
        expect("CROSSTIE_IB_DISABLE", "1", |s| s.disabled = true);
        expect("CROSSTIE_IB_HCA", "=mlx5_0:1", |s| {
            s.hca = HcaChoice::parse("=mlx5_0:1").unwrap();
        });
        expect("CROSSTIE_IB_GID_INDEX", "3", |s| s.gid.index = Some(3));
        expect("CROSSTIE_IB_ADDR_FAMILY", "AF_INET6", |s| s.gid.family = Some(Family::V6));
        expect("CROSSTIE_IB_ADDR_RANGE", "10.0.0.0/8", |s| {
            s.gid.range = Range::parse("10.0.0.0/8");
        });
        expect("CROSSTIE_IB_ROCE_VERSION_NUM", "1", |s| s.gid.kind = GidKind::RoceV1);
        expect("CROSSTIE_IB_TIMEOUT", "0x12", |s| s.timeout = 18);
        expect("CROSSTIE_IB_RETRY_CNT", "0", |s| s.retries = 0);
        expect("CROSSTIE_IB_PKEY", "5", |s| s.pkey_index = 5);
        expect("CROSSTIE_IB_SL", "4", |s| s.service_level = Some(4));
        expect("CROSSTIE_IB_TC", " 106 ", |s| s.traffic_class = Some(106));
        expect("CROSSTIE_IB_ECE_ENABLE", "0", |s| s.ece = false);
        expect("CROSSTIE_IB_PCI_RELAXED_ORDERING", "1", |s| s.relaxed_ordering = Some(true));
        expect("CROSSTIE_IB_ADAPTIVE_ROUTING", "1", |s| s.adaptive_routing = Some(true));
        expect("CROSSTIE_IB_AR_THRESHOLD", "1048576", |s| s.plain_bytes_max = 1 << 20);
        expect("CROSSTIE_IB_QPS_PER_CONNECTION", "128", |s| s.queue_pairs = 128);
        expect("CROSSTIE_IB_EXTENDED_POST", "1", |s| s.extended_post = true);
        expect("CROSSTIE_IB_MERGE_VFS", "0", |s| s.merge_vfs = false);
    }

    #[test]
    fn values_that_mean_the_default_are_it() {
        for (name, value) in [
            ("CROSSTIE_IB_GID_INDEX", "-1"),
            ("CROSSTIE_IB_SL", "-1"),
            ("CROSSTIE_IB_TC", "-1"),
            ("CROSSTIE_IB_PCI_RELAXED_ORDERING", "2"),
            ("CROSSTIE_IB_ADAPTIVE_ROUTING", "-2"),
            ("CROSSTIE_IB_HCA", "  "),
        ] {
            assert_eq!(with(name, value), Settings::default(), "{name}={value}");
        }
    }

    #[test]
    fn values_that_cannot_be_are_named_and_change_nothing() {
        for (name, value, word) in [
            ("CROSSTIE_IB_TIMEOUT", "0", "from 1 to 31"),
            ("CROSSTIE_IB_TIMEOUT", "soon", "not a number"),
            ("CROSSTIE_IB_RETRY_CNT", "8", "from 0 to 7"),
            ("CROSSTIE_IB_GID_INDEX", "-2", "from -1"),
            ("CROSSTIE_IB_GID_INDEX", "256", "to 255"),
            ("CROSSTIE_IB_ADDR_FAMILY", "ipv4", "AF_INET or AF_INET6"),
            ("CROSSTIE_IB_ADDR_RANGE", "10.0.0.0", "prefix"),
            ("CROSSTIE_IB_ROCE_VERSION_NUM", "3", "from 1 to 2"),
            ("CROSSTIE_IB_SL", "16", "to 15"),
            ("CROSSTIE_IB_TC", "256", "to 255"),
            ("CROSSTIE_IB_PKEY", "-1", "from 0"),
            ("CROSSTIE_IB_ADAPTIVE_ROUTING", "-1", "-2, 0 or 1"),
            ("CROSSTIE_IB_AR_THRESHOLD", "-1", "from 0 to above"),
            ("CROSSTIE_IB_QPS_PER_CONNECTION", "129", "to 128"),
            ("CROSSTIE_IB_ECE_ENABLE", "yes", "not a number"),
            ("CROSSTIE_IB_TIMEOUT", "22 ms", "not a number"),
            ("CROSSTIE_IB_TIMEOUT", "08", "begins with 0 is octal"),
        ] {
            let (settings, complaints) = read_of(&[(name, value)], Names::Own);
            assert_eq!(settings, Settings::default(), "{name}");
            let [it] = complaints.as_slice() else { panic!("{name}={value}: {complaints:?}") };
            assert_eq!((it.name.as_str(), it.value.as_str()), (name, value));
            assert!(it.why.contains(word), "{name}={value}: {}", it.why);
        }
    }

    #[test]
    fn choice_that_is_not_understood_is_no_port_at_all() {
        let (settings, complaints) = read_of(&[("CROSSTIE_IB_HCA", "mlx5_0,")], Names::Own);
        assert_eq!((settings.hca, complaints.len()), (HcaChoice::NONE, 1));
        let text = complaints[0].to_string();
        assert!(text.contains("CROSSTIE_IB_HCA=mlx5_0, leaves no RDMA port"), "{text}");
    }

    #[test]
    fn names_of_nccl_count_where_ours_are_not_set_and_only_when_asked() {
        let both = [("NCCL_IB_TIMEOUT", "22"), ("CROSSTIE_IB_TIMEOUT", "19")];
        assert_eq!(read_of(&both[..1], Names::WithNccl).0.timeout, 22);
        assert_eq!(read_of(&both, Names::WithNccl).0.timeout, 19);
        assert_eq!(read_of(&both[..1], Names::Own).0.timeout, 20);
        let empty = [("NCCL_IB_TIMEOUT", "22"), ("CROSSTIE_IB_TIMEOUT", "")];
        assert_eq!(read_of(&empty, Names::WithNccl).0.timeout, 22);
    }

    /// `NCCL_IB_TC=0150` was 150 here and 104 with NCCL, and `NCCL_IB_TIMEOUT=022` 22, not 18.
    #[test]
    fn numbers_are_what_they_are_to_nccl() {
        for (text, timeout) in [("010", 8), ("0x10", 16), ("0X1f", 31), ("+22", 22), ("22", 22)] {
            for name in ["NCCL_IB_TIMEOUT", "CROSSTIE_IB_TIMEOUT"] {
                let (settings, complaints) = read_of(&[(name, text)], Names::WithNccl);
                assert_eq!((settings.timeout, complaints.len()), (timeout, 0), "{name}={text}");
            }
        }
        assert_eq!(with("CROSSTIE_IB_TC", "0150").traffic_class, Some(104));
        assert_eq!(with("CROSSTIE_IB_ADAPTIVE_ROUTING", "-02").adaptive_routing, None);
        // what follows a number counts nothing to NCCL, and is no number of ours
        for (text, timeout) in [("22 ms", 22), ("19,", 19), ("018", 1)] {
            let read = |name| read_of(&[(name, text)], Names::WithNccl);
            let (settings, complaints) = read("NCCL_IB_TIMEOUT");
            assert_eq!((settings.timeout, complaints.len()), (timeout, 0), "{text}");
            assert_eq!(read("CROSSTIE_IB_TIMEOUT").1.len(), 1, "{text}");
        }
        for text in ["soon", "99999999999999999999999999999999999999999999"] {
            let (settings, complaints) = read_of(&[("NCCL_IB_TIMEOUT", text)], Names::WithNccl);
            assert_eq!((settings.timeout, complaints.len()), (20, 1), "{text}");
        }
    }

    /// A range of IPv6, without a family, left no port, or one of IPv6, and NCCL has one of IPv4.
    #[test]
    fn range_of_nccl_counts_only_if_it_is_of_the_family() {
        let of = |range: (&str, &str), family: &[(&str, &str)]| {
            let (settings, complaints) = read_of(&[&[range], family].concat(), Names::WithNccl);
            assert_eq!(complaints.is_empty(), settings.gid.range.is_some(), "{complaints:?}");
            complaints.first().map(ToString::to_string)
        };
        let (v4, v6) = ("10.0.0.0/8", "fd00::/16");
        let theirs = |text| (NCCL_RANGE, text);
        let (inet, inet6) = ("AF_INET", "AF_INET6");
        assert_eq!(of(theirs(v4), &[]), None);
        assert_eq!(of(theirs(v6), &[("NCCL_IB_ADDR_FAMILY", inet6)]), None);
        assert_eq!(of(theirs(v6), &[("CROSSTIE_IB_ADDR_FAMILY", inet6)]), None);
        let other = "NCCL_IB_ADDR_RANGE=fd00::/16 is ignored: it is of IPv6, but IPv4 is used \
                     unless NCCL_IB_ADDR_FAMILY asks for IPv6";
        assert_eq!(of(theirs(v6), &[]).as_deref(), Some(other));
        assert_eq!(of(theirs(v6), &[("NCCL_IB_ADDR_FAMILY", inet)]).as_deref(), Some(other));
        let other = of(theirs(v4), &[("NCCL_IB_ADDR_FAMILY", inet6)]);
        let words = "it is of IPv4, but NCCL_IB_ADDR_FAMILY asks for IPv6";
        assert!(other.as_ref().is_some_and(|it| it.contains(words)), "{other:?}");
        // ours is the range that is meant, whatever the family
        assert_eq!(of(("CROSSTIE_IB_ADDR_RANGE", v6), &[]), None);
        assert_eq!(of(("CROSSTIE_IB_ADDR_RANGE", v6), &[("NCCL_IB_ADDR_FAMILY", inet)]), None);
    }

    #[test]
    fn what_nccl_passes_over_is_passed_over_where_it_is_nccls() {
        let hca = |name: &str, text: &str| read_of(&[(name, text)], Names::WithNccl).0.hca;
        for (text, meant) in [
            ("mlx5_0,mlx5_1,", "mlx5_0,mlx5_1"),
            (",mlx5_0", "mlx5_0"),
            ("^,mlx5_0:1,,", "^mlx5_0:1"),
            ("=mlx5_0,:1", "=mlx5_0"),
            ("=", ""),
            (",", ""),
        ] {
            assert_eq!(hca("NCCL_IB_HCA", text), HcaChoice::parse(meant).unwrap(), "{text}");
            assert_eq!(hca("CROSSTIE_IB_HCA", text), HcaChoice::NONE, "{text}");
        }
        // which leaves out all of them with NCCL, too
        assert_eq!(hca("NCCL_IB_HCA", "^"), HcaChoice::NONE);
        let (_, complaints) = read_of(&[("NCCL_IB_HCA", "^")], Names::WithNccl);
        assert_eq!(complaints[0].name, "NCCL_IB_HCA");
    }

    /// Data of just the threshold was cut, which NCCL leaves whole.
    #[test]
    fn long_messages_adapt_on_infiniband_unless_told_otherwise() {
        let by_default = Settings::default();
        assert_eq!(by_default.adaptive_from(LinkLayer::InfiniBand), 8193);
        assert_eq!(by_default.adaptive_from(LinkLayer::Ethernet), 0);
        let on = Settings { adaptive_routing: Some(true), ..Settings::default() };
        assert_eq!(on.adaptive_from(LinkLayer::Ethernet), 8193);
        let off = Settings { adaptive_routing: Some(false), ..Settings::default() };
        assert_eq!(off.adaptive_from(LinkLayer::InfiniBand), 0);
        let all = Settings { plain_bytes_max: 0, ..Settings::default() };
        assert_eq!(all.adaptive_from(LinkLayer::InfiniBand), 1, "every write has data and a word");
    }
}
