//! Sentences about settings.
#![forbid(unsafe_code)]

use super::Level;
use super::event::Event;
use crate::base::words::said;
use crate::host::choice::values::Wrong;

said! {
    /// What is to be said of a setting.
    pub(in crate::host) enum SettingEvent<'a> {
        /// Its value cannot be meant.
        Wrong(wrong: &'a Wrong) => "{wrong}",
        /// It is not one of ours.
        Unknown { name: &'a str, nearest: Option<&'a str> } => |f| {
            write!(f, "{name} is not a variable of crosstie")?;
            nearest.map_or(Ok(()), |near| write!(f, "; the nearest is {near}"))
        },
        TcpRails { wish: u32, most: u32 } =>
            "CROSSTIE_TCP_RAILS={wish} is more than rails_max, {most}, of this endpoint: its \
             connections have {most} at most",
        /// CPUs are named for no thread.
        TcpThreadCpus =>
            "CROSSTIE_TCP_THREAD_CPUS is ignored: CROSSTIE_TCP_THREADS asks for no thread",
        /// A provider of libfabric's is named where libfabric is left out.
        OfiProvider(provider: &'a str) =>
            "CROSSTIE_OFI_PROVIDER={provider} is ignored: CROSSTIE_RAILS leaves libfabric out",
    }
}

impl Event for SettingEvent<'_> {
    fn level(&self) -> Level {
        match self {
            SettingEvent::Wrong(_) => Level::Error,
            SettingEvent::Unknown { .. }
            | SettingEvent::TcpRails { .. }
            | SettingEvent::TcpThreadCpus
            | SettingEvent::OfiProvider(_) => Level::Warning,
        }
    }

    fn is_once(&self) -> bool {
        !matches!(self, SettingEvent::Wrong(_))
    }
}
