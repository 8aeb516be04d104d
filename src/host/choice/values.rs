//! Values of variables, and what they mean; those that cannot be meant are kept.
#![forbid(unsafe_code)]

use super::device::Rails;
use crate::base::integer::nearest;
use crate::connect::interfaces::{CHOICE_WRONG, is_choice};
use crate::connect::{USERS_NAMED_MAX, Users, overflow_user};
use crate::host::log::Level;
use crate::memory::{CpuSet, Variables};
use core::fmt;
use core::ops::RangeInclusive;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

/// A setting whose value cannot be meant. No endpoint opens with it.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Wrong {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What it may be, or why it cannot be this.
    pub why: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { name, value, why } = self;
        write!(f, "{name}={value}: {why}; no endpoint opens until that is corrected")
    }
}

/// Reads settings. One that is empty is not set.
pub(in crate::host) struct Reader<'v> {
    pub(in crate::host) all: &'v Variables,
    pub(in crate::host) wrong: Vec<Wrong>,
}

impl<'v> Reader<'v> {
    pub fn new(all: &'v Variables) -> Reader<'v> {
        Reader { all, wrong: Vec::new() }
    }

    /// Keeps that a value cannot be meant.
    pub fn refuse(&mut self, name: &'static str, why: impl Into<String>) {
        let value = self.all.get(name).unwrap_or_default().to_string_lossy();
        let value = value.trim().to_string();
        self.wrong.push(Wrong { name, value, why: why.into() });
    }

    /// Whether a variable has a value.
    pub fn is_set(&self, name: &str) -> bool {
        self.all.get(name).is_some_and(|value| !value.is_empty())
    }

    /// What `read` makes of a variable's text, if it is set and is understood.
    pub fn understood<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.all.get(name)?;
        let text = value.to_str().ok_or_else(|| String::from("it is not UTF-8"));
        match text.map(str::trim) {
            Ok("") => None,
            Ok(text) => read(text).map_err(|why| self.refuse(name, why)).ok(),
            Err(why) => {
                self.refuse(name, why);
                None
            }
        }
    }

    /// A variable's number, if it is one of these.
    pub fn among(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let (least, most) = (*range.start(), *range.end());
        let why = || format!("it may be a number from {least} to {most}");
        self.understood(name, |text| {
            // what is too long for a number is the nearest
            let value = nearest(text, 10).and_then(|value| u64::try_from(value).ok());
            value.filter(|value| range.contains(value)).ok_or_else(why)
        })
    }

    /// A variable's number, whose bounds are the options'.
    pub fn number(&mut self, name: &'static str) -> Option<u64> {
        self.understood(name, |text| match nearest(text, 10) {
            Some(value @ 0..) => Ok(u64::try_from(value).unwrap_or(u64::MAX)),
            Some(_) | None => Err("it may be a number from 0 on".into()),
        })
    }
}

/// By what the plugin offers NCCL's one-sided operations.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum GinWish {
    /// By nothing.
    Off,
    /// GPU-initiated ones by the software HCA.
    Hca,
    /// All by the host, as NCCL's proxy asks for them.
    Proxy,
}

impl GinWish {
    /// Whether the software HCA is wanted.
    pub fn hca(wish: Option<GinWish>) -> Option<bool> {
        wish.map(|wish| wish == GinWish::Hca)
    }
}

/// By what one-sided operations are offered.
pub(in crate::host) fn gin_wish(text: &str) -> Result<GinWish, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "proxy" => Ok(GinWish::Proxy),
        number => match nearest(number, 10) {
            Some(0) => Ok(GinWish::Off),
            Some(1) => Ok(GinWish::Hca),
            Some(_) | None => Err("it may be 0, 1 or proxy".into()),
        },
    }
}

/// What a list of rails is made of.
const RAIL_NAMES: &str = "there are shm, verbs, libfabric, vendor and tcp";

/// The rails of a list.
pub(in crate::host) fn rails(text: &str) -> Result<Rails, String> {
    let mut rails = Rails::NONE;
    for name in text.split(',').map(str::trim) {
        match name.to_ascii_lowercase().as_str() {
            "shm" => rails.shm = true,
            "tcp" => rails.tcp = true,
            // it is set up over TCP, and TCP remains when it fails
            "verbs" => (rails.verbs, rails.tcp) = (true, true),
            "libfabric" => (rails.libfabric, rails.tcp) = (true, true),
            "vendor" => (rails.vendor, rails.tcp) = (true, true),
            "" => return Err(format!("a name is missing; {RAIL_NAMES}")),
            _ => return Err(format!("there is no rail {name}; {RAIL_NAMES}")),
        }
    }
    Ok(rails)
}

/// The rails that must be there, of which none brings another along.
pub(in crate::host) fn required(text: &str) -> Result<Rails, String> {
    let mut rails = Rails::NONE;
    for name in text.split(',').map(str::trim) {
        let rail = rails.named(&name.to_ascii_lowercase());
        *rail.ok_or_else(|| format!("there is no rail {name}; {RAIL_NAMES}"))? = true;
    }
    Ok(rails)
}

