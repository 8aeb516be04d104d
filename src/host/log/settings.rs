//! Sentences about settings.
#![forbid(unsafe_code)]

use super::Level;
use super::event::Event;
use crate::host::choice::values::Wrong;
use core::fmt;
use std::path::Path;

/// What is to be said of a setting.
pub(in crate::host) enum SettingEvent<'a> {
    /// Its value cannot be meant.
    Wrong(&'a Wrong),
    /// It is not one of ours.
    Unknown { name: &'a str, nearest: Option<&'a str> },
    /// More TCP rails are asked for than connections have.
    TcpRails { wish: u32, most: u32 },
    /// The directory of path sockets is none.
    ShmDir(&'a Path),
    /// CPUs are named for no thread.
    TcpThreadCpus,
    /// A provider of libfabric's is named where libfabric is left out.
    OfiProvider(&'a str),
    /// The key cannot be had.
    KeyFile { path: &'a Path, why: &'a str },
}

impl Event for SettingEvent<'_> {
    fn level(&self) -> Level {
        match self {
            SettingEvent::Wrong(_) | SettingEvent::KeyFile { .. } => Level::Error,
            SettingEvent::Unknown { .. }
            | SettingEvent::TcpRails { .. }
            | SettingEvent::ShmDir(_)
            | SettingEvent::TcpThreadCpus
            | SettingEvent::OfiProvider(_) => Level::Warning,
        }
    }

    fn is_once(&self) -> bool {
        !matches!(self, SettingEvent::Wrong(_) | SettingEvent::KeyFile { .. })
    }
}

impl fmt::Display for SettingEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingEvent::Wrong(wrong) => wrong.fmt(f),
            SettingEvent::Unknown { name, nearest } => {
                write!(f, "{name} is not a variable of crosstie")?;
                nearest.map_or(Ok(()), |near| write!(f, "; the nearest is {near}"))
            }
            SettingEvent::TcpRails { wish, most } => write!(
                f,
                "CROSSTIE_TCP_RAILS={wish} is more than rails_max, {most}, of this endpoint: its \
                 connections have {most} at most"
            ),
            SettingEvent::ShmDir(path) => write!(
                f,
                "CROSSTIE_SHM_DIR={} is no directory: peers in other network namespaces of this \
                 host are not reached by shared memory",
                path.display()
            ),
            SettingEvent::TcpThreadCpus => f.write_str(
                "CROSSTIE_TCP_THREAD_CPUS is ignored: CROSSTIE_TCP_THREADS asks for no thread",
            ),
            SettingEvent::OfiProvider(provider) => write!(
                f,
                "CROSSTIE_OFI_PROVIDER={provider} is ignored: CROSSTIE_RAILS leaves libfabric out"
            ),
            SettingEvent::KeyFile { path, why } => write!(
                f,
                "CROSSTIE_KEY_FILE={}: {why}; no endpoint opens until that is corrected",
                path.display()
            ),
        }
    }
}
