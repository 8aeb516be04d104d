//! What a schedule is judged by: every request's end, beside the oracle.
#![forbid(unsafe_code)]

use super::schedule::{Direction, GroupRecord, Oracle, Tally};
use crosstie::transport::{Outcome, RequestError};

/// Whether a request ended because its connection did.
pub(super) fn ends_connection(outcome: &Outcome) -> bool {
    matches!(
        outcome.result,
        Err(RequestError::PeerClosed
            | RequestError::PeerDied
            | RequestError::Protocol
            | RequestError::PeerGaveUp
            | RequestError::RailsLost(_)
            | RequestError::NoAnswer
            | RequestError::Unfenced
            | RequestError::Silent
            | RequestError::Fabric(_))
    )
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
