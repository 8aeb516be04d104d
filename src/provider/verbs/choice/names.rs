//! Ports by name, as a value: which ones an endpoint is to use.

use super::HcaChoice;
use crate::base::text::Text;
use crate::wire::pair::PORTS_MAX;
use core::fmt;

/// Longest name of a device in bytes, with the terminating zero (`IB_DEVICE_NAME_MAX`).
const NAME_BYTES_MAX: usize = 64;

/// One port of a device.
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct PortName {
    device: Text<NAME_BYTES_MAX>,
    number: u8,
}

impl PortName {
    /// The port of a number; `None`: the name is longer than the kernel's are.
    pub fn new(device: &str, number: u8) -> Option<PortName> {
        Some(PortName { device: Text::whole(device.as_bytes())?, number })
    }

    /// The device.
    pub fn device(&self) -> &str {
        self.device.as_str()
    }

    /// Its port, from 1.
    pub fn number(&self) -> u8 {
        self.number
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device(), self.number)
    }
}

impl fmt::Debug for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Some ports, in an order: as many as a connection has lanes beside the first.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct PortNames {
    all: [Option<PortName>; PORTS_MAX],
}

impl PortNames {
    /// Not one.
    pub const NONE: PortNames = PortNames { all: [None; PORTS_MAX] };

    /// One alone.
    pub fn one(name: PortName) -> PortNames {
        let mut one = PortNames::NONE;
        one.all[0] = Some(name);
        one
    }

    /// These too; `None`: there are more than a connection has lanes for.
    pub fn with(mut self, more: &PortNames) -> Option<PortNames> {
        for name in more.iter() {
            *self.all.iter_mut().find(|place| place.is_none())? = Some(name);
        }
        Some(self)
    }

    /// They.
    pub fn iter(&self) -> impl Iterator<Item = PortName> {
        self.all.into_iter().flatten()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all[0].is_none()
    }

    /// The choice that allows these ports alone.
    pub fn choice(&self) -> HcaChoice {
        HcaChoice::these(self.iter())
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use std::string::ToString;

    fn port(device: &str, number: u8) -> PortName {
        PortName::new(device, number).unwrap()
    }

    #[test]
    fn named_ports_are_allowed_and_no_others() {
        let two = PortNames::one(port("mlx5_1", 1));
        let two = two.with(&PortNames::one(port("mlx4_0", 2))).unwrap();
        let choice = two.choice();
        assert_eq!(choice.to_string(), "=mlx5_1:1,mlx4_0:2");
        assert!(choice.allows("mlx5_1", 1) && choice.allows("mlx4_0", 2));
        for (device, number) in [("mlx5_1", 2), ("mlx5_10", 1), ("mlx4_0", 1)] {
            assert!(!choice.allows(device, number), "{device}:{number}");
        }
        assert!(PortNames::NONE.is_empty() && !PortNames::NONE.choice().allows("mlx5_1", 1));
    }

    #[test]
    fn there_are_as_many_as_lanes_beside_the_first() {
        let mut names = PortNames::NONE;
        for number in 1..=PORTS_MAX as u8 {
            names = names.with(&PortNames::one(port("mlx5_0", number))).unwrap();
        }
        assert_eq!(names.iter().count(), PORTS_MAX);
        assert_eq!(names.with(&PortNames::one(port("mlx5_1", 1))), None);
        assert_eq!(PortName::new(&"x".repeat(65), 1), None);
    }
}
