//! What an endpoint has done, as counts.

use crate::guard;
use crate::handle::xtie_endpoint;
use crate::result::xtie_result::*;
use crate::structs::{Sized32, write};
use core::ffi::c_int;

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
    /// Connections that failed.
    pub failures: u64,
}

// SAFETY: integers without padding (two of 4 bytes, then of 8); the snapshot has the offsets.
unsafe impl Sized32 for xtie_stats {
    const FIRST_BYTES: usize = 112;
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
        let stats = entered.host.stats();
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
        };
        // SAFETY: null, or a structure whose size its first word says (crosstie.h).
        match unsafe { write(stats_out, &value) } {
            Ok(()) => XTIE_OK as c_int,
            Err(result) => entered.fail(&result),
        }
    })
}
