//! Opening a peer: its queue pair, from nothing to sending.

use super::area::RECEIVES;
use super::choice::gid::{self, Family};
use super::completions::Name;
use super::domain::is_refusal;
use super::mtu::mtu_code;
use super::neighbour::is_known;
use super::peer::{Down, State};
use super::port::OtherEnd;
use super::rail::Verbs;
use super::sends::SENDS;
use super::sys::abi::{Ece, Gid, QpCap, QpInitAttr};
use super::sys::{QueuePair, numbers as n};
use super::{PeerOpenError, Step};
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::memory::Errno;
use crate::wire::queue_pair::QueuePairHello;
use core::ffi::c_int;
use core::mem::ManuallyDrop;

/// Bytes that are asked for inline: a head and a payload of some words, or of a few; a line.
/// Devices give more, or refuse: then fewer are asked for, and last what they give unasked.
const INLINE_BYTES: [u32; 4] = [220, 96, 64, 0];
/// What is posted on every queue pair.
const KINDS: u64 = n::QP_EX_WRITE | n::QP_EX_WRITE_IMM | n::QP_EX_SEND | n::QP_EX_READ;

fn at(step: Step) -> impl Fn(Errno) -> PeerOpenError {
    move |errno| PeerOpenError::Refused(step, errno)
}

