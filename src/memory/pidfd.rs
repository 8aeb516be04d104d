//! Descriptors of another process, as a rule of a child (pidfd_getfd(2)). The kernel checks the
//! same permissions as for ptrace(2). Control path.

use super::errno::Errno;
use crate::base::descriptor;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A running process.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// Opens it by its number.
    pub fn open(pid: u32) -> Result<Process, Errno> {
        // SAFETY: no pointers.
        let made = || unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as RawFd;
        Ok(Process(descriptor::made(made)?))
    }

    /// A copy of one of its descriptors: what it refers to is the process's own.
    pub fn descriptor(&self, number: i32) -> Result<OwnedFd, Errno> {
        let (process, number) = (self.0.as_raw_fd(), number as u32);
        // SAFETY: no pointers.
        let made = || unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, number, 0) } as RawFd;
        Ok(descriptor::made(made)?)
    }
}

/// Whether the kernel says with this that such a thing may not be done here at all.
pub const fn is_forbidden(errno: Errno) -> bool {
    matches!(errno.0, libc::EPERM | libc::EACCES | libc::ENOSYS)
}

/// Takes a connected TCP socket from its peer without a goodbye: the peer's is reset (RFC 9293
/// 3.10.5; connect(2), `AF_UNSPEC`).
pub fn reset(socket: BorrowedFd) -> Result<(), Errno> {
    let nowhere =
        libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    let length = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: an address of the length told, readable until the call returns.
    let result = unsafe { libc::connect(socket.as_raw_fd(), &nowhere, length) };
    Errno::check(result.into()).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn a_socket_that_was_borrowed_and_reset_is_broken_for_its_peer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let Ok(process) = Process::open(std::process::id()) else { return }; // an old kernel
        let Ok(borrowed) = process.descriptor(near.as_raw_fd()) else { return };
        assert_eq!(process.descriptor(1 << 20).unwrap_err(), Errno(libc::EBADF));
        reset(borrowed.as_fd()).unwrap();
        let error = far.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
    }
}
