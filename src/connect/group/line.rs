//! Records over a socket. A record socket keeps their bounds, and carries descriptors. On a stream
//! the length of a record stands before it.

use super::error::GroupError;
use crate::connect::channel::Channel;
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::vec::Vec;

/// Between two looks at a socket that has nothing yet. Set-up is no data path.
pub(super) const LOOK: Duration = Duration::from_micros(200);
/// Bytes of the length of a record on a stream.
const LENGTH_BYTES: usize = 4;

/// A record that has come.
pub(super) struct Heard {
    pub length: usize,
    pub descriptors: Vec<OwnedFd>,
}

/// Sends a record; its descriptors go within a host alone.
pub(super) fn give(
    line: &Channel,
    record: &[u8],
    descriptors: &[BorrowedFd<'_>],
    until: Instant,
) -> Result<(), GroupError> {
    match line {
        Channel::Record(socket) => {
            patient(until, || socket.send(record, descriptors)).map_err(GroupError::System)
        }
        Channel::Stream(socket) => {
            let mut bytes = Vec::from((record.len() as u32).to_le_bytes());
            bytes.extend_from_slice(record);
            let mut sent = 0;
            while sent < bytes.len() {
                let more = patient(until, || socket.send(&bytes[sent..]));
                sent += more.map_err(GroupError::System)?;
            }
            Ok(())
        }
    }
}

/// Calls again until there is room, or the deadline has passed.
fn patient<R>(until: Instant, mut call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                sleep(LOOK);
            }
            done => return done,
        }
    }
}

/// Waits for the next record of `rank`, which must fit into `into`.
pub(super) fn receive(
    line: &Channel,
    into: &mut [u8],
    rank: usize,
    until: Instant,
) -> Result<Heard, GroupError> {
    match line {
        Channel::Record(socket) => {
            let received = patient(until, || socket.receive(into));
            let received = received.map_err(|error| cause(error, rank))?;
            if received.length == 0 {
                return Err(GroupError::Ended(rank));
            }
            if received.descriptors_lost {
                return Err(GroupError::Order(rank));
            }
            let descriptors = received.descriptors.into_iter().flatten().collect();
            Ok(Heard { length: received.length, descriptors })
        }
        Channel::Stream(socket) => {
            let fill = |into: &mut [u8]| -> Result<(), GroupError> {
                let mut got = 0;
                while got < into.len() {
                    match patient(until, || socket.receive(&mut into[got..])) {
                        Ok(0) => return Err(GroupError::Ended(rank)),
                        Ok(more) => got += more,
                        Err(error) => return Err(cause(error, rank)),
                    }
                }
                Ok(())
            };
            let mut length = [0; LENGTH_BYTES];
            fill(&mut length)?;
            let length = u32::from_le_bytes(length) as usize;
            fill(into.get_mut(..length).ok_or(GroupError::Order(rank))?)?;
            Ok(Heard { length, descriptors: Vec::new() })
        }
    }
}

fn cause(error: io::Error, rank: usize) -> GroupError {
    match error.kind() {
        ErrorKind::WouldBlock => GroupError::Missing(rank),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => GroupError::Ended(rank),
        _ => GroupError::System(error),
    }
}
