//! Frames taken from a link's socket: records of this host, or pieces of a stream put together.
#![forbid(unsafe_code)]

use super::channel::Channel;
use super::control::Control;
use super::ending::Ending;
use super::event::Rail;
use super::greeting::frame_length;
use super::link::{BUFFER_BYTES, LinkPhase, RECEIVED_BYTES_MAX};
use super::memory::LinkMemory;
use crate::wire::hello::FRAME_BYTES_MAX;
use std::io;

/// Records read from one link at a time, so that one peer cannot hold the lock.
const RECORDS_MAX: usize = 64;

/// Reads into a stream's buffer at a time, likewise.
const FILLS_MAX: u32 = 8;

/// What a stream's buffer begins with.
enum Next {
    Frame(usize),
    Part,
    Nonsense,
}

impl<M: LinkMemory> Control<M> {
    /// A link's socket is readable, or has room again.
    pub fn link_ready(&mut self, index: u32) {
        let link = &self.links[index as usize];
        if link.phase == LinkPhase::Dialing && link.rail == Rail::Tcp && link.socket.is_some() {
            self.dial_ready(index);
        } else if link.blocked && link.phase != LinkPhase::Lost {
            self.flush_link(index);
        }
        self.pump(index);
    }

    /// Reads records from a link; `true`: there may be more.
    pub fn pump(&mut self, index: u32) -> bool {
        match (&self.links[index as usize].socket, self.links[index as usize].phase) {
            (None, _) | (Some(_), LinkPhase::Dialing | LinkPhase::Lost) => false,
            (Some(Channel::Record(_)), _) => self.pump_records(index),
            (Some(Channel::Stream(_)), _) => self.pump_stream(index),
        }
    }

    fn pump_records(&mut self, index: u32) -> bool {
        let mut bytes = [0; FRAME_BYTES_MAX];
        let mut reset = false;
        for _ in 0..RECORDS_MAX {
            let link = &self.links[index as usize];
            let Some(Channel::Record(socket)) = &link.socket else { return false };
            if link.parting.is_some() {
                return false;
            }
            match socket.receive(&mut bytes) {
                Ok(received) if received.length == 0 => {
                    self.link_ended(index, Ending::Closed);
                    return false;
                }
                Ok(received) => self.record(index, &bytes[..received.length], Some(received)),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return false,
                    io::ErrorKind::Interrupted => {}
                    // said once when the peer closed with records of ours unread; what it had sent
                    // before is still there
                    io::ErrorKind::ConnectionReset if !reset => reset = true,
                    _ => {
                        self.link_ended(index, Ending::of(&error));
                        return false;
                    }
                },
            }
        }
        true
    }

    fn pump_stream(&mut self, index: u32) -> bool {
        let mut bytes = [0; FRAME_BYTES_MAX];
        let (mut dry, mut fills) = (false, 0);
        // what is in our own buffer is read to its end: no poller would report it again
        loop {
            let link = &self.links[index as usize];
            let idle = link.socket.is_none() || link.phase == LinkPhase::Lost;
            if idle || link.parting.is_some() {
                return false;
            }
            match self.next_frame(index, &mut bytes) {
                Next::Frame(length) => self.record(index, &bytes[..length], None),
                Next::Part if dry => return false,
                Next::Part if fills == FILLS_MAX => return true,
                Next::Part => match self.fill(index) {
                    Some(more) => (dry, fills) = (!more, fills + 1),
                    None => return false,
                },
                Next::Nonsense => {
                    self.nonsense(index);
                    return false;
                }
            }
        }
    }

    /// Takes the first whole frame out of a stream's buffer.
    fn next_frame(&mut self, index: u32, into: &mut [u8; FRAME_BYTES_MAX]) -> Next {
        let link = &mut self.links[index as usize];
        let row = &mut self.buffers[index as usize * BUFFER_BYTES..][..RECEIVED_BYTES_MAX];
        let length = match frame_length(&row[..link.received]) {
            None => return Next::Part,
            Some(length) if length > FRAME_BYTES_MAX => return Next::Nonsense,
            Some(length) if length > link.received => return Next::Part,
            Some(length) => length,
        };
        into[..length].copy_from_slice(&row[..length]);
        row.copy_within(length..link.received, 0);
        link.received -= length;
        Next::Frame(length)
    }

    /// Reads into a stream's buffer. `Some(true)`: there may be more; `Some(false)`: there is not;
    /// `None`: nothing came, or the link is at its end.
    fn fill(&mut self, index: u32) -> Option<bool> {
        let link = &mut self.links[index as usize];
        let Some(Channel::Stream(socket)) = &link.socket else { return None };
        let row = &mut self.buffers[index as usize * BUFFER_BYTES..][..RECEIVED_BYTES_MAX];
        let room = &mut row[link.received..];
        match socket.receive(room) {
            Ok(0) => {
                self.link_ended(index, Ending::Closed);
                None
            }
            Ok(more) => {
                link.received += more;
                Some(more == room.len())
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => None,
                io::ErrorKind::Interrupted => Some(true),
                _ => {
                    link.failed(&error);
                    self.link_ended(index, Ending::of(&error));
                    None
                }
            },
        }
    }
}
