//! How a link ends, and what a connection gives back to it.
#![forbid(unsafe_code)]

use super::connection::NONE;
use super::control::Control;
use super::error::ConnectError;
use super::event::{Rail, Side};
use super::link::{ADDRESSES_AT, BUFFER_BYTES, Link, LinkPhase};
use super::memory::LinkMemory;
use crate::fabric::completion::DownCause;
use std::os::fd::AsFd;

impl<M: LinkMemory> Control<M> {
    /// Ends a link: its socket closes, its connections learn why, its mappings stay while used.
    pub fn link_down(&mut self, index: u32, cause: DownCause, error: ConnectError) {
        let link = &self.links[index as usize];
        if !link.is_usable() && link.phase != LinkPhase::Lost {
            return;
        }
        let (stood, resumes) = (link.stands(), link.resumes);
        let cause = match &link.ending {
            Some(ending) if cause == DownCause::Died => ending.cause(link.rail),
            Some(_) | None => cause,
        };
        self.outage_end(index);
        self.link_phase(index, LinkPhase::Dead);
        self.link_unplug_socket(index);
        let link = &mut self.links[index as usize];
        let pidfd = link.pidfd.take();
        if let Some(pidfd) = &pidfd {
            self.poller.remove(pidfd.as_fd());
        }
        let (endpoint_id, rail) = (link.peer.endpoint_id, link.rail);
        self.each_joined(index, |control, at| control.connection_lost(at, cause, error));
        self.counters.links_lost += u64::from(stood && cause != DownCause::Closed);
        if cause == DownCause::Died && endpoint_id != 0 && rail == Rail::Shm {
            self.mourn(endpoint_id, pidfd);
        }
        self.link_unused(index);
        if resumes != NONE {
            self.redial_failed(resumes, index, error);
        }
    }

    /// Closes a link's socket and forgets what was on its way.
    pub fn link_unplug_socket(&mut self, index: u32) {
        let link = &mut self.links[index as usize];
        if let Some(socket) = link.socket.take() {
            self.poller.remove(socket.as_fd());
        }
        link.received = 0;
        link.unsent = 0;
        link.blocked = false;
        link.parting = None;
        link.code = 0;
    }

    /// Closes what a link has of its peer.
    pub fn link_unplug(&mut self, index: u32) {
        self.link_unplug_socket(index);
        if let Some(pidfd) = self.links[index as usize].pidfd.take() {
            self.poller.remove(pidfd.as_fd());
        }
    }

    /// Changes how far a link is.
    pub fn link_phase(&mut self, index: u32, phase: LinkPhase) {
        let link = &mut self.links[index as usize];
        self.links_greeted -= u32::from(link.is_greeted());
        link.phase = phase;
        self.links_greeted += u32::from(link.is_greeted());
        let half_open = link.is_half_open();
        self.half_open.put(index, half_open);
        if phase == LinkPhase::Ready {
            self.link_stamp(index);
        }
    }

    /// Makes a link known by its endpoint.
    pub fn link_chain(&mut self, index: u32) {
        let link = &mut self.links[index as usize];
        let head = self.chains.head(link.peer.endpoint_id);
        link.chain_next = core::mem::replace(head, index);
        link.chained = true;
    }

    /// The links to an endpoint.
    pub fn chained(&self, endpoint_id: u128) -> impl Iterator<Item = u32> + use<'_, M> {
        let known = |at: u32| (at != NONE).then_some(at);
        let next = move |at: &u32| known(self.links[*at as usize].chain_next);
        let all = core::iter::successors(known(self.chains.first(endpoint_id)), next);
        all.filter(move |at| self.links[*at as usize].peer.endpoint_id == endpoint_id)
    }

    fn link_unchain(&mut self, index: u32) {
        let link = &mut self.links[index as usize];
        if !core::mem::take(&mut link.chained) {
            return;
        }
        let (endpoint, next) = (link.peer.endpoint_id, link.chain_next);
        let mut at = *self.chains.head(endpoint);
        if at == index {
            *self.chains.head(endpoint) = next;
            return;
        }
        while self.links[at as usize].chain_next != index {
            at = self.links[at as usize].chain_next;
        }
        self.links[at as usize].chain_next = next;
    }

    /// Frees the entry of a dead link that no connection uses; one that was lost need not come
    /// back for nobody.
    pub fn link_unused(&mut self, index: u32) {
        let link = &self.links[index as usize];
        if matches!(link.phase, LinkPhase::Dead | LinkPhase::Lost) && link.connections == 0 {
            self.outage_end(index);
            self.link_forget(index);
        }
    }

    /// Gives the entry of a link back, which no connection uses.
    pub fn link_forget(&mut self, index: u32) {
        self.link_unplug(index);
        self.link_unchain(index);
        self.link_phase(index, LinkPhase::Free);
        if self.links[index as usize].rail == Rail::Tcp {
            // no magic, no addresses
            self.buffers[index as usize * BUFFER_BYTES + ADDRESSES_AT] = 0;
        }
        self.links[index as usize] = Link::free();
        let words = self.arena_words();
        self.arena_used[index as usize * words..][..words].fill(0);
        self.links_free.push(index);
        // the thread may have nothing left to do
        self.attention = true;
    }

    /// Words of a link's row in the table of arena slots.
    pub fn arena_words(&self) -> usize {
        self.connections.len().div_ceil(64)
    }

    /// Makes a connection one of a link's.
    pub fn link_join(&mut self, index: u32, link: u32) {
        let entry = &mut self.links[link as usize];
        let next = core::mem::replace(&mut entry.first, index);
        entry.connections += 1;
        let connection = &mut self.connections[index as usize];
        connection.link = link;
        connection.link_next = next;
        connection.link_before = NONE;
        if next != NONE {
            self.connections[next as usize].link_before = index;
        }
    }

    /// Gives one connection's part of a link back.
    pub fn link_leave(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let link = connection.link;
        if link == NONE {
            return;
        }
        if connection.side == Side::Listener && connection.stream_count > 0 {
            self.met_remove(index);
        }
        let connection = &mut self.connections[index as usize];
        let slot = connection.arena_slot;
        let (before, next) = (connection.link_before, connection.link_next);
        connection.link = NONE;
        connection.arena_slot = NONE;
        if next != NONE {
            self.connections[next as usize].link_before = before;
        }
        match before {
            NONE => self.links[link as usize].first = next,
            before => self.connections[before as usize].link_next = next,
        }
        if slot != NONE {
            let at = link as usize * self.arena_words() + slot as usize / 64;
            self.arena_used[at] &= !(1 << (slot % 64));
        }
        let entry = &mut self.links[link as usize];
        entry.connections -= 1;
        if entry.connections == 0 {
            self.link_stamp(link);
            self.link_unused(link);
        }
    }
}