/// A choice of interfaces.
pub(in crate::host) fn interfaces(text: &str) -> Result<String, String> {
    match is_choice(text) {
        true => Ok(text.to_string()),
        false => Err(CHOICE_WRONG.into()),
    }
}

/// The CPUs of a list.
pub(in crate::host) fn cpus(text: &str) -> Result<CpuSet, String> {
    text.split(',').map(str::trim).try_fold(CpuSet::EMPTY, |set, cpu| {
        let more = cpu.parse().ok().and_then(|cpu| set.with(cpu));
        more.ok_or_else(|| {
            let range = cpu.contains('-');
            let hint = if range { "; ranges are not taken, numbers with commas are" } else { "" };
            format!("{cpu} is no CPU below {}{hint}", CpuSet::END)
        })
    })
}

/// The users of a list, whose processes are let in.
pub(in crate::host) fn users(text: &str) -> Result<Users, String> {
    let overflow = overflow_user();
    text.split(',').map(str::trim).try_fold(Users::default(), |users, user| {
        let number = user.parse().map_err(|_| format!("{user} is no user's number"))?;
        if number == overflow {
            return Err(format!(
                "{number} stands for all users that a namespace does not know; a shared key \
                 (CROSSTIE_KEY_FILE) lets such peers in"
            ));
        }
        users.with(number).ok_or_else(|| format!("it may name {USERS_NAMED_MAX} users at most"))
    })
}

pub(in crate::host) fn node_id(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|_| String::from("it is not a hexadecimal number of up to 16 digits"))
}

/// What `CROSSTIE_LOG` lets through.
pub(in crate::host) fn log_level(text: &str) -> Result<Level, String> {
    match text.to_ascii_lowercase().as_str() {
        "error" => Ok(Level::Error),
        "warning" => Ok(Level::Warning),
        "info" => Ok(Level::Info),
        _ => Err(String::from("it may be error, warning or info")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_are_a_list_of_known_names() {
        assert_eq!(rails("shm, verbs, libfabric, vendor, tcp"), Ok(Rails::ALL));
        let hosts = Rails { verbs: false, libfabric: false, vendor: false, ..Rails::ALL };
        assert_eq!(rails("shm, tcp"), Ok(hosts));
        let verbs = Rails { verbs: true, ..hosts };
        assert_eq!(rails("shm,verbs"), Ok(verbs), "verbs has tcp as its reserve");
        let libfabric = Rails { libfabric: true, tcp: true, ..Rails::NONE };
        assert_eq!(rails("libfabric"), Ok(libfabric), "and so has libfabric");
        assert_eq!(rails("tcp"), Ok(Rails { tcp: true, ..Rails::NONE }));
        assert!(rails("shm+tcp").unwrap_err().contains("there is no rail shm+tcp"));
        assert!(rails("tcp,ofi").unwrap_err().contains("there are shm, verbs, libfabric"));
        assert_eq!(rails("TCP,Shm"), Ok(hosts));
        for empty in [",", "shm,", ",tcp", "shm,,tcp"] {
            assert!(rails(empty).unwrap_err().contains("a name is missing"), "{empty}");
        }
    }

    #[test]
    fn rails_that_are_required_bring_no_other_along() {
        let two = Rails { libfabric: true, verbs: true, ..Rails::NONE };
        assert_eq!(required("libfabric, Verbs"), Ok(two));
        for wrong in ["efa", "shm,", "shm+tcp"] {
            assert!(required(wrong).unwrap_err().contains("there is no rail"), "{wrong}");
        }
    }

    #[test]
    fn cpus_are_numbers_also_from_64_on() {
        let listed = |text| cpus(text).map(|set| set.iter().collect::<std::vec::Vec<_>>());
        assert_eq!(listed("2,3"), Ok(std::vec![2, 3]));
        assert_eq!(listed("127, 0,64"), Ok(std::vec![0, 64, 127]));
        assert!(cpus("1024").unwrap_err().contains("below 1024"));
        assert!(cpus("2-3").unwrap_err().contains("ranges are not taken"));
        assert!(cpus("-1").is_err());
    }

    #[test]
    fn users_are_numbers_and_never_the_one_that_stands_for_all_unknown_users() {
        assert_eq!(users("1000, 7").map(|users| users.named().to_vec()), Ok(std::vec![1000, 7]));
        assert!(users("root").unwrap_err().contains("root is no user's number"));
        let text = overflow_user().to_string();
        assert!(users(&text).unwrap_err().contains("does not know"));
        assert!(users(&"5,".repeat(40)).is_err());
    }

    #[test]
    fn node_ids_are_hexadecimal() {
        assert_eq!(node_id("0x2a"), Ok(42));
        assert_eq!(node_id("ffffffffffffffff"), Ok(u64::MAX));
        assert!(node_id("host").is_err() && node_id("1ffffffffffffffff").is_err());
    }
}
