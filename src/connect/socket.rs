//! Record sockets of one host: `AF_UNIX`, `SOCK_SEQPACKET`, non-blocking, with descriptors on the
//! side. One of the files of this room that call the C library.

use super::fork::PrivateFd;
use crate::base::descriptor;
use core::mem::{size_of, size_of_val, zeroed};
use core::ptr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Most descriptors that a frame carries: arena, heap, doorbell.
pub const DESCRIPTORS_MAX: usize = 3;
/// Descriptors for which a reader has room; a control buffer is padded to whole words.
const DESCRIPTORS_READ: usize = 4;
/// Waiting connections of a listening socket: what the kernel's own limit (4096) allows, since a
/// thousand ranks may dial at once.
const BACKLOG: i32 = 4096;

/// Room for the descriptors' control message.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// A name that a socket answers to.
#[derive(Copy, Clone)]
pub struct Name {
    address: libc::sockaddr_un,
    length: libc::socklen_t,
}

impl Name {
    /// A name in the abstract namespace (of the network namespace).
    pub fn abstract_of(name: &[u8]) -> Option<Name> {
        Name::new(name, 1)
    }

    /// A path.
    pub fn path_of(path: &[u8]) -> Option<Name> {
        Name::new(path, 0)
    }

    fn new(name: &[u8], at: usize) -> Option<Name> {
        // SAFETY: a plain structure of integers, for which zero is a value.
        let mut address: libc::sockaddr_un = unsafe { zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        // one byte stays free: the zero before an abstract name, or the one behind a path
        if name.len() >= address.sun_path.len() {
            return None;
        }
        for (to, from) in address.sun_path[at..].iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        let length = size_of::<libc::sa_family_t>() + name.len() + 1;
        Some(Name { address, length: length as libc::socklen_t })
    }
}

/// What one read gave.
pub struct Received {
    /// Length of the record; 0: the peer has closed.
    pub length: usize,
    /// The descriptors that came along, in order.
    pub descriptors: [Option<OwnedFd>; DESCRIPTORS_READ],
    /// Whether descriptors were lost because this process may open no more.
    pub descriptors_lost: bool,
}

/// Who is at the other end, as the kernel says it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Credentials {
    /// Process id in this process's namespace; 0: not visible from here.
    pub pid: i32,
    /// User id in this process's namespace.
    pub uid: u32,
}

/// One socket.
#[derive(Debug)]
pub struct Socket(PrivateFd);

