//! The whole machine over the loopback rail, in storage of the caller: what a program without an
//! operating system calls to see that the archive works on its machine.

use core::ffi::c_int;

use crosstie::base::carve::{BLOCK_ALIGN, Carver, RawSlice, bytes_for};
use crosstie::base::ids::{ConnectionIndex, PeerIndex};
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{Domain, MemoryDomain, MemoryKind, RailKey, Region, RemoteSpan};
use crosstie::provider::loopback::{self, Loopback};
use crosstie::transport::limits::CREDITS;
use crosstie::transport::{
    Config, ConnectionSetup, DataMrs, Endpoint, Incoming, Limits, Outcome, Outgoing, RequestId,
};

const A: ConnectionIndex = ConnectionIndex(0);
const B: ConnectionIndex = ConnectionIndex(1);
const LIMITS: Limits =
    Limits { connections_max: 2, requests_max: 32, regions_max: 2, rails_max: 1 };
const RAIL: loopback::Limits = loopback::Limits {
    peers_max: 2,
    slots: 64,
    payload_max: EAGER_BYTES,
    regions_max: 3,
    jobs: 64,
};
const EAGER_BYTES: Bytes = Bytes::kib(1);
const BUDGET: Bytes = Bytes::kib(64);
/// Lengths of the messages: none, short ones, the longest that travels in the stream, longer ones.
const LENGTHS: [usize; 7] = [0, 1, 8, 1000, 1024, 1025, MESSAGE_BYTES];
const MESSAGE_BYTES: usize = 30_011;
/// Calls of progress after which a message that has not arrived never will.
const ROUNDS_MAX: usize = 10_000;
const TAG: i32 = 7;

/// The storage was NULL, not aligned to a line, or too small.
const BAD_STORAGE: c_int = -1;
/// The endpoint could not be set up.
const BAD_SETUP: c_int = -2;
/// A message did not arrive as it was sent.
const BAD_MESSAGE: c_int = -3;
/// A connection could not be closed.
const BAD_CLOSE: c_int = -4;

const fn storage_bytes() -> usize {
    LIMITS.machine_bytes()
        + LIMITS.regions_bytes()
        + Loopback::bytes(RAIL)
        + 2 * bytes_for::<u8>(MESSAGE_BYTES)
}

/// Bytes of storage that [`xtie_core_loopback_check`] asks for.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_core_loopback_bytes() -> usize {
    storage_bytes()
}

/// Opens an endpoint in the caller's storage, joins two of its connections, sends messages of
/// several lengths from one to the other, pulled and pushed, and compares every byte. 0: all
/// arrived; -1: the storage is NULL, not aligned to 64 bytes, or too small; -2, -3, -4: set-up,
/// message or closing went wrong. Touches nothing but the storage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_loopback_check(storage: *mut u8, bytes: usize) -> c_int {
    let aligned = !storage.is_null() && storage.addr().is_multiple_of(BLOCK_ALIGN);
    if !aligned || bytes < storage_bytes() {
        return BAD_STORAGE;
    }
    storage.expose_provenance(); // the rail reaches messages by address
    for pull in [true, false] {
        // SAFETY: aligned and long enough (above), valid and ours until the call returns (this
        // function's contract); the endpoint of the round before is gone.
        let mut carver = unsafe { Carver::new(storage, storage_bytes()) };
        if let Err(code) = check(&mut carver, pull) {
            return code;
        }
    }
    0
}

fn check(carver: &mut Carver<'_>, pull: bool) -> Result<(), c_int> {
    let mut pair = Pair::open(carver, pull).ok_or(BAD_SETUP)?;
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        pair.cross(length, seed as u8 + 1).ok_or(BAD_MESSAGE)?;
    }
    for connection in [A, B] {
        pair.close(connection).ok_or(BAD_CLOSE)?;
    }
    Ok(())
}

/// An endpoint whose two connections are joined, and a buffer for each.
struct Pair<'m> {
    endpoint: Endpoint<'m, Loopback<'m>>,
    source: (Handle, RawSlice),
    target: (Handle, RawSlice),
}

