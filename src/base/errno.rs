//! The number that the system gives a failure, in words.
#![forbid(unsafe_code)]

use core::fmt;

/// A system call's error number.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// The numbers that users meet, in words. Without the heap, which the system's own words take.
    const fn words(self) -> Option<&'static str> {
        Some(match self.0 {
            libc::EACCES => "permission denied",
            libc::EAGAIN => "a limit is reached",
            libc::ECANCELED => "operation canceled",
            libc::EIO => "input or output failed",
            libc::EMSGSIZE => "the message is too long",
            libc::ENETDOWN => "the network is down",
            libc::ENETRESET => "the network ended the connection",
            libc::ENOBUFS => "no room in queues",
            libc::ENODEV => "no such device",
            libc::ENOTCONN => "not connected",
            libc::EPROTO => "the protocol was broken",
            libc::EREMOTEIO => "the peer's side failed",
            libc::ESHUTDOWN => "the endpoint was shut down",
            libc::EADDRINUSE => "the address is in use",
            libc::EADDRNOTAVAIL => "no address of this host",
            libc::ECONNABORTED => "connection aborted on this host",
            libc::ECONNREFUSED => "connection refused",
            libc::ECONNRESET => "connection reset",
            libc::EHOSTUNREACH => "no route to the host",
            libc::EINVAL => "invalid argument",
            libc::EMFILE => "this process has too many files open",
            libc::ENETUNREACH => "the network is unreachable",
            libc::ENFILE => "this host has too many files open",
            libc::ENOENT => "no such file",
            libc::ENOMEM => "no memory",
            libc::EPIPE => "the other end is closed",
            libc::ENOSPC => "no space left",
            libc::ENOSYS => "this kernel does not have it",
            libc::EPERM => "not permitted",
            libc::ETIMEDOUT => "timed out",
            _ => return None,
        })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)?;
        self.words().map_or(Ok(()), |words| write!(f, ", {words}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn numbers_that_users_meet_have_words() {
        for (code, text) in [
            (98, "errno 98, the address is in use"),
            (111, "errno 111, connection refused"),
            (125, "errno 125, operation canceled"),
            (113, "errno 113, no route to the host"),
            (4000, "errno 4000"),
        ] {
            assert_eq!(Errno(code).to_string(), text);
        }
    }
}
