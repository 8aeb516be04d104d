//! A port of a test's own. A port that was let go would be given to another program.
#![allow(dead_code)]

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Calls to it are refused while nothing of the test listens there.
pub struct Port {
    ip: Ipv4Addr,
    socket: OwnedFd,
}

impl Port {
    pub fn held(ip: Ipv4Addr) -> Port {
        // SAFETY: no pointers; a new descriptor.
        let socket = unsafe {
            let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, kind, 0))
        };
        let (on, length) = (1i32, size_of::<i32>() as u32);
        let (level, option) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        // SAFETY: a number of that length. With it, `listen` may bind to the same port.
        let rc = unsafe {
            libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), length)
        };
        assert_eq!(rc, 0);
        // SAFETY: integers, for which zero is a value.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        address.sin_family = libc::AF_INET as u16;
        address.sin_addr.s_addr = u32::from(ip).to_be();
        let length = size_of::<libc::sockaddr_in>() as u32;
        // SAFETY: a whole address.
        let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        Port { ip, socket }
    }

    pub fn number(&self) -> u16 {
        // SAFETY: integers, for which zero is a value.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_in>() as u32;
        let at = (&raw mut address).cast();
        // SAFETY: writable for its length.
        assert_eq!(unsafe { libc::getsockname(self.socket.as_raw_fd(), at, &mut length) }, 0);
        u16::from_be(address.sin_port)
    }

    pub fn listen(&self) -> TcpListener {
        TcpListener::bind((self.ip, self.number())).unwrap()
    }
}
