//! What an endpoint has done, as counts.

use crate::connection::{
    XTIE_RAIL_LIBFABRIC, XTIE_RAIL_LOOPBACK, XTIE_RAIL_SHARED_MEMORY, XTIE_RAIL_TCP,
    XTIE_RAIL_VENDOR, XTIE_RAIL_VERBS,
};
use crate::errors::Ended;
use crate::guard;
use crate::handle::{untag, xtie_connection, xtie_endpoint};
use crate::result::xtie_result::*;
use crate::structs::{Sized32, write};
use core::ffi::{c_char, c_int};
use crosstie::host::endpoint::ConnectionRail;
use crosstie::host::{END_BYTES_MAX, RailEnd, RailView};
use crosstie::transport::SubmitError;
use crosstie::transport::rail::LaneState;

/// Counts since an endpoint was opened. Set struct_size before xtie_endpoint_stats.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_stats {
    /// sizeof(xtie_stats).
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Messages accepted by xtie_connection_isend.
    pub sends: u64,
    /// Bytes of those messages.
    pub send_bytes: u64,
    /// Messages that ended in a receive.
    pub receives: u64,
    /// Bytes of those messages.
    pub receive_bytes: u64,
    /// Messages that were copied through the stream of short messages.
    pub eager: u64,
    /// Messages that the receiver read out of the sender's memory.
    pub pulled: u64,
    /// Messages that the sender wrote into the receiver's memory.
    pub pushed: u64,
    /// Messages that arrived before their receive was offered.
    pub unexpected: u64,
    /// Messages longer than their receive.
    pub truncated: u64,
    /// Sends that had to wait for room.
    pub queued: u64,
    /// Times that a rail had no room.
    pub again: u64,
    /// Control messages about what has arrived.
    pub state_lines: u64,
    /// Connections that failed: those that either side closed are not among them.
    pub failures: u64,
    /// Bytes that a copy engine brought from a GPU into a GPU's memory of this process.
    pub gpu_engine_bytes: u64,
    /// Bytes from or to a GPU that came to memory of this process through memory of the host.
    pub gpu_staged_bytes: u64,
}

// SAFETY: integers without padding (two of 4 bytes, then of 8); the snapshot has the offsets.
unsafe impl Sized32 for xtie_stats {
    const EARLIER_BYTES: &'static [usize] = &[112];
}

/// ---- Statistics --------------------------------------------------------------------------------
///
/// Counts since the endpoint was opened.
///
/// stats_out: with struct_size set; the rest is filled.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE.
/// Threads: the endpoint's. Cost: a copy; counting costs the data path nothing to speak of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_stats(
    endpoint: *mut xtie_endpoint,
    stats_out: *mut xtie_stats,
) -> c_int {
    guard::data(endpoint, |mut entered| {
        let (stats, copied) = (entered.host.stats(), entered.host.copied());
        let value = xtie_stats {
            struct_size: 0,
            reserved: 0,
            sends: stats.sends,
            send_bytes: stats.send_bytes,
            receives: stats.receives,
            receive_bytes: stats.receive_bytes,
            eager: stats.eager,
            pulled: stats.pulled,
            pushed: stats.pushed,
            unexpected: stats.unexpected,
            truncated: stats.truncated,
            queued: stats.queued,
            again: stats.again,
            state_lines: stats.state_lines,
            failures: stats.failures,
            gpu_engine_bytes: copied.engine_bytes,
            gpu_staged_bytes: copied.staged_bytes,
        };
        // SAFETY: null, or a structure whose size its first word says (crosstie.h).
        match unsafe { write(stats_out, &value) } {
            Ok(()) => XTIE_OK as c_int,
            Err(result) => entered.fail(&result),
        }
    })
}

/// State of a rail: not in use; it was never up, or is being connected again.
pub const XTIE_RAIL_STATE_DOWN: u32 = 0;
/// State of a rail: connected, and the peer has not said that it is there too.
pub const XTIE_RAIL_STATE_JOINING: u32 = 1;
/// State of a rail: in use.
pub const XTIE_RAIL_STATE_UP: u32 = 2;
/// State of a rail: it failed, and what was on it is being stopped.
pub const XTIE_RAIL_STATE_FAILING: u32 = 3;
/// State of a rail: it failed and is stopped; the peer has not said what it had carried.
pub const XTIE_RAIL_STATE_FENCED: u32 = 4;

/// Bytes of the text of a rail's end, with the zero behind it.
pub const XTIE_ADDRESS_BYTES: usize = 64;

