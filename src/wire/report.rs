//! W10: the report, by which the ends of a connection agree on what a failed rail has carried.

use super::{DecodeError, RAILS_MAX};

/// Most sub-receives that one report speaks of: no more long messages are undelivered at a time.
pub const ENTRIES_MAX: usize = 64;

const LANES_AT: usize = 40;
const ENTRIES_AT: usize = LANES_AT + RAILS_MAX * LANE_BYTES;
const LANE_BYTES: usize = 8;
const ENTRY_BYTES: usize = 12;

/// Longest report.
pub const REPORT_BYTES_MAX: usize = ENTRIES_AT + ENTRIES_MAX * ENTRY_BYTES;

/// What the writer says of one lane.
///
/// `Up` and `Failing` also say of all generations before that they are `Fenced`: who opens a lane
/// anew has fenced its last use, and may have had no report under way that said so. A reader keeps
/// what it is told of generations that it has yet to open, since it is told once.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(u8)]
pub enum LaneStatus {
    /// The connection has no such lane, or it has never come up.
    #[default]
    Absent = 0,
    /// It is in use, or about to be.
    Up = 1,
    /// The writer posts nothing on it any more; the reader is to fence it.
    Failing = 2,
    /// Nothing that the reader posted in this generation can reach the writer any more; the report
    /// says what has.
    Fenced = 3,
}

/// One lane of a report.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct LaneReport {
    /// Which use of the lane.
    pub generation: u32,
    /// How it is.
    pub status: LaneStatus,
}

/// The stripes of one open receive that have arrived.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct StripesReport {
    /// The receive, as W6 names it.
    pub token: u32,
    /// A bit for each stripe.
    pub arrived: u64,
}

/// W10. What has arrived, and which lanes are fenced.
#[derive(Copy, Clone, Debug)]
pub struct Report {
    /// Counts the writer's reports on this connection, from 1. One that is sent again, because the
    /// lane that carried it died, keeps its number.
    pub number: u32,
    /// The writer's control epoch: what its slots, cells and state lines say from now on.
    pub epoch: u32,
    /// As in W5.
    pub delivered_mask: u64,
    /// As in W5.
    pub delivered_through: u32,
    /// As in W5.
    pub eager_through: u32,
    /// As in W5.
    pub credits_through: u32,
    /// As in W5.
    pub groups_through: u32,
    /// By lane.
    pub lanes: [LaneReport; RAILS_MAX],
    /// How many of `lanes` the connection has.
    pub lane_count: u8,
    /// How many of `entries` count.
    pub entry_count: u8,
    /// Open receives of which stripes have arrived.
    pub entries: [StripesReport; ENTRIES_MAX],
}

impl Report {
    /// Says nothing.
    pub const EMPTY: Report = Report {
        number: 0,
        epoch: 0,
        delivered_mask: 0,
        delivered_through: 0,
        eager_through: 0,
        credits_through: 0,
        groups_through: 0,
        lanes: [LaneReport { generation: 0, status: LaneStatus::Absent }; RAILS_MAX],
        lane_count: 0,
        entry_count: 0,
        entries: [StripesReport { token: 0, arrived: 0 }; ENTRIES_MAX],
    };

    /// Length of a report with `entries` entries.
    pub const fn bytes(entries: usize) -> usize {
        ENTRIES_AT + entries * ENTRY_BYTES
    }

