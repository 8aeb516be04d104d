//! The sockets at which an endpoint answers: two on its host, two for other hosts.
#![forbid(unsafe_code)]

extern crate std;

use super::address::Address;
use super::channel::Channel;
use super::interfaces::ip_of;
use super::route::handle_address;
use super::socket::Socket;
use super::stream::{StreamSocket, shutdown};
use crate::wire::handle;
use crate::wire::hello::{AddressHello, AddressList};
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
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// All doors.
pub const DOORS: [Door; 4] = [Door::Name, Door::Path, Door::Ipv4, Door::Ipv6];

/// Those that are open.
#[derive(Debug, Default)]
pub struct Listening {
    by_name: Option<Socket>,
    by_path: Option<Socket>,
    ipv4: Option<(StreamSocket, u16)>,
    ipv6: Option<(StreamSocket, u16)>,
}

impl Listening {
    /// Opens the doors of this host.
    pub fn open_local(&mut self, address: &Address) -> io::Result<()> {
        (self.by_name, self.by_path) = address.listen()?;
        Ok(())
    }

    /// Opens a door for each family of `addresses`: at the first of them with `bind`, else at all
    /// addresses of the host.
    ///
    /// *Errors*: also when there is no address. A family that the kernel lacks is left out while
    /// the other is there.
    pub fn open_remote(&mut self, at: &AddressList, bind: bool, silence: u32) -> io::Result<()> {
        let mut result = Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        for any in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            let mut of_family = at.as_slice().iter().filter_map(ip_of);
            let Some(first) = of_family.find(|ip| ip.is_ipv4() == any.is_ipv4()) else { continue };
            let ip = if bind { first } else { any };
            let opened = StreamSocket::listen(SocketAddr::new(ip, 0), silence);
            let opened = opened.and_then(|socket| socket.port().map(|port| (socket, port)));
            match opened {
                Ok(door) if any.is_ipv4() => (self.ipv4, result) = (Some(door), Ok(())),
                Ok(door) => (self.ipv6, result) = (Some(door), Ok(())),
                Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
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
            Door::Ipv4 => self.ipv4.as_ref().map(|(socket, _)| socket.as_fd()),
            Door::Ipv6 => self.ipv6.as_ref().map(|(socket, _)| socket.as_fd()),
        }
    }

    /// The next one that knocked at a door.
    pub fn accept(&self, door: Door) -> io::Result<Channel> {
        let closed = || io::Error::from(io::ErrorKind::WouldBlock);
        match door {
            Door::Name => self.by_name.as_ref().ok_or_else(closed)?.accept().map(Channel::Record),
            Door::Path => self.by_path.as_ref().ok_or_else(closed)?.accept().map(Channel::Record),
            Door::Ipv4 => self.ipv4.as_ref().ok_or_else(closed)?.0.accept().map(Channel::Stream),
            Door::Ipv6 => self.ipv6.as_ref().ok_or_else(closed)?.0.accept().map(Channel::Stream),
        }
    }

    /// Whether there is a path to remove.
    pub fn has_path(&self) -> bool {
        self.by_path.is_some()
    }

    /// The port at which an address is answered.
    fn port(&self, address: &AddressHello) -> Option<u16> {
        match ip_of(address)? {
            IpAddr::V4(_) => self.ipv4.as_ref().map(|(_, port)| *port),
            IpAddr::V6(_) => self.ipv6.as_ref().map(|(_, port)| *port),
        }
    }

    /// Those of `all` that are answered, with their ports.
    pub fn answered(&self, all: &AddressList) -> AddressList {
        let mut list = AddressList::EMPTY;
        for address in all.as_slice() {
            if let Some(port) = self.port(address) {
                list.all[list.count] = AddressHello { port, ..*address };
                list.count += 1;
            }
        }
        list
    }

    /// The addresses for a handle: the first three that are answered.
    pub fn for_handle(&self, all: &AddressList) -> impl Iterator<Item = handle::Address> {
        let list = self.answered(all);
        (0..list.count.min(handle::ADDRESSES_MAX)).filter_map(move |i| {
            let ip = ip_of(&list.all[i])?;
            Some(handle_address(SocketAddr::new(ip, list.all[i].port)))
        })
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
