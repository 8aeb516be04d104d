//! What breaks between living peers is reported as that, with the kernel's code: not as a death.

#![allow(dead_code)] // of the shared parts

mod host_support;
mod net_support;

use crosstie::base::slab::Handle;
use crosstie::transport::RequestError;
use host_support::{Memory, Node, Place, wait_both};
use net_support::{address, tcp};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::sync::{Mutex, PoisonError};

/// The tests look for descriptors of this process.
static ALONE: Mutex<()> = Mutex::new(());

/// A peer on the way to which something breaks.
struct Two {
    a: Node,
    b: Node,
    ends: (Handle, Handle),
    at: SocketAddr,
}

impl Two {
    fn new() -> Two {
        // another rail would go on
        let mut options = tcp(2);
        options.limits.rails_max = 1;
        let [mut a, mut b] = [options; 2].map(|options| Node::open(&options));
        let (listener, handle) = b.shared.listen().unwrap();
        let attempt = a.shared.connect(&handle).unwrap();
        let ends = (a.connected(attempt).unwrap(), b.accepted(listener));
        Two { a, b, ends, at: address(&handle) }
    }

    /// What a receive at `a` ends with after sockets of `b` were reset.
    fn error_after(&mut self, reset: impl Fn(&[i32]) -> Vec<i32>) -> RequestError {
        let Two { a, b, ends: (to, back), at } = self;
        let [from, into] = [&*a, &*b].map(|node| Memory::new(node, Place::Private, 4096));
        let receive = b.irecv(*back, &[into.incoming(0, 8, 9)]).unwrap();
        a.isend(*to, from.outgoing(0, 8, 9)).unwrap();
        assert_eq!(wait_both(b, a, receive).result, Ok(()));
        let receive = a.irecv(*to, &[from.incoming(0, 8, 9)]).unwrap();
        for fd in reset(&accepted(*at)) {
            take_apart(fd);
        }
        wait_both(a, b, receive).result.unwrap_err()
    }
}

/// Our descriptors of sockets that a listener at this address has accepted, in order.
fn accepted(at: SocketAddr) -> Vec<i32> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let all = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let mut ours: Vec<i32> = all.filter(|fd| ends(*fd).is_some_and(|here| here == at)).collect();
    ours.sort_unstable();
    ours
}

/// Where a connected socket stands.
fn ends(fd: i32) -> Option<SocketAddr> {
    // SAFETY: nothing is done with it but to ask, and it is not closed.
    let socket = unsafe { TcpStream::from_raw_fd(fd) };
    let here = socket.peer_addr().and_then(|_| socket.local_addr());
    let _ = socket.into_raw_fd();
    here.ok()
}

/// Ends a connection with a reset, and leaves the descriptor.
fn take_apart(fd: i32) {
    // SAFETY: integers, for which zero is a value.
    let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    // SAFETY: a whole address, of no family.
    let rc = unsafe { libc::connect(fd.as_raw_fd(), &nowhere, size_of_val(&nowhere) as u32) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn packets_that_vanish_on_the_way_to_a_living_peer_are_named_so() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    host_support::set("CROSSTIE_PEER_TIMEOUT_MS", "800");
    let mut two = Two::new();
    host_support::unset("CROSSTIE_PEER_TIMEOUT_MS");
    let error = two.error_after(|sockets| {
        sockets[1..].iter().copied().for_each(net_support::hole::black_hole);
        vec![]
    });
    assert_eq!(error, RequestError::Silent);
    assert!(error.to_string().contains("lost on the way"), "{error}");
}

#[test]
fn reset_of_a_living_peers_data_stream_is_named_with_its_code() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let error = Two::new().error_after(|sockets| sockets[1..].to_vec());
    assert_eq!(error, RequestError::Fabric(libc::ECONNRESET));
}

/// Found when a copy thread waited for ever to be told more.
#[test]
fn reset_of_a_copy_threads_stream_is_named_with_its_code() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let settings = [("CROSSTIE_TCP_STREAMS", "3"), ("CROSSTIE_TCP_THREADS", "2")];
    for stream in 1..=3 {
        for (name, value) in settings {
            host_support::set(name, value);
        }
        let mut two = Two::new();
        for (name, _) in settings {
            host_support::unset(name);
        }
        let error = two.error_after(|sockets| vec![sockets[stream]]);
        assert_eq!(error, RequestError::Fabric(libc::ECONNRESET), "stream {stream}");
    }
}

#[test]
fn reset_of_a_living_peers_link_counts_as_its_end() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let error = Two::new().error_after(|sockets| sockets[..1].to_vec());
    // a process that ends with unread bytes looks the same
    assert_eq!(error, RequestError::PeerDied);
}