    /// Writes it; says how many bytes count.
    pub fn encode(&self, out: &mut [u8; REPORT_BYTES_MAX]) -> usize {
        out[..ENTRIES_AT].fill(0);
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.number.to_le_bytes());
        put(4, &self.epoch.to_le_bytes());
        put(8, &self.delivered_mask.to_le_bytes());
        put(16, &self.delivered_through.to_le_bytes());
        put(20, &self.eager_through.to_le_bytes());
        put(24, &self.credits_through.to_le_bytes());
        put(28, &self.groups_through.to_le_bytes());
        put(32, &[self.lane_count, self.entry_count]);
        for (at, lane) in self.lanes.iter().enumerate() {
            put(LANES_AT + at * LANE_BYTES, &lane.generation.to_le_bytes());
            put(LANES_AT + at * LANE_BYTES + 4, &[lane.status as u8]);
        }
        let count = usize::from(self.entry_count).min(ENTRIES_MAX);
        for (at, entry) in self.entries[..count].iter().enumerate() {
            put(ENTRIES_AT + at * ENTRY_BYTES, &entry.token.to_le_bytes());
            put(ENTRIES_AT + at * ENTRY_BYTES + 4, &entry.arrived.to_le_bytes());
        }
        Report::bytes(count)
    }

    /// Reads one, of exactly the length that its entries say.
    pub fn decode(bytes: &[u8]) -> Result<Report, DecodeError> {
        if bytes.len() < ENTRIES_AT {
            return Err(DecodeError::Short);
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (lane_count, entry_count) = (bytes[32], bytes[33]);
        let lanes_known = (1..=RAILS_MAX as u8).contains(&lane_count);
        if !lanes_known || usize::from(entry_count) > ENTRIES_MAX {
            return Err(DecodeError::Field);
        }
        if bytes.len() != Report::bytes(usize::from(entry_count)) {
            return Err(DecodeError::Short);
        }
        let mut report = Report {
            number: word(0),
            epoch: word(4),
            delivered_mask: long(8),
            delivered_through: word(16),
            eager_through: word(20),
            credits_through: word(24),
            groups_through: word(28),
            lane_count,
            entry_count,
            ..Report::EMPTY
        };
        for (at, lane) in report.lanes.iter_mut().enumerate() {
            lane.generation = word(LANES_AT + at * LANE_BYTES);
            lane.status = match bytes[LANES_AT + at * LANE_BYTES + 4] {
                0 => LaneStatus::Absent,
                1 => LaneStatus::Up,
                2 => LaneStatus::Failing,
                3 => LaneStatus::Fenced,
                _ => return Err(DecodeError::Field),
            };
        }
        for (at, entry) in report.entries[..usize::from(entry_count)].iter_mut().enumerate() {
            entry.token = word(ENTRIES_AT + at * ENTRY_BYTES);
            entry.arrived = long(ENTRIES_AT + at * ENTRY_BYTES + 4);
        }
        Ok(report)
    }

    /// The entries that count.
    pub fn entries(&self) -> &[StripesReport] {
        &self.entries[..usize::from(self.entry_count).min(ENTRIES_MAX)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Report {
        let mut report = Report { number: 7, epoch: 3, lane_count: 2, ..Report::EMPTY };
        report.delivered_mask = 0x8000_0000_0000_0001;
        (report.delivered_through, report.eager_through) = (5, 6);
        (report.credits_through, report.groups_through) = (48, 9);
        report.lanes[0] = LaneReport { generation: 1, status: LaneStatus::Fenced };
        report.lanes[1] = LaneReport { generation: 4, status: LaneStatus::Up };
        report.entries[0] = StripesReport { token: 0x1_0002, arrived: 0b101 };
        report.entry_count = 1;
        report
    }

    #[test]
    fn what_was_written_is_read() {
        let mut bytes = [0xff; REPORT_BYTES_MAX];
        let length = sample().encode(&mut bytes);
        assert_eq!(length, Report::bytes(1));
        let read = Report::decode(&bytes[..length]).unwrap();
        assert_eq!(std::format!("{read:?}"), std::format!("{:?}", sample()));
    }

    #[test]
    fn what_no_writer_says_is_refused() {
        let mut bytes = [0; REPORT_BYTES_MAX];
        let length = sample().encode(&mut bytes);
        for cut in 0..length {
            assert_eq!(Report::decode(&bytes[..cut]).err(), Some(DecodeError::Short));
        }
        assert_eq!(Report::decode(&bytes[..length + 1]).err(), Some(DecodeError::Short));
        for (at, value) in [(32, 0), (32, 9), (33, 65), (LANES_AT + 4, 4)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(Report::decode(&wrong[..length]).err(), Some(DecodeError::Field), "{at}");
        }
    }
}
