//! A peer made by hand: record sockets of one host, streams between hosts, frames byte by byte.
#![allow(dead_code)]

use crate::connect_support::{WATCHDOG, dial_record, listen_record};
use crosstie::connect::key::{self, DoorNumbers, DoorStep, Key};
use crosstie::wire::handle::{Family, ListenHandle};
use crosstie::wire::hello::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

/// Bytes of the arena that a peer made by hand offers.
pub const ARENA_BYTES: u64 = 64 << 10;

/// One end of a link, or a door under the name of an endpoint.
pub struct Raw(pub OwnedFd, u128);

/// Some shared memory.
pub fn memfd(bytes: u64) -> OwnedFd {
    // SAFETY: a terminated name; a new descriptor.
    let fd = unsafe {
        OwnedFd::from_raw_fd(libc::memfd_create(c"crosstie-raw".as_ptr(), libc::MFD_CLOEXEC))
    };
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as i64) }, 0);
    fd
}

impl Raw {
    /// Dials an endpoint, and says nothing.
    pub fn knock(handle: &ListenHandle) -> Raw {
        Raw(dial_record(handle.endpoint_id), handle.endpoint_id)
    }

    /// Dials an endpoint, and proves that it holds the handle.
    pub fn dial(handle: &ListenHandle) -> Raw {
        Raw::dial_with(handle, None)
    }

    /// The same with a key.
    pub fn dial_with(handle: &ListenHandle, key: Option<&Key>) -> Raw {
        let raw = Raw::knock(handle);
        let (numbers, answer) = raw.prove(handle.endpoint_id, handle.listener, key);
        let Frame::Proved(hello) = answer else { panic!("not let in: {answer:?}") };
        assert!(key::door_proves(DoorStep::Listener, &numbers, &hello));
        assert!(key::door_key_proves(key, DoorStep::Listener, &numbers, &hello));
        raw
    }

    /// Proves at a door that it knows an endpoint's number and a listener's, and says what the
    /// answer is.
    pub fn prove(&self, id: u128, door: u64, key: Option<&Key>) -> (DoorNumbers, Frame) {
        let knock = DoorHello { version: LOCAL_VERSION, nonce: 0x77, ..DoorHello::ZERO };
        self.send(Frame::Knock(knock), &[]);
        let Frame::Challenge(challenge) = self.receive() else { panic!("no challenge") };
        assert!(challenge == DoorHello { nonce: challenge.nonce, ..knock }, "a number alone");
        let numbers = DoorNumbers { connector: knock.nonce, listener: challenge.nonce, id, door };
        self.send(Frame::Prove(key::door_hello(key, DoorStep::Connector, &numbers)), &[]);
        (numbers, self.receive())
    }

    /// Listens under the name of an endpoint.
    pub fn listen(endpoint_id: u128) -> Raw {
        Raw(listen_record(endpoint_id), endpoint_id)
    }

    /// The next one that dials and proves that it holds the handle, which it is shown in turn.
    pub fn accept(&self) -> Raw {
        let raw = self.accept_silent();
        let Frame::Knock(knock) = raw.receive() else { panic!("no knock") };
        let challenge = DoorHello { version: LOCAL_VERSION, nonce: 0x88, ..DoorHello::ZERO };
        raw.send(Frame::Challenge(challenge), &[]);
        let Frame::Prove(proof) = raw.receive() else { panic!("no proof") };
        let (connector, listener, id) = (knock.nonce, challenge.nonce, self.1);
        let numbers = DoorNumbers { connector, listener, id, door: proof.door };
        assert!(key::door_proves(DoorStep::Connector, &numbers, &proof));
        raw.send(Frame::Proved(key::door_hello(None, DoorStep::Listener, &numbers)), &[]);
        raw
    }

    /// The next one that dials.
    pub fn accept_silent(&self) -> Raw {
        self.wait();
        let null = std::ptr::null_mut();
        // SAFETY: no address is asked for.
        let fd = unsafe { libc::accept(self.0.as_raw_fd(), null, null.cast()) };
        assert!(fd >= 0);
        // SAFETY: a new descriptor.
        Raw(unsafe { OwnedFd::from_raw_fd(fd) }, self.1)
    }

    /// Until something can be read, or the watchdog barks.
    fn wait(&self) {
        let start = Instant::now();
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which lives until the call returns.
        while unsafe { libc::poll(&mut poll, 1, 1000) } != 1 {
            assert!(start.elapsed() < WATCHDOG, "nothing came");
        }
    }

