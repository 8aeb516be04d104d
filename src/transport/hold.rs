//! How long slots are held back: as long as messages keep coming as fast as they did.
#![forbid(unsafe_code)]

use super::limits::{HELD_GAP_MAX_US, HELD_GAPS, HELD_SPAN};
use super::records::Connection;
use crate::base::units::Instant;

/// A moment in microseconds that wrap; never 0, unless the moment is not known.
const fn micros(now: Instant) -> u32 {
    let us = (now.0 / 1000) as u32;
    if us == 0 && now.0 != 0 { 1 } else { us }
}

impl Connection {
    /// Whether nothing has come since slots are held back, for so long that they wait no more.
    pub const fn is_held_idle(&self, now: Instant) -> bool {
        let since_us = micros(now).wrapping_sub(self.held_since_us);
        self.holds
            && self.held_since_us != 0
            && self.held_at == self.eager_expected.0 as u16
            && since_us >= self.held_us()
    }

    /// How long slots are held back when nothing comes, in microseconds.
    const fn held_us(&self) -> u32 {
        let (least, gap) = ((HELD_SPAN.0 / 1000) as u32, self.gap_us as u32);
        let expected = gap * HELD_GAPS;
        if gap <= HELD_GAP_MAX_US && expected > least { expected } else { least }
    }

    /// Notes from when on slots are held back.
    pub const fn held_from(&mut self, now: Instant) {
        let (now_us, at) = (micros(now), self.eager_expected.0 as u16);
        let came = at.wrapping_sub(self.held_at) as u32;
        if came != 0 && self.held_since_us != 0 && now_us != 0 {
            let gap = now_us.wrapping_sub(self.held_since_us) / came;
            self.gap_us = if gap < u16::MAX as u32 { gap as u16 } else { u16::MAX };
        }
        (self.held_since_us, self.held_at) = (now_us, at);
    }
}
