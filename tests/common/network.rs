//! A network of a test's own: its loopback alone, which can be taken away.
#![allow(dead_code)]

/// Puts this thread, and those that it starts, into a network of its own.
pub fn own_network() -> std::io::Result<()> {
    // SAFETY: changes this thread alone.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => network(true),
        _ => return Err(std::io::Error::last_os_error()),
    }
    Ok(())
}

/// Switches that network on or off: what is sent while it is off is lost without a word.
pub fn network(on: bool) {
    // SAFETY: integers and a name, for all of which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = if on { libc::IFF_UP as i16 } else { 0 };
    // SAFETY: numbers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) };
    // SAFETY: the structure that this request takes.
    let done = unsafe { libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: ours.
    unsafe { libc::close(socket) };
}

/// Ends all connected sockets over TCP of this process, as a network does that is reset.
pub fn sockets_end() {
    for socket in descriptors() {
        // SAFETY: integers, for which zero is a value.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_in>() as u32;
        let at = (&raw mut address).cast();
        // SAFETY: writable for its length; what is no socket, or has no peer, refuses.
        let rc = unsafe { libc::getpeername(socket, at, &mut length) };
        if rc == 0 && i32::from(address.sin_family) == libc::AF_INET {
            // SAFETY: a number.
            unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
        }
    }
}

/// Ends those that listen: whoever dials is refused, as by a firewall.
pub fn listeners_end() {
    for socket in descriptors() {
        let (mut on, mut length) = (0i32, size_of::<i32>() as u32);
        let (level, option, at) = (libc::SOL_SOCKET, libc::SO_ACCEPTCONN, (&raw mut on).cast());
        // SAFETY: writable for its length; what is no socket refuses.
        if unsafe { libc::getsockopt(socket, level, option, at, &mut length) } == 0 && on != 0 {
            // SAFETY: a number.
            unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
        }
    }
}

/// Sends a byte on a connected socket over TCP of which no reader gets anything, as it is urgent
/// (tcp(7)): the peer's host owes an acknowledgement from then on.
pub fn owe(socket: i32) {
    let (byte, flags) = ([0u8], libc::MSG_OOB | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    // SAFETY: readable for its length.
    let sent = unsafe { libc::send(socket, byte.as_ptr().cast(), byte.len(), flags) };
    assert_eq!(sent, 1, "{}", std::io::Error::last_os_error());
}

/// Bytes on a connected socket over TCP that the peer's host has not acknowledged.
pub fn owed(socket: i32) -> i32 {
    let mut bytes = 0;
    // SAFETY: writes one integer.
    let rc = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut bytes) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    bytes
}

fn descriptors() -> Vec<i32> {
    let names = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
