//! Taking completions and reporting what they say.

use super::area::RECEIVES;
use super::completions::{Broken, Completions, Kind, Name};
use super::peer::State;
use super::peers::Peers;
use super::port::Port;
use super::report::ErrorReport;
use super::sends::Outcome;
use super::sys::abi::Wc;
use super::sys::numbers as n;
use crate::base::ids::PeerIndex;
use crate::fabric::{Completion, DownCause, HEAD_BYTES, OpError, RecvSlot};
use crate::provider::events::Events;
use crate::provider::touch;

/// A received message's name: its cell, and how long its payload is.
#[inline]
pub(super) fn slot_of(cell: u32, length: u32) -> RecvSlot {
    RecvSlot(u64::from(length) << 32 | u64::from(cell))
}

/// The inverse of [`slot_of`].
#[inline]
pub(super) fn slot_parts(slot: RecvSlot) -> (usize, u32) {
    ((slot.0 & 0xffff_ffff) as usize, (slot.0 >> 32) as u32)
}

impl Peers<'_> {
    /// Takes completions and reports, as long as there is room.
    #[inline]
    pub fn take(
        &mut self,
        completions: &mut Completions,
        port: &Port,
        events: &mut Events,
    ) -> Result<(), Broken> {
        completions.begin();
        while events.has_room()
            && let Some(wc) = completions.next()?
        {
            self.look(&wc, port, events);
        }
        Ok(())
    }

    #[inline]
    fn look(&mut self, wc: &Wc, port: &Port, events: &mut Events) {
        let name = Name::unpack(wc.wr_id);
        let index = usize::from(name.peer);
        let Some(record) = self.records.get_mut(index) else { return };
        let is_over = matches!(record.state, State::Closed | State::Drained);
        if is_over || record.generation != name.generation {
            return; // of a queue pair that is gone
        }
        match (name.kind, wc.status) {
            (Kind::LastSend, _) => record.draining.sends = true,
            // a queue pair that was not stopped may have received a word into it, and goes on
            (Kind::LastReceive, status) => {
                record.draining.receives |=
                    record.draining.is_stopped || status == n::WC_WR_FLUSH_ERR;
            }
            (Kind::Send, n::WC_SUCCESS) => {
                let (ring, domain) = (&mut self.sent[index], &self.domain);
                record.looks.heard |= record.sends.end_through(ring, domain, name.at);
                self.report(index, events);
            }
            (Kind::Receive, n::WC_SUCCESS) => self.received(index, name.at, wc, events),
            (Kind::Send | Kind::Receive, _) => self.failed(index, name, wc, port),
        }
    }

    /// Reports sends that have ended. `false`: not all found room; the next poll goes on.
    pub fn report(&mut self, index: usize, events: &mut Events) -> bool {
        let (sends, ring) = (&mut self.records[index].sends, &self.sent[index]);
        while let Some(sent) = sends.oldest(ring) {
            if let Outcome::Loud(result) = sent.outcome {
                if !events.has_room() {
                    self.owe(index);
                    return false;
                }
                let peer = PeerIndex(index as u32);
                events.push(Completion::Done { peer, id: sent.id, result });
                sends.in_flight -= 1;
            }
            sends.reported = sends.reported.wrapping_add(1);
        }
        true
    }

    #[cold]
    fn owe(&mut self, index: usize) {
        let owing = self.owing.len();
        let known = (0..owing).any(|n| *self.owing.at_mut(n) == index as u32);
        if !known {
            self.owing.push(index as u32);
        }
    }

    /// Reports what found no room the last time.
    #[inline]
    pub fn report_owed(&mut self, events: &mut Events) {
        while events.has_room()
            && let Some(index) = self.owing.pop()
        {
            self.report(index as usize, events);
        }
    }

    /// Reports fences that are over, and ops that were refused.
    #[inline]
    pub fn report_asides(&mut self, events: &mut Events) {
        while events.has_room()
            && let Some(aside) = self.asides.take_done()
        {
            self.records[aside.peer.as_usize()].sends.in_flight -= 1;
            events.push(aside.completion());
        }
    }

    #[inline]
    fn received(&mut self, index: usize, cell: u32, wc: &Wc, events: &mut Events) {
        let record = &mut self.records[index];
        record.looks.heard = true;
        if record.is_fenced || cell as usize >= RECEIVES {
            return;
        }
        let peer = PeerIndex(index as u32);
        if wc.opcode == n::WC_RECV_IMM {
            let immediate = u32::from_be(wc.imm_data);
            events.push(Completion::Immediate { peer, immediate });
            return self.receive_again(index, cell as usize);
        }
        let Some(length) = wc.byte_len.checked_sub(HEAD_BYTES as u32) else {
            return self.end(index, DownCause::Failed);
        };
        record.receives.held |= 1 << cell;
        let mut head = [0; HEAD_BYTES];
        // SAFETY: a cell that the device has filled, and does not touch until it is posted again.
        unsafe { touch::copy_in(self.area.head(index, cell as usize) as u64, &mut head) };
        events.push(Completion::Received { peer, slot: slot_of(cell, length), head, length });
    }

    /// A request failed: the first of its queue pair takes the others with it.
    #[cold]
    fn failed(&mut self, index: usize, name: Name, wc: &Wc, port: &Port) {
        let was_send = name.kind == Kind::Send;
        let local = port.place.gid;
        let record = &mut self.records[index];
        let (status, vendor) = (wc.status, wc.vendor_err);
        let report = ErrorReport { status, vendor, was_send, local, remote: record.terms.gid };
        let is_flush = status == n::WC_WR_FLUSH_ERR;
        let says_more = match record.report {
            None => true,
            Some(before) => before.status == n::WC_WR_FLUSH_ERR && !is_flush,
        };
        if says_more {
            record.report = Some(report);
        }
        if was_send && !is_flush {
            let error = OpError { kind: report.kind(), code: report.errno() };
            record.sends.fail(&mut self.sent[index], name.at, error);
        }
        self.end(index, cause_of(&report, port));
    }
}

/// Why a peer is gone of which a request failed: where packets get lost, or the device takes none,
/// as soft-RoCE does, and the port is down, the port is why.
#[cold]
fn cause_of(report: &ErrorReport, port: &Port) -> DownCause {
    match report.cause() {
        DownCause::Broken(libc::EIO | libc::ETIMEDOUT) if port.is_down() => {
            DownCause::Broken(libc::ENETDOWN)
        }
        cause => cause,
    }
}
