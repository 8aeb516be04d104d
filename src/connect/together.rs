//! Connections of one host over shared memory and TCP at once, where both ends want that (W8.13):
//! lane 0 runs through the rings, the others over sockets.
//!
//! The link is that of shared memory. What it takes for lanes over TCP, it has as one between
//! hosts has it: random numbers that a data stream proves its link by, the listener's addresses,
//! and the limits of both sides. The rings are used once, so lane 0 does not come back.
#![forbid(unsafe_code)]

use super::control::Control;
use super::event::{Rail, STREAMS_MAX};
use super::memory::LinkMemory;
use super::note::Note;
use super::plan::plan_beside;
use crate::wire::hello::{ConnectHello, Frame, LinkHello, RAIL_SHM, RAIL_TCP, RAIL_TOGETHER};

/// Why a connection of one host that could have run over both rails runs over shared memory alone.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Apart {
    /// We want both, and the peer does not.
    There,
    /// The peer wants both, and we do not.
    Here,
    /// The numbers of requests differ, which over TCP they may not.
    Requests {
        /// Ours.
        ours: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The peer has no address at which it could be reached.
    Address,
}

/// What a band makes of the `rails` that it is told: both together want both, and a second lane.
pub(super) fn rails_sound(rails: u32, lanes_max: u32) -> u32 {
    let all = RAIL_SHM | RAIL_TCP | RAIL_TOGETHER;
    match rails & all == all && lanes_max > 1 {
        true => rails,
        false => rails & !RAIL_TOGETHER,
    }
}

impl<M: LinkMemory> Control<M> {
    /// Whether we want shared memory and TCP in one connection.
    pub fn wants_together(&self) -> bool {
        self.config.rails & RAIL_TOGETHER != 0
    }

    /// Takes in what the peer's hello says of it.
    pub fn together_take(&mut self, index: u32, hello: &LinkHello) {
        let wanted = self.wants_together() && hello.rails & RAIL_TOGETHER != 0;
        let link = &mut self.links[index as usize];
        if link.rail != Rail::Shm || !wanted || hello.lanes < 2 || hello.nonce == 0 {
            return;
        }
        link.together = true;
        link.lanes = self.config.lanes_max.min(hello.lanes);
    }

    /// A peer's hello has been answered: it gets our addresses, if it wants them.
    pub fn together_say(&mut self, index: u32, hello: &LinkHello) {
        self.together_note(index, hello);
        if self.links[index as usize].together {
            let list = self.own_addresses();
            // a fresh socket has room, and of one that has not the reader notices
            let _ = self.send(index, &Frame::Addresses(list));
        }
    }

    /// Says which side alone wants both rails, if one does.
    pub fn together_note(&self, index: u32, hello: &LinkHello) {
        let link = &self.links[index as usize];
        let why = match (self.wants_together(), hello.rails & RAIL_TOGETHER != 0) {
            _ if link.rail != Rail::Shm => return,
            (true, false) => Apart::There,
            (false, true) => Apart::Here,
            (true, true) | (false, false) => return,
        };
        (self.config.note)(Note::Apart { peer: link.peer, why });
    }

    /// Plans the lanes of a connection that is about to be asked for on a link of this host.
    pub fn together_plan(&mut self, index: u32) {
        let at = self.connections[index as usize].link;
        let theirs = self.addresses_of(at);
        let link = &self.links[at as usize];
        if !link.together {
            return;
        }
        let ours = &self.config.addresses;
        let plan = plan_beside(ours, &theirs, self.config.lanes_wish, link.lanes);
        let Some(plan) = plan else {
            (self.config.note)(Note::Apart { peer: link.peer, why: Apart::Address });
            return;
        };
        let streams = self.streams_each(link.streams, 0);
        let connection = &mut self.connections[index as usize];
        connection.stream_count = streams as u8;
        connection.lanes = plan.count as u8;
        for (lane, path) in plan.paths[..plan.count].iter().enumerate() {
            self.lane(index, lane as u32).path = *path;
        }
    }

    /// A peer has asked for a connection: it has the lanes that both sides can have.
    pub fn together_admit(&mut self, index: u32) {
        let connection = &self.connections[index as usize];
        let (link, hello) = (&self.links[connection.link as usize], connection.peer);
        let lanes = link.lanes.min(hello.data_rails);
        let asked = link.together && (1..=link.streams).contains(&hello.streams) && lanes > 1;
        if !asked || self.together_differ(index, &hello) {
            return;
        }
        debug_assert!(hello.streams as usize <= STREAMS_MAX);
        let connection = &mut self.connections[index as usize];
        connection.stream_count = hello.streams as u8;
        connection.lanes = lanes as u8;
        self.met_insert(index);
    }

    /// The peer has made a connection: with lanes over TCP, or without.
    pub fn together_accepted(&mut self, index: u32) {
        let connection = &self.connections[index as usize];
        let hello = connection.peer;
        let shm = self.links[connection.link as usize].rail == Rail::Shm;
        if !shm || connection.stream_count == 0 {
            return;
        }
        if hello.streams == 0 || connection.lanes < 2 {
            self.together_differ(index, &hello);
            let connection = &mut self.connections[index as usize];
            connection.stream_count = 0;
            connection.lanes = 1;
        }
    }

    /// Whether the numbers of requests differ; said if so.
    fn together_differ(&self, index: u32, hello: &ConnectHello) -> bool {
        let (ours, theirs) = (self.config.template.groups_max, hello.groups_max);
        if ours == theirs {
            return false;
        }
        let peer = self.links[self.connections[index as usize].link as usize].peer;
        (self.config.note)(Note::Apart { peer, why: Apart::Requests { ours, theirs } });
        true
    }
}
