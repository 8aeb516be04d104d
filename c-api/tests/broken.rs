//! A socket that breaks between living peers: the code is that of the rail, and the sentence names
//! the system's reason and the peer.

mod common;

use common::*;
use std::net::TcpStream;
use std::os::fd::{FromRawFd, IntoRawFd};

/// Ends the newest connection over TCP of this process with a reset, and leaves its descriptor: a
/// data stream, which is dialled after its link.
fn take_apart() {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut all: Vec<i32> =
        all.filter_map(|fd| fd.unwrap().file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    for fd in all.into_iter().rev() {
        // SAFETY: nothing is done with it but to ask, and it is not closed.
        let socket = unsafe { TcpStream::from_raw_fd(fd) };
        let connected = socket.peer_addr().is_ok();
        let fd = socket.into_raw_fd();
        // SAFETY: integers, for which zero is a value.
        let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
        if connected {
            // SAFETY: a whole address, of no family.
            unsafe { libc::connect(fd, &nowhere, size_of_val(&nowhere) as u32) };
            return;
        }
    }
}

#[test]
fn a_reset_is_named_with_the_systems_reason() {
    for (name, value) in [("CROSSTIE_SOCKET_IFNAME", "lo"), ("CROSSTIE_RAILS", "tcp")] {
        // SAFETY: before the first endpoint, and the only test of this program.
        unsafe { std::env::set_var(name, value) };
    }
    let (it, other) = (Opened::new(&config(HOST)), Opened::new(&config(HOST)));
    let (here, _there) = it.join(&other);
    let mut ours = [0u8; 8];
    let memory = it.register(&mut ours);
    let (result, receive) = it.receive(here, &[room(&mut ours, memory)]);
    expect(result, XTIE_OK);
    take_apart();
    expect(it.finish(receive, &other).0, XTIE_ERR_FABRIC);
    let said = it.error();
    assert!(said.contains("the rail failed: ") && said.contains("errno "), "{said}");
    assert!(said.contains(&std::process::id().to_string()), "{said}");
    it.close_connection(here);
    it.close();
    other.close();
}
