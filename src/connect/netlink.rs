//! A socket on which the kernel answers questions about its network tables, and tells of changes.
//! One of the files of this room that call the C library.
//!
//! *Source*: netlink(7), rtnetlink(7).

use super::fork::PrivateFd;
use crate::base::netlink::Request;
use core::mem::{size_of, zeroed};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// One socket; it never blocks.
#[derive(Debug)]
pub struct Netlink(PrivateFd);

impl Netlink {
    /// A socket that is told of what changes in these groups (`RTMGRP_…`).
    pub fn open(groups: i32) -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a call without pointers.
        let made = || unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        let socket = Netlink(PrivateFd::made(made)?);
        if groups != 0 {
            // SAFETY: a plain structure of integers, for which zero is a value.
            let mut name: libc::sockaddr_nl = unsafe { zeroed() };
            name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
            name.nl_groups = groups as u32;
            let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            let pointer: *const libc::sockaddr_nl = &name;
            // SAFETY: a whole structure of `length` bytes.
            if unsafe { libc::bind(socket.0.as_raw_fd(), pointer.cast(), length) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(socket)
    }

    /// Puts a question.
    pub fn ask(&self, request: &Request) -> io::Result<()> {
        let bytes = request.bytes();
        // SAFETY: bytes of ours, as many as are said.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes what the kernel says next, cut to fit.
    pub fn receive(&self, room: &mut [u8]) -> io::Result<usize> {
        // SAFETY: room of ours, as much as is said.
        let got =
            unsafe { libc::recv(self.0.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
