//! One end of a connection whose other end is in another process: the two tell each other by pipes
//! what they must know.

use super::wait::WATCHDOG;
use super::{BLOCK_BYTES, LIMITS, PEER, left_behind_remove, register, skip};
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, LocalSpan, Op, OpId, OpKind, PostError, Posted, Provider, RailKey, RemoteSpan,
    Source,
};
use crosstie::provider::libfabric::{Config, Hello, Libfabric, bytes};
use std::ffi::CString;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// Says in a child over which provider.
pub const WHICH: &str = "XTIE_LIBFABRIC_CHILD";
/// Says in a child how many bytes of memory each end registers, if not [`BLOCK_BYTES`].
const BYTES: &str = "XTIE_LIBFABRIC_BYTES";
const NOTHING: Completion =
    Completion::Immediate { peer: crosstie::base::ids::PeerIndex(99), immediate: 0 };
/// How many words of 64 bits each side tells of its block.
const NUMBERS: usize = 2;

/// One end: a rail, a registered block, and what was seen.
pub struct End {
    pub rail: Libfabric<'static>,
    pub block: *mut u8,
    pub block_bytes: usize,
    pub key: RailKey,
    pub far: RemoteSpan,
    pub seen: Vec<Completion>,
    pub now: Instant,
    pub start: std::time::Instant,
    pub next_id: u64,
    /// Room for what a poll says.
    pub out: [Completion; 16],
}

impl End {
    /// Opens a rail and tells the other end, by pipes, what it must know.
    pub fn open(
        provider: &str,
        token: u32,
        to: &mut impl Write,
        from: &mut impl Read,
    ) -> Option<End> {
        let block_bytes = std::env::var(BYTES).map_or(BLOCK_BYTES, |bytes| bytes.parse().unwrap());
        End::open_with(provider, token, to, from, block_bytes)
    }

    fn open_with(
        provider: &str,
        token: u32,
        to: &mut impl Write,
        from: &mut impl Read,
        block_bytes: usize,
    ) -> Option<End> {
        left_behind_remove();
        let name = CString::new(provider).unwrap();
        let config = Config { provider: Some(&name), ..Config::DEFAULT };
        let block = Box::leak(Box::new(HeapBlock::new(bytes(&LIMITS))));
        let mut rail = match Libfabric::open(&mut block.carver(), &LIMITS, &config) {
            Ok(rail) => rail,
            Err(why) => {
                skip(&format!("{provider}: {why}"));
                return None;
            }
        };
        let block = pages(block_bytes);
        let key = register(&rail, block, block_bytes).unwrap();
        let hello = rail.peer_prepare(PEER, token).unwrap();
        to.write_all(&hello.encode()).unwrap();
        to.write_all(&key.0.to_le_bytes()).unwrap();
        to.write_all(&(block as u64).to_le_bytes()).unwrap();
        to.flush().unwrap();
        let mut told = [0; Hello::SIZE + 8 * NUMBERS];
        from.read_exact(&mut told).unwrap();
        let number =
            |n: usize| u64::from_le_bytes(told[Hello::SIZE + 8 * n..][..8].try_into().unwrap());
        let far = RemoteSpan { key: RailKey(number(0)), address: number(1) };
        rail.peer_connect(PEER, &Hello::decode(&told).unwrap()).unwrap();
        let (seen, start) = (Vec::new(), std::time::Instant::now());
        let (now, next_id) = (Instant(0), 1);
        let out = [NOTHING; 16];
        Some(End { rail, block, block_bytes, key, far, seen, now, start, next_id, out })
    }

    pub fn poll(&mut self) {
        self.now = Instant(self.start.elapsed().as_nanos() as u64);
        let count = self.rail.poll(&mut self.out, Bytes::kib(64), self.now);
        self.seen.extend_from_slice(&self.out[..count]);
    }

    /// [`End::poll`] of somebody who waits beside others.
    pub fn poll_politely(&mut self) {
        let before = self.seen.len();
        self.poll();
        if self.seen.len() == before {
            std::thread::yield_now();
        }
    }

