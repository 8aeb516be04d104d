//! What the user wants of libfabric: the `CROSSTIE_OFI_` variables. For open and for people: it
//! allocates.
#![forbid(unsafe_code)]

extern crate std;

use super::Config;
use std::ffi::CString;
use std::string::String;
use std::vec::Vec;

/// What is wanted.
#[derive(Clone, Eq, PartialEq, Default, Debug)]
pub struct Settings {
    /// The library's file; `None`: the one of the usual name.
    pub library: Option<CString>,
    /// The provider; `None`: one of a NIC, where there is such a NIC.
    pub provider: Option<CString>,
    /// Its domains, a port each; empty: all but those of loopback.
    pub domains: Vec<CString>,
}

impl Settings {
    /// What the library is asked for with them, of any domain.
    pub fn config(&self) -> Config<'_> {
        Config {
            library: self.library.as_deref().unwrap_or(Config::DEFAULT.library),
            provider: self.provider.as_deref(),
            domain: None,
        }
    }
}

/// One variable.
#[derive(Copy, Clone, Debug)]
pub struct Variable {
    /// Its name in the environment.
    pub name: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What it is made of.
    pub unit: &'static str,
    /// What it does.
    pub effect: &'static str,
    set: fn(&mut Settings, CString),
}

/// All of them.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "CROSSTIE_OFI_PROVIDER",
        default: "that of the NIC (efa, cxi, psm3), if there is one and no RDMA port",
        unit: "name, as `crosstie info` has it; `tcp` is `net` where `net` is there",
        effect: "the libfabric provider whose domains are rails beside tcp; also one of no NIC, \
                 such as tcp;ofi_rxm, for trials; tcp@msg: its connected endpoints, although \
                 there are shared ones",
        set: |settings, text| settings.provider = Some(text),
    },
    Variable {
        name: "CROSSTIE_OFI_DOMAINS",
        default: "all of the provider but lo and docker",
        unit: "names, with commas between them",
        effect: "the domains (NICs, interfaces) of libfabric that are rails, in this order; one \
                 may be named twice",
        set: |settings, text| {
            let names = text.to_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            let names = names.filter(|name| !name.is_empty());
            settings.domains = names.filter_map(|name| CString::new(name).ok()).collect();
        },
    },
    Variable {
        name: "CROSSTIE_OFI_LIBRARY",
        default: "libfabric.so.1",
        unit: "file or path",
        effect: "the libfabric that is loaded",
        set: |settings, text| settings.library = Some(text),
    },
];

/// What the variables say, by `value_of` a name. Empty ones are not set.
pub fn read(value_of: impl Fn(&str) -> Option<String>) -> Settings {
    let mut settings = Settings::default();
    for variable in VARIABLES {
        let text = value_of(variable.name).and_then(|text| CString::new(text.trim()).ok());
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            (variable.set)(&mut settings, text);
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::ToOwned;
    use std::string::ToString;
    use std::vec;

    #[test]
    fn every_variable_changes_its_own_setting() {
        let with =
            |name: &str, value: &str| read(|asked| (asked == name).then(|| value.to_string()));
        let base = Settings::default();
        assert_eq!(with("CROSSTIE_OFI_PROVIDER", "  "), base);
        let provider = Some(c"tcp;ofi_rxm".to_owned());
        let expected = Settings { provider, ..base.clone() };
        assert_eq!(with("CROSSTIE_OFI_PROVIDER", " tcp;ofi_rxm "), expected);
        let domains = vec![c"eth0".to_owned(), c"eth1".to_owned(), c"eth0".to_owned()];
        let expected = Settings { domains, ..base.clone() };
        assert_eq!(with("CROSSTIE_OFI_DOMAINS", "eth0, eth1,,eth0"), expected);
        let library = Some(c"/opt/lib.so".to_owned());
        let expected = Settings { library, ..base };
        assert_eq!(with("CROSSTIE_OFI_LIBRARY", "/opt/lib.so"), expected);
        assert_eq!(expected.config().library, c"/opt/lib.so");
    }
}
