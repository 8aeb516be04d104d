//! The process's environment, as it was when the library was used first.
//!
//! A process has one environment, and nothing keeps its threads from changing it while another
//! reads it (setenv(3)). So it is read once, in the first call that needs it, on the caller's
//! thread; what is changed later changes nothing here.

use std::ffi::{OsStr, OsString};
use std::string::String;
use std::sync::OnceLock;
use std::vec::Vec;

/// Variables with their values.
#[derive(Clone, Eq, PartialEq, Default, Debug)]
pub struct Variables(Vec<(OsString, OsString)>);

impl Variables {
    /// Those of this process. *Cost*: the first call copies them.
    pub fn of_process() -> &'static Variables {
        static OF_PROCESS: OnceLock<Variables> = OnceLock::new();
        OF_PROCESS.get_or_init(|| Variables(std::env::vars_os().collect()))
    }

    /// A variable's value, if it is set.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_os_str())
    }

    /// The same, if it is a text.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name)?.to_str().map(String::from)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

impl FromIterator<(OsString, OsString)> for Variables {
    fn from_iter<T: IntoIterator<Item = (OsString, OsString)>>(all: T) -> Variables {
        Variables(all.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_has_the_variables_that_it_had_first() {
        let path = std::env::var_os("PATH");
        assert_eq!(Variables::of_process().get("PATH"), path.as_deref());
        assert_eq!(Variables::of_process().get("CROSSTIE_NO_SUCH_VARIABLE"), None);
    }
}