impl Verbs<'_> {
    /// Makes the queue pair of a closed peer, posts its receives, and says what the other end must
    /// know. `first_packet` is a number that an earlier connection's late packets will not have.
    ///
    /// *Cost*: control path; the library and the kernel allocate, and pages are pinned.
    pub fn peer_prepare(
        &mut self,
        peer: PeerIndex,
        generation: RailGeneration,
        first_packet: u32,
    ) -> Result<QueuePairHello, PeerOpenError> {
        let index = peer.as_usize();
        match self.peers.get(peer) {
            Some(record) if record.state == State::Closed => {}
            Some(_) | None => return Err(PeerOpenError::Index),
        }
        // an address may have moved on without a word, and its place gone to another
        self.check().map_err(at(Step::GidNow))?;
        if self.port.health.is_lost() {
            return Err(PeerOpenError::RailLost);
        }
        let before = &self.peers.records[index];
        let used = before.generation.wrapping_add(1) & Name::GENERATION_MASK;
        self.peers.records[index] = before.closed(used);
        if let Err(error) = self.prepare(index) {
            self.peers.close(index);
            return Err(error);
        }
        let first_packet = first_packet & 0xff_ffff;
        let record = &mut self.peers.records[index];
        record.terms.first_packet = first_packet;
        record.terms.mtu_code = mtu_code(self.port.mtu_bytes) as u8;
        record.terms.offered = self.extensions;
        self.peers.open += 1;
        let qp = record.pair();
        let number = qp.number();
        let library = self.domain.shared().device().library();
        let ece = if self.extensions { qp.extensions(library) } else { Ece::NONE };
        Ok(QueuePairHello {
            gid: u128::from_le_bytes(self.port.place.gid.0),
            number,
            first_packet,
            mtu_bytes: self.port.mtu_bytes,
            receives: RECEIVES as u32,
            payload_bytes_max: self.peers.abilities.payload_bytes_max,
            generation: generation.0,
            lid: self.port.lid,
            reads_max: self.peers.abilities.answers_max.into(),
            link_layer: if self.port.is_ethernet { 2 } else { 1 },
            ece_vendor: ece.vendor_id,
            ece_options: ece.options,
        })
    }

    fn prepare(&mut self, index: usize) -> Result<(), PeerOpenError> {
        let shared = self.domain.shared();
        let part = self.peers.area.part(index) as u64;
        let access = n::ACCESS_LOCAL_WRITE;
        // SAFETY: the peer's part of the reserve, which outlives the registration.
        let mr = unsafe { shared.pd().register(part, self.peers.area.part_bytes(), access, false) };
        let mr = mr.map_err(at(Step::Buffers))?;
        self.peers.records[index].lkey = mr.lkey();
        self.peers.records[index].mr = ManuallyDrop::new(Some(mr));
        let (qp, inline_max, parts_max) = self.queue_pair_create().map_err(at(Step::QueuePair))?;
        let record = &mut self.peers.records[index];
        record.qp = ManuallyDrop::new(Some(qp));
        record.terms.inline_max = inline_max;
        record.terms.parts_max = parts_max;
        record.state = State::Prepared;
        let (port, pair) = (&self.port, record.pair());
        let initialised = shared.with_access(|access| port.begin(pair, access));
        initialised.map_err(at(Step::Init))?;
        record.receives.due = !record.receives.held;
        self.peers.receives_post(index).map_err(at(Step::Receives))
    }

    /// A queue pair, how many bytes its posts may copy, and how many parts they may have: one that
    /// posts by the extended interface where that is wanted and the driver has it. What a device
    /// says of parts is no promise, and of inline bytes it says nothing: what it refuses is asked
    /// for again, first with a single part, which costs less than to copy nothing.
    fn queue_pair_create(&mut self) -> Result<(QueuePair, u32, u8), Errno> {
        let kinds = match self.peers.abilities.has_atomics {
            true => KINDS | n::QP_EX_FETCH_ADD,
            false => KINDS,
        };
        let make = |inline: u32, parts: u8, extended: bool| {
            let cap = QpCap {
                max_send_wr: SENDS + 1, // and a marker
                max_recv_wr: RECEIVES as u32 + 1,
                max_send_sge: parts.into(),
                max_recv_sge: 1,
                max_inline_data: inline,
            };
            let mut init = QpInitAttr::reliable(self.completions.queue.as_ptr(), cap);
            let shared = self.domain.shared();
            let (device, pd) = (shared.device(), shared.pd());
            let qp = match extended {
                // SAFETY: the rail's completion queue, which it drops after its queue pairs.
                true => unsafe { QueuePair::create_extended(device, pd, &mut init, kinds) },
                // SAFETY: as above.
                false => unsafe { QueuePair::create(device, pd, &mut init) },
            };
            Ok((qp?, init.cap.max_inline_data, parts))
        };
        let with = |inline, extended| match make(inline, self.peers.abilities.parts_max, extended) {
            Err(_) if self.peers.abilities.parts_max > 1 => make(inline, 1, extended),
            made => made,
        };
        let of = |extended| {
            let [first, fewer @ ..] = INLINE_BYTES;
            let asked = with(first, extended);
            fewer.into_iter().fold(asked, |asked, inline| asked.or_else(|_| with(inline, extended)))
        };
        match self.extended_post {
            true => of(true).or_else(|_| of(false)),
            false => of(false),
        }
    }

    /// Joins a prepared peer to its other end, whose hello has been decoded. Ops are accepted from
    /// now on. When it fails, the peer is closed, but for [`PeerOpenError::NoAnswer`].
    ///
    /// *Cost*: control path; nobody is waited for.
    pub fn peer_connect(
        &mut self,
        peer: PeerIndex,
        other: &QueuePairHello,
    ) -> Result<(), PeerOpenError> {
        let index = peer.as_usize();
        match self.peers.get(peer) {
            Some(record) if record.state == State::Prepared => {}
            Some(_) | None => return Err(PeerOpenError::Index),
        }
        let joined = self.join(index, other);
        if joined.is_err_and(|error| error != PeerOpenError::NoAnswer) {
            self.peers.close(index);
            self.peers.open -= 1;
        }
        joined
    }

    fn join(&mut self, index: usize, other: &QueuePairHello) -> Result<(), PeerOpenError> {
        if (other.link_layer == 2) != self.port.is_ethernet {
            return Err(PeerOpenError::LinkLayer);
        }
        // with those that wait to be posted again, what is promised (`Caps::recv_slots`)
        if other.receives < RECEIVES as u32 {
            return Err(PeerOpenError::Receives(other.receives));
        }
        let (gid, place) = (Gid(other.gid.to_le_bytes()), self.port.place);
        let (ours, theirs) = (gid::Gid(place.gid.0), gid::Gid(gid.0));
        let is_v2 = self.port.is_ethernet && place.kind == Some(n::GID_ROCE_V2);
        // the kernel refuses it, and a device that does not would send what nobody takes
        if is_v2 && Family::of(ours.ip()) != Family::of(theirs.ip()) {
            return Err(PeerOpenError::Families(ours, theirs));
        }
        if !is_known(place.interface, ours.ip(), theirs.ip()) {
            return Err(PeerOpenError::NoAnswer);
        }
        let ece = self.agree(index, other);
        let ece = ece.map_err(|error| self.extensions_refused(Step::Extensions, error))?;
        let (theirs, abilities) = (mtu_code(other.mtu_bytes), self.peers.abilities);
        let record = &mut self.peers.records[index];
        record.terms.mtu_code_theirs = theirs as u8;
        let end = OtherEnd {
            number: other.number,
            gid,
            lid: other.lid,
            first_packet: other.first_packet,
            mtu_code: c_int::from(record.terms.mtu_code).min(theirs),
            answers_max: abilities.answers_max,
        };
        self.port.join(record.pair(), &end).map_err(|error| match ece.options {
            0 => at(Step::ReadyToReceive)(error),
            // bits that both have may make no sense together
            _ => self.extensions_refused(Step::ReadyToReceive, error),
        })?;
        let record = &mut self.peers.records[index];
        let (first_packet, reads) = (record.terms.first_packet, other.reads_max as u8);
        let reads = reads.min(abilities.reads_max);
        let started = self.port.start(record.pair(), first_packet, reads);
        started.map_err(at(Step::ReadyToSend))?;
        record.terms.gid = gid;
        record.terms.payload_bytes_max = other.payload_bytes_max.min(abilities.payload_bytes_max);
        record.state = State::Live;
        record.down = Down::No;
        Ok(())
    }

    /// Extensions that both ends have are used, those of one vendor alone. Both ends find the same,
    /// so that nobody has to answer.
    fn agree(&mut self, index: usize, other: &QueuePairHello) -> Result<Ece, Errno> {
        let record = &mut self.peers.records[index];
        let library = self.domain.shared().device().library();
        let is_offered = record.terms.offered;
        let ours = if is_offered { record.pair().extensions(library) } else { Ece::NONE };
        let ece = common(&ours, other);
        match ece.vendor_id {
            0 => Ok(Ece::NONE),
            _ => record.pair().extensions_set(library, &ece).map(|()| ece),
        }
    }

    /// A device refused extensions that both ends have, or a queue pair with them. The other end
    /// may have taken them, and so hears of none the next time.
    fn extensions_refused(&mut self, step: Step, error: Errno) -> PeerOpenError {
        self.extensions &= !is_refusal(error);
        at(step)(error)
    }
}

/// Extensions that both ends have.
fn common(ours: &Ece, theirs: &QueuePairHello) -> Ece {
    match ours.vendor_id == theirs.ece_vendor {
        true => Ece { options: ours.options & theirs.ece_options, ..*ours },
        false => Ece::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_those_of_both_ends_of_one_vendor() {
        let hello = |ece_vendor, ece_options| QueuePairHello {
            ece_vendor,
            ece_options,
            ..QueuePairHello::from_bytes(&[0; 64])
        };
        let ours = Ece { vendor_id: 7, options: 0b1100, comp_mask: 0 };
        let of = |theirs: &QueuePairHello| {
            let Ece { vendor_id, options, .. } = common(&ours, theirs);
            (vendor_id, options)
        };
        assert_eq!(of(&hello(7, 0b0110)), (7, 0b0100));
        assert_eq!(of(&hello(8, 0b0110)), (0, 0), "another vendor's bits say nothing");
        assert_eq!(of(&hello(0, 0)), (0, 0), "a peer that knows of none");
    }
}
