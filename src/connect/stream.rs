//! Sockets between hosts: TCP over IPv4 and IPv6, non-blocking. One of the files of this
//! room that call the C library.

use super::fork::PrivateFd;
use core::mem::{size_of, size_of_val, zeroed};
use core::net::{IpAddr, SocketAddr};
use core::ptr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Waiting connections of a listening socket: what the kernel's own limit (4096) allows, since a
/// thousand ranks may dial at once.
const BACKLOG: i32 = 4096;
/// Where `struct tcp_info` has how long ago an acknowledgement came.
const LAST_ACK_RECEIVED: usize = 56 / 4;
/// The same of the window that the peer leaves us, in bytes.
const SEND_WINDOW: usize = 228 / 4;
/// Segments that the peer's kernel has not acknowledged, and bytes that were not sent yet.
const UNACKED: usize = 24 / 4;
const NOT_SENT: usize = 144 / 4;

/// An address as the kernel takes it: room for the longer of both families.
#[repr(C)]
union Raw {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Raw {
    const fn nowhere() -> Raw {
        // SAFETY: a plain structure of integers, for which zero is a value.
        Raw { v6: unsafe { zeroed() } }
    }

    /// What the kernel has filled.
    fn socket(&self) -> SocketAddr {
        // SAFETY: both structures begin with the family and the port, and all bytes are filled.
        let v4 = unsafe { self.v4 };
        let port = u16::from_be(v4.sin_port);
        if i32::from(v4.sin_family) == libc::AF_INET {
            return (v4.sin_addr.s_addr.to_ne_bytes(), port).into();
        }
        // SAFETY: of the other family, and as above.
        let v6 = unsafe { self.v6 };
        (v6.sin6_addr.s6_addr, port).into()
    }
}

/// Both ends of a socket that has connected, ours first; `None`: it has not, or is no such socket.
pub fn ends_of(fd: i32) -> Option<[SocketAddr; 2]> {
    let mut ends = [const { Raw::nowhere() }; 2];
    let [ours, theirs]: [*mut Raw; 2] = ends.each_mut().map(|end| end as *mut Raw);
    let mut length = size_of::<Raw>() as libc::socklen_t;
    // SAFETY: `ours` is valid for writes of `length` bytes.
    check(unsafe { libc::getsockname(fd, ours.cast(), &mut length) }).ok()?;
    let mut length = size_of::<Raw>() as libc::socklen_t;
    // SAFETY: `theirs` is valid for writes of `length` bytes.
    check(unsafe { libc::getpeername(fd, theirs.cast(), &mut length) }).ok()?;
    Some(ends.map(|end| end.socket()))
}

fn raw(at: SocketAddr) -> (Raw, libc::socklen_t) {
    match at.ip() {
        IpAddr::V4(ip) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: at.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
                sin_zero: [0; 8],
            };
            (Raw { v4 }, size_of::<libc::sockaddr_in>() as libc::socklen_t)
        }
        IpAddr::V6(ip) => {
            // SAFETY: a plain structure of integers, for which zero is a value.
            let mut v6: libc::sockaddr_in6 = unsafe { zeroed() };
            v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            v6.sin6_port = at.port().to_be();
            v6.sin6_addr.s6_addr = ip.octets();
            (Raw { v6 }, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
        }
    }
}

/// What sockets have carried.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Traffic {
    /// Bytes that have come.
    pub received: u64,
    /// Whether the peer's host has acknowledged all that the kernel was given.
    pub delivered: bool,
}

impl Traffic {
    /// Nothing.
    pub const NONE: Traffic = Traffic { received: 0, delivered: true };

    /// Of two together.
    pub const fn and(self, more: Traffic) -> Traffic {
        Traffic {
            received: self.received.wrapping_add(more.received),
            delivered: self.delivered && more.delivered,
        }
    }
}

/// Places in `struct tcp_info` (linux/tcp.h), which only grows at its end.
type Info = [u32; SEND_WINDOW + 1];

/// Whether neither end has closed.
fn is_established(info: &Info) -> bool {
    const ESTABLISHED: u8 = 1;
    // the first byte is the state
    info[0].to_ne_bytes()[0] == ESTABLISHED
}

/// One socket.
#[derive(Debug)]
pub struct StreamSocket(PrivateFd);