    pub fn span(&self, at: usize, length: usize) -> LocalSpan {
        assert!(at + length <= self.block_bytes);
        // SAFETY: inside the leaked block, which is registered.
        unsafe { LocalSpan::new(self.block as u64 + at as u64, Bytes::of(length), self.key) }
    }

    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.block_bytes);
        // SAFETY: inside the leaked block; the other process writes it.
        unsafe { self.block.add(at).read_volatile() }
    }

    pub fn fill(&mut self, at: usize, length: usize, byte: u8) {
        assert!(at + length <= self.block_bytes);
        // SAFETY: inside the leaked block.
        unsafe { self.block.add(at).write_bytes(byte, length) };
    }

    /// Posts until it is taken. `None`: the peer is down.
    pub fn post(&mut self, kind: OpKind) -> Option<OpId> {
        let id = OpId(self.next_id);
        self.next_id += 1;
        let start = std::time::Instant::now();
        while start.elapsed() < WATCHDOG {
            match self.rail.post(&Op { id, peer: PEER, kind }, self.now) {
                Ok(Posted::Pending) => return Some(id),
                Ok(Posted::Done) => {
                    self.seen.push(Completion::Done { peer: PEER, id, result: Ok(()) });
                    return Some(id);
                }
                Err(PostError::Again) => self.poll_politely(),
                Err(PostError::PeerDown) => return None,
                Err(PostError::Unsupported) => panic!("{kind:?} is unsupported"),
            }
        }
        panic!("there is never room for {kind:?}");
    }

    pub fn write(&mut self, at: usize, length: usize, immediate: Option<u32>) -> Option<OpId> {
        let source = Source::Span(self.span(at, length));
        self.post(OpKind::Write { source, target: self.far.plus(at as u64), immediate })
    }

    pub fn result(&self, wanted: OpId) -> Option<bool> {
        self.seen.iter().find_map(|seen| match seen {
            Completion::Done { id, result, .. } if *id == wanted => Some(result.is_ok()),
            Completion::Fenced { id, .. } if *id == wanted => Some(true),
            _ => None,
        })
    }

    pub fn until(&mut self, what: &str, is_so: impl Fn(&End) -> bool) {
        let start = std::time::Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < WATCHDOG, "{what}, never; last: {:?}", self.seen.last());
            self.poll_politely();
        }
    }

    pub fn ends_well(&mut self, id: Option<OpId>) -> bool {
        let id = id.expect("an op of a living peer");
        self.until("an op ends", |end| end.result(id).is_some());
        self.result(id) == Some(true)
    }
}

/// So many zeroes on pages of their own, never given back.
fn pages(bytes: usize) -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(bytes, 4096).unwrap();
    // SAFETY: not of length zero.
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!start.is_null());
    start
}

pub fn pipe(fd: i32) -> std::fs::File {
    use std::os::fd::FromRawFd;
    // SAFETY: the parent has put a pipe there, and nobody else knows of it.
    unsafe { std::fs::File::from_raw_fd(fd) }
}

/// Starts a child and joins a rail to its; `None`, with a line, where there is no such provider.
pub fn join(provider: &str) -> Option<(Child, End)> {
    join_with(provider, BLOCK_BYTES)
}

/// The same, with so much memory.
pub fn join_with(provider: &str, block_bytes: usize) -> Option<(Child, End)> {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    let (mut hellos, theirs) = std::io::pipe().unwrap();
    let their_fd = theirs.as_raw_fd();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]).env(WHICH, provider).stdin(Stdio::piped());
    command.env(BYTES, block_bytes.to_string());
    // SAFETY: system calls alone: the child ends with us, and a descriptor that is there is moved.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            match libc::dup2(their_fd, 3) {
                3 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    };
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    drop(theirs);
    let mut to = child.stdin.take().unwrap();
    match End::open_with(provider, 0x5eed_0001, &mut to, &mut hellos, block_bytes) {
        Some(end) => {
            child.stdin = Some(to);
            Some((child, end))
        }
        None => {
            drop(to);
            let _ = child.kill();
            child.wait().unwrap();
            None
        }
    }
}
