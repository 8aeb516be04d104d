//! A stream of messages: several outstanding, in one direction or both.
#![forbid(unsafe_code)]

use super::side::Side;
use super::window::Window;
use crate::Failure;
use crosstie::base::slab::Handle;
use crosstie::transport::RequestId;
use std::collections::VecDeque;

/// One half of a stream: what was started, and what has ended.
struct Half {
    /// Where it goes, in turn.
    connections: Vec<Handle>,
    wanted: u64,
    /// Receives, here or there, that messages of the window come for. Those behind them get what
    /// ends it early: as many as the receiver may have posted before it knew.
    carried: u64,
    started: u64,
    ended: u64,
    /// Outstanding requests, oldest first. Never longer than it was made for.
    requests: VecDeque<RequestId>,
}

impl Half {
    fn new(connections: &[Handle], rounds: u64, group: u64, outstanding: u64) -> Half {
        let carried = if connections.is_empty() { 0 } else { rounds };
        Half {
            connections: connections.into(),
            wanted: carried * group,
            carried,
            started: 0,
            ended: 0,
            requests: VecDeque::with_capacity((outstanding * group) as usize),
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
            sends: Half::new(sends, window.rounds, group, outstanding),
            receives: Half::new(receives, window.rounds, 1, outstanding),
        }
    }

    /// Runs to the end, or until the time is over; returns how many rounds that were, the mean of
    /// both directions where there are two.
    #[inline]
    pub fn run(&mut self, side: &mut Side) -> Result<f64, Failure> {
        while !self.is_over() {
            self.receives_start(side)?;
            self.sends_start(side)?;
            self.receives_end(side)?;
            self.sends_end(side)?;
        }
        let halves = [&self.sends, &self.receives].map(|half| half.carried as f64);
        match halves {
            [rounds, 0.0] | [0.0, rounds] => Ok(rounds),
            [out, back] => Ok((out + back) / 2.0),
        }
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
        if side.is_over() {
            self.sends_cut();
        }
        let sends = &mut self.sends;
        let group = self.window.group;
        let most = self.window.outstanding * group;
        while sends.started < sends.wanted && sends.started - sends.ended < most {
            let (round, part) = match group {
                1 => (sends.started, 0),
                _ => (sends.started / group, sends.started % group),
            };
            let connection = sends.connection(round);
            let sent = match round < sends.carried {
                true => side.send(connection, &self.window, round, part)?,
                false => side.send(connection, &self.window.stop(), round, part)?,
            };
            match sent {
                Some(request) => sends.requests.push_back(request),
                None => break,
            }
            sends.started += 1;
        }
        Ok(())
    }

    /// After the round that was begun last, and one at least, only what ends the window is sent.
    #[cold]
    fn sends_cut(&mut self) {
        let (sends, window) = (&mut self.sends, &self.window);
        let next = sends.started.div_ceil(window.group).max(1);
        if next < sends.carried {
            sends.carried = next;
            sends.wanted = (next + window.outstanding).min(window.rounds) * window.group;
        }
    }

    #[inline]
    fn receives_end(&mut self, side: &mut Side) -> Result<(), Failure> {
        while let Some(request) = self.receives.requests.front() {
            let Some(length) = side.ended_length(*request)? else { break };
            let (window, receives) = (&self.window, &mut self.receives);
            if receives.ended < receives.carried && window.is_stop(length) {
                receives.carried = receives.ended;
                receives.wanted = (receives.ended + window.outstanding).min(window.rounds);
                side.cut();
            }
            if receives.ended < receives.carried {
                side.received(window, receives.ended)?;
            }
            receives.requests.pop_front();
            receives.ended += 1;
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
