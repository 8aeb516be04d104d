//! A stream of messages: several outstanding, in one direction or both.
#![forbid(unsafe_code)]

extern crate std;

use super::side::Side;
use super::window::Window;
use crate::base::slab::Handle;
use crate::tool::Failure;
use crate::transport::RequestId;
use std::collections::VecDeque;
use std::vec::Vec;

/// One half of a stream: what was started, and what has ended.
struct Half {
    /// Where it goes, in turn.
    connections: Vec<Handle>,
    wanted: u64,
    started: u64,
    ended: u64,
    /// Outstanding requests, oldest first. Never longer than it was made for.
    requests: VecDeque<RequestId>,
}

impl Half {
    fn new(connections: &[Handle], wanted: u64, requests_max: u64) -> Half {
        Half {
            connections: connections.into(),
            wanted: if connections.is_empty() { 0 } else { wanted },
            started: 0,
            ended: 0,
            requests: VecDeque::with_capacity(requests_max as usize),
        }
    }

    #[inline]
    fn connection(&self, round: u64) -> Handle {
        match self.connections.len() {
            1 => self.connections[0],
            count => self.connections[(round % count as u64) as usize],
        }
    }
}

/// A stream under way in one process.
pub struct Flow {
    window: Window,
    sends: Half,
    receives: Half,
}

impl Flow {
    /// A stream of `window`'s messages that goes out on some connections, and comes in on others;
    /// either may be none.
    pub fn new(window: &Window, sends: &[Handle], receives: &[Handle]) -> Flow {
        let (outstanding, group) = (window.outstanding, window.group);
        Flow {
            window: *window,
            sends: Half::new(sends, window.messages(), outstanding * group),
            receives: Half::new(receives, window.rounds, outstanding),
        }
    }

    /// Runs to the end.
    #[inline]
    pub fn run(&mut self, side: &mut Side) -> Result<(), Failure> {
        while !self.is_over() {
            self.receives_start(side)?;
            self.sends_start(side)?;
            self.receives_end(side)?;
            self.sends_end(side)?;
        }
        Ok(())
    }

    /// Whether every message has travelled.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.sends.ended == self.sends.wanted && self.receives.ended == self.receives.wanted
    }

    /// Posts as many receives as may be outstanding.
    #[inline]
    pub fn receives_start(&mut self, side: &mut Side) -> Result<(), Failure> {
        let receives = &mut self.receives;
        while receives.started < receives.wanted
            && receives.started - receives.ended < self.window.outstanding
        {
            let round = receives.started;
            let connection = receives.connection(round);
            match side.receive(connection, &self.window, round)? {
                Some(request) => receives.requests.push_back(request),
                None => break,
            }
            receives.started += 1;
        }
        Ok(())
    }

    #[inline]
    fn sends_start(&mut self, side: &mut Side) -> Result<(), Failure> {
        let sends = &mut self.sends;
        let group = self.window.group;
        let most = self.window.outstanding * group;
        while sends.started < sends.wanted && sends.started - sends.ended < most {
            let (round, part) = match group {
                1 => (sends.started, 0),
                _ => (sends.started / group, sends.started % group),
            };
            let connection = sends.connection(round);
            match side.send(connection, &self.window, round, part)? {
                Some(request) => sends.requests.push_back(request),
                None => break,
            }
            sends.started += 1;
        }
        Ok(())
    }

    #[inline]
    fn receives_end(&mut self, side: &mut Side) -> Result<(), Failure> {
        while let Some(request) = self.receives.requests.front() {
            if !side.ended(*request)? {
                break;
            }
            side.received(&self.window, self.receives.ended);
            self.receives.requests.pop_front();
            self.receives.ended += 1;
        }
        Ok(())
    }

    #[inline]
    fn sends_end(&mut self, side: &mut Side) -> Result<(), Failure> {
        while let Some(request) = self.sends.requests.front() {
            if !side.ended(*request)? {
                break;
            }
            self.sends.requests.pop_front();
            self.sends.ended += 1;
        }
        Ok(())
    }
}
