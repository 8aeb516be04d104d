//! A wire between two hosts that takes its time and loses packets: what one host's interface
//! sends is read by a thread of the test, kept for a while, and given to the other's.

use super::{Hosts, INTERFACE};
use crate::host_support::Random;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How bad a wire is, in each direction.
#[derive(Copy, Clone)]
pub struct Quality {
    /// How long a packet is under way.
    pub delay: Duration,
    /// Of a thousand packets, so many are lost.
    pub lost_per_thousand: u64,
    /// Packets under way at a time; more are lost.
    pub packets_max: usize,
    pub seed: u64,
}

/// Two hosts at the ends of a wire.
pub struct Wired {
    pub hosts: Hosts,
    wire: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    cut: AtomicBool,
    /// Longer packets are lost; 0: none.
    bytes_max: AtomicUsize,
    carried: AtomicU64,
    lost: AtomicU64,
}

/// One direction: packets with the moment at which they are due.
struct Direction {
    from: File,
    to: File,
    under_way: VecDeque<(Instant, Vec<u8>)>,
    random: Random,
}

const PACKET_BYTES_MAX: usize = 2048;

impl Wired {
    pub fn new(quality: Quality) -> Wired {
        let hosts = Hosts::named(2);
        let ends = [0, 1].map(|at| hosts.inside(at, || tunnel().expect("an interface")));
        for at in 0..2 {
            hosts.configure(at);
        }
        let shared = Arc::new(Shared::default());
        let mine = shared.clone();
        let wire = Some(std::thread::spawn(move || carry(ends, quality, &mine)));
        Wired { hosts, wire, shared }
    }

    /// Loses everything from now on, or carries again.
    pub fn cut(&self, cut: bool) {
        self.shared.cut.store(cut, Ordering::Relaxed);
    }

    /// Loses packets of more bytes from now on, and tells nobody, as a switch does.
    pub fn narrow(&self, bytes_max: usize) {
        self.shared.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Packets that arrived, and packets that were lost.
    pub fn counts(&self) -> (u64, u64) {
        let Shared { carried, lost, .. } = &*self.shared;
        (carried.load(Ordering::Relaxed), lost.load(Ordering::Relaxed))
    }
}

impl Drop for Wired {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(wire) = self.wire.take() {
            let _ = wire.join();
        }
    }
}

/// Makes the interface in the namespace of the calling thread, and opens its other side.
fn tunnel() -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
    // SAFETY: plain data, of which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(INTERFACE.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: the structure that this request wants, alive until the call returns.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

fn carry([a, b]: [File; 2], quality: Quality, shared: &Shared) {
    let direction = |from: &File, to: &File, seed| Direction {
        from: from.try_clone().expect("a descriptor"),
        to: to.try_clone().expect("a descriptor"),
        under_way: VecDeque::new(),
        random: Random(seed),
    };
    let mut directions = [direction(&a, &b, quality.seed), direction(&b, &a, !quality.seed)];
    while !shared.stop.load(Ordering::Relaxed) {
        let mut wait_ms = 50;
        for direction in &mut directions {
            direction.take(&quality, shared);
            direction.give(shared);
            if let Some((due, _)) = direction.under_way.front() {
                let wait = due.saturating_duration_since(Instant::now());
                wait_ms = wait_ms.min(wait.as_millis() as i32);
            }
        }
        let mut polls = [&a, &b].map(|end| libc::pollfd {
            fd: end.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: two structures, which live until the call returns.
        unsafe { libc::poll(polls.as_mut_ptr(), 2, wait_ms) };
    }
}

impl Direction {
    /// Takes what the sender has given, but for what is lost.
    fn take(&mut self, quality: &Quality, shared: &Shared) {
        let mut packet = [0; PACKET_BYTES_MAX];
        while let Ok(length) = self.from.read(&mut packet) {
            let unlucky = self.random.below(1000) < quality.lost_per_thousand;
            let full = self.under_way.len() >= quality.packets_max;
            let narrow = shared.bytes_max.load(Ordering::Relaxed);
            let long = narrow != 0 && length > narrow;
            if unlucky || full || long || shared.cut.load(Ordering::Relaxed) {
                shared.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            self.under_way.push_back((Instant::now() + quality.delay, packet[..length].to_vec()));
        }
    }

    /// Gives what is due.
    fn give(&mut self, shared: &Shared) {
        let now = Instant::now();
        while self.under_way.front().is_some_and(|(due, _)| *due <= now) {
            let (_, packet) = self.under_way.pop_front().expect("looked");
            let arrived = self.to.write(&packet).is_ok();
            let count = if arrived { &shared.carried } else { &shared.lost };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
