//! Record sockets under the names of endpoints, made by hand and without the allocator, which some
//! tests watch.

use super::WATCHDOG;
use crosstie::connect::key::public_number;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

fn name_of(endpoint_id: u128) -> (libc::sockaddr_un, u32) {
    // SAFETY: integers, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let (prefix, number) = (b"crosstie-", public_number(endpoint_id));
    let digits = (0..32u32).map(|at| {
        let nibble = (number >> (124 - 4 * at)) as u32 & 15;
        char::from_digit(nibble, 16).unwrap() as u8
    });
    let name = prefix.iter().copied().chain(digits);
    for (to, from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = from as libc::c_char;
    }
    (address, (2 + 1 + prefix.len() + 32) as u32)
}

fn socket() -> OwnedFd {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; a new descriptor.
    unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, kind, 0)) }
}

/// Dials the endpoint of a name.
pub fn dial_record(endpoint_id: u128) -> OwnedFd {
    let socket = socket();
    let (address, length) = name_of(endpoint_id);
    // SAFETY: a whole address.
    let rc = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    assert_eq!(rc, 0, "{}", Error::last_os_error());
    socket
}

/// Listens under the name of an endpoint that has closed.
///
/// The name may stay taken for a while: a child that another test starts holds a copy of the
/// endpoint's socket from its fork to its exec.
pub fn listen_record(endpoint_id: u128) -> OwnedFd {
    let start = Instant::now();
    let socket = socket();
    let (address, length) = name_of(endpoint_id);
    // SAFETY: a whole address.
    while unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } != 0 {
        let error = Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE), "{error}");
        assert!(start.elapsed() < WATCHDOG, "the name stays taken");
        std::thread::yield_now();
    }
    // SAFETY: no pointers.
    unsafe { libc::listen(socket.as_raw_fd(), 8) };
    socket
}
