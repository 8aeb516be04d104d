//! What broke a connection, in words.
#![forbid(unsafe_code)]

use super::sys::abi::Gid;
use super::sys::numbers as n;
use crate::fabric::{DownCause, OpErrorKind};
use core::fmt;
use core::net::Ipv6Addr;

/// A failed work request: the first of its connection, which the others followed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct ErrorReport {
    /// The status of its completion, `IBV_WC_…`.
    pub status: i32,
    /// The device maker's own code.
    pub vendor: u32,
    /// Whether it was a send of ours; otherwise a receive.
    pub was_send: bool,
    /// Our GID.
    pub local: Gid,
    /// The peer's.
    pub remote: Gid,
}

/// In place of a status: nothing of what was sent has completed for too long.
pub const SILENT: i32 = -1;

/// A GID as people write it: that of an IPv4 address as that address.
pub struct GidText(pub Gid);

impl fmt::Display for GidText {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let address = Ipv6Addr::from(self.0.0);
        match address.to_ipv4_mapped() {
            Some(v4) => write!(f, "{v4}"),
            None => write!(f, "{address}"),
        }
    }
}

/// A completion's status in words.
pub const fn status_words(status: i32) -> &'static str {
    match status {
        n::WC_SUCCESS => "success",
        n::WC_LOC_LEN_ERR => "a message was longer than its receive",
        n::WC_LOC_QP_OP_ERR => "the queue pair cannot do this",
        n::WC_LOC_PROT_ERR => "memory of this side is not registered for this",
        n::WC_WR_FLUSH_ERR => "the queue pair had failed before",
        n::WC_BAD_RESP_ERR => "the peer sent an answer without a request",
        n::WC_LOC_ACCESS_ERR => "the peer may not touch this memory",
        n::WC_REM_INV_REQ_ERR => "the peer's device did not understand the request",
        n::WC_REM_ACCESS_ERR => "the peer's memory is not registered for this",
        n::WC_REM_OP_ERR => "the peer's device could not carry it out",
        n::WC_RETRY_EXC_ERR => {
            "the peer's device did not acknowledge it, however often it was sent"
        }
        n::WC_RNR_RETRY_EXC_ERR => "the peer had no receive posted",
        n::WC_FATAL_ERR => "the device failed",
        n::WC_RESP_TIMEOUT_ERR => "the peer's device did not answer",
        SILENT => "the peer's device has acknowledged nothing for too long",
        n::WC_GENERAL_ERR => "the device reports an error that has no name",
        _ => "a status that this version does not know",
    }
}

impl ErrorReport {
    /// Which kind of failure the op that it is about had.
    pub const fn kind(&self) -> OpErrorKind {
        match self.status {
            n::WC_REM_ACCESS_ERR => OpErrorKind::Key,
            n::WC_WR_FLUSH_ERR => OpErrorKind::PeerDown,
            _ => OpErrorKind::Fabric,
        }
    }

    /// The same as an errno, as people know them: a status has no meaning among those. 0: it has
    /// none of its own.
    pub const fn errno(&self) -> i32 {
        match self.cause() {
            DownCause::Broken(code) => code,
            DownCause::Failed => libc::EPROTO,
            DownCause::Closed
            | DownCause::Died
            | DownCause::Severed
            | DownCause::Unheard
            | DownCause::Silent => 0,
        }
    }

    /// Why its peer is gone.
    pub const fn cause(&self) -> DownCause {
        match self.status {
            n::WC_LOC_LEN_ERR if !self.was_send => DownCause::Failed,
            n::WC_WR_FLUSH_ERR => DownCause::Broken(0),
            n::WC_REM_ACCESS_ERR | n::WC_LOC_ACCESS_ERR | n::WC_LOC_PROT_ERR => {
                DownCause::Broken(libc::EACCES)
            }
            SILENT | n::WC_RETRY_EXC_ERR | n::WC_RESP_TIMEOUT_ERR => {
                DownCause::Broken(libc::ETIMEDOUT)
            }
            n::WC_RNR_RETRY_EXC_ERR => DownCause::Broken(libc::ENOBUFS),
            _ => DownCause::Broken(libc::EIO),
        }
    }
}

impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (what, from, to) = match self.was_send {
            true => ("a send", GidText(self.local), GidText(self.remote)),
            false => ("a receive", GidText(self.remote), GidText(self.local)),
        };
        let (status, words) = (self.status, status_words(self.status));
        if status == SILENT {
            return write!(
                f,
                "{what} from {from} to {to} was given up: {words} (five eighths of \
                 CROSSTIE_PEER_TIMEOUT_MS)"
            );
        }
        write!(f, "{what} from {from} to {to} failed: {words} ")?;
        write!(f, "(completion status {status}, vendor code {:#x})", self.vendor)
    }
}

#[cfg(test)]
mod tests {

    use super::super::peer::Peer;
    use super::*;
    use std::string::ToString;

    fn mapped(last: u8) -> Gid {
        Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, last])
    }

    #[test]
    fn report_names_both_ends_the_status_and_the_vendor_code() {
        let (local, remote) = (mapped(1), mapped(2));
        let was_send = true;
        let report = ErrorReport { status: 12, vendor: 0x81, was_send, local, remote };
        assert_eq!(
            report.to_string(),
            "a send from 10.77.0.1 to 10.77.0.2 failed: the peer's device did not acknowledge it, \
             however often it was sent (completion status 12, vendor code 0x81)"
        );
        assert_eq!(report.cause(), DownCause::Broken(libc::ETIMEDOUT));
        let report = ErrorReport { status: SILENT, vendor: 0, ..report };
        assert_eq!(
            report.to_string(),
            "a send from 10.77.0.1 to 10.77.0.2 was given up: the peer's device has acknowledged \
             nothing for too long (five eighths of CROSSTIE_PEER_TIMEOUT_MS)"
        );
        assert_eq!(report.cause(), DownCause::Broken(libc::ETIMEDOUT));
    }

    /// Both kinds were told as from our end to the peer's.
    #[test]
    fn receive_is_from_the_peers_end_to_ours() {
        let (local, remote, was_send) = (mapped(1), mapped(2), false);
        let report = ErrorReport { status: 10, vendor: 0, was_send, local, remote };
        let text = report.to_string();
        assert!(text.starts_with("a receive from 10.77.0.2 to 10.77.0.1 failed: "), "{text}");
    }

    /// Packet loss, a status of 12, was told as "errno 12, no memory".
    #[test]
    fn status_of_a_completion_is_no_errno() {
        let (local, remote) = (mapped(1), mapped(2));
        let of = |status, was_send| ErrorReport { status, vendor: 0, was_send, local, remote };
        for (status, was_send, errno) in [
            (n::WC_RETRY_EXC_ERR, true, libc::ETIMEDOUT),
            (n::WC_RNR_RETRY_EXC_ERR, true, libc::ENOBUFS),
            (n::WC_REM_ACCESS_ERR, true, libc::EACCES),
            (n::WC_LOC_QP_OP_ERR, true, libc::EIO),
            (n::WC_WR_FLUSH_ERR, true, 0),
            (n::WC_LOC_LEN_ERR, false, libc::EPROTO),
        ] {
            let report = of(status, was_send);
            assert_eq!(report.errno(), errno, "{report}");
            let mut peer = Peer::unused();
            peer.report = Some(report);
            assert_eq!(peer.cut_off().code, errno, "{report}");
        }
    }

    #[test]
    fn gid_that_is_no_ipv4_address_is_written_as_ipv6() {
        let mut gid = Gid([0; 16]);
        (gid.0[0], gid.0[1], gid.0[15]) = (0xfe, 0x80, 1);
        assert_eq!(GidText(gid).to_string(), "fe80::1");
    }
}
