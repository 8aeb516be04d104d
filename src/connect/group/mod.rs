//! Ranks that exchange records and descriptors: the set-up of what they share.
//!
//! The ranks of a host are a star over record sockets. Its hub is the host's first rank, and it
//! gives every rank a descriptor that tells when another one ends. Where there are several hosts,
//! all ranks are a second star, over TCP, whose hub is rank 0. It carries records alone.
//!
//! A rank dials the hub, and both prove that they hold the hub's handle. After that
//! [`Group::gather`] is the only operation: each rank gives a record and descriptors. It gets the
//! records of all ranks, and the descriptors of those of its host. It is a collective call: all
//! ranks make the same calls in the same order.
//!
//! Nothing leaves before the peer has proved that it holds the handle, and the shared key where
//! there is one. Within a host it must also be one that [`Trust`] admits. Neither the socket's name
//! nor its port tells anything of the handle's secret.
//!
//! - [`mod@line`]: records over a socket of either kind
//! - [`meet`]: how ranks dial, and are admitted
//! - [`star`]: a hub and its ranks
#![forbid(unsafe_code)]

mod error;
mod line;
mod meet;
mod star;

use super::key::Key;
use super::listening::{Answers, Listening};
use super::os::{is_readable, random};
use super::route::{handle_addresses, handle_socket};
use super::socket::{Name, Socket};
use super::trust::Trust;
use crate::wire::handle::{Address, Family};
use crate::wire::hello::AddressList;
pub use error::GroupError;
use star::Star;
use std::format;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec::Vec;

/// Bytes of a handle, as NCCL carries it.
pub const HANDLE_BYTES: usize = 128;
/// Longest record that a rank may give.
pub const RECORD_BYTES_MAX: usize = 512;
/// Most descriptors that a rank may give with a record.
pub const DESCRIPTORS_MAX: usize = super::socket::DESCRIPTORS_MAX;
/// First word of a handle; its last byte is the version of this exchange.
const MAGIC: u64 = u64::from_le_bytes(*b"xtiegrp\x03");
/// Addresses in a handle: as many as there is room for.
const ADDRESSES: usize = 4;
/// Bytes of an address: family, port, address.
const ADDRESS_BYTES: usize = 19;
/// Where the addresses begin in a handle, behind magic, place, name and secret.
const ADDRESSES_AT: usize = 48;
/// How long another host may leave unacknowledged what it was sent.
const SILENCE_MS: u32 = 30_000;

const _: () = assert!(ADDRESSES_AT + ADDRESSES * ADDRESS_BYTES <= HANDLE_BYTES);

/// Sockets for ranks to dial, and the secret of their handle.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// For ranks of other hosts.
    net: Listening,
    /// The own addresses.
    addresses: AddressList,
    handle: [u8; HANDLE_BYTES],
    trust: Trust,
}

/// What a handle says.
struct Handle {
    /// Ranks of one place reach each other by sockets of the host.
    place: u64,
    name: u128,
    secret: u128,
    addresses: [Address; ADDRESSES],
}

impl Handle {
    fn write(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.place.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.name.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.secret.to_le_bytes());
        let places = bytes[ADDRESSES_AT..].chunks_exact_mut(ADDRESS_BYTES);
        for (address, at) in self.addresses.iter().zip(places) {
            at[0] = match address.family {
                Family::Ipv4 => 4,
                Family::Ipv6 => 6,
                Family::None | Family::Local => continue,
            };
            at[1..3].copy_from_slice(&address.port.to_le_bytes());
            at[3..].copy_from_slice(&address.ip);
        }
        bytes
    }

    fn read(bytes: &[u8; HANDLE_BYTES]) -> Option<Handle> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let wide = |at: usize| u128::from_le_bytes(bytes[at..at + 16].try_into().expect("16"));
        if word(0) != MAGIC {
            return None;
        }
        let mut addresses = [Address::default(); ADDRESSES];
        let places = bytes[ADDRESSES_AT..].chunks_exact(ADDRESS_BYTES);
        for (address, at) in addresses.iter_mut().zip(places) {
            let family = match at[0] {
                4 => Family::Ipv4,
                6 => Family::Ipv6,
                _ => continue,
            };
            let ip = at[3..].try_into().expect("16 bytes");
            *address = Address { family, port: u16::from_le_bytes([at[1], at[2]]), ip };
        }
        Some(Handle { place: word(8), name: wide(16), secret: wide(32), addresses })
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
    /// Listens for processes that `trust` admits: under a name that nobody else has, and at those
    /// of `addresses` that can be had. Ranks of the same `place` meet by the name, others at the
    /// addresses. An empty list: ranks of other places are refused.
    pub fn new(trust: Trust, place: u64, addresses: &AddressList) -> Result<Listener, GroupError> {
        let mut net = Listening::default();
        if !addresses.as_slice().is_empty() {
            net.open_remote(addresses, Answers::Each, SILENCE_MS)?;
        }
        let mut told = [Address::default(); ADDRESSES];
        for (to, address) in told.iter_mut().zip(handle_addresses(&net.answered(addresses))) {
            *to = address;
        }
        let handle = Handle { place, name: random()?, secret: random()?, addresses: told };
        let socket = Socket::listen(&handle.socket())?;
        Ok(Listener { socket, net, addresses: *addresses, handle: handle.write(), trust })
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
    /// Its descriptors; none of a rank of another host.
    pub descriptors: Vec<OwnedFd>,
}