impl Socket {
    fn new() -> io::Result<Socket> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a call without pointers.
        PrivateFd::made(|| unsafe { libc::socket(libc::AF_UNIX, kind, 0) }).map(Socket)
    }

    /// A socket that listens under `name`. A path gets mode 0600.
    pub fn listen(name: &Name) -> io::Result<Socket> {
        let socket = Socket::new()?;
        // before bind, so that the file never exists with another mode
        // SAFETY: a call without pointers on a descriptor that we own.
        check(unsafe { libc::fchmod(socket.0.as_raw_fd(), 0o600) })?;
        let address: *const libc::sockaddr_un = &name.address;
        // SAFETY: `address` is a whole structure of which `length` bytes are filled (Name::new).
        check(unsafe { libc::bind(socket.0.as_raw_fd(), address.cast(), name.length) })?;
        // SAFETY: a call without pointers.
        check(unsafe { libc::listen(socket.0.as_raw_fd(), BACKLOG) })?;
        Ok(socket)
    }

    /// A socket connected to `name`. *Errors*: `WouldBlock` when the listener's queue is full.
    pub fn connect(name: &Name) -> io::Result<Socket> {
        let socket = Socket::new()?;
        let address: *const libc::sockaddr_un = &name.address;
        // SAFETY: `address` is a whole structure of which `length` bytes are filled (Name::new).
        check(unsafe { libc::connect(socket.0.as_raw_fd(), address.cast(), name.length) })?;
        Ok(socket)
    }

    /// The next one that dialled.
    pub fn accept(&self) -> io::Result<Socket> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = self.0.as_raw_fd();
        // SAFETY: no address is asked for, so both pointers may be null.
        let accept = || unsafe { libc::accept4(fd, ptr::null_mut(), ptr::null_mut(), flags) };
        PrivateFd::made(accept).map(Socket)
    }

    /// Sends one record, whole or not at all. *Errors*: `WouldBlock` when the peer reads slowly.
    pub fn send(&self, record: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        assert!(descriptors.len() <= DESCRIPTORS_MAX);
        let mut vector =
            libc::iovec { iov_base: record.as_ptr().cast_mut().cast(), iov_len: record.len() };
        let mut control = ControlBuffer([0; 64]);
        // SAFETY: a plain structure of integers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            attach(&mut message, &mut control, descriptors);
        }
        // SAFETY: the vector and the control buffer live until the call returns; it reads them.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes one record. What does not fit into `into` is cut off.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<Received> {
        let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let mut control = ControlBuffer([0; 64]);
        // SAFETY: a plain structure of integers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control_bytes(DESCRIPTORS_MAX) as _;
        let flags = libc::MSG_CMSG_CLOEXEC;
        // SAFETY: vector and control buffer are valid for writes of the lengths given.
        let got = unsafe { libc::recvmsg(self.0.as_raw_fd(), &mut message, flags) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        let (descriptors, lost) = detach(&message);
        let descriptors_lost = lost || message.msg_flags & libc::MSG_CTRUNC != 0;
        Ok(Received { length: got as usize, descriptors, descriptors_lost })
    }

    /// Who is at the other end.
    pub fn credentials(&self) -> io::Result<Credentials> {
        // SAFETY: a plain structure of integers, for which zero is a value.
        let mut peer: libc::ucred = unsafe { zeroed() };
        self.option(libc::SO_PEERCRED, &mut peer)?;
        Ok(Credentials { pid: peer.pid, uid: peer.uid })
    }

    /// A descriptor that becomes readable when the process at the other end ends. A socket alone
    /// does not tell: children that the peer forked keep its end open.
    ///
    /// *Errors*: any, on kernels before 6.5 when the peer's process id is not visible here.
    pub fn peer_pidfd(&self) -> io::Result<OwnedFd> {
        const SO_PEERPIDFD: i32 = 77;
        let mut fd: RawFd = -1;
        if self.option(SO_PEERPIDFD, &mut fd).is_err() {
            let pid = self.credentials()?.pid;
            // SAFETY: a call without pointers.
            fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as RawFd;
        }
        descriptor::made(|| fd)
    }

    fn option<T: Copy>(&self, name: i32, value: &mut T) -> io::Result<()> {
        let mut length = size_of::<T>() as libc::socklen_t;
        let fd = self.0.as_raw_fd();
        let value: *mut T = value;
        // SAFETY: `value` is valid for writes of `length` bytes; both callers pass integers.
        let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, value.cast(), &mut length) };
        check(rc).map(|_| ())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn control_bytes(descriptors: usize) -> usize {
    // SAFETY: arithmetic only.
    unsafe { libc::CMSG_SPACE((descriptors * size_of::<RawFd>()) as u32) as usize }
}

/// Puts descriptors into the control buffer of a message about to be sent.
fn attach(message: &mut libc::msghdr, control: &mut ControlBuffer, from: &[BorrowedFd<'_>]) {
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control_bytes(from.len()) as _;
    // SAFETY: the control buffer is larger than a header (64 bytes), so this is not null.
    let header = unsafe { &mut *libc::CMSG_FIRSTHDR(message) };
    header.cmsg_level = libc::SOL_SOCKET;
    header.cmsg_type = libc::SCM_RIGHTS;
    // SAFETY: arithmetic only.
    header.cmsg_len = unsafe { libc::CMSG_LEN(size_of_val(from) as u32) } as _;
    // SAFETY: `header` lies in the control buffer, which has room for its data.
    let data: *mut RawFd = unsafe { libc::CMSG_DATA(header) }.cast();
    for (i, fd) in from.iter().enumerate() {
        // SAFETY: `i < DESCRIPTORS_MAX`, for which the 64 bytes have room.
        unsafe { data.add(i).write_unaligned(fd.as_raw_fd()) };
    }
}

/// Takes the descriptors out of a message just received; says whether any got no number of ours.
fn detach(message: &libc::msghdr) -> ([Option<OwnedFd>; DESCRIPTORS_READ], bool) {
    let (mut out, mut lost) = ([const { None }; DESCRIPTORS_READ], false);
    // SAFETY: the kernel filled the header; the macro checks that a control message is there.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    if header.is_null() {
        return (out, lost);
    }
    // SAFETY: not null, so a whole header that the kernel wrote.
    let head = unsafe { header.read_unaligned() };
    if head.cmsg_level != libc::SOL_SOCKET || head.cmsg_type != libc::SCM_RIGHTS {
        return (out, lost);
    }
    // SAFETY: arithmetic only.
    let count = (head.cmsg_len as usize - unsafe { libc::CMSG_LEN(0) } as usize) / 4;
    // SAFETY: `header` points at a whole control message.
    let data: *const RawFd = unsafe { libc::CMSG_DATA(header) }.cast();
    for (i, slot) in out.iter_mut().enumerate().take(count) {
        // SAFETY: the kernel wrote `count` descriptors, and gave them to us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(data.add(i).read_unaligned()) };
        *slot = descriptor::lift(fd).ok();
        lost |= slot.is_none();
    }
    (out, lost)
}

fn check(rc: i32) -> io::Result<i32> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}
