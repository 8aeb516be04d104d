//! Both ends of every connection in one process and one thread: the cost of the library itself.
#![forbid(unsafe_code)]

use super::bench::{Bench, Ran};
use super::flow::Flow;
use super::pingpong;
use super::setup::Setup;
use super::side::{Shape, Side};
use super::window::{Kind, Window};
use crate::Failure;
use crate::owned::{Backing, Location};
use crosstie::base::slab::Handle;
use crosstie::host::{DeviceKind, Endpoint};
use crosstie::transport::request::RequestIdError;
use crosstie::transport::{Outcome, RequestError, RequestId, SubmitError};
use crosstie::wire::GROUP_MAX;
use std::time::Instant;

/// Shortest message of a pair that is worth a look at the clock.
const LOOK_BYTES: u64 = 64 << 10;

/// An endpoint that is connected to itself.
pub struct Alone {
    side: Side,
    near: Vec<Handle>,
    far: Vec<Handle>,
    /// What the connections cost.
    pub setup: Setup,
}

impl Alone {
    /// Opens the endpoint and makes so many connections, each of two ends.
    pub fn open(connections: u32, buffers: &[(Backing, u64)]) -> Result<Alone, Failure> {
        let connections_all = 2 * connections;
        let shape = Shape {
            device: DeviceKind::Loopback,
            connections: connections_all,
            rails: None,
            location: Location::Host,
            has_group: false,
        };
        let setup = Setup::new(connections);
        let mut side = Side::open(&shape)?;
        for (backing, bytes) in buffers {
            side.buffers_make(*backing, *bytes)?;
        }
        let (listener, handle) = side.listen()?;
        let mut alone = Alone { side, near: [].into(), far: [].into(), setup };
        for _ in 0..connections {
            let began = Instant::now();
            alone.side.connections.clear();
            alone.side.connect(&handle)?;
            alone.side.accept(listener, 2)?;
            alone.setup.made(began);
            alone.near.push(alone.side.connections[0]);
            alone.far.push(alone.side.connections[1]);
        }
        Ok(alone)
    }

    /// One receive, one send, and tests until both have ended, so many times. Also says how many
    /// tests that took.
    pub fn pairs(
        &mut self,
        window: &Window,
        until: Option<Instant>,
    ) -> Result<(Ran, u64), Failure> {
        // a look at the clock costs as much as a short message
        let until = until.filter(|_| window.bytes >= LOOK_BYTES);
        let (near, far) = (self.near[0], self.far[0]);
        let (message, room) = self.side.message(window);
        let rooms = [room];
        let endpoint = self.side.owned.endpoint();
        let mut tests = 0;
        let mut rounds = window.rounds;
        let began = Instant::now();
        for round in 0..window.rounds {
            if round > 0 && until.is_some_and(|until| Instant::now() >= until) {
                rounds = round;
                break;
            }
            let receive = endpoint.irecv(far, &rooms).map_err(refused)?;
            let send = endpoint.isend(near, message).map_err(refused)?;
            tests += tests_until_ended(endpoint, receive)?;
            tests += tests_until_ended(endpoint, send)?;
        }
        Ok((Ran { took: began.elapsed(), rounds: rounds as f64 }, tests))
    }

    fn pingpong(
        &mut self,
        window: &Window,
        mut samples: Option<&mut Vec<u32>>,
    ) -> Result<u64, Failure> {
        let side = &mut self.side;
        let mut last = Instant::now();
        for round in 0..window.rounds {
            if round > 0 && side.is_over() {
                return Ok(round);
            }
            let at = round as usize % self.near.len();
            for (from, to) in [(self.near[at], self.far[at]), (self.far[at], self.near[at])] {
                let receive = pingpong::receive(side, to, window, round)?;
                let mut sends = [RequestId(0); GROUP_MAX];
                let sends = &mut sends[..window.group as usize];
                for (part, request) in sends.iter_mut().enumerate() {
                    *request = send(side, from, window, round, part as u64)?;
                }
                side.wait(receive)?;
                for send in sends {
                    side.wait(*send)?;
                }
                side.received(window, round)?;
            }
            if let Some(samples) = &mut samples {
                let now = Instant::now();
                samples.push(u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX));
                last = now;
            }
        }
        Ok(window.rounds)
    }
}

/// Tests a request until it has ended; says how many tests that took.
#[inline(always)]
fn tests_until_ended(endpoint: &mut Endpoint, request: RequestId) -> Result<u64, Failure> {
    let mut tests = 1;
    loop {
        match endpoint.test(request).map_err(stale)? {
            None => tests += 1,
            Some(Outcome { result: Ok(()), .. }) => return Ok(tests),
            Some(Outcome { result: Err(error), .. }) => return Err(failed(error)),
        }
    }
}

#[cold]
fn refused(error: SubmitError) -> Failure {
    format!("a message was refused: {error:?}")
}

#[cold]
fn failed(error: RequestError) -> Failure {
    format!("a request failed: {error:?}")
}

#[cold]
fn stale(error: RequestIdError) -> Failure {
    format!("test: {error:?}")
}

fn send(
    side: &mut Side,
    connection: Handle,
    window: &Window,
    round: u64,
    part: u64,
) -> Result<RequestId, Failure> {
    let request = side.send(connection, window, round, part)?;
    request.ok_or_else(|| format!("no record free for message {part}"))
}

impl Bench for Alone {
    fn window(
        &mut self,
        window: &Window,
        until: Option<Instant>,
        samples: Option<&mut Vec<u32>>,
    ) -> Result<Ran, Failure> {
        self.side.time_set(until);
        let began = Instant::now();
        let rounds = match window.kind {
            Kind::PingPong => self.pingpong(window, samples)? as f64,
            Kind::Stream => Flow::new(window, &self.near, &self.far).run(&mut self.side)?,
            Kind::Both => return Err("option --both: loopback0 has one direction".into()),
            kind => return Err(format!("{kind:?}: loopback0 has no second process")),
        };
        Ok(Ran { took: began.elapsed(), rounds })
    }

    fn checked(&self) -> (u64, u64) {
        (self.side.verified, self.side.wrong)
    }
}
