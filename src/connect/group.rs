//! Ranks of one host that exchange records and descriptors: the set-up of what they share.
//!
//! The first rank is the hub. Each other rank dials it, both sides prove that they hold the first
//! rank's handle, and the hub gives every rank a descriptor that tells when another one ends.
//! After that [`Group::gather`] is the only operation: each rank gives a record and descriptors,
//! and gets those of all ranks. It is a collective call: all ranks make the same calls in the same
//! order.
//!
//! Nothing leaves before the peer is one that [`Trust`] admits, and has proved that it holds the
//! handle, and the shared key where there is one. The socket's name tells nothing of the handle's
//! secret.

extern crate std;

use super::address::node_id;
use super::key::Key;
use super::os::{is_readable, random};
use super::socket::{Name, Received, Socket};
use super::trust::Trust;
use core::fmt;
use std::format;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::vec::Vec;

/// Bytes of a handle, as NCCL carries it.
pub const HANDLE_BYTES: usize = 128;
/// Longest record that a rank may give.
pub const RECORD_BYTES_MAX: usize = 512;
/// Most descriptors that a rank may give with a record.
pub const DESCRIPTORS_MAX: usize = super::socket::DESCRIPTORS_MAX;
/// First word of a handle; its last byte is the version of this exchange.
const MAGIC: u64 = u64::from_le_bytes(*b"xtiegrp\x01");
/// What stands before each record: rank, round.
const HEAD_BYTES: usize = 16;
/// Between two looks at a socket that has nothing yet. Set-up is no data path.
const LOOK: Duration = Duration::from_micros(200);

/// Why ranks do not come together.
#[derive(Debug)]
pub enum GroupError {
    /// A handle is not one of ours, or of another version.
    Handle,
    /// The first rank runs on another host.
    OtherHost,
    /// A rank has not come within the deadline.
    Missing(usize),
    /// A rank has ended.
    Ended(usize),
    /// A process of the user given here dialled, or listens, and may not take part: its user, its
    /// handle or its key is not right.
    Stranger(u32),
    /// The first rank takes this process for a stranger.
    Refused,
    /// Ranks make different calls.
    Order(usize),
    /// The kernel refused.
    System(io::Error),
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::Handle => f.write_str("the handle is not of this version of crosstie"),
            GroupError::OtherHost => f.write_str("the ranks run on several hosts"),
            GroupError::Missing(rank) => write!(f, "rank {rank} did not come in time"),
            GroupError::Ended(rank) => write!(f, "rank {rank} has ended"),
            GroupError::Stranger(user) => {
                write!(f, "a process of user {user} is refused as a rank: {PROOF}")
            }
            GroupError::Refused => write!(f, "rank 0 refuses this process as a rank: {PROOF}"),
            GroupError::Order(rank) => write!(f, "rank {rank} makes another call than this rank"),
            GroupError::System(error) => error.fmt(f),
        }
    }
}

const PROOF: &str = "ranks must run as one user or root (CROSSTIE_ALLOW_UIDS names others), or \
                     have the same CROSSTIE_KEY_FILE";

impl From<io::Error> for GroupError {
    fn from(error: io::Error) -> GroupError {
        GroupError::System(error)
    }
}

/// A socket for ranks to dial, and the secret of its handle.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    handle: [u8; HANDLE_BYTES],
    trust: Trust,
}

/// What a handle says.
struct Handle {
    node: u64,
    name: u128,
    secret: u128,
}

