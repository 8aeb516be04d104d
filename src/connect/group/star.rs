//! A hub and its ranks: the hub takes a record of each rank, and hands each rank those of all
//! others.

use super::error::GroupError;
use super::line::{give, receive};
use super::{Part, RECORD_BYTES_MAX};
use crate::connect::channel::Channel;
use crate::connect::os::is_readable;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use std::vec::Vec;

/// What stands before each record: rank, round.
const HEAD_BYTES: usize = 16;

/// A star, as one of its ranks sees it. Rank 0 is the hub.
#[derive(Debug)]
pub(super) struct Star {
    rank: usize,
    ranks: usize,
    /// Of the hub: the other ranks in order. Of another rank: the hub.
    lines: Vec<Channel>,
    round: u64,
    patience: Duration,
}

impl Star {
    pub fn new(rank: usize, ranks: usize, lines: Vec<Channel>, patience: Duration) -> Star {
        Star { rank, ranks, lines, round: 0, patience }
    }

    /// The hub hands out what the kernel told it of each rank; a rank knows the hub by itself.
    pub fn exchange_lives(&mut self) -> Result<Vec<Option<OwnedFd>>, GroupError> {
        let pidfd = |line: &Channel| match line {
            Channel::Record(socket) => Ok(Some(socket.peer_pidfd()?)),
            Channel::Stream(_) => Ok::<_, GroupError>(None),
        };
        let mut lives: Vec<Option<OwnedFd>> = (0..self.ranks).map(|_| None).collect();
        let until = Instant::now() + self.patience;
        if self.rank != 0 {
            lives[0] = pidfd(&self.lines[0])?;
            for _ in 0..self.ranks.saturating_sub(2) {
                let (from, part) = self.take(0, until)?;
                let place = lives.get_mut(from).ok_or(GroupError::Order(from))?;
                *place = part.descriptors.into_iter().next();
            }
            return Ok(lives);
        }
        for (at, line) in self.lines.iter().enumerate() {
            lives[at + 1] = pidfd(line)?;
        }
        for (at, line) in self.lines.iter().enumerate() {
            for (rank, life) in lives.iter().enumerate().skip(1) {
                if let (Some(life), true) = (life, rank != at + 1) {
                    self.tell(line, rank, &[], &[life.as_fd()], until)?;
                }
            }
        }
        Ok(lives)
    }

    /// See [`super::Group::gather`].
    pub fn gather(
        &mut self,
        record: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<Part>, GroupError> {
        let has_ended = self.lines.is_empty() && self.ranks > 1;
        if has_ended {
            return Err(GroupError::Ended(0));
        }
        self.round += 1;
        let until = Instant::now() + self.patience;
        let own = || -> io::Result<Part> {
            let copies = descriptors.iter().map(|fd| fd.try_clone_to_owned());
            Ok(Part { bytes: record.into(), descriptors: copies.collect::<io::Result<_>>()? })
        };
        let mut parts: Vec<Part> = (0..self.ranks).map(|_| Part::default()).collect();
        parts[self.rank] = own()?;
        if self.rank != 0 {
            self.tell(&self.lines[0], self.rank, record, descriptors, until)?;
            for _ in 1..self.ranks {
                let (from, part) = self.take(0, until)?;
                *parts.get_mut(from).ok_or(GroupError::Order(from))? = part;
            }
            return Ok(parts);
        }
        for at in 0..self.lines.len() {
            let (from, part) = self.take(at, until)?;
            if from != at + 1 {
                return Err(GroupError::Order(at + 1));
            }
            parts[from] = part;
        }
        for (at, line) in self.lines.iter().enumerate() {
            for (rank, part) in parts.iter().enumerate().filter(|(rank, _)| *rank != at + 1) {
                let descriptors: Vec<_> = part.descriptors.iter().map(AsFd::as_fd).collect();
                self.tell(line, rank, &part.bytes, &descriptors, until)?;
            }
        }
        Ok(parts)
    }

    /// Hangs up: the others then wait for nothing.
    pub fn end(&mut self) {
        self.lines.clear();
    }

    /// A rank that has hung up.
    pub fn left(&self) -> Option<usize> {
        let has_left = |line: &Channel| match line {
            Channel::Record(_) => false, // its process is watched
            Channel::Stream(socket) => {
                is_readable(socket.as_fd()) && matches!(socket.peek(&mut [0]), Ok(0) | Err(_))
            }
        };
        let at = self.lines.iter().position(has_left)?;
        Some(self.other(at))
    }

    /// Whose line is at a place.
    fn other(&self, at: usize) -> usize {
        if self.rank == 0 { at + 1 } else { 0 }
    }

    /// The next record of a line, and whose it is.
    fn take(&self, at: usize, until: Instant) -> Result<(usize, Part), GroupError> {
        let rank = self.other(at);
        let mut bytes = [0; HEAD_BYTES + RECORD_BYTES_MAX];
        let heard = receive(&self.lines[at], &mut bytes, rank, until)?;
        if heard.length < HEAD_BYTES {
            return Err(GroupError::Order(rank));
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if word(8) != self.round {
            return Err(GroupError::Order(rank));
        }
        let record = bytes[HEAD_BYTES..heard.length].into();
        Ok((word(0) as usize, Part { bytes: record, descriptors: heard.descriptors }))
    }

    fn tell(
        &self,
        line: &Channel,
        rank: usize,
        record: &[u8],
        descriptors: &[BorrowedFd<'_>],
        until: Instant,
    ) -> Result<(), GroupError> {
        let mut bytes = Vec::from((rank as u64).to_le_bytes());
        bytes.extend_from_slice(&self.round.to_le_bytes());
        bytes.extend_from_slice(record);
        give(line, &bytes, descriptors, until)
    }
}
