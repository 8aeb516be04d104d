//! What frames travel on: a record socket of this host, or a stream between hosts.
#![forbid(unsafe_code)]

use super::event::Rail;
use super::socket::Socket;
use super::stream::StreamSocket;
use crate::wire::WIRE_MAJOR;
use crate::wire::hello::{FRAME_BYTES_WRITTEN, Frame, RefuseReason, RefusedHello};
use core::net::SocketAddr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// One of both.
#[derive(Debug)]
pub enum Channel {
    /// Whole frames, with descriptors on the side.
    Record(Socket),
    /// Bytes.
    Stream(StreamSocket),
}

impl Channel {
    /// The rail of the links that such a channel carries.
    pub fn rail(&self) -> Rail {
        match self {
            Channel::Record(_) => Rail::Shm,
            Channel::Stream(_) => Rail::Tcp,
        }
    }

    /// The peer's process in our namespace; 0: not visible.
    pub fn pid(&self) -> i32 {
        match self {
            Channel::Record(socket) => socket.credentials().map_or(0, |peer| peer.pid),
            Channel::Stream(_) => 0,
        }
    }

    /// Where the other end is on the network.
    pub fn remote(&self) -> Option<SocketAddr> {
        match self {
            Channel::Record(_) => None,
            Channel::Stream(socket) => socket.peer().ok(),
        }
    }

    /// Sends bytes without descriptors, and says how many went.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Channel::Record(socket) => socket.send(bytes, &[]).map(|()| bytes.len()),
            Channel::Stream(socket) => socket.send(bytes),
        }
    }

    /// Says no; who does not listen will not hear it.
    pub fn refuse(&self, target: u64, reason: RefuseReason) {
        let mut bytes = [0; FRAME_BYTES_WRITTEN];
        let refusal = RefusedHello { target, reason: reason as u32, major: WIRE_MAJOR };
        let length = Frame::Refused(refusal).encode(&mut bytes);
        let _ = self.send(&bytes[..length]);
        if let Channel::Stream(socket) = self {
            // unread bytes would turn the end of the stream into a reset, which may overtake
            let _ = socket.receive(&mut bytes);
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Channel::Record(socket) => socket.as_fd(),
            Channel::Stream(socket) => socket.as_fd(),
        }
    }
}
