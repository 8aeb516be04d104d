//! How a link ends, and what a connection gives back to it.
#![forbid(unsafe_code)]

extern crate std;

use super::connection::{NONE, Phase};
use super::control::Control;
use super::error::ConnectError;
use super::link::{Link, LinkPhase};
use super::memory::LinkMemory;
use crate::fabric::completion::DownCause;
use std::os::fd::AsFd;

impl<M: LinkMemory> Control<M> {
    /// Ends a link: its socket closes, its connections learn why, its mappings stay while used.
    pub fn link_down(&mut self, index: u32, cause: DownCause, error: ConnectError) {
        let link = &mut self.links[index as usize];
        if matches!(link.phase, LinkPhase::Free | LinkPhase::Dead) {
            return;
        }
        let stood = link.phase == LinkPhase::Ready;
        link.phase = LinkPhase::Dead;
        if let Some(socket) = link.socket.take() {
            self.poller.remove(socket.as_fd());
        }
        let pidfd = link.pidfd.take();
        if let Some(pidfd) = &pidfd {
            self.poller.remove(pidfd.as_fd());
        }
        let endpoint_id = link.peer.endpoint_id;
        for connection in 0..self.connections.len() as u32 {
            let entry = &self.connections[connection as usize];
            if entry.phase != Phase::Free && entry.link == index {
                self.connection_lost(connection, cause, error);
            }
        }
        self.counters.links_lost += u64::from(stood);
        if cause == DownCause::Died && endpoint_id != 0 {
            self.mourn(endpoint_id, pidfd);
        }
        self.link_unused(index);
    }

    /// Frees the entry of a dead link that no connection uses.
    pub fn link_unused(&mut self, index: u32) {
        let link = &self.links[index as usize];
        if link.phase == LinkPhase::Dead && link.connections == 0 {
            self.link_forget(index);
        }
    }

    pub fn link_forget(&mut self, index: u32) {
        let link = &mut self.links[index as usize];
        if let Some(socket) = link.socket.take() {
            self.poller.remove(socket.as_fd());
        }
        if let Some(pidfd) = link.pidfd.take() {
            self.poller.remove(pidfd.as_fd());
        }
        *link = Link::free();
        let words = self.arena_words();
        self.arena_used[index as usize * words..][..words].fill(0);
    }

    /// Words of a link's row in the table of arena slots.
    pub fn arena_words(&self) -> usize {
        self.connections.len().div_ceil(64)
    }

    /// Gives one connection's part of a link back.
    pub fn link_leave(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let link = connection.link;
        if link == NONE {
            return;
        }
        let slot = connection.arena_slot;
        connection.link = NONE;
        connection.arena_slot = NONE;
        if slot != NONE {
            let at = link as usize * self.arena_words() + slot as usize / 64;
            self.arena_used[at] &= !(1 << (slot % 64));
        }
        self.links[link as usize].connections -= 1;
        self.link_unused(link);
    }
}
