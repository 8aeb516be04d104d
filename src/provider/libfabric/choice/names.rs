//! Domains by name, as a value: which ones an endpoint is to use.
#![forbid(unsafe_code)]

use super::settings::Settings;
use crate::base::text::Text;
use crate::wire::pair::PORTS_MAX;
use core::fmt;
use std::ffi::{CStr, CString};

/// Longest name that is kept, in bytes.
const NAME_BYTES_MAX: usize = 64;

type Name = Text<NAME_BYTES_MAX>;

fn name(text: &CStr) -> Option<Name> {
    Name::whole(text.to_bytes())
}

fn c_text(name: &Name) -> Option<CString> {
    CString::new(name.as_bytes()).ok()
}

/// Some domains of one provider, in an order: as many as a connection has lanes beside the first.
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct NicNames {
    provider: Name,
    domains: [Option<Name>; PORTS_MAX],
}

impl NicNames {
    /// Not one.
    pub const NONE: NicNames = NicNames { provider: Name::EMPTY, domains: [None; PORTS_MAX] };

    /// One alone; `None`: a name is longer than is kept.
    pub fn one(provider: &CStr, domain: &CStr) -> Option<NicNames> {
        let mut one = NicNames { provider: name(provider)?, ..NicNames::NONE };
        one.domains[0] = Some(name(domain)?);
        Some(one)
    }

    /// These too; `None`: they are of another provider, or more than a connection has lanes for.
    pub fn with(mut self, more: &NicNames) -> Option<NicNames> {
        if self.provider != more.provider {
            return None;
        }
        for name in more.domains.iter().flatten() {
            *self.domains.iter_mut().find(|place| place.is_none())? = Some(*name);
        }
        Some(self)
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.domains.iter().flatten().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.domains[0].is_none()
    }

    /// Asks for these and no others.
    pub fn choose(&self, settings: &mut Settings) {
        settings.provider = c_text(&self.provider);
        settings.domains = self.domains.iter().flatten().filter_map(c_text).collect();
    }
}

/// `tcp;ofi_rxm eth0 and eth1`.
impl fmt::Display for NicNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.provider, f)?;
        for (at, name) in self.domains.iter().flatten().enumerate() {
            write!(f, "{}{name}", if at == 0 { " " } else { " and " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for NicNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::ToOwned;
    use std::string::ToString;

    #[test]
    fn named_domains_are_asked_for_in_their_order_and_of_one_provider() {
        let one = |domain| NicNames::one(c"tcp;ofi_rxm", domain).unwrap();
        let two = one(c"eth1").with(&one(c"eth0")).unwrap();
        assert_eq!(two.to_string(), "tcp;ofi_rxm eth1 and eth0");
        let mut settings = Settings::default();
        two.choose(&mut settings);
        assert_eq!(settings.provider.as_deref(), Some(c"tcp;ofi_rxm"));
        assert_eq!(settings.domains, [c"eth1".to_owned(), c"eth0".to_owned()]);
        assert_eq!(two.with(&NicNames::one(c"efa", c"efa0").unwrap()), None);
        let mut all = one(c"eth0");
        for _ in 1..PORTS_MAX {
            all = all.with(&one(c"eth0")).unwrap();
        }
        assert_eq!((all.count(), all.with(&one(c"eth0"))), (PORTS_MAX, None));
        assert!(NicNames::NONE.is_empty() && !all.is_empty());
        let long = CString::new("x".repeat(65)).unwrap();
        assert_eq!(NicNames::one(c"efa", &long), None);
    }
}
