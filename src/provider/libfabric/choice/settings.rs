//! What the user wants of libfabric: the `CROSSTIE_OFI_` variables. For open and for people: it
//! allocates.
#![forbid(unsafe_code)]

use crate::base::units::Span;
use crate::provider::libfabric::Config;
use std::ffi::{CStr, CString};
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
    /// How long nothing that was sent to a peer may end; 0, or `None`: for ever.
    pub silence_max: Option<Span>,
}

impl Settings {
    /// What the library is asked for with them, of any domain.
    pub fn config(&self) -> Config<'_> {
        Config {
            library: self.library.as_deref().unwrap_or(Config::DEFAULT.library),
            provider: self.provider.as_deref(),
            silence_max: self.silence_max.unwrap_or(Config::DEFAULT.silence_max),
            ..Config::DEFAULT
        }
    }

    /// The domains that are named and not there, each once; empty: all are.
    pub fn missing_domains(&self, is_there: impl Fn(&CStr) -> bool) -> String {
        let mut missing: Vec<_> = self.domains.iter().filter(|name| !is_there(name)).collect();
        missing.sort();
        missing.dedup();
        let names: Vec<_> = missing.iter().map(|name| name.to_string_lossy()).collect();
        names.join(", ")
    }
}

/// One variable.
#[derive(Copy, Clone, Debug)]
pub struct Variable {
    /// Its name in the environment.
    pub name: &'static str,
    set: fn(&mut Settings, &CStr) -> Result<(), String>,
}

/// All of them.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "CROSSTIE_OFI_PROVIDER",
        set: |settings, text| {
            settings.provider = Some(text.into());
            Ok(())
        },
    },
    Variable {
        name: "CROSSTIE_OFI_DOMAINS",
        set: |settings, text| {
            let names = text.to_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            if names.clone().any(<[u8]>::is_empty) {
                return Err("a name is missing; it may be names with commas between them".into());
            }
            settings.domains = names.filter_map(|name| CString::new(name).ok()).collect();
            Ok(())
        },
    },
    Variable {
        name: "CROSSTIE_OFI_LIBRARY",
        set: |settings, text| {
            settings.library = Some(text.into());
            Ok(())
        },
    },
    Variable {
        name: "CROSSTIE_OFI_SILENCE_MS",
        set: |settings, text| {
            let number = text.to_str().ok().and_then(|text| text.parse().ok());
            match number {
                Some(0) => settings.silence_max = Some(Span(0)),
                Some(ms @ 100..=86_400_000) => settings.silence_max = Some(Span::millis(ms)),
                Some(_) | None => return Err("it may be 0, or from 100 to 86400000".into()),
            }
            Ok(())
        },
    },
];

/// What the variables say, by `value_of` a name, and why which of them cannot be meant so. Empty
/// ones are not set.
pub fn read(value_of: impl Fn(&str) -> Option<String>) -> (Settings, Vec<(&'static str, String)>) {
    let (mut settings, mut complaints) = (Settings::default(), Vec::new());
    for variable in VARIABLES {
        let text = value_of(variable.name).and_then(|text| CString::new(text.trim()).ok());
        if let Some(text) = text.filter(|text| !text.is_empty())
            && let Err(why) = (variable.set)(&mut settings, &text)
        {
            complaints.push((variable.name, why));
        }
    }
    (settings, complaints)
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
            |name: &str, value: &str| read(|asked| (asked == name).then(|| value.to_string())).0;
        let base = Settings::default();
        assert_eq!(base.config().silence_max, Span(0), "the fence is the peer's word");
        assert_eq!(with("CROSSTIE_OFI_PROVIDER", "  "), base);
        let provider = Some(c"tcp;ofi_rxm".to_owned());
        let expected = Settings { provider, ..base.clone() };
        assert_eq!(with("CROSSTIE_OFI_PROVIDER", " tcp;ofi_rxm "), expected);
        let domains = vec![c"eth0".to_owned(), c"eth1".to_owned(), c"eth0".to_owned()];
        let expected = Settings { domains, ..base.clone() };
        assert_eq!(with("CROSSTIE_OFI_DOMAINS", "eth0, eth1,eth0"), expected);
        let library = Some(c"/opt/lib.so".to_owned());
        let expected = Settings { library, ..base };
        assert_eq!(with("CROSSTIE_OFI_LIBRARY", "/opt/lib.so"), expected);
        assert_eq!(expected.config().library, c"/opt/lib.so");
        for (text, silence_max) in [("0", Some(Span(0))), ("250", Some(Span::millis(250)))] {
            let expected = Settings { silence_max, ..Settings::default() };
            assert_eq!(with("CROSSTIE_OFI_SILENCE_MS", text), expected);
            assert_eq!(Some(expected.config().silence_max), silence_max);
        }
    }

    /// It was as if the variable was not set.
    #[test]
    fn list_of_domains_without_a_name_is_a_sentence() {
        for wrong in [",", "eth0,", "eth0,,eth1"] {
            let of = |name: &str| (name == "CROSSTIE_OFI_DOMAINS").then(|| wrong.to_string());
            let [(_, why)] = &read(of).1[..] else { panic!("{wrong}") };
            assert!(why.starts_with("a name is missing"), "{why}");
        }
    }

    #[test]
    fn time_that_cannot_be_is_a_sentence() {
        for wrong in ["99", "soon", "86400001", "-1"] {
            let of = |name: &str| (name == "CROSSTIE_OFI_SILENCE_MS").then(|| wrong.to_string());
            let (settings, complaints) = read(of);
            assert_eq!(settings, Settings::default());
            let [(name, why)] = &complaints[..] else { panic!("{wrong}: {complaints:?}") };
            assert_eq!(*name, "CROSSTIE_OFI_SILENCE_MS");
            assert!(why.starts_with("it may be 0, or"), "{why}");
        }
    }
}