/// Which ranks of a group have ended. It may be asked while the group exchanges records.
#[derive(Debug, Default)]
pub struct Lives(
    /// Readable once a rank has ended; none for the own rank, and for those of other hosts.
    Vec<Option<OwnedFd>>,
);

impl Lives {
    /// Whether a rank's process is known to have ended.
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
    /// The ranks of this host, in order.
    members: Vec<usize>,
    /// They.
    host: Star,
    /// All ranks, where some are of other hosts.
    all: Option<Star>,
    ranks: usize,
    lives: Arc<Lives>,
}

impl Group {
    /// Brings the ranks together by their handles, of which that of `rank` is `listener`'s.
    ///
    /// *Errors*: [`GroupError`]. *Cost*: blocks until all ranks have come, at most `patience`.
    pub fn form(
        listener: &Listener,
        handles: &[[u8; HANDLE_BYTES]],
        rank: usize,
        patience: Duration,
    ) -> Result<Group, GroupError> {
        let ranks = handles.len();
        let read = |(rank, bytes)| Handle::read(bytes).ok_or(GroupError::Handle(rank));
        let handles: Vec<_> = handles.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let here = handles.get(rank).ok_or(GroupError::Handle(rank))?.place;
        let is_here = |rank: &usize| handles[*rank].place == here;
        let members: Vec<usize> = (0..ranks).filter(is_here).collect();
        let own = members.iter().position(|member| *member == rank).unwrap_or(0);
        let until = Instant::now() + patience;
        let lines = match own {
            0 => meet::accept_host(listener, &handles[rank], members.len(), until),
            _ => meet::dial_host(&handles[members[0]], &listener.trust, own, until),
        };
        let lines = lines.map_err(|error| error.of(&members))?;
        let mut host = Star::new(own, members.len(), lines, patience);
        let known = host.exchange_lives().map_err(|error| error.of(&members))?;
        let mut lives: Vec<_> = (0..ranks).map(|_| None).collect();
        for (member, life) in members.iter().zip(known) {
            lives[*member] = life;
        }
        let lives = Arc::new(Lives(lives));
        let mut group = Group { rank, members, host, all: None, ranks, lives };
        if group.members.len() < ranks {
            let lines = match rank {
                0 => meet::accept_far(listener, &handles[0], ranks, until)?,
                _ => meet::dial_far(&handles[0], listener, here, rank, until)?,
            };
            group.all = Some(Star::new(rank, ranks, lines, patience));
        }
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

    /// The ranks of this host, in order, the own one among them.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// What tells which ranks of this host have ended.
    pub fn lives(&self) -> &Arc<Lives> {
        &self.lives
    }

    /// A rank that has left, as far as this one sees it without a call of the others.
    pub fn left(&self) -> Option<usize> {
        let of_host = || self.members.iter().copied().find(|rank| self.lives.has_ended(*rank));
        of_host().or_else(|| self.all.as_ref().and_then(Star::left))
    }

    /// Gives a record with descriptors, and gets those of all ranks in order.
    ///
    /// *Errors*: [`GroupError`]; the group is of no use then, and says so to the others. *Cost*:
    /// blocks until all ranks have made the call.
    ///
    /// *Panics*: when the record or the descriptors are more than a frame carries.
    pub fn gather(
        &mut self,
        record: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<Part>, GroupError> {
        assert!(record.len() <= RECORD_BYTES_MAX && descriptors.len() <= DESCRIPTORS_MAX);
        let gathered = self.gather_both(record, descriptors);
        if gathered.is_err() {
            self.host.end();
            self.all.iter_mut().for_each(Star::end);
        }
        gathered
    }

    fn gather_both(
        &mut self,
        record: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<Part>, GroupError> {
        let of_host = self.host.gather(record, descriptors);
        let of_host = of_host.map_err(|error| error.of(&self.members))?;
        let Some(all) = &mut self.all else { return Ok(of_host) };
        let mut parts = all.gather(record, &[])?;
        for (member, part) in self.members.iter().zip(of_host) {
            parts[*member] = part;
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests;