impl Handle {
    fn write(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.node.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.name.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.secret.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; HANDLE_BYTES]) -> Result<Handle, GroupError> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let wide = |at: usize| u128::from_le_bytes(bytes[at..at + 16].try_into().expect("16"));
        if word(0) != MAGIC {
            return Err(GroupError::Handle);
        }
        Ok(Handle { node: word(8), name: wide(16), secret: wide(32) })
    }

    fn socket(&self) -> Name {
        let name = format!("crosstie-group-{:032x}", self.name);
        Name::abstract_of(name.as_bytes()).expect("a short name")
    }

    /// What a rank proves to have: the handle, and the shared key where there is one.
    fn key(&self, trust: &Trust) -> Key {
        let secret = self.secret.to_le_bytes();
        let shared = trust.key.as_ref().map(|key| key.sign(&[b"crosstie group key 1", &secret]));
        Key::new(shared.as_ref().map_or(&secret[..], |it| it)).expect("sixteen bytes are a key")
    }
}

/// A number that nobody can guess.
pub fn secret() -> Result<u128, GroupError> {
    Ok(random()?)
}

impl Listener {
    /// Listens under a name that nobody else has, for processes that `trust` admits.
    pub fn new(trust: Trust) -> Result<Listener, GroupError> {
        let handle = Handle { node: node_id()?, name: random()?, secret: random()? };
        let socket = Socket::listen(&handle.socket())?;
        Ok(Listener { socket, handle: handle.write(), trust })
    }

    /// What the other ranks need, carried by whoever starts them.
    pub fn handle(&self) -> &[u8; HANDLE_BYTES] {
        &self.handle
    }
}

/// What one rank gave.
#[derive(Debug, Default)]
pub struct Part {
    /// Its record.
    pub bytes: Vec<u8>,
    /// Its descriptors.
    pub descriptors: Vec<OwnedFd>,
}

/// Which ranks of a group have ended. It may be asked while the group exchanges records.
#[derive(Debug, Default)]
pub struct Lives(
    /// Readable once a rank has ended; none for the own rank.
    Vec<Option<OwnedFd>>,
);

impl Lives {
    /// Whether a rank's process has ended.
    ///
    /// *Cost*: one system call.
    pub fn has_ended(&self, rank: usize) -> bool {
        self.0[rank].as_ref().is_some_and(|life| is_readable(life.as_fd()))
    }
}

/// Ranks that have come together.
#[derive(Debug)]
pub struct Group {
    rank: usize,
    ranks: usize,
    /// Of the hub: the other ranks in order. Of another rank: the hub.
    sockets: Vec<Socket>,
    lives: Arc<Lives>,
    round: u64,
    patience: Duration,
}

impl Group {
    /// Brings `ranks` ranks together by the first one's handle; `listener` is the own one.
    ///
    /// *Errors*: [`GroupError`]. *Cost*: blocks until all ranks have come, at most `patience`.
    pub fn form(
        listener: &Listener,
        first: &[u8; HANDLE_BYTES],
        rank: usize,
        ranks: usize,
        patience: Duration,
    ) -> Result<Group, GroupError> {
        let handle = Handle::read(first)?;
        if handle.node != node_id()? {
            return Err(GroupError::OtherHost);
        }
        let until = Instant::now() + patience;
        let sockets = match rank {
            0 => accept_all(listener, &handle, ranks, until)?,
            _ => Vec::from([dial(&handle, &listener.trust, rank, until)?]),
        };
        let lives = Arc::default();
        let mut group = Group { rank, ranks, sockets, lives, round: 0, patience };
        group.lives = Arc::new(Lives(group.exchange_lives()?));
        Ok(group)
    }

    /// The own rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// What tells which ranks have ended.
    pub fn lives(&self) -> &Arc<Lives> {
        &self.lives
    }