/// One rail of a connection. Set struct_size before xtie_connection_rail_stats.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_rail_stats {
    /// sizeof(xtie_rail_stats).
    pub struct_size: u32,
    /// One of XTIE_RAIL_STATE_.
    pub state: u32,
    /// Which use of it this is: higher each time it comes up, the same at both sides.
    pub generation: u32,
    /// The system's code (errno) of its last failure, kept when it is up again; 0: it has not
    /// failed. ETIMEDOUT: it was silent; ECONNRESET: also when its socket just ended, or the peer
    /// gave it up first. Of a vendor's rail its provider's code; 0 also where that gave none, or
    /// the peer gave the rail up first.
    pub code: i32,
    /// 1: it carries this side's control messages and short messages.
    pub control: u32,
    /// What it is: XTIE_RAIL_SHARED_MEMORY, XTIE_RAIL_TCP, XTIE_RAIL_VERBS,
    /// XTIE_RAIL_LIBFABRIC, XTIE_RAIL_VENDOR or XTIE_RAIL_LOOPBACK.
    pub rail: u32,
    /// Bytes of long messages that this side has sent on it. What is received is not counted: a
    /// side that only receives has 0 here, and its peer has the number.
    pub bytes: u64,
    /// Parts of long messages posted on it.
    pub stripes: u64,
    /// Parts that it lost, and that moved to other rails.
    pub moved: u64,
    /// Times that it failed.
    pub failures: u64,
    /// Times that it came up behind the connection.
    pub joins: u64,
    /// Bytes per second as measured lately; 0: not known, as of a rail that has carried little.
    pub speed: u64,
    /// This side's end, or what it was when the rail was up last; empty: nothing is known. Of TCP
    /// where its first socket begins, `10.77.1.2:40112` or `[fd00::2]:40112`: the interface that
    /// has this address is the rail's. Of an RDMA port the address of its GID, with port 0. Of
    /// libfabric provider and domain (the NIC), `efa rdmap0s6-rdm`, and behind them the endpoint's
    /// address where that is one of a socket and there is room, `tcp;ofi_rxm eth0 10.77.1.2:40112`.
    /// Of a vendor's rail its name (xtie_vendor_rail). Of shared memory nothing.
    pub local: [c_char; XTIE_ADDRESS_BYTES],
    /// The peer's end, as an address likewise; empty where that is of another kind, as of EFA, or
    /// there is none, as of a vendor's rail.
    pub remote: [c_char; XTIE_ADDRESS_BYTES],
}

// SAFETY: integers without padding (six of 4 bytes, six of 8, 128 of 1); the snapshot has the
// offsets.
unsafe impl Sized32 for xtie_rail_stats {
    const EARLIER_BYTES: &'static [usize] = &[72];
}

/// How one rail of a connection is, and what it has carried. Where rails_max is 1 on either side,
/// or the connection runs over shared memory alone, or only one rail was made, there is rail 0
/// alone, and its counts are zero: xtie_endpoint_stats has them.
///
/// connection: open.
/// rail: from 0; the first number that is not known ends a loop over them.
/// stats_out: with struct_size set; the rest is filled.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE, XTIE_ERR_CONNECTION, XTIE_ERR_RAIL; of a
///     connection that nothing was sent or received on yet also XTIE_AGAIN, where its place is
///     still being left: make progress first; or the cause, where it cannot be used.
/// Threads: the endpoint's. Cost: a copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_connection_rail_stats(
    endpoint: *mut xtie_endpoint,
    connection: *const xtie_connection,
    rail: u32,
    stats_out: *mut xtie_rail_stats,
) -> c_int {
    guard::data(endpoint, |mut entered| {
        let view = match entered.host.rail_view(untag(connection), rail) {
            Ok(Some(known)) => known,
            Ok(None) => return entered.fail(&XTIE_ERR_RAIL),
            Err(SubmitError::Again) => return XTIE_AGAIN as c_int,
            Err(error) => return entered.fail(&Ended::submit(error, untag(connection))),
        };
        let RailView { lane: view, rail: kind, ends } = view;
        let [local, remote] = ends.map(text_of);
        let value = xtie_rail_stats {
            struct_size: 0,
            state: match view.state {
                LaneState::Down => XTIE_RAIL_STATE_DOWN,
                LaneState::Joining => XTIE_RAIL_STATE_JOINING,
                LaneState::Up => XTIE_RAIL_STATE_UP,
                LaneState::Failing => XTIE_RAIL_STATE_FAILING,
                LaneState::Fenced => XTIE_RAIL_STATE_FENCED,
            },
            generation: view.generation,
            code: view.code,
            control: view.control.into(),
            rail: match kind {
                ConnectionRail::Shm => XTIE_RAIL_SHARED_MEMORY,
                ConnectionRail::Tcp => XTIE_RAIL_TCP,
                ConnectionRail::Loopback => XTIE_RAIL_LOOPBACK,
                ConnectionRail::Verbs => XTIE_RAIL_VERBS,
                ConnectionRail::Libfabric => XTIE_RAIL_LIBFABRIC,
                ConnectionRail::Vendor => XTIE_RAIL_VENDOR,
            },
            bytes: view.stats.bytes,
            stripes: view.stats.stripes,
            moved: view.stats.moved,
            failures: view.stats.failures,
            joins: view.stats.joins,
            speed: view.speed,
            local,
            remote,
        };
        // SAFETY: null, or a structure whose size its first word says (crosstie.h).
        match unsafe { write(stats_out, &value) } {
            Ok(()) => XTIE_OK as c_int,
            Err(result) => entered.fail(&result),
        }
    })
}

fn text_of(end: RailEnd) -> [c_char; XTIE_ADDRESS_BYTES] {
    const { assert!(END_BYTES_MAX < XTIE_ADDRESS_BYTES) };
    let mut text = [0; XTIE_ADDRESS_BYTES];
    for (place, byte) in text.iter_mut().zip(end.as_bytes()) {
        *place = *byte as c_char;
    }
    text
}
