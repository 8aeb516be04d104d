//! Messages back and forth, one at a time.
#![forbid(unsafe_code)]

use super::side::Side;
use super::window::Window;
use crate::Failure;
use crosstie::base::slab::Handle;
use crosstie::transport::RequestId;
use crosstie::wire::GROUP_MAX;
use std::time::Instant;

/// Sends of one round that have not been seen to end.
struct Sent {
    requests: [RequestId; GROUP_MAX],
    count: usize,
}

impl Sent {
    fn none() -> Sent {
        Sent { requests: [RequestId(0); GROUP_MAX], count: 0 }
    }

    fn wait(&mut self, side: &mut Side) -> Result<(), Failure> {
        for request in &self.requests[..self.count] {
            side.wait(*request)?;
        }
        self.count = 0;
        Ok(())
    }
}

/// Runs the measuring process, until the time is over; returns how many rounds that were.
///
/// With `samples`, each round's time in nanoseconds goes there: one
/// look at the clock per round. The vector must have room for them.
pub fn ping(
    side: &mut Side,
    window: &Window,
    mut samples: Option<&mut Vec<u32>>,
) -> Result<u64, Failure> {
    let mut sent = Sent::none();
    let mut last = Instant::now();
    let mut rounds = window.rounds;
    for round in 0..window.rounds {
        let connection = connection(side, round);
        sent.wait(side)?; // the buffer is used again
        if round > 0 && side.is_over() {
            sent = send(side, connection, &window.stop(), round)?;
            rounds = round;
            break;
        }
        sent = send(side, connection, window, round)?;
        // Posted while the message is on its way.
        let answer = receive(side, connection, window, round)?;
        side.wait(answer)?;
        side.received(window, round)?;
        if let Some(samples) = &mut samples {
            let now = Instant::now();
            samples.push(u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX));
            last = now;
        }
    }
    sent.wait(side)?;
    Ok(rounds)
}

/// Runs the other process, whose first receive is posted already, until the first ends it.
pub fn pong(side: &mut Side, window: &Window, first: RequestId) -> Result<(), Failure> {
    let mut sent = Sent::none();
    let mut next = first;
    for round in 0..window.rounds {
        let connection = connection(side, round);
        if window.is_stop(side.wait_length(next)?) {
            break;
        }
        side.received(window, round)?;
        sent.wait(side)?;
        sent = send(side, connection, window, round)?;
        if round + 1 < window.rounds {
            let connection = self::connection(side, round + 1);
            next = receive(side, connection, window, round + 1)?;
        }
    }
    sent.wait(side)
}

/// Posts the receive of a round.
pub fn receive(
    side: &mut Side,
    connection: Handle,
    window: &Window,
    round: u64,
) -> Result<RequestId, Failure> {
    let request = side.receive(connection, window, round)?;
    request.ok_or_else(|| "no record free although one message is outstanding".into())
}

#[inline]
fn connection(side: &Side, round: u64) -> Handle {
    match side.connections.len() {
        1 => side.connections[0],
        count => side.connections[(round % count as u64) as usize],
    }
}

#[inline]
fn send(side: &mut Side, connection: Handle, window: &Window, round: u64) -> Result<Sent, Failure> {
    let mut sent = Sent::none();
    while sent.count < window.group as usize {
        if let Some(request) = side.send(connection, window, round, sent.count as u64)? {
            sent.requests[sent.count] = request;
            sent.count += 1;
        } else {
            side.owned.endpoint().progress();
        }
    }
    Ok(sent)
}
