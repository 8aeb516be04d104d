//! The rails of both processes as the one that kills them sees them from outside.
#![forbid(unsafe_code)]

use super::traffic::numbers;
use crate::Failure;
use crosstie::memory::Errno;
use crosstie::memory::pidfd::{self, Process};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;

/// A rail as one side tells of it.
#[derive(Copy, Clone, Debug)]
pub struct Rail {
    /// It is in use.
    pub up: bool,
    /// Which use of it.
    pub generation: u32,
    /// Its first socket, there.
    socket: i32,
    /// Bytes of stripes, stripes, stripes that others carried, failures, returns.
    pub counts: [u64; 5],
}

/// Words of one rail.
const WORDS: usize = 8;

/// Reads what a side says of its rails.
pub fn rails_read(words: &[&str]) -> Option<Vec<Rail>> {
    let all = numbers(words)?;
    let rails = all.chunks(WORDS).map(|rail| match *rail {
        [up, generation, socket, bytes, stripes, moved, failures, joins] => Some(Rail {
            up: up != 0,
            generation: generation as u32,
            socket: socket as i32,
            counts: [bytes, stripes, moved, failures, joins],
        }),
        _ => None,
    });
    rails.collect()
}

/// How a rail dies.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Blow {
    /// shutdown(2), both ways: each end reads its end.
    Shut,
    /// shutdown(2) of what it sends.
    ShutOneWay,
    /// A reset: what was under way is thrown away.
    Reset,
}

impl Blow {
    /// All of them.
    pub const ALL: [Blow; 3] = [Blow::Shut, Blow::ShutOneWay, Blow::Reset];
}

/// Why a socket could not be had.
#[derive(Debug)]
pub enum BorrowError {
    /// This system does not let one process into another.
    Forbidden(Errno),
    /// Anything else.
    Failed(Failure),
}

/// A process's socket.
pub fn borrow(process: &Process, rail: &Rail) -> Result<TcpStream, BorrowError> {
    match process.descriptor(rail.socket) {
        Ok(fd) => Ok(TcpStream::from(fd)),
        Err(errno) if pidfd::is_forbidden(errno) => Err(BorrowError::Forbidden(errno)),
        Err(errno) => {
            Err(BorrowError::Failed(format!("socket {} of a rail: {errno:?}", rail.socket)))
        }
    }
}

/// Whether these are the two ends of one connection.
pub fn are_ends(near: &TcpStream, far: &TcpStream) -> bool {
    let port = |address: std::io::Result<std::net::SocketAddr>| address.map(|a| a.port()).ok();
    let ports = |socket: &TcpStream| (port(socket.local_addr()), port(socket.peer_addr()));
    let ((own, peer), (other, back)) = (ports(near), ports(far));
    own.is_some() && peer.is_some() && own == back && peer == other
}

/// Ends a rail without its owner's doing.
pub fn kill(socket: &TcpStream, blow: Blow) -> Result<(), Failure> {
    let done = match blow {
        Blow::Shut => socket.shutdown(Shutdown::Both).map_err(|error| format!("{error}")),
        Blow::ShutOneWay => socket.shutdown(Shutdown::Write).map_err(|error| format!("{error}")),
        Blow::Reset => pidfd::reset(socket.as_fd()).map_err(|errno| format!("{errno}")),
    };
    done.map_err(|error: String| format!("{blow:?} of a rail: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_are_read_as_they_are_said() {
        let words = ["1", "2", "17", "4096", "3", "1", "5", "4", "0", "1", "0", "1", "1", "0", "1"];
        assert!(rails_read(&words).is_none(), "a word short");
        let rails = rails_read(&words[..WORDS]).unwrap();
        assert_eq!((rails.len(), rails[0].up, rails[0].generation), (1, true, 2));
        assert_eq!((rails[0].socket, rails[0].counts), (17, [4096, 3, 1, 5, 4]));
    }
}
