//! The sockets at which an endpoint answers: two on its host, and for other hosts one per family or
//! address.
#![forbid(unsafe_code)]

use super::address::Address;
use super::channel::Channel;
use super::interfaces::ip_of;
use super::os::is_readable;
use super::socket::Socket;
use super::stream::{StreamSocket, shutdown};
use crate::wire::hello::{ADDRESSES_MAX, AddressHello, AddressList};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// One of the sockets.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Door {
    /// Under the abstract name.
    Name,
    /// Under the path.
    Path,
    /// At addresses of the network.
    Net(u8),
}

impl Door {
    /// Its place among [`DOORS`].
    pub fn number(self) -> usize {
        match self {
            Door::Name => 0,
            Door::Path => 1,
            Door::Net(at) => NET_AT + usize::from(at),
        }
    }
}

/// Where the doors of the network begin.
const NET_AT: usize = 2;

/// All doors.
pub const DOORS: [Door; NET_AT + ADDRESSES_MAX] = {
    let mut doors = [Door::Name; NET_AT + ADDRESSES_MAX];
    doors[1] = Door::Path;
    let mut at = 0;
    while at < ADDRESSES_MAX {
        doors[NET_AT + at] = Door::Net(at as u8);
        at += 1;
    }
    doors
};

/// At which addresses of the network peers are answered.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Answers {
    /// At all that the host has.
    All,
    /// At our first of each family.
    First,
    /// At each of ours.
    Each,
}

/// A socket for peers of other hosts.
#[derive(Debug)]
struct Net {
    socket: StreamSocket,
    port: u16,
    /// Where it answers.
    ip: IpAddr,
    /// It stands for every address of its family.
    family: bool,
}

impl Net {
    fn answers(&self, ip: IpAddr) -> bool {
        if self.family { self.ip.is_ipv4() == ip.is_ipv4() } else { self.ip == ip }
    }
}

/// Those that are open.
#[derive(Debug, Default)]
pub struct Listening {
    by_name: Option<Socket>,
    by_path: Option<Socket>,
    net: [Option<Net>; ADDRESSES_MAX],
}

impl Listening {
    /// Opens the doors of this host.
    pub fn open_local(&mut self, address: &Address) -> io::Result<()> {
        (self.by_name, self.by_path) = address.listen()?;
        Ok(())
    }

    /// Opens doors at `at`: one for each family, or with [`Answers::Each`] for each address.
    ///
    /// *Errors*: also when there is no address. A family that the kernel lacks is left out while
    /// the other is there; so is one of several addresses that is not, or no longer, ours.
    pub fn open_remote(
        &mut self,
        at: &AddressList,
        answers: Answers,
        silence: u32,
    ) -> io::Result<()> {
        let mut result = Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        let mut doors = 0;
        for ip in at.as_slice().iter().filter_map(ip_of) {
            if self.net.iter().flatten().any(|known| known.answers(ip)) {
                continue;
            }
            let (bound, family) = match (answers, ip) {
                (Answers::All, IpAddr::V4(_)) => (Ipv4Addr::UNSPECIFIED.into(), true),
                (Answers::All, IpAddr::V6(_)) => (Ipv6Addr::UNSPECIFIED.into(), true),
                (Answers::First, ip) => (ip, true),
                (Answers::Each, ip) => (ip, false),
            };
            let opened = StreamSocket::listen(SocketAddr::new(bound, 0), silence);
            match opened.and_then(|socket| socket.port().map(|port| (socket, port))) {
                Ok((socket, port)) => {
                    self.net[doors] = Some(Net { socket, port, ip: bound, family });
                    doors += 1;
                    result = Ok(());
                }
                Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
                Err(error) if !family && error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {}
                Err(error) => return Err(error),
            }
        }
        result
    }

    /// The socket of a door.
    pub fn socket(&self, door: Door) -> Option<BorrowedFd<'_>> {
        match door {
            Door::Name => self.by_name.as_ref().map(AsFd::as_fd),
            Door::Path => self.by_path.as_ref().map(AsFd::as_fd),
            Door::Net(at) => self.net[usize::from(at)].as_ref().map(|net| net.socket.as_fd()),
        }
    }

    /// The next one that knocked at a door.
    pub fn accept(&self, door: Door) -> io::Result<Channel> {
        let closed = || io::Error::from(io::ErrorKind::WouldBlock);
        match door {
            Door::Name => self.by_name.as_ref().ok_or_else(closed)?.accept().map(Channel::Record),
            Door::Path => self.by_path.as_ref().ok_or_else(closed)?.accept().map(Channel::Record),
            Door::Net(at) => {
                let net = self.net[usize::from(at)].as_ref().ok_or_else(closed)?;
                net.socket.accept().map(Channel::Stream)
            }
        }
    }

    /// Whether somebody waits at a door.
    pub fn has_caller(&self, door: Door) -> bool {
        self.socket(door).is_some_and(is_readable)
    }

    /// Whether peers of this host are answered without the network.
    pub fn has_local(&self) -> bool {
        self.by_name.is_some() || self.by_path.is_some()
    }

    /// Whether there is a path to remove.
    pub fn has_path(&self) -> bool {
        self.by_path.is_some()
    }

    /// The port at which an address is answered.
    fn port(&self, address: &AddressHello) -> Option<u16> {
        let ip = ip_of(address)?;
        self.net.iter().flatten().find(|net| net.answers(ip)).map(|net| net.port)
    }

    /// Those of `all` that are answered, with their ports.
    pub fn answered(&self, all: &AddressList) -> AddressList {
        let mut list = AddressList::EMPTY;
        for (address, device) in all.as_slice().iter().zip(all.devices) {
            if let Some(port) = self.port(address) {
                list.push(AddressHello { port, ..*address }, device);
            }
        }
        list
    }

    /// Ends the sockets also for forked children that hold copies: nobody would answer there, and
    /// whoever dials shall know.
    pub fn end(&self) {
        for door in DOORS {
            if let Some(socket) = self.socket(door) {
                shutdown(socket);
            }
        }
    }
}
