//! The system calls of the rail: sending from many places, receiving into two, and what is ready.
//!
//! Those of the data path bypass the C library, whose wrappers are points of thread cancellation:
//! in a process with threads that costs two atomic operations a call.

use crate::base::descriptor;
use crate::memory::Errno;
use core::cell::UnsafeCell;
use core::mem::{ManuallyDrop, zeroed};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// One piece of memory in a gathered call.
pub type Piece = libc::iovec;

/// The piece of no bytes.
pub const NO_PIECE: Piece = Piece { iov_base: core::ptr::null_mut(), iov_len: 0 };

/// No address is asked for or given.
const NOWHERE: *const u8 = core::ptr::null();

/// What a call moved.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing any more: the peer has closed its end.
    Ended,
    /// The stream broke, with the system's code.
    Broken(i32),
}

fn moved(result: libc::c_long) -> Moved {
    match result {
        0 => Moved::Ended,
        1.. => Moved::Bytes(result as usize),
        _ => match Errno::last().0 {
            libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM => Moved::Nothing,
            code => Moved::Broken(code),
        },
    }
}

#[inline]
fn message_of(pieces: &mut [Piece]) -> libc::msghdr {
    // SAFETY: a plain structure of integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len() as _);
    message
}

/// Hands the pieces to the kernel, as many bytes as it takes; there is at least one byte.
///
/// # Safety
/// - the pieces are valid for reads.
#[inline]
pub unsafe fn send(fd: i32, pieces: &mut [Piece]) -> Moved {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    if let [piece] = pieces {
        // SAFETY: the caller vouches for the piece.
        return moved(unsafe {
            libc::syscall(libc::SYS_sendto, fd, piece.iov_base, piece.iov_len, flags, NOWHERE, 0)
        });
    }
    let message = message_of(pieces);
    // SAFETY: the caller vouches for the pieces; the kernel only reads them.
    moved(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags) })
}

/// Takes at most `length` bytes, which is not zero; one that `peeks` leaves them with the kernel,
/// and the next one that does so reads on behind them ([`remember_peeks`]).
///
/// # Safety
/// - `to` is valid for writes of `length` bytes.
#[inline]
pub unsafe fn receive(fd: i32, to: *mut u8, length: usize, peeks: bool) -> Moved {
    let flags = libc::MSG_DONTWAIT | if peeks { libc::MSG_PEEK } else { 0 };
    // SAFETY: the caller vouches for the memory.
    moved(unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, length, flags, NOWHERE, NOWHERE) })
}

/// Takes bytes that were peeked at out of a TCP socket. `false`: they are not what was peeked at,
/// as behind an urgent byte, and nothing that is read from now on can be believed.
pub fn take_out(fd: i32, bytes: usize) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let mut left = bytes;
    while left > 0 {
        let (to, part) = (SINK.0.get(), left.min(SINK_BYTES));
        // SAFETY: so many writable bytes, which nobody reads; of TCP none is written, which the
        // flag says.
        let moved = moved(unsafe {
            libc::syscall(libc::SYS_recvfrom, fd, to, part, flags, NOWHERE, NOWHERE)
        });
        if moved != Moved::Bytes(part) {
            return false;
        }
        left -= part;
    }
    true
}

/// Where bytes would go that are taken out: whoever checks a program's memory wants a place.
struct Sink(UnsafeCell<[u8; SINK_BYTES]>);

// SAFETY: nobody reads it, and only the kernel could write it.
unsafe impl Sync for Sink {}

const SINK_BYTES: usize = 256 << 10;
static SINK: Sink = Sink(UnsafeCell::new([0; SINK_BYTES]));

/// Has the kernel remember how far a TCP socket was peeked at; `false`: it does not know how, or it
/// is no TCP socket.
pub fn remember_peeks(fd: i32) -> bool {
    if option(fd, libc::SO_PROTOCOL) != Some(libc::IPPROTO_TCP) {
        return false;
    }
    let start = 0i32;
    set(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &start.to_ne_bytes());
    // a socket without the option says -1
    option(fd, libc::SO_PEEK_OFF) == Some(start)
}

/// Sets an option. The answer says nothing: some systems that stand in for Linux accept what they
/// do not know.
fn set(fd: i32, level: i32, name: i32, value: &[u8]) {
    let length = value.len() as libc::socklen_t;
    // SAFETY: so many readable bytes.
    unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), length) };
}

