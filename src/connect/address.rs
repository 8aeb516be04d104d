//! Where an endpoint's side band answers on its host: an abstract name, and a path for peers that
//! share `/dev/shm` but not the network namespace. Both follow from the endpoint id.
#![forbid(unsafe_code)]

extern crate std;

use super::os;
use super::peer::TextBuffer;
use super::socket::{Name, Socket};
use crate::base::hash::fnv1a;
use core::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Longest path of a socket in bytes, with the terminating zero (`sun_path`, unix(7)).
const PATH_BYTES_MAX: usize = 108;
const PREFIX: &str = "crosstie-";
const SUFFIX: &str = ".sock";
const SUFFIX_TEMPORARY: &str = ".tmp";
/// Longest directory, so that a name of 32 digits fits behind it.
pub const SHM_DIR_BYTES_MAX: usize = {
    let suffix = if SUFFIX.len() > SUFFIX_TEMPORARY.len() { SUFFIX } else { SUFFIX_TEMPORARY };
    PATH_BYTES_MAX - 2 - PREFIX.len() - 32 - suffix.len()
};
/// A temporary name lives for microseconds, between bind and rename.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(60);
/// Files looked at by one sweep, so that a directory full of others costs little.
const SWEEP_MAX: usize = 4096;

/// A path as bytes, without the heap.
#[derive(Copy, Clone, Debug)]
struct PathText {
    bytes: [u8; PATH_BYTES_MAX],
    length: usize,
}

impl PathText {
    fn new(dir: &[u8], id: u128, suffix: &str) -> Option<PathText> {
        let mut bytes = [0; PATH_BYTES_MAX];
        if dir.len() > SHM_DIR_BYTES_MAX {
            return None;
        }
        bytes[..dir.len()].copy_from_slice(dir);
        let mut text = TextBuffer::new(&mut bytes[dir.len()..]);
        write!(text, "/{PREFIX}{id:032x}{suffix}").ok()?;
        let length = dir.len() + text.length();
        Some(PathText { bytes, length })
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn as_path(&self) -> &Path {
        Path::new(std::ffi::OsStr::from_bytes(self.as_bytes()))
    }
}

/// The names of one endpoint.
#[derive(Copy, Clone, Debug)]
pub struct Address {
    id: u128,
    path: PathText,
    path_temporary: PathText,
}

impl Address {
    /// The names of endpoint `id`; `None` when `dir` is too long.
    pub fn new(dir: &Path, id: u128) -> Option<Address> {
        let dir = dir.as_os_str().as_bytes();
        let path = PathText::new(dir, id, SUFFIX)?;
        let path_temporary = PathText::new(dir, id, SUFFIX_TEMPORARY)?;
        Some(Address { id, path, path_temporary })
    }

    fn abstract_name(&self) -> Name {
        let mut bytes = [0; 64];
        let mut text = TextBuffer::new(&mut bytes);
        write!(text, "{PREFIX}{:032x}", self.id).expect("a text buffer takes everything");
        let length = text.length();
        Name::abstract_of(&bytes[..length]).expect("41 bytes fit")
    }

    /// Opens both sockets, by name and by path, of which one may be absent: where the directory
    /// refuses us, and where a forked child holds the name of a socket that we have closed.
    pub fn listen(&self) -> io::Result<(Option<Socket>, Option<Socket>)> {
        let by_name = match Socket::listen(&self.abstract_name()) {
            Ok(socket) => Some(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
            Err(error) => return Err(error),
        };
        let by_path = match self.listen_path() {
            Ok(socket) => Some(socket),
            Err(error) if is_out_of_descriptors(&error) || by_name.is_none() => return Err(error),
            // a read-only or absent directory: peers of the same network namespace still reach us
            Err(_) => None,
        };
        Ok((by_name, by_path))
    }

    /// Binds under a temporary name and renames once the socket listens, so that whoever finds the
    /// file and is refused knows that its owner is gone.
    fn listen_path(&self) -> io::Result<Socket> {
        let name = Name::path_of(self.path_temporary.as_bytes()).ok_or(io::ErrorKind::Other)?;
        let socket = Socket::listen(&name)?;
        if let Err(error) = fs::rename(self.path_temporary.as_path(), self.path.as_path()) {
            let _ = fs::remove_file(self.path_temporary.as_path());
            return Err(error);
        }
        Ok(socket)
    }

    /// Dials: the abstract name first, then the path.
    ///
    /// *Errors*: `WouldBlock`: dial again later. `ConnectionRefused`, `NotFound`: nobody is there.
    pub fn dial(&self) -> io::Result<Socket> {
        match Socket::connect(&self.abstract_name()) {
            Ok(socket) => Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let name = Name::path_of(self.path.as_bytes()).ok_or(io::ErrorKind::Other)?;
                Socket::connect(&name)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the path, which is ours.
    pub fn remove(&self) {
        let _ = fs::remove_file(self.path.as_path());
    }

    /// Removes the path if its owner is gone, and says whether nothing is left there.
    pub fn remove_if_stale(&self) -> bool {
        remove_if_refused(self.path.as_path())
    }
}

/// Removes what endpoints of ours left in `dir` when they were killed. Control path, at open.
pub fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.take(SWEEP_MAX).flatten() {
        let name = entry.file_name();
        let name = name.as_bytes();
        if !name.starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let Ok(meta) = entry.metadata() else { continue };
        if meta.uid() != os::user() {
            continue;
        }
        if name.ends_with(SUFFIX.as_bytes()) {
            remove_if_refused(&entry.path());
        } else if name.ends_with(SUFFIX_TEMPORARY.as_bytes()) {
            let age = meta.modified().ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > TEMPORARY_AGE_MAX) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn remove_if_refused(path: &Path) -> bool {
    let Some(name) = Name::path_of(path.as_os_str().as_bytes()) else { return true };
    match Socket::connect(&name) {
        Ok(_) => false,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).is_ok()
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Whether a process or the host has no descriptor left.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// This host's number: the same in every container of one running kernel.
pub fn node_id() -> io::Result<u64> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id")?;
    Ok(fnv1a(&boot))
}
