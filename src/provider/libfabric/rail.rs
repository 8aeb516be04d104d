//! The rail: what it keeps, and how it and its peers begin and end.

use super::area::{CELLS, SENDS};
use super::ending::Endings;
use super::endpoint::{BATCH, ROOM, SharedEndpoint};
use super::flush::Flushing;
use super::keys::{Answer, key_place};
use super::message::{CUTS_WORDS, KeyWords, READS_BRIEF, word_token};
use super::peer::{Down, Ending, Peer, Sent, State, Use, wants};
use super::peers::{DEATH, PATIENCE, Peers};
use super::probe::socket_of;
use super::receives::Receives;
use super::report::{Complaint, ErrorReport, Health};
use super::silence::{NO_KEY, Silence};
use super::sys::abi::{Context, CqEntry};
use super::sys::library::VersionText;
use super::watch::Watch;
use super::{
    Config, Hello, Limits, OpenError, PAYLOAD_BYTES_MAX, PEERS_MAX, PeerOpenError, REGIONS_MAX,
    Scope, Step, Traits,
};
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::units::Span;
use crate::fabric::{DownCause, OpError, OpId, PostError, Posted, RailKey};
use crate::provider::asides::Aside;
use crate::wire::shared_end::NAME_BYTES_MAX;
use core::ffi::CStr;
use core::fmt;
use core::net::SocketAddr;

/// Fences, and ops that were refused for a key, per peer.
const ASIDES: usize = 8;

/// Bytes that [`Libfabric::open`] cuts.
pub fn bytes(limits: &Limits) -> usize {
    let peers = limits.peers_max as usize;
    SharedEndpoint::bytes(limits)
        + Peers::bytes(limits)
        + Receives::bytes(peers * CELLS)
        + bytes_for::<Aside>(peers * ASIDES)
}

/// What the rail keeps, and the sizes in bytes.
pub const RECORD_SIZES: [(&str, usize); 6] = [
    ("libfabric peer", size_of::<Peer>()),
    ("libfabric address", NAME_BYTES_MAX),
    ("libfabric send", size_of::<Sent>()),
    ("libfabric context", size_of::<Context>()),
    ("libfabric answer about a key", size_of::<Answer>()),
    ("libfabric op aside", size_of::<Aside>()),
];

/// The libfabric rail of one endpoint.
#[derive(Debug)]
pub struct Libfabric<'m> {
    pub(super) peers: Peers<'m>,
    pub(super) receives: Receives<'m>,
    pub(super) endings: Endings<'m>,
    /// Completions taken and not looked at.
    pub(super) batch: [CqEntry; BATCH],
    pub(super) batch_at: usize,
    pub(super) batch_count: usize,
    pub(super) watch: Watch,
    pub(super) silence: Silence,
    pub(super) flushing: Flushing,
}

// SAFETY: its pointers lead into the reserve, the block and objects that one thread uses at a time.
unsafe impl Send for Libfabric<'_> {}