    /// The hub hands out what the kernel told it of each rank; a rank knows the hub by itself.
    fn exchange_lives(&mut self) -> Result<Vec<Option<OwnedFd>>, GroupError> {
        let mut lives: Vec<Option<OwnedFd>> = (0..self.ranks).map(|_| None).collect();
        if self.rank != 0 {
            lives[0] = Some(self.sockets[0].peer_pidfd()?);
            for _ in 0..self.ranks.saturating_sub(2) {
                let until = Instant::now() + self.patience;
                let (from, part) = self.take(0, until)?;
                let place = lives.get_mut(from).ok_or(GroupError::Order(from))?;
                *place = part.descriptors.into_iter().next();
            }
            return Ok(lives);
        }
        for (at, socket) in self.sockets.iter().enumerate() {
            lives[at + 1] = Some(socket.peer_pidfd()?);
        }
        for (at, socket) in self.sockets.iter().enumerate() {
            for (rank, life) in lives.iter().enumerate().skip(1) {
                if let (Some(life), true) = (life, rank != at + 1) {
                    give(socket, rank, 0, &[], &[life.as_fd()], self.patience)?;
                }
            }
        }
        Ok(lives)
    }

    /// Gives a record with descriptors, and gets those of all ranks in order.
    ///
    /// *Errors*: [`GroupError`]; the group is of no use then. *Cost*: blocks until all ranks have
    /// made the call.
    ///
    /// *Panics*: when the record or the descriptors are more than a frame carries.
    pub fn gather(
        &mut self,
        record: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<Part>, GroupError> {
        assert!(record.len() <= RECORD_BYTES_MAX && descriptors.len() <= DESCRIPTORS_MAX);
        self.round += 1;
        let until = Instant::now() + self.patience;
        let own = || -> io::Result<Part> {
            let copies = descriptors.iter().map(|fd| fd.try_clone_to_owned());
            Ok(Part { bytes: record.into(), descriptors: copies.collect::<io::Result<_>>()? })
        };
        let mut parts: Vec<Part> = (0..self.ranks).map(|_| Part::default()).collect();
        parts[self.rank] = own()?;
        if self.rank != 0 {
            give(&self.sockets[0], self.rank, self.round, record, descriptors, self.patience)?;
            for _ in 1..self.ranks {
                let (from, part) = self.take(0, until)?;
                *parts.get_mut(from).ok_or(GroupError::Order(from))? = part;
            }
            return Ok(parts);
        }
        for at in 0..self.sockets.len() {
            let (from, part) = self.take(at, until)?;
            if from != at + 1 {
                return Err(GroupError::Order(at + 1));
            }
            parts[from] = part;
        }
        for (at, socket) in self.sockets.iter().enumerate() {
            for (rank, part) in parts.iter().enumerate().filter(|(rank, _)| *rank != at + 1) {
                let descriptors: Vec<_> = part.descriptors.iter().map(AsFd::as_fd).collect();
                give(socket, rank, self.round, &part.bytes, &descriptors, self.patience)?;
            }
        }
        Ok(parts)
    }

    /// The next record of a socket, and whose it is.
    fn take(&self, at: usize, until: Instant) -> Result<(usize, Part), GroupError> {
        let rank = if self.rank == 0 { at + 1 } else { 0 };
        let mut bytes = [0; HEAD_BYTES + RECORD_BYTES_MAX];
        let received = receive(&self.sockets[at], &mut bytes, rank, until)?;
        if received.length < HEAD_BYTES || received.descriptors_lost {
            return Err(GroupError::Order(rank));
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if word(8) != self.round {
            return Err(GroupError::Order(rank));
        }
        let descriptors = received.descriptors.into_iter().flatten().collect();
        let record = bytes[HEAD_BYTES..received.length].into();
        Ok((word(0) as usize, Part { bytes: record, descriptors }))
    }
}

fn give(
    socket: &Socket,
    rank: usize,
    round: u64,
    record: &[u8],
    descriptors: &[BorrowedFd<'_>],
    patience: Duration,
) -> Result<(), GroupError> {
    let mut bytes = Vec::from((rank as u64).to_le_bytes());
    bytes.extend_from_slice(&round.to_le_bytes());
    bytes.extend_from_slice(record);
    let until = Instant::now() + patience;
    loop {
        match socket.send(&bytes, descriptors) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                sleep(LOOK);
            }
            Err(error) => return Err(GroupError::System(error)),
        }
    }
}

fn receive(
    socket: &Socket,
    into: &mut [u8],
    rank: usize,
    until: Instant,
) -> Result<Received, GroupError> {
    loop {
        match socket.receive(into) {
            Ok(received) if received.length == 0 => return Err(GroupError::Ended(rank)),
            Ok(received) => return Ok(received),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if Instant::now() >= until {
                    return Err(GroupError::Missing(rank));
                }
                sleep(LOOK);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return Err(GroupError::Ended(rank));
            }
            Err(error) => return Err(GroupError::System(error)),
        }
    }
}