/// An option of sockets of every kind.
fn option(fd: i32, name: i32) -> Option<i32> {
    let mut value = -1i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    let to: *mut i32 = &raw mut value;
    // SAFETY: four writable bytes, and a length that says so.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, to.cast(), &raw mut length) };
    (result == 0).then_some(value)
}

/// Takes what fits into both pieces; the first has at least one byte.
///
/// # Safety
/// - the pieces are valid for writes.
#[inline]
pub unsafe fn receive_into(fd: i32, pieces: &mut [Piece; 2]) -> Moved {
    let mut message = message_of(pieces);
    // SAFETY: the caller vouches for the pieces.
    moved(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, libc::MSG_DONTWAIT) })
}

/// Ends a stream both ways. One that is no longer connected has ended already.
pub fn shut(fd: i32) {
    // SAFETY: a call without pointers.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Bytes that the kernel was given and the peer's has not acknowledged; none of a broken stream.
pub fn unacknowledged(fd: i32) -> u32 {
    let mut bytes: i32 = 0;
    // SAFETY: four writable bytes.
    let result = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 { 0 } else { bytes as u32 }
}

/// Short messages go out when they are handed over, not when the last one was acknowledged. A
/// socket that is no TCP socket does so anyway, and refuses.
pub fn without_delay(fd: i32) {
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32.to_ne_bytes());
}

/// Gives a connection within this host the plainest window: BBR, which some systems have for all,
/// holds back what it sends by a rate that it has seen, and here no wire is to be spared. One to
/// elsewhere keeps what the system has, as does one whose kernel refuses, which costs speed alone.
pub fn unpaced_within_host(fd: i32) {
    // SAFETY: an open descriptor, which stays its owner's: the stream is not dropped.
    let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
    let host = |end: std::io::Result<SocketAddr>| end.ok().map(|address| address.ip());
    let near = host(stream.local_addr());
    if near.is_none() || near != host(stream.peer_addr()) {
        return;
    }
    set(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno");
}

/// One stream that is ready, by the number it was added with.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Ready {
    /// The number.
    pub stream: u32,
    /// Whether there is something to read, if only the end.
    pub readable: bool,
    /// Whether there is room again.
    pub writable: bool,
}

/// Most streams that one look reports.
pub const READY_MAX: usize = 64;

/// Watches many sockets.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Watches nothing yet.
    pub fn create() -> Result<Watch, Errno> {
        // SAFETY: a call without pointers.
        let made = || unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        Ok(Watch(descriptor::made(made)?))
    }

    /// Readable while a watched socket is ready.
    pub fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Watches for something to read.
    pub fn add(&self, fd: i32, stream: u32) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_ADD, fd, stream, false)
    }

    /// Watches for room to write as well, or no more.
    pub fn writable(&self, fd: i32, stream: u32, wanted: bool) {
        // Refused only for a descriptor that is not watched: then its stream has ended.
        let _ = self.control(libc::EPOLL_CTL_MOD, fd, stream, wanted);
    }

    /// Watches it no more.
    pub fn remove(&self, fd: i32) {
        // Refused only for a descriptor that is not watched.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, false);
    }

    fn control(&self, what: i32, fd: i32, stream: u32, room: bool) -> Result<(), Errno> {
        let out = if room { libc::EPOLLOUT } else { 0 };
        let mut event =
            libc::epoll_event { events: (libc::EPOLLIN | out) as u32, u64: stream.into() };
        // SAFETY: a whole event, valid for the length of the call.
        let result = unsafe { libc::epoll_ctl(self.fd(), what, fd, &mut event) };
        Errno::check(result.into()).map(|_| ())
    }

    /// What is ready now; says how many.
    pub fn look(&self, out: &mut [Ready; READY_MAX]) -> usize {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];
        // SAFETY: room for as many events as are asked for.
        let count =
            unsafe { libc::epoll_wait(self.fd(), events.as_mut_ptr(), READY_MAX as i32, 0) };
        let count = usize::try_from(count).unwrap_or(0);
        for (ready, event) in out.iter_mut().zip(&events[..count]) {
            let bits = event.events;
            let writable = bits & libc::EPOLLOUT as u32 != 0;
            let readable = bits & !(libc::EPOLLOUT as u32) != 0;
            *ready = Ready { stream: event.u64 as u32, readable, writable };
        }
        count
    }
}