impl<'m> Pair<'m> {
    fn open(carver: &mut Carver<'m>, pull: bool) -> Option<Pair<'m>> {
        let regions = DataMrs::carve(carver, LIMITS.regions_max, 0).ok()?;
        let mut rail = Loopback::open(RAIL, carver).ok()?;
        rail.peer_open_at(PeerIndex(A.0), PeerIndex(B.0)).ok()?;
        let config = Config { eager_bytes_max: EAGER_BYTES, ..Config::default() };
        let mut endpoint = Endpoint::open(carver, LIMITS, config, regions, rail).ok()?;
        let mailboxes = endpoint.mailboxes();
        let domain = endpoint.rail().domain();
        // SAFETY: part of the block, which outlives the endpoint.
        let key = unsafe { domain.register(mailboxes.region()) }.ok()?;
        for (own, peer) in [(A, B), (B, A)] {
            let setup = ConnectionSetup {
                pull,
                mailbox: RemoteSpan { key, address: mailboxes.address(peer.0) },
                eager_bytes_max: EAGER_BYTES,
                credits: CREDITS,
                groups_max: LIMITS.groups_max(),
                lanes: 1,
                reserve: 0,
                probed: false,
                reads_runs: true,
                reads_filled: false,
                slots_in_rows: false,
            };
            endpoint.connection_open(own, &setup);
        }
        let mut buffer = || {
            let memory = carver.raw(MESSAGE_BYTES).ok()?;
            let region = Region {
                address: memory.start.expose_provenance() as u64,
                length: Bytes::of(MESSAGE_BYTES),
                kind: MemoryKind::Host,
            };
            let mut keys = [RailKey(0); 8];
            // SAFETY: part of the block, which outlives the endpoint.
            keys[0] = unsafe { domain.register(region) }.ok()?;
            // SAFETY: as above; `cross` touches it only while no request stands.
            let handle = unsafe { regions.insert(region, &keys) }?;
            Some((handle, memory))
        };
        Some(Pair { source: buffer()?, target: buffer()?, endpoint })
    }

    /// One message from A to B.
    fn cross(&mut self, length: usize, seed: u8) -> Option<()> {
        for at in 0..length {
            write(&self.source.1, at, byte_of(seed, at));
            write(&self.target.1, at, 0);
        }
        let address = |memory: &RawSlice| memory.start.expose_provenance() as u64;
        let (length, tag) = (length as u64, TAG);
        let message =
            Outgoing { region: self.source.0, address: address(&self.source.1), length, tag };
        let room =
            Incoming { region: self.target.0, address: address(&self.target.1), length, tag };
        let send = self.endpoint.isend(A, message).ok()?;
        let receive = self.endpoint.irecv(B, &[room]).ok()?;
        for request in [receive, send] {
            self.finish(request)?.result.ok()?;
        }
        let whole = (0..length as usize).all(|at| read(&self.target.1, at) == byte_of(seed, at));
        whole.then_some(())
    }

    fn finish(&mut self, request: RequestId) -> Option<Outcome> {
        for _ in 0..ROUNDS_MAX {
            if let Some(outcome) = self.endpoint.test(request).ok()? {
                return Some(outcome);
            }
            self.endpoint.progress(Instant(0), BUDGET);
        }
        None
    }

    fn close(&mut self, connection: ConnectionIndex) -> Option<()> {
        for _ in 0..ROUNDS_MAX {
            if self.endpoint.connection_close(connection).is_ok() {
                return Some(());
            }
            self.endpoint.progress(Instant(0), BUDGET);
        }
        None
    }
}

fn byte_of(seed: u8, at: usize) -> u8 {
    (at as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((at >> 8) as u8)
}

fn write(memory: &RawSlice, at: usize, byte: u8) {
    assert!(at < memory.length);
    // SAFETY: inside the slice (assert), which lies in the caller's storage; no request stands.
    unsafe { memory.start.add(at).write(byte) };
}

fn read(memory: &RawSlice, at: usize) -> u8 {
    assert!(at < memory.length);
    // SAFETY: inside the slice (assert), which lies in the caller's storage; no request stands.
    unsafe { memory.start.add(at).read() }
}