/// What a side proves: that it holds the handle, now, as this side.
fn proof(key: &Key, side: &[u8], challenge: u128, rank: u64) -> [u8; 32] {
    key.sign(&[b"crosstie group 1", side, &challenge.to_le_bytes(), &rank.to_le_bytes()])
}

/// Refuses processes of users that may not take part, before anything is said.
fn user_of(socket: &Socket, trust: &Trust) -> Result<u32, GroupError> {
    let theirs = socket.credentials()?.uid;
    match trust.admits(theirs) {
        true => Ok(theirs),
        false => Err(GroupError::Stranger(theirs)),
    }
}

/// Dials the hub, and answers its challenge. The listener may not listen yet.
fn dial(handle: &Handle, trust: &Trust, rank: usize, until: Instant) -> Result<Socket, GroupError> {
    let socket = loop {
        match Socket::connect(&handle.socket()) {
            Ok(socket) => break socket,
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                sleep(LOOK);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                return Err(GroupError::Ended(0));
            }
            Err(error) => return Err(GroupError::System(error)),
        }
    };
    let user = user_of(&socket, trust)?;
    let key = handle.key(trust);
    let hears = |into: &mut [u8]| match receive(&socket, into, 0, until) {
        // it hangs up on strangers, and tells them nothing
        Err(GroupError::Ended(_)) => Err(GroupError::Refused),
        heard => heard,
    };
    let mut challenge = [0; 16];
    let got = hears(&mut challenge)?;
    if got.length != challenge.len() {
        return Err(GroupError::Stranger(user));
    }
    let own = random()?;
    let mut answer = Vec::from(proof(&key, b"dials", u128::from_le_bytes(challenge), rank as u64));
    answer.extend_from_slice(&own.to_le_bytes());
    answer.extend_from_slice(&(rank as u64).to_le_bytes());
    socket.send(&answer, &[])?;
    let mut reply = [0; 32];
    let got = hears(&mut reply)?;
    let right = proof(&key, b"listens", own, rank as u64);
    match got.length == reply.len() && same(&reply, &right) {
        true => Ok(socket),
        false => Err(GroupError::Stranger(user)),
    }
}

/// Takes one rank after the other, until all have come. Strangers are dropped, and change nothing;
/// who waits in vain hears of the last one.
fn accept_all(
    listener: &Listener,
    handle: &Handle,
    ranks: usize,
    until: Instant,
) -> Result<Vec<Socket>, GroupError> {
    let mut places: Vec<Option<Socket>> = (1..ranks).map(|_| None).collect();
    let mut stranger = None;
    while let Some(missing) = places.iter().position(Option::is_none) {
        match listener.socket.accept() {
            Ok(socket) => match admit(socket, handle, &listener.trust, ranks, until) {
                Ok((rank, socket)) if places[rank - 1].is_none() => {
                    places[rank - 1] = Some(socket);
                }
                Err(GroupError::Stranger(user)) => stranger = Some(user),
                Ok(_) | Err(_) => {}
            },
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if Instant::now() >= until {
                    let missing = GroupError::Missing(missing + 1);
                    return Err(stranger.map_or(missing, GroupError::Stranger));
                }
                sleep(LOOK);
            }
            Err(error) => return Err(GroupError::System(error)),
        }
    }
    Ok(places.into_iter().flatten().collect())
}

