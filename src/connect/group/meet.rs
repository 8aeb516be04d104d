//! How ranks dial a hub, and are admitted: the hub sends a challenge, the rank answers with a proof
//! and a challenge of its own, and the hub answers that.

use super::error::GroupError;
use super::line::{LOOK, give, receive};
use super::{Handle, Listener, SILENCE_MS};
use crate::connect::channel::Channel;
use crate::connect::key::Key;
use crate::connect::listening::{DOORS, Door};
use crate::connect::os::{is_readable, random};
use crate::connect::route::Route;
use crate::connect::socket::Socket;
use crate::connect::stream::StreamSocket;
use crate::connect::trust::Trust;
use crate::wire::handle::ListenHandle;
use core::net::SocketAddr;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::vec::Vec;

/// How long a process that dialled may take to prove itself: it has nothing else to do.
const PROOF_PATIENCE: Duration = Duration::from_secs(5);
/// Processes that have dialled and proved nothing yet, beside as many as there are ranks.
const CALLERS_MAX: usize = 64;
/// How long an address of another host is tried before the next one.
const TRIAL: Duration = Duration::from_secs(3);
/// A proof, a challenge, a rank.
const ANSWER_BYTES: usize = 56;

/// Which star ranks meet for: a proof for one is none for the other.
#[derive(Copy, Clone, Eq, PartialEq)]
enum Kind {
    Host,
    Far,
}

impl Kind {
    fn dials(self) -> &'static [u8] {
        match self {
            Kind::Host => b"dials",
            Kind::Far => b"dials from far",
        }
    }

    fn listens(self) -> &'static [u8] {
        match self {
            Kind::Host => b"listens",
            Kind::Far => b"listens from far",
        }
    }
}

/// What a side proves: that it holds the handle, now, as this side.
fn proof(key: &Key, side: &[u8], challenge: u128, rank: u64) -> [u8; 32] {
    key.sign(&[b"crosstie group 1", side, &challenge.to_le_bytes(), &rank.to_le_bytes()])
}

/// The user of a process of this host that may take part; `None`: it is of another host.
fn user_of(line: &Channel, trust: &Trust) -> Result<Option<u32>, GroupError> {
    let Channel::Record(socket) = line else { return Ok(None) };
    let user = socket.credentials()?.uid;
    match trust.admits(user) {
        true => Ok(Some(user)),
        false => Err(GroupError::Stranger(Some(user))),
    }
}

/// Dials the hub of this host, which may not listen yet.
pub(super) fn dial_host(
    handle: &Handle,
    trust: &Trust,
    rank: usize,
    until: Instant,
) -> Result<Vec<Channel>, GroupError> {
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
    let line = Channel::Record(socket);
    introduce(&line, Kind::Host, (handle, trust), rank, until)?;
    Ok(Vec::from([line]))
}

/// Dials rank 0 at its addresses, of which any may lead there, from the host at `here`.
pub(super) fn dial_far(
    handle: &Handle,
    listener: &Listener,
    here: u64,
    rank: usize,
    until: Instant,
) -> Result<Vec<Channel>, GroupError> {
    let mut told = ListenHandle::default();
    told.addresses_set(handle.addresses.into_iter());
    let ours = listener.addresses.as_slice();
    let ways: Vec<_> = Route::to(&told, ours, handle.place == here).addresses().collect();
    if ways.is_empty() {
        return Err(GroupError::NoAddress(0));
    }
    let mut last = GroupError::Missing(0);
    for way in ways.iter().cycle() {
        let now = Instant::now();
        if now >= until {
            break;
        }
        match try_way(*way, (handle, &listener.trust), rank, until.min(now + TRIAL)) {
            Ok(line) => return Ok(Vec::from([line])),
            Err(refused @ GroupError::Refused(_)) => return Err(refused),
            Err(error) => last = error,
        }
        sleep(LOOK);
    }
    Err(last)
}

fn try_way(
    to: SocketAddr,
    who: (&Handle, &Trust),
    rank: usize,
    until: Instant,
) -> Result<Channel, GroupError> {
    let line = Channel::Stream(StreamSocket::connect_from(None, to, SILENCE_MS)?);
    introduce(&line, Kind::Far, who, rank, until)?;
    Ok(line)
}

/// Answers the hub's challenge, and checks its answer to ours.
fn introduce(
    line: &Channel,
    kind: Kind,
    (handle, trust): (&Handle, &Trust),
    rank: usize,
    until: Instant,
) -> Result<(), GroupError> {
    let user = user_of(line, trust)?;
    let key = handle.key(trust);
    let mut challenge = [0; 16];
    let got = match (receive(line, &mut challenge, 0, until), kind) {
        // it hangs up on strangers, and tells them nothing
        (Err(GroupError::Ended(_)), Kind::Host) => return Err(GroupError::Refused(0)),
        (got, _) => got?,
    };
    if got.length != challenge.len() {
        return Err(GroupError::Stranger(user));
    }
    let own = random()?;
    let challenge = u128::from_le_bytes(challenge);
    let mut answer = Vec::from(proof(&key, kind.dials(), challenge, rank as u64));
    answer.extend_from_slice(&own.to_le_bytes());
    answer.extend_from_slice(&(rank as u64).to_le_bytes());
    give(line, &answer, &[], until)?;
    let mut reply = [0; 32];
    let got = match receive(line, &mut reply, 0, until) {
        Err(GroupError::Ended(_)) => return Err(GroupError::Refused(0)),
        got => got?,
    };
    let right = proof(&key, kind.listens(), own, rank as u64);
    match got.length == reply.len() && same(&reply, &right) {
        true => Ok(()),
        false => Err(GroupError::Stranger(user)),
    }
}

