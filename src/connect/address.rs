//! Where an endpoint's side band answers on its host: an abstract name, and a path for peers that
//! share `/dev/shm` but not the network namespace. Both follow from the endpoint id, one way: all
//! users of the host can read them, and learn nothing of the id.
#![forbid(unsafe_code)]

use super::key::public_number;
use super::os;
use super::socket::{Name, Socket};
use crate::base::hash::fnv1a;
use crate::base::text::Text;
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
/// Binds after which a path is done without.
const TRIES: u32 = 3;
/// Files looked at by one sweep, so that a directory full of others costs little.
const SWEEP_MAX: usize = 4096;

/// A path as bytes, without the heap.
#[derive(Copy, Clone, Debug)]
struct PathText(Text<PATH_BYTES_MAX>);

impl PathText {
    fn new(dir: &[u8], id: u128, suffix: &str) -> Option<PathText> {
        if dir.len() > SHM_DIR_BYTES_MAX {
            return None;
        }
        let mut text = Text::beginning(dir);
        write!(text, "/{PREFIX}{id:032x}{suffix}").ok()?;
        Some(PathText(text))
    }

    fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn as_path(&self) -> &Path {
        Path::new(std::ffi::OsStr::from_bytes(self.as_bytes()))
    }
}

/// The names of one endpoint.
#[derive(Copy, Clone, Debug)]
pub struct Address {
    /// Of the endpoint, for everybody to see.
    id: u128,
    path: PathText,
    path_temporary: PathText,
}

impl Address {
    /// The names of endpoint `id`; `None` when `dir` is too long.
    pub fn new(dir: &Path, id: u128) -> Option<Address> {
        let (dir, id) = (dir.as_os_str().as_bytes(), public_number(id));
        let path = PathText::new(dir, id, SUFFIX)?;
        let path_temporary = PathText::new(dir, id, SUFFIX_TEMPORARY)?;
        Some(Address { id, path, path_temporary })
    }

    fn abstract_name(&self) -> Name {
        let text: Text<64> = Text::written(format_args!("{PREFIX}{:032x}", self.id));
        Name::abstract_of(text.as_bytes()).expect("41 bytes fit")
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
        let mut tries = 0;
        loop {
            let socket = Socket::listen(&name)?;
            match fs::rename(self.path_temporary.as_path(), self.path.as_path()) {
                Ok(()) => return Ok(socket),
                // swept while this process was stopped, or the clock was set
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES => {
                    tries += 1;
                }
                Err(error) => {
                    let _ = fs::remove_file(self.path_temporary.as_path());
                    return Err(error);
                }
            }
        }
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
            // a young one need not listen yet; one that listens is being put back (`bury`)
            let is_old = age.is_some_and(|age| age > TEMPORARY_AGE_MAX);
            if is_old && look(&entry.path()) == Found::Dead {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// What stands at a path.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Found {
    Nothing,
    /// A socket at which nobody listens, and nobody will: a file has one socket in its life, which
    /// listens before it gets a name that others look for.
    Dead,
    /// A socket at which somebody listens, or what cannot be told.
    Live,
}

fn look(path: &Path) -> Found {
    let Some(name) = Name::path_of(path.as_os_str().as_bytes()) else { return Found::Nothing };
    match Socket::connect(&name).map_err(|error| error.kind()) {
        Err(io::ErrorKind::ConnectionRefused) => Found::Dead,
        Err(io::ErrorKind::NotFound) => Found::Nothing,
        Ok(_) | Err(_) => Found::Live,
    }
}

fn remove_if_refused(path: &Path) -> bool {
    match look(path) {
        Found::Nothing => true,
        Found::Dead => bury(path),
        Found::Live => false,
    }
}

/// Removes a file that was dead when it was looked at. Its owner may have put a live one in its
/// place since: so it is moved where nobody else puts one, and looked at there.
fn bury(path: &Path) -> bool {
    let Ok(random) = os::random() else { return false };
    let dir = path.parent().map_or(&b""[..], |dir| dir.as_os_str().as_bytes());
    let Some(aside) = PathText::new(dir, random, SUFFIX_TEMPORARY) else { return false };
    let aside = aside.as_path();
    if fs::rename(path, aside).is_err() {
        return look(path) == Found::Nothing;
    }
    let is_live = look(aside) == Found::Live;
    if is_live {
        // what stands there by now is younger
        let _ = fs::hard_link(aside, path);
    }
    let _ = fs::remove_file(aside);
    !is_live
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

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;
    use std::{format, thread};

    const WATCHDOG: Duration = Duration::from_secs(60);
    const ROUNDS: u32 = 200;
    const SWEEPERS: usize = 3;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("xtie-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn count(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    /// Between a look that found it dead and its removal, the owner listened again.
    #[test]
    fn one_that_came_to_life_after_the_look_is_not_removed() {
        let dir = directory("alive");
        let address = Address::new(&dir, 7).unwrap();
        let socket = address.listen_path().unwrap();
        assert!(!bury(address.path.as_path()), "it lives");
        assert_eq!((look(address.path.as_path()), count(&dir)), (Found::Live, 1));
        drop(socket);
        assert_eq!(look(address.path.as_path()), Found::Dead);
        assert!(address.remove_if_stale());
        assert_eq!(count(&dir), 0);
        fs::remove_dir(&dir).unwrap();
    }

    /// A name whose owner listens, stops and listens again, while others sweep.
    #[test]
    fn live_one_is_there_after_every_sweep_that_began_since() {
        let dir = directory("race");
        let address = Address::new(&dir, 8).unwrap();
        let (ended, stop) = (AtomicU32::new(0), AtomicU32::new(0));
        let sweeps = || {
            while stop.load(Ordering::Relaxed) == 0 {
                sweep(&dir);
                ended.fetch_add(1, Ordering::SeqCst);
            }
        };
        thread::scope(|scope| {
            for _ in 0..SWEEPERS {
                scope.spawn(sweeps);
            }
            for _ in 0..ROUNDS {
                let socket = address.listen_path().unwrap();
                // those that had begun have ended when as many as all of them twice have
                let until = ended.load(Ordering::SeqCst) + 2 * SWEEPERS as u32;
                while ended.load(Ordering::SeqCst) < until {
                    thread::yield_now();
                }
                // a sweep that found a dead one before may have it aside for a moment
                let began = Instant::now();
                while look(address.path.as_path()) != Found::Live {
                    assert!(began.elapsed() < WATCHDOG, "a live one was removed");
                    thread::yield_now();
                }
                drop(socket); // as a process that is killed: the file stays
            }
            stop.store(1, Ordering::Relaxed);
        });
        sweep(&dir);
        assert_eq!(count(&dir), 0);
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn longest_directory_leaves_room_for_the_names() {
        let dir = |length: usize| PathBuf::from("/".repeat(length));
        assert_eq!(SHM_DIR_BYTES_MAX, 60, "as the settings' table says");
        let longest = Address::new(&dir(SHM_DIR_BYTES_MAX), u128::MAX).unwrap();
        assert!(Name::path_of(longest.path.as_bytes()).is_some());
        assert!(Address::new(&dir(SHM_DIR_BYTES_MAX + 1), 0).is_none());
    }
}
