//! Two connected rails of TCP in one process, over real sockets of the loopback device. The
//! library's own tests include it too.

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::descriptor;
use crosstie::base::ids::PeerIndex;
use crosstie::provider::host_domain::HostDomain;
use crosstie::provider::tcp::{Limits, Settings, Tcp, bytes};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::vec::Vec;

/// How the two are connected.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct PairConfig {
    /// Capacities of each side.
    pub limits: Limits,
    /// Regions of each side.
    pub regions_max: u32,
    /// Whether the sockets are IPv6.
    pub v6: bool,
    /// Size of the kernel's buffers, sending and receiving; `None`: as the system has it.
    pub buffer_bytes: Option<i32>,
    /// Of each side.
    pub settings: Settings,
    /// Whether headers and payloads have sums.
    pub sums: bool,
}

impl Default for PairConfig {
    fn default() -> PairConfig {
        PairConfig {
            limits: Limits { peers_max: 2, ops_max: 128, streams: 1, lanes: 1 },
            regions_max: 16,
            v6: false,
            buffer_bytes: None,
            settings: Settings::default(),
            sums: false,
        }
    }
}

/// What two connected rails stand on. Outlives both.
#[derive(Debug)]
pub struct PairMemory {
    config: PairConfig,
    blocks: [HeapBlock; 2],
    /// The sockets of either side.
    pub sockets: [Vec<TcpStream>; 2],
}

impl PairMemory {
    /// Makes blocks and sockets. *Panics* when the system has none.
    pub fn new(config: PairConfig) -> PairMemory {
        let length = bytes(&config.limits) + HostDomain::bytes(config.regions_max);
        let pairs: Vec<[TcpStream; 2]> =
            (0..config.limits.streams).map(|_| connected(&config)).collect();
        let mut sockets = [Vec::new(), Vec::new()];
        for [a, b] in pairs {
            sockets[0].push(a);
            sockets[1].push(b);
        }
        let blocks = [(); 2].map(|()| HeapBlock::new(length));
        PairMemory { config, blocks, sockets }
    }

    /// Opens both rails and connects them as peer 0 of each other. Call it once.
    pub fn open(&mut self) -> [Tcp<'_>; 2] {
        let config = self.config;
        let mut sockets = self.sockets.iter();
        self.blocks.each_mut().map(|block| {
            let mut carver = block.carver();
            let domain = HostDomain::carve(&mut carver, config.regions_max).expect("room");
            // SAFETY: the block, where the domain lies, outlives the rail, which is not forgotten.
            let rail = unsafe { Tcp::open(&mut carver, &config.limits, domain, config.settings) };
            assert_eq!(carver.left(), 0, "`bytes` says what is carved");
            let mut rail = rail.expect("the block is as long as `bytes` says");
            let streams = sockets.next().expect("a set for each side");
            let fds: Vec<i32> = streams.iter().map(AsRawFd::as_raw_fd).collect();
            rail.peer_open_with(PeerIndex(0), &fds, config.sums).expect("a fresh peer");
            rail
        })
    }
}

/// Two ends of a connection over the loopback device.
pub fn connected(config: &PairConfig) -> [TcpStream; 2] {
    let listener = match config.v6 {
        true => TcpListener::bind((Ipv6Addr::LOCALHOST, 0)),
        false => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)),
    }
    .expect("a port of the loopback device");
    // accepted sockets inherit it
    set_buffers(listener.as_raw_fd(), config.buffer_bytes);
    let address = listener.local_addr().expect("an address");
    let near = TcpStream::connect(address).expect("a connection over the loopback device");
    set_buffers(near.as_raw_fd(), config.buffer_bytes);
    let (far, _) = listener.accept().expect("the connection just made");
    [near, far].map(|end| {
        end.set_nonblocking(true).expect("a flag of our own socket");
        TcpStream::from(descriptor::lift(end.into()).expect("a descriptor"))
    })
}

fn set_buffers(fd: i32, bytes: Option<i32>) {
    let Some(bytes) = bytes else { return };
    for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        let value: *const i32 = &bytes;
        let length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: four readable bytes.
        let result =
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, value.cast(), length) };
        assert_eq!(result, 0, "a buffer of that size");
    }
}