impl<'m> Libfabric<'m> {
    /// Cuts a rail out of `block` and opens it.
    ///
    /// *Cost*: control path.
    pub fn open(
        block: &mut Carver<'m>,
        limits: &Limits,
        config: &Config,
    ) -> Result<Libfabric<'m>, OpenError> {
        check(limits, block.left())?;
        let endpoint = SharedEndpoint::find(block, limits, config)?;
        let count = limits.peers_max as usize;
        let mut rail = Libfabric {
            peers: Peers::carve(block, endpoint),
            receives: Receives::carve(block, count * CELLS),
            endings: Endings::new(block.slice::<Aside>(count * ASIDES).expect(ROOM)),
            batch: [CqEntry::NOTHING; BATCH],
            batch_at: 0,
            batch_count: 0,
            watch: Watch::new(false),
            silence: Silence::new(config.silence_max),
            flushing: Flushing::NONE,
        };
        let endpoint = &mut rail.peers.endpoint;
        // what was opened so far goes with the rail
        match endpoint.open() {
            Ok(is_watched) => rail.watch = Watch::new(is_watched),
            Err((step, code)) => return Err(endpoint.why_not(step, code)),
        }
        endpoint.domain.admit();
        Ok(rail)
    }

    fn endpoint_close(&mut self, for_good: bool) {
        let endpoint = &mut self.peers.endpoint;
        endpoint.drain();
        self.flushing.close(&endpoint.domain);
        endpoint.close(for_good);
    }

    /// Gives a peer a number and says what its other end must know. `token` is a number that
    /// strangers do not guess, not zero; where its lower half is, the peer gets the next one.
    ///
    /// *Cost*: control path.
    pub fn peer_prepare(&mut self, peer: PeerIndex, token: u32) -> Result<Hello, PeerOpenError> {
        let index = peer.as_usize();
        match self.peers.all.get(index) {
            Some(record) if record.state == State::Closed && token != 0 => {}
            Some(_) | None => return Err(PeerOpenError::Index),
        }
        if !self.peers.endpoint.is_open() || self.peers.health.is_lost() {
            return Err(PeerOpenError::RailLost);
        }
        if self.owes_last_word(index) {
            return Err(PeerOpenError::Again);
        }
        self.receives.part_open(&mut self.peers, index)?;
        let token = word_token(token);
        let peers = &mut self.peers;
        peers.told_release_all(index);
        let (left, left_ops) = peers.address_leave(index);
        // what the library still has of an earlier use keeps its places, and is not counted here
        let used = peers.all[index].ops.used;
        let cuts_words = peers.health.cuts_words;
        peers.all[index] =
            Peer { state: State::Prepared, token, sends_no_words: cuts_words, ..Peer::default() };
        let ops = &mut peers.all[index].ops;
        (ops.used, ops.left, ops.left_ops) = (used, left, left_ops);
        for sent in &mut peers.sent[index * SENDS..][..SENDS] {
            // they were for the peer before: it gave the answers, and this one's are others
            (sent.word, sent.key_place) = (None, 0);
            (sent.touches, sent.is_read) = (false, false);
            if sent.used == Use::Drain {
                sent.used = Use::Quiet;
            }
        }
        peers.keys.renew(index);
        peers.open += 1;
        let (name, name_bytes) = peers.endpoint.name();
        Ok(Hello {
            name,
            name_bytes: name_bytes as u32,
            format: peers.endpoint.address_format
                | if peers.endpoint.traits.messages_ordered { READS_BRIEF } else { 0 }
                | if cuts_words { CUTS_WORDS } else { 0 },
            number: index as u32,
            token,
            payload_bytes_max: peers.endpoint.limits.payload_bytes_max,
            told: KeyWords::default(),
        })
    }

    /// [`Libfabric::peer_prepare`] that tells of a region, for which the other end need not ask: a
    /// word that is written there leaves at once, also if its writer polls no more.
    pub fn peer_prepare_telling(
        &mut self,
        peer: PeerIndex,
        token: u32,
        key: RailKey,
    ) -> Result<Hello, PeerOpenError> {
        let hello = self.peer_prepare(peer, token)?;
        let told = self.peers.keys.tell(peer.as_usize(), key_place(key), key, 0);
        Ok(Hello { told, ..hello })
    }

    /// Whether the last peer of a number is owed the word that its fence waits for. Its address may
    /// be one that answers no more, and what is under way to it may never end: the number does not
    /// wait for ever.
    fn owes_last_word(&mut self, index: usize) -> bool {
        let &Peer { wants: owed, owes_word, ref ending, .. } = &self.peers.all[index];
        let Ending { gone, ends_since, .. } = *ending;
        let waited = self.peers.now.since(ends_since);
        if gone.is_some() || waited >= PATIENCE {
            return false;
        }
        let is_due = owed & wants::DRAINED != 0 && waited < DEATH;
        owes_word || is_due && !self.peers.chores_of(index)
    }

    /// Joins a prepared peer to its other end. Ops are accepted from now on. When it fails, also
    /// because the endpoint was opened anew since the peer was prepared, the peer is closed.
    ///
    /// *Cost*: control path.
    pub fn peer_connect(&mut self, peer: PeerIndex, other: &Hello) -> Result<(), PeerOpenError> {
        let index = peer.as_usize();
        match self.peers.all.get(index) {
            Some(record) if record.state == State::Prepared => {}
            Some(_) | None => return Err(PeerOpenError::Index),
        }
        if let Err(error) = self.join(index, other) {
            self.peers.told_release_all(index);
            // of a closed number no end is told; a fence of it still is
            let record = &mut self.peers.all[index];
            (record.state, record.down) = (State::Closed, Down::No);
            self.peers.open -= 1;
            return Err(error);
        }
        if self.peers.all[index].down != Down::No {
            // the endpoint that the other end was told of is no more: it hears so, since it may
            // know us already, and wait for our word, which leaves by the endpoint of today
            let _ = self.receives.part_open(&mut self.peers, index);
            self.forget(index, false);
            return Err(PeerOpenError::RailLost);
        }
        Ok(())
    }

    fn join(&mut self, index: usize, other: &Hello) -> Result<(), PeerOpenError> {
        let peers = &mut self.peers;
        if other.format & !(READS_BRIEF | CUTS_WORDS) != peers.endpoint.address_format {
            return Err(PeerOpenError::Format);
        }
        if !peers.endpoint.is_open() {
            return Err(PeerOpenError::RailLost);
        }
        let address = peers
            .address_of(&other.name, other.name())
            .map_err(|code| PeerOpenError::Refused(Step::Address, code))?;
        peers.names[index] = other.name;
        peers.keys.learn(index, other.told);
        let endpoint = &mut peers.endpoint;
        let record = &mut peers.all[index];
        record.address = address;
        record.name_bytes = other.name().len() as u8;
        (record.their_number, record.their_token) = (other.number as u16, other.token);
        record.payload_bytes_max = other.payload_bytes_max.min(endpoint.limits.payload_bytes_max);
        record.reads_brief = endpoint.traits.messages_ordered && other.format & READS_BRIEF != 0;
        record.state = State::Live;
        endpoint.traits.carries_words &= other.format & CUTS_WORDS == 0;
        self.receives.early_due = true;
        Ok(())
    }

    /// Forgets a peer without ops in flight. What it sent and is held stays, unless it is to be
    /// discarded. Its other end is told, as far as it can be, and may still ask.
    pub(super) fn forget(&mut self, index: usize, discard: bool) {
        let peers = &mut self.peers;
        peers.all[index].owes_word = true;
        peers.say_drained(index);
        peers.told_release_all(index);
        self.endings.probes.end(index);
        let record = &mut peers.all[index];
        (record.state, record.ending.ends_since) = (State::Closed, peers.now);
        record.report = None;
        record.ops.words_due = 0;
        record.wants &= wants::DRAINED;
        peers.unmark_ending(index);
        for op in 0..SENDS {
            if peers.ops(index)[op].used == Use::WordDue {
                peers.op_free(index, op);
            }
        }
        peers.ask_end(index);
        peers.open -= 1;
        if discard {
            self.receives.discard(peers, index);
        }
    }

    /// Opens the endpoint anew, after its NIC has failed: closes registrations, endpoint, queue
    /// and vector, which fences everything, ends every peer, and registers every region again
    /// under the key that it has. Peers must be closed and opened again, with new hellos.
    ///
    /// *Errors*: the step that was refused; the rail is lost, and may be tried again.
    ///
    /// *Cost*: control path. Threads that register wait meanwhile, not until it succeeds.
    pub fn reopen(&mut self) -> Result<(), PeerOpenError> {
        if self.peers.health.lost_code == 0 {
            self.peers.health.lost_code = libc::ENETDOWN;
        }
        let lost_code = self.peers.health.lost_code;
        self.endpoint_close(false);
        (self.batch_at, self.batch_count) = (0, 0);
        self.receives.reset();
        let peers = &mut self.peers;
        for index in 0..peers.all.len() {
            peers.cut_off(index, DownCause::Broken(lost_code));
        }
        let opened = peers.endpoint.open();
        let restored = opened.and_then(|_| peers.endpoint.domain.restore());
        peers.endpoint.domain.admit();
        peers.health.refused = restored.err();
        if let Ok(is_watched) = opened {
            self.watch = Watch::new(is_watched);
            (peers.health.lost_code, peers.health.unheard) = (0, false);
            self.say_closed();
        }
        if let Err((step, code)) = restored {
            // nobody is joined; but peers waited for that word, and have it with the next polls
            self.peers.health.lost_code = lost_code;
            return Err(PeerOpenError::Refused(step, code));
        }
        self.peers.health.reopened += 1;
        Ok(())
    }

    /// The endpoint was closed, and nothing more of ours is posted: peers are told, who may have
    /// others and must not lose their endpoint for us. They know our old address alone, but take
    /// our word from any, as that of a closed endpoint.
    fn say_closed(&mut self) {
        for index in 0..self.peers.all.len() {
            let record = &self.peers.all[index];
            // what was said to one that was forgotten lately may have been lost with the endpoint
            let is_forgotten = record.state == State::Closed
                && record.name_bytes != 0
                && record.ending.gone.is_none()
                && self.peers.now.since(record.ending.ends_since) < PATIENCE;
            let knows_us = record.state == State::Live || record.owes_word || is_forgotten;
            if !knows_us || self.receives.part_open(&mut self.peers, index).is_err() {
                continue;
            }
            let padded = self.peers.names[index];
            let peers = &mut self.peers;
            if let Ok(address) = peers.address_of(&padded, peers.name(index)) {
                peers.all[index].address = address;
                peers.all[index].owes_word = true;
                peers.say_drained(index);
            }
        }
    }

    /// Begins a flush of what the NIC has written to a region of ours, by a read of a few bytes at
    /// `address`, or of what the region has there. Its end is [`Libfabric::flush_end`]'s to say,
    /// behind polls.
    ///
    /// *Errors*: `Again`: one is under way, or the library has no room; `Unsupported`: the library
    /// refuses, or there is no such memory. *Cost*: the first one registers the buffer.
    pub fn flush_begin(
        &mut self,
        id: OpId,
        key: RailKey,
        address: u64,
    ) -> Result<Posted, PostError> {
        self.flushing.begin(&self.peers.endpoint, (id, self.peers.now), key, address)
    }

    /// The flush that has ended: then what was written before it began is visible, or nothing is
    /// known of that.
    pub fn flush_end(&mut self) -> Option<(OpId, Result<(), OpError>)> {
        self.flushing.end(self.peers.now)
    }

    /// How many endpoints were closed, each with all that was on its way. The largest number: none
    /// is open.
    pub fn fenced_through(&self) -> u32 {
        if self.peers.endpoint.is_open() { self.peers.health.reopened } else { u32::MAX }
    }

    /// Whether no peer is open, and no flush under way, so that polling is of no use.
    pub fn is_idle(&self) -> bool {
        self.peers.open == 0 && !self.flushing.is_under_way()
    }

    /// Whether something that was posted to a living peer has not ended yet: poll and ask again.
    pub fn is_undelivered(&self, peer: PeerIndex) -> bool {
        self.is_awaiting(peer, |_| true)
    }

    /// The same of messages, words, and those ops on the peer's memory that `awaits` says.
    pub fn is_awaiting(&self, peer: PeerIndex, awaits: fn(OpId) -> bool) -> bool {
        if !self.peers.takes_ops(peer) {
            return false;
        }
        let under_way = self.peers.all[peer.as_usize()].under_way();
        let mut ops = self.peers.ops(peer.as_usize()).iter().enumerate();
        ops.any(|(place, op)| under_way >> place & 1 == 1 && (!op.touches || awaits(op.id)))
    }

    /// Whether something is owed to a peer that the next poll says.
    pub fn is_unsent(&self) -> bool {
        self.peers.has_chores
    }

    /// Whether polls must be told the time: ends and questions are timed by it.
    pub fn wants_time(&self) -> bool {
        !self.is_idle() || self.peers.health.is_lost()
    }

    /// Whether [`Libfabric::complaint`] has one to name.
    #[inline]
    pub fn has_complaints(&self) -> bool {
        self.peers.has_complaints
    }

    /// The next peer that people should know something of. Each is named once.
    #[cold]
    pub fn complaint(&mut self) -> Option<(PeerIndex, Complaint)> {
        let mut all = self.peers.all.iter_mut().enumerate();
        let found = all.find_map(|(index, peer)| Some((index, peer.complaint.take()?)));
        self.peers.has_complaints = found.is_some();
        found.map(|(index, complaint)| (PeerIndex(index as u32), complaint))
    }

    /// Whether [`Libfabric::doubted`] may have a peer to name.
    #[inline]
    pub fn has_doubts(&self) -> bool {
        self.silence.has_doubts
    }

    /// The next peer of whose ops nothing ends, and within what time its program must have polled
    /// for [`Libfabric::peer_polls`] to be said of it. Each is named once between two looks.
    pub fn doubted(&mut self) -> Option<(PeerIndex, Span)> {
        self.silence.doubted(&mut self.peers)
    }

    /// The program of a peer has polled within that time: what it has not confirmed is lost, or
    /// late.
    pub fn peer_polls(&mut self, peer: PeerIndex) {
        if let Some(record) = self.peers.all.get_mut(peer.as_usize()) {
            record.watched.polls = true;
        }
    }

    /// Asks a peer something, for who hears nothing of it otherwise; `false`: it takes no ops.
    #[cold]
    pub fn hear_begin(&mut self, peer: PeerIndex) -> bool {
        let (peers, index) = (&mut self.peers, peer.as_usize());
        if !peers.takes_ops(peer) {
            return false;
        }
        let record = &mut peers.all[index];
        (record.ops.heard_from, record.keys.has_answered) = (record.ops.ended, false);
        let keys = &peers.keys;
        if let Some(place) = keys.free_place(index).or_else(|| keys.spare_place(index)) {
            peers.ask(index, NO_KEY, place);
        }
        true
    }

    /// Whether anything has ended since that the peer has a part in; `None`: it takes no ops.
    pub fn is_heard(&self, peer: PeerIndex) -> Option<bool> {
        let record = self.peers.all.get(peer.as_usize()).filter(|it| it.takes_ops())?;
        Some(record.ops.ended != record.ops.heard_from)
    }

    /// Whether its program has: that answers questions, where a device may end ops without it.
    pub fn has_answered(&self, peer: PeerIndex) -> bool {
        self.peers.all.get(peer.as_usize()).is_some_and(|it| it.keys.has_answered)
    }

    /// What broke the connection to a peer, while it is not closed.
    pub fn error(&self, peer: PeerIndex) -> Option<ErrorReport> {
        let open = self.peers.all.get(peer.as_usize()).filter(|it| it.state != State::Closed);
        open?.report
    }

    /// How the rail is.
    pub fn health(&self) -> Health {
        self.peers.health
    }

    /// What the provider is like.
    pub fn traits(&self) -> Traits {
        self.peers.endpoint.traits
    }

    /// The library's version.
    pub fn version(&self) -> VersionText {
        VersionText(self.peers.endpoint.library.version())
    }

    /// The provider's name.
    pub fn provider_name(&self) -> &CStr {
        self.peers.endpoint.provider_name()
    }

    /// The domain's name.
    pub fn domain_name(&self) -> &CStr {
        self.peers.endpoint.domain_name()
    }

    /// To what its registrations belong.
    pub fn scope(&self) -> Scope {
        self.peers.endpoint.traits.scope
    }

    /// What it is opened on, for people.
    pub fn nic(&self) -> NicName<'_> {
        NicName { provider: self.provider_name(), domain: self.domain_name() }
    }

    /// The address of its endpoint, and that of another one of the same provider; `None`: they are
    /// no addresses of sockets.
    pub fn ends(&self, other: &Hello) -> Option<[SocketAddr; 2]> {
        let (format, (name, length)) =
            (self.peers.endpoint.address_format, self.peers.endpoint.name());
        let ends = [&name[..length], other.name()];
        let [ours, theirs] = ends.map(|name| socket_of(format, name));
        Some([ours?, theirs?])
    }
}

/// `tcp;ofi_rxm eth0`.
#[derive(Copy, Clone, Debug)]
pub struct NicName<'a> {
    provider: &'a CStr,
    domain: &'a CStr,
}

impl fmt::Display for NicName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [provider, domain] = [self.provider, self.domain].map(|it| it.to_str().unwrap_or("?"));
        write!(f, "{provider} {domain}")
    }
}

fn check(limits: &Limits, room: usize) -> Result<(), OpenError> {
    let peers = (1..=PEERS_MAX).contains(&limits.peers_max);
    let payload = limits.payload_bytes_max <= PAYLOAD_BYTES_MAX;
    match peers && payload && limits.regions_max <= REGIONS_MAX {
        true if room < bytes(limits) => Err(OpenError::Block),
        true => Ok(()),
        false => Err(OpenError::Limits),
    }
}

impl Drop for Libfabric<'_> {
    fn drop(&mut self) {
        self.endpoint_close(true);
    }
}