/// Takes the other ranks of this host.
pub(super) fn accept_host(
    listener: &Listener,
    handle: &Handle,
    ranks: usize,
    until: Instant,
) -> Result<Vec<Channel>, GroupError> {
    let next = || listener.socket.accept().map(Channel::Record);
    accept_all(next, Kind::Host, (handle, &listener.trust), ranks, until)
}

/// Takes all other ranks at the addresses.
pub(super) fn accept_far(
    listener: &Listener,
    handle: &Handle,
    ranks: usize,
    until: Instant,
) -> Result<Vec<Channel>, GroupError> {
    if handle.addresses.iter().all(|address| super::handle_socket(address).is_none()) {
        return Err(GroupError::NoAddress(0));
    }
    let next = || {
        let doors = DOORS.into_iter().filter(|door| matches!(door, Door::Net(_)));
        let mut ready = doors.filter(|door| listener.net.has_caller(*door));
        ready.next().map_or(Err(ErrorKind::WouldBlock.into()), |door| listener.net.accept(door))
    };
    accept_all(next, Kind::Far, (handle, &listener.trust), ranks, until)
}

/// A process that has dialled, and was sent a challenge.
struct Caller {
    line: Channel,
    challenge: u128,
    until: Instant,
}

/// Takes the ranks as they come. Strangers are dropped, and change nothing; who waits in vain hears
/// of the last one.
fn accept_all(
    mut next: impl FnMut() -> io::Result<Channel>,
    kind: Kind,
    who: (&Handle, &Trust),
    ranks: usize,
    until: Instant,
) -> Result<Vec<Channel>, GroupError> {
    let mut places: Vec<Option<Channel>> = (1..ranks).map(|_| None).collect();
    let mut callers: Vec<Caller> = Vec::new();
    let mut stranger = None;
    while let Some(missing) = places.iter().position(Option::is_none) {
        let now = Instant::now();
        let mut idle = true;
        match next() {
            Ok(line) => {
                idle = false;
                match greet(line, who.1, until.min(now + PROOF_PATIENCE)) {
                    Ok(caller) if callers.len() < ranks + CALLERS_MAX => callers.push(caller),
                    Err(GroupError::Stranger(user)) => stranger = Some(user),
                    Ok(_) | Err(_) => {}
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if is_of_a_caller(&error) => {}
            Err(error) => return Err(GroupError::System(error)),
        }
        let ready = callers.iter().position(|it| is_readable(it.line.as_fd()));
        if let Some(caller) = ready.map(|at| callers.swap_remove(at)) {
            idle = false;
            match admit(caller, kind, who, ranks) {
                Ok((rank, line)) if places[rank - 1].is_none() => places[rank - 1] = Some(line),
                Err(GroupError::Stranger(user)) => stranger = Some(user),
                Ok(_) | Err(_) => {}
            }
        }
        callers.retain(|caller| now < caller.until);
        if now >= until {
            let missing = GroupError::Missing(missing + 1);
            return Err(stranger.map_or(missing, GroupError::Stranger));
        }
        if idle {
            sleep(LOOK);
        }
    }
    Ok(places.into_iter().flatten().collect())
}

/// Whether an error of accepting is of the one that dialled (accept(2)).
fn is_of_a_caller(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted)
}

fn greet(line: Channel, trust: &Trust, until: Instant) -> Result<Caller, GroupError> {
    user_of(&line, trust)?;
    let challenge = random()?;
    give(&line, &challenge.to_le_bytes(), &[], Instant::now())?;
    Ok(Caller { line, challenge, until })
}

/// Reads a caller's answer, which is there.
fn admit(
    caller: Caller,
    kind: Kind,
    (handle, trust): (&Handle, &Trust),
    ranks: usize,
) -> Result<(usize, Channel), GroupError> {
    let Caller { line, challenge, .. } = caller;
    let stranger = GroupError::Stranger(user_of(&line, trust)?);
    let key = handle.key(trust);
    let soon = Instant::now() + 100 * LOOK;
    let mut answer = [0; ANSWER_BYTES];
    let got = receive(&line, &mut answer, 0, soon)?;
    let rank = u64::from_le_bytes(answer[48..].try_into().expect("8 bytes"));
    let right = proof(&key, kind.dials(), challenge, rank);
    let whole = got.length == answer.len() && (1..ranks as u64).contains(&rank);
    if !whole || !same(&answer[..32], &right) {
        return Err(stranger);
    }
    let theirs = u128::from_le_bytes(answer[32..48].try_into().expect("16 bytes"));
    give(&line, &proof(&key, kind.listens(), theirs, rank), &[], soon)?;
    Ok((rank as usize, line))
}

/// Compares in a time that tells nothing of where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b)) == 0
}
