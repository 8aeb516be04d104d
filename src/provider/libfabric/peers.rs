//! The peers of one endpoint: their records, what was posted to them, their addresses, and what
//! their ends are waited for.

use super::Limits;
use super::area::SENDS;
use super::endpoint::{Name, ROOM, SharedEndpoint};
use super::keys::Keys;
use super::peer::{Address, Down, Lingering, Peer, Sent, State, Use};
use super::probe::socket_of;
use super::report::{Complaint, ErrorReport, Health, errno};
use super::sys::Code;
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::units::{Instant, Span};
use crate::fabric::DownCause;
use crate::wire::shared_end::NAME_BYTES_MAX;

/// How long a peer's ops may take to end by themselves after its end, before they are answered for,
/// and how long a library may have no memory for a peer to which nothing is under way.
pub const PATIENCE: Span = Span::millis(2000);
/// How long what a process has sent that is dead, or has ended its connection, may be under way.
pub const DEATH: Span = Span::millis(200);
/// Where `efa` says that the peer's queue pair is no more (`EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_
/// DEST_QPN` of its `efa_io_defs.h`): its device's, beside an errno that it has for much else.
const EFA_BAD_DEST_QPN: i32 = 9;
/// Whose endpoints listen over TCP.
const LISTENERS: [&[u8]; 2] = [b"tcp", b"tcp;ofi_rxm"];

/// All peers of an endpoint.
#[derive(Debug)]
pub struct Peers<'m> {
    pub endpoint: SharedEndpoint<'m>,
    pub all: &'m mut [Peer],
    /// Of each peer whose address is known.
    pub names: &'m mut [Name],
    /// A table of [`SENDS`] for each.
    pub sent: &'m mut [Sent],
    pub keys: Keys<'m>,
    pub open: u32,
    /// Peers whose end or fence is under way.
    pub endings: u32,
    /// Whether some peer may be owed a message.
    pub has_chores: bool,
    /// Whether people should know something of a peer.
    pub has_complaints: bool,
    pub now: Instant,
    pub health: Health,
}

impl<'m> Peers<'m> {
    /// Bytes that [`Peers::carve`] cuts.
    pub fn bytes(limits: &Limits) -> usize {
        let peers = limits.peers_max as usize;
        Keys::bytes(peers)
            + bytes_for::<Peer>(peers)
            + bytes_for::<Name>(peers)
            + bytes_for::<Sent>(peers * SENDS)
    }

