//! What a device is made of, and so which rails its connections have. A further kind is one more
//! arm here, and whoever looks for its devices.
#![forbid(unsafe_code)]

use crosstie::connect::interfaces::Interfaces;
use crosstie::host::device::Rails;
use crosstie::host::settings::Environment;
use crosstie::host::{DeviceKind, Options};
use crosstie::provider::libfabric::names::NicNames;
use crosstie::provider::verbs::names::PortNames;

/// What a device is made of. Peers of this host are reached through shared memory under all.
#[allow(clippy::large_enum_variant)] // a few for each process, made once
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Kind {
    /// Nothing else: there is no way to other hosts.
    Alone,
    /// Interfaces: sockets, by their addresses alone.
    Interfaces(Interfaces),
    /// RDMA ports: queue pairs of these alone.
    Ports {
        /// They.
        ports: PortNames,
        /// The interfaces of the sockets that connections are made by, and that are the reserve;
        /// none: those that an endpoint would use without RDMA.
        reserve: Interfaces,
    },
    /// Domains of libfabric: its endpoints on these alone.
    Nics {
        /// They.
        nics: NicNames,
        /// As of ports.
        reserve: Interfaces,
        /// Whether one of them leads to other hosts.
        leads_out: bool,
    },
}

impl Kind {
    /// Both as one; `None`: they are not of one kind, lead nowhere, or are more than a connection
    /// has rails for.
    pub fn with(&self, more: &Kind) -> Option<Kind> {
        match (self, more) {
            (Kind::Interfaces(all), Kind::Interfaces(more)) => {
                Some(Kind::Interfaces(all.with(more)?))
            }
            (Kind::Ports { ports, reserve }, Kind::Ports { ports: more, reserve: beside }) => {
                Some(Kind::Ports { ports: ports.with(more)?, reserve: joined(*reserve, beside) })
            }
            (
                Kind::Nics { nics, reserve, leads_out },
                Kind::Nics { nics: more, reserve: beside, leads_out: leads },
            ) => {
                let (nics, reserve) = (nics.with(more)?, joined(*reserve, beside));
                Some(Kind::Nics { nics, reserve, leads_out: *leads_out || *leads })
            }
            (Kind::Alone | Kind::Interfaces(_) | Kind::Ports { .. } | Kind::Nics { .. }, _) => None,
        }
    }

    /// Chooses the rails of an endpoint whose device this is.
    pub fn choose(&self, options: &mut Options) {
        let (no_ports, no_nics) = (PortNames::NONE, NicNames::NONE);
        let (ports, nics, interfaces) = match *self {
            // whatever the settings of sockets say
            Kind::Alone => (no_ports, no_nics, Interfaces::NONE),
            Kind::Interfaces(interfaces) => (no_ports, no_nics, interfaces),
            Kind::Ports { ports, reserve } => (ports, no_nics, reserve),
            Kind::Nics { nics, reserve, .. } => (no_ports, nics, reserve),
        };
        let is_alone = *self == Kind::Alone;
        options.device = if is_alone { DeviceKind::SharedMemory } else { DeviceKind::Host };
        (options.ports, options.nics, options.interfaces) = (Some(ports), Some(nics), interfaces);
    }

    /// The rails that its endpoints may have beside those that are allowed.
    fn rails(&self, allowed: Rails) -> Rails {
        let (verbs, libfabric, tcp) = match self {
            Kind::Alone => (false, false, false),
            Kind::Interfaces(_) => (false, false, true),
            Kind::Ports { .. } => (true, false, true),
            Kind::Nics { .. } => (false, true, true),
        };
        allowed.and(Rails { verbs, libfabric, tcp, vendor: false, ..Rails::ALL })
    }

    /// Why no endpoint of it will open, for people.
    fn refusal(&self, its: &Environment) -> Option<String> {
        let rails = self.rails(its.rails);
        if rails.is_empty() {
            return Some("CROSSTIE_RAILS leaves out all that it has".into());
        }
        // to an endpoint that has shared memory alone nothing is required
        if *self == Kind::Alone || rails.has(its.required) {
            return None;
        }
        let names: Vec<_> = its.required.without(rails).names().collect();
        Some(format!("CROSSTIE_RAILS_REQUIRED names {}", names.join(", ")))
    }

    /// The rails to other hosts, for people.
    pub fn rails_text(&self, its: &Environment) -> String {
        if let Some(why) = self.refusal(its) {
            return format!("no rail, and it will not open ({why})");
        }
        match self {
            Kind::Alone => "no rail to other hosts".into(),
            Kind::Interfaces(_) if !its.rails.tcp => {
                "no rail to other hosts (CROSSTIE_RAILS leaves out TCP)".into()
            }
            Kind::Interfaces(interfaces) => {
                let names: Vec<String> = names(interfaces);
                match names.len() {
                    1 => format!("one TCP rail to other hosts, {}", names[0]),
                    count => format!("{count} TCP rails to other hosts, {}", names.join(" and ")),
                }
            }
            Kind::Ports { ports, reserve } => {
                let ports: Vec<String> = ports.iter().map(|port| port.to_string()).collect();
                let by = reserve_text(reserve);
                let rails = match ports.len() {
                    1 => "one RDMA rail".to_string(),
                    count => format!("{count} RDMA rails"),
                };
                format!("{rails} to other hosts, {}, with TCP over {by}", ports.join(" and "))
            }
            Kind::Nics { nics, reserve, leads_out } => {
                let by = reserve_text(reserve);
                let rails = match nics.count() {
                    1 => "one libfabric rail".to_string(),
                    count => format!("{count} libfabric rails"),
                };
                let to = if *leads_out { "other hosts" } else { "processes of this host alone" };
                format!("{rails} to {to}, {nics}, with TCP over {by}")
            }
        }
    }
}

