//! What an endpoint has to say of its rails: lost, back, in use.
#![forbid(unsafe_code)]

use super::news::{say_heard, warning};
use crate::base::units::Span;
use crate::host::life::known::ConnectionRail;
use crate::host::log::Level;
use crate::memory::Errno;
use crate::provider::rail_set::PortError;
use crate::provider::verbs::mtu::Packets;
use core::fmt;
use core::net::SocketAddr;

/// What a queue pair says that never heard of its peer: an address that somebody answers for.
const NOBODY_ANSWERS: &str = "; no device at the peer's address acknowledges a packet: another \
                              host may have that address, the partition keys may differ, or UDP \
                              port 4791 (RoCE) may be blocked";

/// A rail of a connection in words.
pub(in crate::host) struct RailAt<'a> {
    pub(in crate::host) rail: ConnectionRail,
    pub(in crate::host) lane: u8,
    pub(in crate::host) peer: &'a str,
    pub(in crate::host) ends: Option<[SocketAddr; 2]>,
    /// What its port is opened on, which says more than `ends` where it is not empty.
    pub(in crate::host) nic: &'a str,
}

/// `rail 1 to ring (pid 7 on 00c0ffee) over tcp, 10.77.1.2:4000 to 10.77.1.1:35327,`
/// `rail 1 to ring (pid 7 on 00c0ffee) over libfabric, tcp;ofi_rxm eth0,`
impl fmt::Display for RailAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rail {} to {} over {}", self.lane, self.peer, self.rail.name())?;
        match self.ends {
            _ if !self.nic.is_empty() => write!(f, ", {},", self.nic),
            // a port of an RDMA device has no number of its own
            Some([ours, theirs]) if ours.port() == 0 => {
                write!(f, ", {} to {},", ours.ip(), theirs.ip())
            }
            Some([ours, theirs]) => write!(f, ", {ours} to {theirs},"),
            None => Ok(()),
        }
    }
}

/// How a rail was lost.
pub(in crate::host) struct Loss {
    /// Of which kind the rail is.
    pub(in crate::host) rail: ConnectionRail,
    /// How often since that was last told.
    pub(in crate::host) times: u32,
    /// Whether it had not been in use before.
    pub(in crate::host) is_new: bool,
    /// The system's code of the last time; 0: none.
    pub(in crate::host) code: i32,
    /// How long nothing was acknowledged, if it was given up for that.
    pub(in crate::host) silent: Span,
    /// Whether short messages had come to the peer, and nothing long.
    pub(in crate::host) short_alone: bool,
    /// What its port has told of the loss.
    pub(in crate::host) error: Option<PortError>,
    /// Whether its port is of no use for good.
    pub(in crate::host) is_gone: bool,
    /// Rails of the connection that are in use.
    pub(in crate::host) others: u32,
}

impl Loss {
    /// Whether the port's report says all, so that no line has to follow.
    fn is_told(&self) -> bool {
        match self.error {
            Some(PortError::Libfabric(_) | PortError::Vendor(_)) => true,
            Some(PortError::Verbs(_)) | None => false,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_new, self.times) {
            (false, 1) => f.write_str("was lost: ")?,
            (false, times) => write!(f, "was lost {times} times, lately: ")?,
            (true, 1) => f.write_str("never came up: ")?,
            (true, times) => write!(f, "never came up in {times} attempts, lately: ")?,
        }
        match (self.silent.0 / 1_000_000, self.code) {
            _ if self.is_told() => self.error.map_or(Ok(()), |error| error.fmt(f))?,
            (0, 0) => f.write_str(match self.rail {
                ConnectionRail::Tcp => "its stream ended, or the peer gave it up",
                ConnectionRail::Vendor => {
                    "the provider failed it without a code, or the peer gave it up"
                }
                ConnectionRail::Shm
                | ConnectionRail::Loopback
                | ConnectionRail::Verbs
                | ConnectionRail::Libfabric => "it failed without a code, or the peer gave it up",
            })?,
            // it may be an errno, or a number of the provider's own
            (0, code) if self.rail == ConnectionRail::Vendor => {
                write!(f, "the provider's code {code}")?;
            }
            (0, libc::ENETDOWN) if self.rail == ConnectionRail::Tcp => {
                f.write_str("the interface of its local address has no carrier, or is down")?;
            }
            (0, libc::EBADMSG) if self.rail == ConnectionRail::Tcp => {
                f.write_str(
                    "bytes were changed on the way (a checksum differs, or what was sent is lost)",
                )?;
            }
            (0, libc::EPROTO) if self.rail == ConnectionRail::Tcp => {
                f.write_str("what came on it broke the protocol, or was changed on the way")?;
            }
            (0, code) => write!(f, "{}", Errno(code))?,
            (ms, _) => write!(f, "silent, nothing on it was acknowledged for {ms} ms")?,
        }
        if self.short_alone {
            f.write_str(
                "; short messages pass and long ones do not: a switch may have a smaller MTU",
            )?;
        }
        if self.is_new && self.rail == ConnectionRail::Verbs && self.code == libc::ETIMEDOUT {
            f.write_str(if self.short_alone { "" } else { NOBODY_ANSWERS })?;
        }
        match self.others {
            0 => return f.write_str("; no other rail is in use"),
            1 => f.write_str("; 1 other rail goes on")?,
            others => write!(f, "; {others} other rails go on")?,
        }
        // what has no port any more is not connected again
        f.write_str(match (self.is_gone, self.is_new) {
            (true, _) => "",
            (false, false) => ", and this one is connected again",
            (false, true) => ", and this one is tried again",
        })
    }
}

