//! Reports about failed lanes: what is said, and whether a peer's is believed.

use crate::base::seq::Seq;
use crate::base::words::named;
use crate::fabric::Provider;
use crate::transport::mutant::Mutant;
use crate::transport::net::Net;
use crate::transport::rails::table::LaneState;
use crate::transport::recv::groups::Recvs;
use crate::transport::send::queue::Sends;
use crate::wire::RAILS_MAX;
use crate::wire::report::{LaneReport, LaneStatus, Report};

/// Control moves between two reports of an honest peer, at most: it tells of each lane that fails.
const EPOCHS_MAX: u32 = RAILS_MAX as u32;

/// Generations that a peer may be ahead of us in, of lanes that it dials: one a second for days.
const GENERATIONS_MAX: u32 = 1 << 20;

/// Receives that no peer keeps for one connection.
const CREDITS_FAR: i32 = 1 << 20;

named! {
    /// Why a report is not one that an honest peer writes. Its connection ends with
    /// [`RequestError::Protocol`](crate::transport::RequestError::Protocol).
    pub enum ReportError {
        Malformed = "its report about failed rails cannot be read",
        Number = "its report about failed rails is not the next one",
        Epoch = "its report skips epochs, or goes back to old ones",
        Lanes = "its report speaks of other rails than were agreed on",
        Generation = "it speaks of a rail in a generation that has not been",
        Through = "its report acknowledges what was never sent",
        Stripes = "its report claims stripes that were never written",
    }
}

/// What the peer is told about our lanes, and about what has come.
pub fn make<P: Provider>(net: &Net<'_, P>, recvs: &Recvs<'_>, index: usize, number: u32) -> Report {
    let c = &net.connections[index];
    let mut report = Report {
        number,
        epoch: c.control.epoch,
        delivered_mask: c.recv.arrived.mask(),
        delivered_through: c.recv.arrived.through().0,
        eager_through: c.recv.expected.0,
        credits_through: c.control.credits.now().0,
        groups_through: c.send.cursor.group.0,
        lane_count: c.rails.count,
        ..Report::EMPTY
    };
    for lane in 0..c.rails.count {
        let entry = net.lane(index, lane);
        let status = match entry.state {
            LaneState::Up | LaneState::Joining => LaneStatus::Up,
            LaneState::Failing if net.is_mutant(Mutant::AnswerBeforeFence) => LaneStatus::Fenced,
            LaneState::Failing => LaneStatus::Failing,
            LaneState::Down if entry.generation == 0 && lane != 0 => LaneStatus::Absent,
            LaneState::Fenced | LaneState::Down if net.is_mutant(Mutant::AnswerNever) => {
                LaneStatus::Failing
            }
            LaneState::Fenced | LaneState::Down => LaneStatus::Fenced,
        };
        let generation = entry.generation;
        report.lanes[usize::from(lane)] = LaneReport { generation, status };
    }
    let window = net.limits.requests_max;
    let oldest = Seq(c.recv.post.0.wrapping_sub(window));
    for ahead in 0..window {
        recvs.report_group(net, index, oldest.plus(ahead), &mut report);
    }
    report
}

/// Whether an honest peer may say that.
pub fn check<P: Provider>(
    net: &Net<'_, P>,
    sends: &Sends<'_>,
    index: usize,
    report: &Report,
) -> Result<(), ReportError> {
    let c = &net.connections[index];
    if report.lane_count != c.rails.count {
        return Err(ReportError::Lanes);
    }
    let moves = Seq(report.epoch).ahead_of(Seq(c.control.peer_epoch));
    if moves.unsigned_abs() > EPOCHS_MAX {
        return Err(ReportError::Epoch);
    }
    for (lane, said) in report.lanes.iter().enumerate() {
        if lane >= usize::from(c.rails.count) {
            if *said != LaneReport::default() {
                return Err(ReportError::Lanes);
            }
            continue;
        }
        // one that is absent has had no generation yet; any other has, and not one that would
        // be ages of redialling away
        let absent = said.status == LaneStatus::Absent;
        let ours = net.lane(index, lane as u8).generation;
        let ahead = said.generation.saturating_sub(ours);
        if absent != (said.generation == 0) || ahead > GENERATIONS_MAX {
            return Err(ReportError::Generation);
        }
    }
    let through = Seq(report.delivered_through);
    let last = through.plus(63u32.saturating_sub(report.delivered_mask.leading_zeros()));
    let beyond = Seq(report.eager_through).ahead_of(c.send.stream.number) > 0
        || through.ahead_of(c.send.number) > 0
        || (report.delivered_mask != 0 && last.ahead_of(c.send.number) >= 0)
        || Seq(report.credits_through).ahead_of(c.control.credits.consumed) > CREDITS_FAR
        || Seq(report.groups_through).ahead_of(c.recv.post) > 0;
    if beyond { Err(ReportError::Through) } else { entries_check(net, sends, index, report) }
}

fn entries_check<P: Provider>(
    net: &Net<'_, P>,
    sends: &Sends<'_>,
    index: usize,
    report: &Report,
) -> Result<(), ReportError> {
    for entry in report.entries() {
        let send = sends.send_by_token(net, index, entry.token);
        let posted = send.map_or(u64::MAX, |at| sends.records[at].posted);
        if entry.arrived & !posted != 0 {
            return Err(ReportError::Stripes);
        }
    }
    Ok(())
}
