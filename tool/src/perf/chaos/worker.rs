//! One of the two processes whose rails are killed: it knows nothing of that but what it is told
//! for the sake of measuring.
#![forbid(unsafe_code)]

use super::super::side::Side;
use super::traffic::{Traffic, numbers};
use crate::Failure;
use crate::arguments::{number, option};
use crate::perf::once;
use crate::text::{hex, unhex};
use clap::{ArgMatches, Command, value_parser};
use crosstie::base::slab::Handle;
use crosstie::host::{DeviceKind, Options};
use crosstie::memory::probe::clock_ns;
use crosstie::transport::rail::LaneState;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// The hidden command.
pub const NAME: &str = "perf-chaos";

/// Requests outstanding in each direction, and some.
const REQUESTS_MAX: u32 = 64;
/// How long after its last message a side looks for one too many.
const SETTLE_NS: u64 = 30_000_000;
/// More processes and threads than CPUs.
const CROWD: u32 = 1 << 10;

/// Its arguments.
pub fn command() -> Command {
    let range = |range| value_parser!(u64).range(range);
    Command::new(NAME)
        .about("One of the processes of `crosstie perf --chaos`, which starts it.")
        .arg(option("side", "N", "0: listens, 1: connects").value_parser(range(0..=1)))
        .arg(option("rails", "N", "rails of the connection").value_parser(range(2..=8)))
        .arg(once::warned_option())
}

/// What is measured of one kill.
struct Kill {
    at_ns: u64,
    lane: u8,
    generation: u32,
    /// Of the lane when it was up again.
    bytes: Option<u64>,
    /// When a message came, one begun later was there, the lane was missed, was up, carried bytes.
    times: [Option<u64>; 5],
}

struct Worker {
    side: Side,
    connection: Handle,
    rails: u8,
    words: Receiver<String>,
    kill: Option<Kill>,
    /// Messages that will have come in all.
    until: Option<u64>,
    /// How many were sent has been said.
    said: bool,
}

/// What the process does.
pub fn run(given: &ArgMatches) -> Result<(), Failure> {
    let result = work(given);
    if let Err(failure) = &result {
        say(&format!("failed {failure}"))?;
    }
    result
}

fn work(given: &ArgMatches) -> Result<(), Failure> {
    once::listen(given);
    let side_number = number(given, "side").unwrap_or(0);
    let rails = number(given, "rails").unwrap_or(2) as u8;
    let words = listen_to_parent()?;
    let mut side = open(rails)?;
    match side_number {
        0 => {
            let (listener, handle) = side.listen()?;
            say(&format!("warned {}", once::warned()))?;
            say(&format!("handle {}", hex(&handle)))?;
            side.accept(listener, 1)?;
        }
        _ => {
            let line = words.recv().map_err(|_| "the parent is gone")?;
            side.connect(&unhex(&line).ok_or("no handle")?)?;
        }
    }
    let connection = side.connections[0];
    let mut traffic = Traffic::new(&mut side, connection, side_number)?;
    let mut worker =
        Worker { side, connection, rails, words, kill: None, until: None, said: false };
    say("ready")?;
    worker.work(&mut traffic)
}

fn open(rails: u8) -> Result<Side, Failure> {
    let mut options = Options { device: DeviceKind::Tcp, ..Options::default() };
    options.limits.connections_max = 2;
    options.limits.requests_max = REQUESTS_MAX;
    options.limits.rails_max = u32::from(rails).next_power_of_two();
    let mut side = Side::open_with(&options)?;
    side.crowd(CROWD);
    Ok(side)
}

/// What the parent says, line by line; it is gone when there is no more.
fn listen_to_parent() -> Result<Receiver<String>, Failure> {
    let (sender, receiver) = channel();
    let listen = move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    };
    match std::thread::Builder::new().spawn(listen) {
        Ok(_) => Ok(receiver),
        Err(error) => Err(format!("a thread that hears the parent: {error}")),
    }
}

fn say(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let said = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
    said.map_err(|error| format!("the parent is gone: {error}"))
}