/// A rail that joins a connection is in use.
pub(in crate::host) fn rail_first(at: &RailAt<'_>) {
    say_heard(Level::Info, format_args!("{at} is in use"));
}

/// A rail's two ends take packets of different lengths. It works, and slower than one end could.
pub(in crate::host) fn packets_tell(at: &RailAt<'_>, packets: Option<Packets>) {
    let Some(Packets { ours_bytes, theirs_bytes }) = packets else { return };
    if ours_bytes != theirs_bytes {
        warning!(
            "{at} has packets of {} bytes: the MTU of this side's port is {ours_bytes}, that of \
             the peer's {theirs_bytes}",
            ours_bytes.min(theirs_bytes)
        );
    }
}

/// A rail was lost. What the device has told of a queue pair is a line of its own.
pub(in crate::host) fn rail_lost(at: &RailAt<'_>, loss: &Loss) {
    warning!("{at} {loss}");
    if let Some(error) = loss.error.filter(|_| !loss.is_told()) {
        warning!("rail {}: {error}", at.lane);
    }
}

/// A rail that was lost is in use, or `is_new` one that had not come up: a warning, so that who is
/// told of the loss is told of its end.
pub(in crate::host) fn rail_back(at: &RailAt<'_>, away_ms: u64, is_new: bool) {
    let again = if is_new { "" } else { " again" };
    warning!("{at} carries bytes{again}, after {away_ms} ms");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Note;
    use crate::host::log::news::note;
    use crate::host::log::sink_set;
    use crate::memory::locked;
    use crate::provider::libfabric;
    use crate::provider::vendor::{Breach, port as vendor};
    use std::string::String;
    use std::string::ToString;
    use std::sync::Mutex;

    const LOST: Loss = Loss {
        rail: ConnectionRail::Tcp,
        times: 1,
        is_new: false,
        code: 0,
        silent: Span(0),
        short_alone: false,
        error: None,
        is_gone: false,
        others: 1,
    };

    /// It was "errno 125" of no NIC, and then "rail 1: errno 125 (its code 0)" of no peer.
    #[test]
    fn loss_of_a_port_names_its_nic_and_says_what_its_provider_says() {
        let at = RailAt {
            rail: ConnectionRail::Libfabric,
            lane: 1,
            peer: "ring",
            ends: None,
            nic: "efa efa0",
        };
        let report = libfabric::ErrorReport::new(libc::ECANCELED, -7);
        let error = Some(PortError::Libfabric(report));
        let said = std::format!("{at} {}", Loss { code: libc::ECANCELED, error, ..LOST });
        assert_eq!(
            said,
            "rail 1 to ring over libfabric, efa efa0, was lost: errno 125, operation canceled (the \
             provider's code -7); 1 other rail goes on, and this one is connected again"
        );
    }

    /// It was said to be connected again, and in the next line to be out of use.
    #[test]
    fn rail_whose_port_is_of_no_use_any_more_is_not_said_to_be_connected_again() {
        let breach = Breach { entry: "poll", why: "more bytes than a message may have" };
        let error = Some(PortError::Vendor(vendor::ErrorReport::Breach(breach)));
        let rail = ConnectionRail::Vendor;
        let said = Loss { rail, code: libc::EPROTO, error, is_gone: true, ..LOST }.to_string();
        assert_eq!(
            said,
            "was lost: the rail is out of use: of the vendor's poll, more bytes than a message may \
             have; 1 other rail goes on"
        );
        let code = libc::ENODEV;
        let said = Loss { rail: ConnectionRail::Verbs, code, is_gone: true, ..LOST }.to_string();
        assert!(said.ends_with("; 1 other rail goes on"), "{said}");
    }

    /// A rail of a vendor's has no stream.
    #[test]
    fn loss_without_a_code_is_told_by_what_the_rail_is() {
        let lost = |rail| Loss { rail, ..LOST };
        let of = |rail| lost(rail).to_string();
        assert!(of(ConnectionRail::Tcp).contains("its stream ended"));
        let vendor = of(ConnectionRail::Vendor);
        assert!(vendor.contains("the provider failed it") && !vendor.contains("stream"));
        let coded = Loss { code: 77, ..lost(ConnectionRail::Vendor) }.to_string();
        assert!(coded.contains("the provider's code 77") && !coded.contains("errno"), "{coded}");
        assert!(!of(ConnectionRail::Verbs).contains("stream"));
        let code = libc::ETIMEDOUT;
        let mtu = Loss { code, short_alone: true, ..lost(ConnectionRail::Verbs) }.to_string();
        assert!(mtu.contains("timed out; short messages pass and long ones do not"), "{mtu}");
    }

    #[test]
    fn a_peer_turned_away_for_want_of_descriptors_is_said_with_the_limit() {
        static SAID: Mutex<String> = Mutex::new(String::new());
        fn keep(_: usize, _: Level, text: &str) {
            locked(&SAID).push_str(text);
        }
        sink_set(Some((keep, 0)));
        note(Note::Descriptors(4321));
        sink_set(None);
        let said = locked(&SAID);
        assert!(said.contains("no more than 4321 file descriptors"), "{said}");
    }
}