    /// Sends bytes and descriptors.
    pub fn send_bytes(&self, bytes: &[u8], descriptors: &[&OwnedFd]) {
        let mut part =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut room = [0u64; 16];
        // SAFETY: integers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            let length = (4 * descriptors.len()) as u32;
            message.msg_control = room.as_mut_ptr().cast();
            // SAFETY: arithmetic, and writes into `room`, which is long enough for 4 descriptors.
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(length) as _;
                let head = libc::CMSG_FIRSTHDR(&message);
                (*head).cmsg_level = libc::SOL_SOCKET;
                (*head).cmsg_type = libc::SCM_RIGHTS;
                (*head).cmsg_len = libc::CMSG_LEN(length) as _;
                let data: *mut i32 = libc::CMSG_DATA(head).cast();
                for (at, fd) in descriptors.iter().enumerate() {
                    data.add(at).write_unaligned(fd.as_raw_fd());
                }
            }
        }
        // SAFETY: everything that the message names lives until the call returns.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
        assert_eq!(sent, bytes.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// Sends a frame of this version.
    pub fn send(&self, frame: Frame, descriptors: &[&OwnedFd]) {
        let mut bytes = [0; FRAME_BYTES_WRITTEN];
        let length = frame.encode(&mut bytes);
        self.send_bytes(&bytes[..length], descriptors);
    }

    /// The next record; its descriptors are dropped. Empty: the other end is closed.
    pub fn receive_bytes(&self) -> Vec<u8> {
        self.wait();
        let mut bytes = vec![0; 4096];
        let (at, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: writable bytes.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), at.cast(), length, 0) };
        bytes.truncate(got.max(0) as usize);
        bytes
    }

    /// The next frame that is no ping.
    pub fn receive(&self) -> Frame {
        loop {
            let frame = Frame::decode(&self.receive_bytes()).expect("a frame");
            if !matches!(frame, Frame::Ping(_)) {
                return frame;
            }
        }
    }

    /// That the other end closes.
    pub fn closed(&self) {
        assert_eq!(self.receive_bytes(), b"");
    }
}

/// A first hello to an endpoint, with an arena and nothing else.
pub fn hello_to(handle: &ListenHandle) -> LinkHello {
    LinkHello {
        node_id: handle.node_id,
        endpoint_id: 0xabcd,
        peer_endpoint_id: handle.endpoint_id,
        pid: 1,
        page_bytes: 4096,
        arena_bytes: ARENA_BYTES,
        name_low: u128::from_le_bytes(*b"made-by-hand\0\0\0\0"),
        nonce: 0x1234,
        rails: RAIL_SHM,
        ..LinkHello::ZERO
    }
}

/// One end of a link between hosts.
pub struct RawTcp(pub TcpStream);

impl RawTcp {
    /// Dials an endpoint at its first IPv4 address.
    pub fn dial(handle: &ListenHandle) -> RawTcp {
        let at = handle.addresses.iter().find(|address| address.family == Family::Ipv4);
        let at = at.expect("an address on the network");
        let ip = std::net::Ipv4Addr::new(at.ip[0], at.ip[1], at.ip[2], at.ip[3]);
        RawTcp::of(TcpStream::connect((ip, at.port)).unwrap())
    }

    /// A socket at 127.0.0.1, and the handle of a listener of another host there.
    pub fn listen(like: &ListenHandle) -> (TcpListener, ListenHandle) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut handle = ListenHandle { node_id: !like.node_id, ..*like };
        handle.addresses = Default::default();
        handle.addresses[0].family = Family::Ipv4;
        handle.addresses[0].port = socket.local_addr().unwrap().port();
        handle.addresses[0].ip[..4].copy_from_slice(&[127, 0, 0, 1]);
        (socket, handle)
    }

    /// A socket that is there already.
    pub fn of(socket: TcpStream) -> RawTcp {
        socket.set_read_timeout(Some(WATCHDOG)).unwrap();
        RawTcp(socket)
    }

    /// Sends bytes.
    pub fn send_bytes(&self, bytes: &[u8]) {
        (&self.0).write_all(bytes).unwrap();
    }

    /// Sends a frame of this version.
    pub fn send(&self, frame: Frame) {
        let mut bytes = [0; FRAME_BYTES_WRITTEN];
        let length = frame.encode(&mut bytes);
        self.send_bytes(&bytes[..length]);
    }

    /// The next frame's bytes. Empty: the other end is closed.
    pub fn receive_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; FrameHeader::SIZE];
        if let Err(error) = (&self.0).read_exact(&mut bytes) {
            assert!(error.kind() != std::io::ErrorKind::WouldBlock, "nothing came");
            return Vec::new();
        }
        let body = usize::from(u16::from_le_bytes([bytes[10], bytes[11]]));
        bytes.resize(FrameHeader::SIZE + body, 0);
        (&self.0).read_exact(&mut bytes[FrameHeader::SIZE..]).unwrap();
        bytes
    }

    /// The next frame that is no ping and no list of addresses.
    pub fn receive(&self) -> Frame {
        loop {
            let frame = Frame::decode(&self.receive_bytes()).expect("a frame");
            if !matches!(frame, Frame::Ping(_) | Frame::Addresses(_)) {
                return frame;
            }
        }
    }

    /// That the other end closes.
    pub fn closed(&self) {
        assert_eq!(self.receive_bytes(), b"");
    }
}
