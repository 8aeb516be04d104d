//! What a schedule is judged by: every request's end, beside the oracle.
#![forbid(unsafe_code)]

use super::lanes;
use super::oracle::Oracle;
use super::world::{Direction, GroupRecord};
use crosstie::transport::{Outcome, RequestError};
use crosstie_kit::sim::SimCounts;

/// How requests ended, and what the network did.
#[derive(Copy, Clone, Default, Debug)]
pub struct Tally {
    /// The network's counts.
    pub network: SimCounts,
    /// Calls of the user.
    pub calls: u64,
    /// Messages that arrived whole.
    pub delivered: u64,
    /// Messages longer than their receive.
    pub truncated: u64,
    /// Receives that were withdrawn.
    pub canceled: u64,
    /// Requests that ended because the connection did.
    pub failed: u64,
    /// Messages sent unasked before their receive was posted.
    pub unexpected: u64,
    /// Messages pushed in stripes.
    pub pushed: u64,
    /// Messages pulled.
    pub pulled: u64,
    /// What became of lanes.
    pub lanes: lanes::Counts,
}

/// Compares how the requests of one direction ended with what the oracle says.
pub(super) fn check_direction(
    direction: &Direction,
    judge: Oracle,
    tally: &mut Tally,
) -> Result<(), String> {
    let (pairing, kept) = direction.pairing_by(judge);
    tally.canceled += (direction.groups.len() - kept.len()) as u64;
    for (messages, at) in pairing.messages.iter().zip(kept) {
        let group = &direction.groups[at];
        let outcome = group.outcome.ok_or("a group has no outcome")?;
        match outcome.result {
            Ok(()) | Err(RequestError::Truncated) => {
                check_group(direction, group, &outcome, messages, tally)?;
            }
            Err(_) => tally.failed += 1,
        }
    }
    Ok(())
}

fn check_group(
    direction: &Direction,
    group: &GroupRecord,
    outcome: &Outcome,
    messages: &[Option<usize>],
    tally: &mut Tally,
) -> Result<(), String> {
    let mut truncated = false;
    for (receive, message) in messages.iter().enumerate() {
        let message = message.ok_or("a receive ended well that nothing was sent to")?;
        let sent = direction.sends[message].sent;
        let room = group.rooms[receive].1;
        if outcome.lengths[receive] != sent.length as u64 {
            return Err(format!("receive {receive} has another length: {outcome:?}, {sent:?}"));
        }
        if sent.length > room {
            truncated = true;
            tally.truncated += 1;
            continue;
        }
        group.held[receive]
            .check(sent.length, sent.seed)
            .map_err(|what| format!("receive {receive} of {message}, {sent:?}: {what}"))?;
        tally.delivered += 1;
    }
    match (truncated, outcome.result) {
        (true, Err(RequestError::Truncated)) | (false, Ok(())) => Ok(()),
        _ => Err(format!("truncation was told wrongly: {outcome:?}")),
    }
}