    pub fn carve(block: &mut Carver<'m>, endpoint: SharedEndpoint<'m>) -> Peers<'m> {
        let count = endpoint.limits.peers_max as usize;
        Peers {
            all: block.filled_with(count, Peer::default).expect(ROOM),
            names: block.filled(count, [0; NAME_BYTES_MAX]).expect(ROOM),
            sent: block.filled(count * SENDS, Sent::FREE).expect(ROOM),
            keys: Keys::carve(block, count, endpoint.domain).expect(ROOM),
            endpoint,
            open: 0,
            endings: 0,
            has_chores: false,
            has_complaints: false,
            now: Instant(0),
            health: Health::default(),
        }
    }

    /// A peer's table of ops.
    pub fn ops(&self, index: usize) -> &[Sent] {
        &self.sent[index * SENDS..][..SENDS]
    }

    /// A free place of the peer's table of ops.
    #[inline(always)]
    pub fn free_op(&self, index: usize) -> Option<usize> {
        let bit = self.all[index].ops.used.trailing_ones() as usize;
        (bit < SENDS).then_some(bit)
    }

    /// An op's place may be used again.
    pub fn op_free(&mut self, index: usize, op: usize) {
        self.sent[index * SENDS + op] = Sent::FREE;
        self.all[index].ops.used &= !(1 << op);
    }

    #[inline]
    pub fn takes_ops(&self, peer: PeerIndex) -> bool {
        self.all.get(peer.as_usize()).is_some_and(Peer::takes_ops)
    }

    /// Whether the library may crash when the endpoint is closed: `ofi_rxm` of 1.17 does while a
    /// long write is half-way on a path that is gone. The fence of such a peer does not hold then.
    pub fn dies_of_a_close(&self) -> bool {
        let is_half_way = |it: &Peer| it.is_drain_watched() && it.ops.touching > 0;
        (self.health.unheard || self.all.iter().any(is_half_way))
            && self.endpoint.provider_name().to_bytes().ends_with(b";ofi_rxm")
    }

    /// Has somebody told of a peer.
    #[cold]
    pub fn complain(&mut self, index: usize, complaint: Complaint) {
        self.all[index].complaint = Some(complaint);
        self.has_complaints = true;
    }

    /// A completion of what is not under way.
    #[cold]
    pub fn unknown(&mut self) {
        self.health.strange = self.health.strange.wrapping_add(1);
        self.health.unknown = self.health.unknown.wrapping_add(1);
    }

    /// What the library calls an endpoint. Peers at one share its place in the vector, which is
    /// short in some libraries.
    pub fn address_of(&self, padded: &Name, name: &[u8]) -> Result<Address, Code> {
        let known = |(peer, name): (&Peer, &Name)| {
            // of one that is prepared anew it is the last peer's name still
            let address = if peer.state == State::Prepared { peer.ops.left } else { peer.address };
            (address != Address::NONE && name == padded).then_some(address)
        };
        match self.all.iter().zip(self.names.iter()).find_map(known) {
            Some(address) => Ok(address),
            None => self.endpoint.address_insert(name).map(Address),
        }
    }

    /// A peer's number is given anew: the address of its last peer, and the ops that are under way
    /// to it. Where nothing is, it is taken out of the vector. It is not before: `efa` ends no op
    /// whose address was taken out.
    pub fn address_leave(&mut self, index: usize) -> (Address, u64) {
        let record = &mut self.all[index];
        let address = core::mem::take(&mut record.address);
        let left = core::mem::take(&mut record.ops.left);
        if record.ops.used == 0 {
            self.address_remove(address);
            return (Address::NONE, 0);
        }
        // of two addresses to which something is under way the older one stays, which takes memory
        (if address == Address::NONE { left } else { address }, record.ops.used)
    }

    /// Something of a number's last peer is not under way any more.
    #[cold]
    pub fn left_retired(&mut self, index: usize, bit: u64) {
        let ops = &mut self.all[index].ops;
        ops.left_ops &= !bit;
        if ops.left_ops == 0 {
            let left = core::mem::take(&mut ops.left);
            self.address_remove(left);
        }
    }

    /// Takes an address out of the vector, unless a peer is at it.
    fn address_remove(&self, address: Address) {
        let is_at = |peer: &Peer| [peer.address, peer.ops.left].contains(&address);
        if address != Address::NONE && !self.all.iter().any(is_at) {
            self.endpoint.address_remove(address.0);
        }
    }

    /// A peer's address as its library gives it.
    pub fn name(&self, index: usize) -> &[u8] {
        &self.names[index][..usize::from(self.all[index].name_bytes)]
    }

    /// Whether a peer's address is that of a socket which listens for as long as its endpoint is
    /// open, and whose kernel goes on sending what that has left.
    pub fn has_listener(&self, index: usize) -> bool {
        let is_socket = socket_of(self.endpoint.address_format, self.name(index)).is_some();
        is_socket && LISTENERS.contains(&self.endpoint.provider_name().to_bytes())
    }

    /// The peer is gone, for the first cause that is heard: nothing is posted to it any more; what
    /// has come is still reported, then its end.
    #[cold]
    pub fn end(&mut self, index: usize, cause: DownCause) {
        let record = &mut self.all[index];
        if record.down != Down::No || record.state == State::Closed {
            return;
        }
        record.down = Down::Due(match cause {
            DownCause::Broken(code) => DownCause::Broken(errno(code)),
            cause => cause,
        });
        record.ending.is_timed = false;
        self.mark_ending(index);
    }

    pub fn mark_ending(&mut self, index: usize) {
        let record = &mut self.all[index];
        if !core::mem::replace(&mut record.is_ending, true) {
            self.endings += 1;
        }
    }

    pub fn unmark_ending(&mut self, index: usize) {
        if core::mem::take(&mut self.all[index].is_ending) {
            self.endings -= 1;
        }
    }

    /// The endpoint failed: every peer ends.
    #[cold]
    pub fn lose(&mut self, code: i32) {
        self.health.lost_code = code;
        for index in 0..self.all.len() {
            if self.all[index].state == State::Live && self.all[index].down == Down::No {
                self.end(index, DownCause::Broken(code));
            }
        }
    }

    /// The endpoint has failed, by no op of ours: some providers tell of that in an event alone
    /// (`efa`, which ends the process where nobody can be told).
    #[cold]
    pub fn failed_beside(&mut self, report: ErrorReport) {
        let code = if report.code == 0 { libc::EIO } else { report.code };
        let report = ErrorReport { code, ..report };
        for peer in self.all.iter_mut().filter(|peer| peer.takes_ops()) {
            peer.report.get_or_insert(report);
        }
        self.lose(code);
    }

    /// The side band says that a peer has ended. Whoever is gone may not say its word any more:
    /// what it has sent is waited for.
    #[cold]
    pub fn hear(&mut self, index: usize, cause: DownCause) {
        let is_live = self.all[index].state == State::Live;
        match cause {
            DownCause::Died if is_live => self.outlast(index, DEATH),
            // its word goes with its endpoint, if that is closed, too; it may have closed without
            // having fenced us
            DownCause::Closed if is_live => self.outlast_closed(index, Lingering::Closed),
            DownCause::Died | DownCause::Closed => {}
            // it may live: its word is waited for, or the library's that nobody is there, or the
            // endpoint's end
            DownCause::Severed | DownCause::Unheard | DownCause::Silent => {}
            DownCause::Failed | DownCause::Broken(_) => {}
        }
        if matches!(cause, DownCause::Severed | DownCause::Unheard) {
            self.all[index].ending.doubt = Some(cause);
        }
        self.health.unheard |= cause == DownCause::Unheard;
        self.end(index, cause);
    }

    /// How long what a peer has posted may be on its way whose endpoint is closed.
    pub fn posted_for(&self, index: usize) -> Span {
        if self.keys.is_told(index) { PATIENCE } else { DEATH }
    }

    /// What a peer has posted is waited for instead of its word. Time alone takes nothing in: a
    /// library of sockets does, when it is polled, and each time at least one op of a connection,
    /// or all that has come. Peers at one endpoint may share one connection.
    pub fn outlast(&mut self, index: usize, span: Span) {
        let address = self.all[index].address;
        let beside = self.all.iter().filter(|peer| peer.address == address).count();
        let polls = if self.keys.is_told(index) { SENDS * beside } else { 0 };
        let ending = &mut self.all[index].ending;
        if ending.gone.is_none() {
            (ending.gone, ending.gone_polls) = (Some(span), polls as u32);
            ending.is_timed = false;
            self.mark_ending(index);
        }
    }

    /// The peer's endpoint is closed, and what it had posted is waited for instead of its word: by
    /// time; but where its kernel goes on sending what a closed socket has, until the library has
    /// no connection to that endpoint any more, or its word has come after all.
    pub fn outlast_closed(&mut self, index: usize, lingering: Lingering) {
        if self.keys.is_told(index) && self.has_listener(index) {
            self.all[index].ending.lingering = lingering;
            self.mark_ending(index);
        } else {
            self.outlast(index, self.posted_for(index));
        }
    }

    /// Whether the library has no connection to a peer that nobody answers for: it takes no request
    /// to stop, and has nothing else for its address. As long as it has one, the peer's kernel may
    /// go on sending what a dead process had posted, or a closed endpoint, at intervals that grow
    /// to two minutes behind an outage; what comes for a connection that is no more is refused by
    /// our own kernel.
    ///
    /// `-FI_EAGAIN` counts as a refusal, whatever it is for. `tcp` says it of a peer to which no
    /// connection stands, and has no queue that fills up; `tcp;ofi_rxm` says it of such a peer, and
    /// when the buffers of the whole endpoint are taken. The call has no other code, and fi_msg(3)
    /// calls the reasons "varied"; `fi_tx_size_left`, which said how much room there is, is
    /// deprecated, and `ofi_rxm` does not have it (`-FI_ENOSYS`). Nor do our own books say: a
    /// message that was injected takes room until nobody knows when, without a completion. And that
    /// another peer's message is taken next says nothing of the one before, because calls that are
    /// refused move on what is under way. So with a full queue a peer may be held for one to which
    /// the library has no connection, if nothing of ours is under way to its address and its kernel
    /// refuses connections meanwhile.
    pub fn has_no_connection(&self, index: usize) -> bool {
        let address = self.all[index].address;
        let is_over = |it: &Sent| matches!(it.used, Use::Free | Use::WordDue);
        // a number that is given anew may have ops under way to the peer before
        let is_there = |peer: &Peer| peer.address == address || peer.ops.left == address;
        let has_nothing =
            |(peer, sent): (&Peer, &[Sent])| !is_there(peer) || sent.iter().all(is_over);
        let mut there = self.all.iter().zip(self.sent.chunks(SENDS));
        self.all[index].ending.is_bounced && there.all(has_nothing)
    }

    /// The library has ended a request to stop with an error, or refused it: where that says that
    /// nobody is at the peer's address, a peer that counts as dead is gone.
    #[cold]
    pub fn drain_failed(&mut self, index: usize, code: i32, provider_code: i32) {
        self.all[index].ending.is_bounced = true;
        let is_efa = self.endpoint.provider_name() == c"efa" && provider_code == EFA_BAD_DEST_QPN;
        if self.all[index].is_drain_watched() && (code == libc::ECONNREFUSED || is_efa) {
            self.outlast(index, self.posted_for(index));
        }
    }

    /// Nothing of the peer's is under way any more: it holds nothing of ours.
    pub fn told_release_all(&mut self, index: usize) {
        self.keys.release_all((index, &mut self.all[index].keys));
    }

    /// Nothing is asked of a peer any more.
    pub fn ask_end(&mut self, index: usize) {
        self.keys.ask_end(&mut self.all[index].keys);
    }

    /// The endpoint was closed: the library has nothing of a peer's any more, what was accepted
    /// ends with the next polls, and nothing of the peer's comes.
    pub fn cut_off(&mut self, index: usize, cause: DownCause) {
        self.end(index, cause);
        self.told_release_all(index);
        for op in 0..SENDS {
            let sent = &mut self.sent[index * SENDS + op];
            if let Some(region) = core::mem::take(&mut sent.pin).checked_sub(1) {
                self.endpoint.domain.release(region);
            }
            sent.key_place = 0;
            if sent.used != Use::Loud {
                self.op_free(index, op);
            }
        }
        let record = &mut self.all[index];
        (record.ending.is_attested, record.ending.is_cut) = (true, true);
        (record.address, record.wants) = (Address::NONE, 0);
        (record.ops.left, record.ops.left_ops) = (Address::NONE, 0);
        (record.ops.touching, record.ops.reads, record.ops.words_due) = (0, 0, 0);
        self.keys.forget(index);
        self.ask_end(index);
    }
}