impl StreamSocket {
    fn new(at: SocketAddr, silence_ms: u32) -> io::Result<StreamSocket> {
        let family = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a call without pointers.
        let fd = PrivateFd::made(|| unsafe { libc::socket(family, kind, 0) })?;
        let socket = StreamSocket(fd);
        // what a listening socket is set to, the sockets that it accepts are set to
        socket.set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        socket.set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence_ms as i32)?;
        Ok(socket)
    }

    /// A socket that listens at `at`; port 0: at any. Sockets that it accepts fail when what they
    /// sent is not acknowledged for `silence_ms`.
    pub fn listen(at: SocketAddr, silence_ms: u32) -> io::Result<StreamSocket> {
        let socket = StreamSocket::new(at, silence_ms)?;
        if at.is_ipv6() {
            socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        }
        socket.bind(at)?;
        // SAFETY: a call without pointers.
        check(unsafe { libc::listen(socket.0.as_raw_fd(), BACKLOG) })?;
        Ok(socket)
    }

    fn bind(&self, at: SocketAddr) -> io::Result<()> {
        let (address, length) = raw(at);
        let pointer: *const Raw = &address;
        // SAFETY: `address` is a whole structure of `length` bytes.
        check(unsafe { libc::bind(self.0.as_raw_fd(), pointer.cast(), length) }).map(|_| ())
    }

    /// The port that the kernel chose.
    pub fn port(&self) -> io::Result<u16> {
        let address = self.name()?;
        // SAFETY: the port lies at the same place in both structures, and all bytes are filled.
        Ok(u16::from_be(unsafe { address.v4.sin_port }))
    }

    /// Our end's address.
    pub fn local(&self) -> io::Result<IpAddr> {
        Ok(self.name()?.socket().ip())
    }

    fn name(&self) -> io::Result<Raw> {
        let mut address = Raw::nowhere();
        let mut length = size_of::<Raw>() as libc::socklen_t;
        let pointer: *mut Raw = &mut address;
        let fd = self.0.as_raw_fd();
        // SAFETY: `address` is valid for writes of `length` bytes.
        check(unsafe { libc::getsockname(fd, pointer.cast(), &mut length) })?;
        Ok(address)
    }

    /// Where the other end is.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        let mut address = Raw::nowhere();
        let mut length = size_of::<Raw>() as libc::socklen_t;
        let pointer: *mut Raw = &mut address;
        let fd = self.0.as_raw_fd();
        // SAFETY: `address` is valid for writes of `length` bytes.
        check(unsafe { libc::getpeername(fd, pointer.cast(), &mut length) })?;
        Ok(address.socket())
    }

    /// A socket that connects, or has connected, to `to`, from an address of ours or from whichever
    /// the kernel likes: what is sent on it is `WouldBlock` until then, and the error if it fails.
    ///
    /// *Errors*: `AddrInUse`: no local port is left towards `to`. `AddrNotAvailable`: `from` is
    /// not, or no longer, ours; without it, no address of ours can begin there.
    pub fn connect_from(
        from: Option<IpAddr>,
        to: SocketAddr,
        silence_ms: u32,
    ) -> io::Result<StreamSocket> {
        let socket = StreamSocket::new(to, silence_ms)?;
        if let Some(ip) = from {
            // the port is chosen when it connects, and may be shared among destinations; a kernel
            // that refuses chooses one now
            let _ = socket.set(libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
            socket.bind(SocketAddr::new(ip, 0))?;
        }
        let (address, length) = raw(to);
        let pointer: *const Raw = &address;
        // SAFETY: `address` is a whole structure of `length` bytes.
        match check(unsafe { libc::connect(socket.0.as_raw_fd(), pointer.cast(), length) }) {
            Ok(_) => Ok(socket),
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
            // said of ports, too (connect(2)), of which bind(2) says that they are in use
            Err(error)
                if error.raw_os_error() == Some(libc::EADDRNOTAVAIL)
                    && (from.is_some() || source(to.ip()).is_ok()) =>
            {
                Err(io::Error::from_raw_os_error(libc::EADDRINUSE))
            }
            Err(error) => Err(error),
        }
    }

    /// The next one that dialled.
    pub fn accept(&self) -> io::Result<StreamSocket> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = self.0.as_raw_fd();
        // SAFETY: no address is asked for, so both pointers may be null.
        let accept = || unsafe { libc::accept4(fd, ptr::null_mut(), ptr::null_mut(), flags) };
        PrivateFd::made(accept).map(StreamSocket)
    }

    /// Sends what there is room for, and says how much that was.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: `bytes` is readable for its length.
        let sent =
            unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Takes what is there; 0: the peer has closed.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive_with(into, 0)
    }

    /// Copies what is there, and leaves it there; 0: the peer has closed.
    pub fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive_with(into, libc::MSG_PEEK)
    }

    fn receive_with(&self, into: &mut [u8], flags: i32) -> io::Result<usize> {
        let (fd, at) = (self.0.as_raw_fd(), into.as_mut_ptr());
        // SAFETY: `into` is writable for its length.
        let got = unsafe { libc::recv(fd, at.cast(), into.len(), flags) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
    }

    /// Takes the time back that the socket was opened, or accepted, with: it would also run while
    /// the peer's kernel answers that its reader has no room, as that of a stopped process does
    /// (tcp(7), `TCP_USER_TIMEOUT`), and end what only waits. For data streams; their link notices
    /// a dead peer.
    pub fn be_patient(&self) -> io::Result<()> {
        self.set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0)
    }

    /// Sets the time that the socket was opened with anew.
    pub fn give_up_after(&self, silence_ms: u32) -> io::Result<()> {
        self.set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence_ms as i32)
    }

    /// Asks the peer's kernel now and then whether it is there, when there is nothing else to send.
    /// The first unanswered question starts the time that the socket was opened with.
    pub fn keep_alive(&self, interval_s: i32) -> io::Result<()> {
        self.set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, interval_s)?;
        self.set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, interval_s)?;
        self.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)
    }

    /// How long ago the peer's kernel acknowledged anything, in milliseconds, if it owes that for
    /// what it was sent, or would owe it if our own host could send: without a route nothing is
    /// ever under way (kernels from 5.4 on tell). `None`: it owes nothing.
    pub fn unacknowledged_ms(&self) -> Option<u32> {
        const SEGMENT: usize = 16 / 4;
        let info = self.info()?;
        // a window of less may be one that the peer's user closes by not reading
        let may_send = info[SEND_WINDOW] > 2 * info[SEGMENT];
        let owed = info[UNACKED] > 0 || (info[NOT_SENT] > 0 && may_send);
        owed.then_some(info[LAST_ACK_RECEIVED])
    }

    /// What it has carried; `None`: one of both ends has closed.
    pub fn traffic(&self) -> Option<Traffic> {
        const RECEIVED: usize = 128 / 4;
        let info = self.info().filter(is_established)?;
        // 64 bits, in the order of this machine
        let halves = [info[RECEIVED], info[RECEIVED + 1]].map(u32::to_ne_bytes).concat();
        let received = u64::from_ne_bytes(halves.try_into().ok()?);
        Some(Traffic { received, delivered: info[UNACKED] == 0 && info[NOT_SENT] == 0 })
    }

    /// Bytes that a packet of the stream has at most, as far as this host knows, if the kernel
    /// sends a full one again and again and has no answer; else `None`.
    pub fn large_unanswered(&self) -> Option<u32> {
        const RETRANSMITS: usize = 2;
        const SEGMENT: usize = 16 / 4;
        const PACKET: usize = 60 / 4;
        let info = self.info()?;
        let mut queued = 0i32;
        let (fd, to) = (self.0.as_raw_fd(), &raw mut queued);
        // SAFETY: an integer, which lives until the call returns (tcp(7), `SIOCOUTQ`).
        check(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, to) }).ok()?;
        let under_way = u64::from(queued.max(0) as u32).saturating_sub(info[NOT_SENT].into());
        let again = info[0].to_ne_bytes()[RETRANSMITS] > 0 && info[UNACKED] > 0;
        (again && under_way >= u64::from(info[SEGMENT])).then_some(info[PACKET])
    }

    /// How long ago anything came of the peer's kernel, in milliseconds; `None`: one of both ends
    /// has closed.
    pub fn heard_ms(&self) -> Option<u32> {
        const LAST_DATA_RECEIVED: usize = 52 / 4;
        let info = self.info().filter(is_established)?;
        Some(info[LAST_DATA_RECEIVED].min(info[LAST_ACK_RECEIVED]))
    }

    fn info(&self) -> Option<Info> {
        let mut info = [0u32; SEND_WINDOW + 1];
        let mut length = size_of_val(&info) as libc::socklen_t;
        let pointer: *mut u32 = info.as_mut_ptr();
        let (fd, level) = (self.0.as_raw_fd(), libc::IPPROTO_TCP);
        // SAFETY: `info` is valid for writes of `length` bytes; the kernel cuts what is longer.
        let rc =
            unsafe { libc::getsockopt(fd, level, libc::TCP_INFO, pointer.cast(), &mut length) };
        (rc == 0).then_some(info)
    }

    fn set(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        let pointer: *const i32 = &value;
        let length = size_of::<i32>() as libc::socklen_t;
        let fd = self.0.as_raw_fd();
        // SAFETY: an integer, which lives until the call returns.
        check(unsafe { libc::setsockopt(fd, level, name, pointer.cast(), length) }).map(|_| ())
    }
}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// From which address of ours the kernel would connect to `to`. Nothing is sent.
pub fn source(to: IpAddr) -> io::Result<IpAddr> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: a call without pointers.
    let socket = StreamSocket(PrivateFd::made(|| unsafe { libc::socket(family, kind, 0) })?);
    // of no service's; a socket of datagrams only looks the route up
    let (address, length) = raw(SocketAddr::new(to, 9));
    let pointer: *const Raw = &address;
    // SAFETY: `address` is a whole structure of `length` bytes.
    check(unsafe { libc::connect(socket.0.as_raw_fd(), pointer.cast(), length) })?;
    socket.local()
}

/// Ends a socket for this process and for children that hold copies of it.
pub fn shutdown(socket: BorrowedFd<'_>) {
    // SAFETY: a call without pointers. What is not connected refuses, and is ended already.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

fn check(rc: i32) -> io::Result<i32> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}