impl Worker {
    /// Messages until the parent has heard all that it wants.
    fn work(&mut self, traffic: &mut Traffic) -> Result<(), Failure> {
        loop {
            traffic.step(&mut self.side)?;
            self.side.pause();
            match self.words.try_recv() {
                Ok(line) => self.hear(&line, traffic)?,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
            self.kill_watch(traffic)?;
            if traffic.stopped && !self.said && traffic.all_delivered() {
                self.said = true;
                say(&format!("sent {}", traffic.sent))?;
            }
            if let Some(until) = self.until
                && traffic.received >= until
            {
                self.until = None;
                self.settle(traffic, until)?;
            }
        }
    }

    fn hear(&mut self, line: &str, traffic: &mut Traffic) -> Result<(), Failure> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let told = numbers(words.get(1..).unwrap_or(&[])).ok_or("no number")?;
        match (words.first(), &told[..]) {
            (Some(&"rails"), []) => self.rails_say(),
            (Some(&"kill"), [at_ns, lane, generation]) => {
                let (lane, generation) = (*lane as u8, *generation as u32);
                let (bytes, times) = (None, [None; 5]);
                self.kill = Some(Kill { at_ns: *at_ns, lane, generation, bytes, times });
                Ok(())
            }
            (Some(&"stop"), []) => {
                traffic.stopped = true;
                Ok(())
            }
            (Some(&"until"), [count]) => {
                self.until = Some(*count);
                Ok(())
            }
            _ => Err(format!("unknown words: {line}")),
        }
    }

    /// Says how every rail is, and its first socket.
    fn rails_say(&mut self) -> Result<(), Failure> {
        let mut line = "rails".to_string();
        for lane in 0..self.rails {
            let endpoint = self.side.owned.endpoint();
            let Some(view) = endpoint.lane_view(self.connection, lane) else { break };
            let socket = endpoint.lane_socket(self.connection, lane);
            let up = u8::from(view.state == LaneState::Up);
            let stats = view.stats;
            line.push_str(&format!(
                " {up} {} {} {} {} {} {} {}",
                view.generation,
                socket.unwrap_or(0),
                stats.bytes,
                stats.stripes,
                stats.moved,
                stats.failures,
                stats.joins
            ));
        }
        say(&line)
    }

    /// Notes what has come back since the kill, and says so when all has.
    fn kill_watch(&mut self, traffic: &Traffic) -> Result<(), Failure> {
        let Some(kill) = &mut self.kill else { return Ok(()) };
        let endpoint = self.side.owned.endpoint();
        let Some(view) = endpoint.lane_view(self.connection, kill.lane) else { return Ok(()) };
        let again = view.generation > kill.generation;
        let up = again && view.state == LaneState::Up;
        let [came, there, missed, stands, carries] = &mut kill.times;
        *came = came.or_else(|| traffic.received_after(kill.at_ns));
        *there = there.or_else(|| traffic.delivered_after(kill.at_ns));
        let now = || Some(clock_ns());
        *missed =
            missed.or_else(|| if again || view.state != LaneState::Up { now() } else { None });
        *stands = stands.or_else(|| if up { now() } else { None });
        if up {
            let before = *kill.bytes.get_or_insert(view.stats.bytes);
            *carries = carries.or_else(|| if view.stats.bytes > before { now() } else { None });
        }
        let [Some(a), Some(b), Some(c), Some(d), Some(e)] = kill.times else { return Ok(()) };
        let since = |at: u64| at - kill.at_ns;
        let line = [a, b, c, d, e].map(|at| since(at).to_string()).join(" ");
        self.kill = None;
        say(&format!("back {line}"))
    }

    /// Everything has come; what comes now was never sent.
    fn settle(&mut self, traffic: &mut Traffic, until: u64) -> Result<(), Failure> {
        let began = clock_ns();
        while clock_ns() - began < SETTLE_NS {
            traffic.step(&mut self.side)?;
            self.side.pause();
        }
        if traffic.received != until {
            return Err(format!("{} messages came of {until}", traffic.received));
        }
        say(&format!("done {} {}", traffic.received, traffic.received_bytes))
    }
}
