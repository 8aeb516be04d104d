//! A socket at which another process of the same user, or of root, can ask for a text.
//!
//! It listens under an abstract name that contains the process id. A caller gets the lines, one
//! record each, and then the end.
#![forbid(unsafe_code)]

use super::os::random;
use super::report::{door_check, doors, may_ask};
use super::socket::{Name, Socket};
use std::format;
use std::io;
use std::string::String;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::vec::Vec;

/// Longest line that is received.
const LINE_BYTES_MAX: usize = 1024;
/// Between two looks of who asks.
const LOOK: Duration = Duration::from_millis(1);

/// The listening side.
#[derive(Debug)]
pub struct TextDoor(Socket);

impl TextDoor {
    /// Listens under `prefix`, the process's id and a random number.
    ///
    /// *Errors*: the kernel's.
    pub fn open(prefix: &str) -> io::Result<TextDoor> {
        let name = format!("{prefix}-{}-{:016x}", std::process::id(), random()? as u64);
        let name = Name::abstract_of(name.as_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(TextDoor(Socket::listen(&name)?))
    }

    /// Gives whoever has dialled the lines of `text`. Never blocks: lines for which the kernel has
    /// no room are left out.
    ///
    /// *Cost*: one system call when nobody has dialled.
    pub fn answer(&self, text: impl FnOnce() -> String) {
        let Ok(caller) = self.0.accept() else { return };
        if !may_ask(&caller) {
            return;
        }
        for line in text().lines().filter(|line| !line.is_empty()) {
            let bytes = line.as_bytes();
            if caller.send(&bytes[..bytes.len().min(LINE_BYTES_MAX)], &[]).is_err() {
                return;
            }
        }
    }
}

/// Asks at every such door of a process, for `patience` at most. Blocks. Needs the same network
/// namespace, and the same user or root.
///
/// *Errors*: `TimedOut`: the process does not answer; `PermissionDenied`: it is another user's; the
/// kernel's.
pub fn texts(prefix: &str, pid: u32, patience: Duration) -> io::Result<Vec<String>> {
    let until = Instant::now() + patience;
    let mut lines = Vec::new();
    for name in doors(prefix, pid)? {
        let name = Name::abstract_of(name.as_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
        let socket = match Socket::connect(&name) {
            Ok(socket) => socket,
            // it was closed meanwhile
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error),
        };
        door_check(&socket)?;
        let mut line = [0; LINE_BYTES_MAX];
        loop {
            match socket.receive(&mut line) {
                Ok(received) if received.length == 0 => break,
                Ok(received) => {
                    lines.push(String::from_utf8_lossy(&line[..received.length]).into_owned());
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if Instant::now() > until => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => sleep(LOOK),
            }
        }
    }
    Ok(lines)
}