/// How long a process that dialled may take to prove itself: it has nothing else to do.
const PROOF_PATIENCE: Duration = Duration::from_secs(5);

fn admit(
    socket: Socket,
    handle: &Handle,
    trust: &Trust,
    ranks: usize,
    until: Instant,
) -> Result<(usize, Socket), GroupError> {
    let user = user_of(&socket, trust)?;
    let until = until.min(Instant::now() + PROOF_PATIENCE);
    let key = handle.key(trust);
    let challenge = random()?;
    socket.send(&challenge.to_le_bytes(), &[])?;
    let mut answer = [0; 56];
    let got = receive(&socket, &mut answer, 0, until)?;
    let rank = u64::from_le_bytes(answer[48..].try_into().expect("8 bytes"));
    let right = proof(&key, b"dials", challenge, rank);
    let whole = got.length == answer.len() && (1..ranks as u64).contains(&rank);
    if !whole || !same(&answer[..32], &right) {
        return Err(GroupError::Stranger(user));
    }
    let theirs = u128::from_le_bytes(answer[32..48].try_into().expect("16 bytes"));
    socket.send(&proof(&key, b"listens", theirs, rank), &[])?;
    Ok((rank as usize, socket))
}

/// Compares in a time that tells nothing of where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::os::user;
    use crate::connect::trust::Users;
    use std::thread::{scope, spawn};

    const PATIENCE: Duration = Duration::from_secs(60);

    fn keyed(byte: u8) -> Trust {
        Trust::new(Some(Key::new(&[byte; 32]).unwrap()), Users::default())
    }

    fn plain() -> Trust {
        Trust::new(None, Users::default())
    }

    /// What becomes of a rank 1 of two that has `trust`.
    fn joins(trust: Trust, first: &[u8; HANDLE_BYTES]) -> Result<Group, GroupError> {
        Group::form(&Listener::new(trust).unwrap(), first, 1, 2, PATIENCE)
    }

    #[test]
    fn ranks_without_the_same_key_are_refused_and_change_nothing() {
        for (ours, theirs) in [(keyed(1), keyed(2)), (keyed(1), plain()), (plain(), keyed(1))] {
            let listener = Listener::new(ours.clone()).unwrap();
            let first = *listener.handle();
            scope(|scope| {
                let hub = scope.spawn(|| Group::form(&listener, &first, 0, 2, PATIENCE));
                assert!(matches!(joins(theirs, &first), Err(GroupError::Refused)));
                let rank = scope.spawn(|| {
                    let mut group = joins(ours.clone(), &first)?;
                    group.gather(b"here", &[])
                });
                let parts = hub.join().unwrap().unwrap().gather(b"there", &[]).unwrap();
                assert_eq!(
                    (&parts[0].bytes[..], &parts[1].bytes[..]),
                    (&b"there"[..], &b"here"[..])
                );
                assert_eq!(rank.join().unwrap().unwrap().len(), 2);
            });
        }
    }

    #[test]
    fn rank_of_a_user_that_is_not_admitted_is_refused_and_without_a_key_alone() {
        // the number of unknown users is never let in, whoever has it
        let strict = |mut trust: Trust| {
            trust.overflow = user();
            trust
        };
        let listener = Listener::new(strict(plain())).unwrap();
        let first = *listener.handle();
        // ends with the test's process, if the stranger was not counted
        spawn(move || Group::form(&listener, &first, 0, 2, PATIENCE));
        assert!(matches!(joins(plain(), &first), Err(GroupError::Refused)));

        let listener = Listener::new(strict(keyed(1))).unwrap();
        let first = *listener.handle();
        let hub = spawn(move || Group::form(&listener, &first, 0, 2, PATIENCE));
        joins(keyed(1), &first).unwrap();
        hub.join().unwrap().unwrap();
    }
}