fn reserve_text(reserve: &Interfaces) -> String {
    match names(reserve) {
        names if names.is_empty() => "the usual interfaces".into(),
        names => names.join(" and "),
    }
}

fn names(interfaces: &Interfaces) -> Vec<String> {
    interfaces.iter().map(|it| it.as_str().into()).collect()
}

/// All of them, each once, as far as there is room: the reserve is one rail.
pub fn joined(all: Interfaces, more: &Interfaces) -> Interfaces {
    more.iter().fold(all, |all, name| match all.iter().any(|it| it == name) {
        true => all,
        false => all.with(&Interfaces::one(name)).unwrap_or(all),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosstie::connect::interfaces::InterfaceName;
    use crosstie::provider::verbs::names::PortName;

    fn usual() -> Environment {
        Environment::default()
    }

    fn interface(name: &str) -> Interfaces {
        Interfaces::one(InterfaceName::new(name.as_bytes()))
    }

    fn port(device: &str, reserve: &str) -> Kind {
        let ports = PortNames::one(PortName::new(device, 1).unwrap());
        let reserve = if reserve.is_empty() { Interfaces::NONE } else { interface(reserve) };
        Kind::Ports { ports, reserve }
    }

    #[test]
    fn devices_of_one_kind_alone_make_one() {
        let eth = |name| Kind::Interfaces(interface(name));
        let both = eth("eth0").with(&eth("eth1")).unwrap();
        assert_eq!(both.rails_text(&usual()), "2 TCP rails to other hosts, eth0 and eth1");
        let rails = Rails { shm: true, ..Rails::NONE };
        let alone = "no rail to other hosts (CROSSTIE_RAILS leaves out TCP)";
        assert_eq!(both.rails_text(&Environment { rails, ..usual() }), alone);
        let ports = port("mlx5_0", "ens1").with(&port("mlx5_1", "ens1")).unwrap();
        let text = "2 RDMA rails to other hosts, mlx5_0:1 and mlx5_1:1, with TCP over ens1";
        assert_eq!(ports.rails_text(&usual()), text);
        assert_eq!(port("mlx5_0", "ens1").with(&eth("eth0")), None);
        assert_eq!(eth("eth0").with(&port("mlx5_0", "")), None);
        assert_eq!(Kind::Alone.with(&Kind::Alone), None);
    }

    /// It was said to have a TCP rail, or that TCP was left out, and did not open.
    #[test]
    fn device_that_no_endpoint_opens_says_why() {
        let (eth, ports) = (Kind::Interfaces(interface("eth0")), port("mlx5_0", "ens1"));
        let verbs = Rails { verbs: true, ..Rails::NONE };
        let tcp = Rails { tcp: true, ..Rails::NONE };
        let with = |rails, required| Environment { rails, required, ..usual() };
        for (kind, its, why) in [
            (eth, with(Rails::ALL, verbs), "CROSSTIE_RAILS_REQUIRED names verbs"),
            (Kind::Alone, with(tcp, usual().required), "CROSSTIE_RAILS leaves out all that it has"),
        ] {
            let text = format!("no rail, and it will not open ({why})");
            assert_eq!(kind.rails_text(&its), text);
        }
        assert_eq!(ports.refusal(&with(Rails::ALL, verbs)), None);
        assert_eq!(Kind::Alone.refusal(&with(Rails::ALL, verbs)), None);
    }

    #[test]
    fn ports_are_as_many_as_a_connection_has_rails_beside_the_first() {
        let mut all = port("mlx5_0", "ens0");
        for at in 1..7 {
            all = all.with(&port(&format!("mlx5_{at}"), &format!("ens{at}"))).unwrap();
        }
        assert_eq!(all.with(&port("mlx5_7", "ens7")), None);
    }

    #[test]
    fn endpoint_has_the_rails_of_its_device_and_no_others() {
        let mut options = Options::default();
        port("mlx5_0", "ens1").choose(&mut options);
        assert_eq!(options.ports.unwrap().iter().count(), 1);
        assert_eq!((options.device, options.interfaces), (DeviceKind::Host, interface("ens1")));
        Kind::Interfaces(interface("eth0")).choose(&mut options);
        assert!(options.ports.unwrap().is_empty());
        assert_eq!((options.device, options.interfaces), (DeviceKind::Host, interface("eth0")));
        Kind::Alone.choose(&mut options);
        assert!(options.ports.unwrap().is_empty());
        assert_eq!(options.device, DeviceKind::SharedMemory);
    }
}
