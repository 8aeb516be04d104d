//! The second process: this program again, with a hidden command. It listens, then runs every
//! window that it reads from its standard input.
#![forbid(unsafe_code)]

use super::bench::{Bench, Ran};
use super::flow::Flow;
use super::once;
use super::one_sided;
use super::options::{BUFFERS_BYTES_MAX, CONNECTIONS_MAX, device, device_option};
use super::pingpong;
use super::process::{PEER_COMMAND, Peer, line_read, member_line, member_of, pin};
use super::rails::Paths;
use super::ranks::lanes::STEP_LIMIT;
use super::remote::Server;
use super::setup::Setup;
use super::side::{Shape, Side};
use super::socket::SocketPeer;
use super::window::{Kind, Window};
use crate::arguments::{flag, number, option};
use crate::owned::{Backing, Location};
use crate::text::hex;
use crate::{Failure, cpus};
use clap::{ArgMatches, Command, value_parser};
use crosstie::host::RailView;
use crosstie::host::log;
use crosstie::wire::RAILS_MAX;
use std::io::{BufRead, BufReader, Write};
use std::rc::Rc;
use std::time::Instant;

/// What it is told when it starts, or a server when it is to do the same.
pub fn command() -> Command {
    let number = |name, value, help, range| {
        option(name, value, help).value_parser(value_parser!(u64).range(range))
    };
    Command::new(PEER_COMMAND)
        .about("The second process of `crosstie perf`, which starts it.")
        .arg(device_option("device to open"))
        .arg(number("socket", "BYTES", "a socket instead, and its buffers", 0..=u64::MAX))
        .arg(number("connections", "N", "connections to accept", 1..=CONNECTIONS_MAX))
        .arg(number("rails", "N", "rails of each connection", 1..=RAILS_MAX as u64))
        .arg(number("cpu", "N", "CPU to stay on", 0..=u64::from(u32::MAX)))
        .arg(flag("pin", "to stay on a CPU that it chooses"))
        .arg(number("shared", "BYTES", "of each buffer in shared memory", 0..=BUFFERS_BYTES_MAX))
        .arg(number("private", "BYTES", "of each buffer on the heap", 0..=BUFFERS_BYTES_MAX))
        .arg(number("located", "BYTES", "of each buffer in --location", 0..=BUFFERS_BYTES_MAX))
        .arg(option("location", "MEMORY", "host or cuda:N").value_parser(Location::parse))
        .arg(flag("one-sided", "to open a group of both"))
        .arg(once::warned_option())
}

/// How both processes are set up.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Of each endpoint.
    pub shape: Shape,
    /// Connections that are made at once.
    pub connections: u32,
    /// CPU of this process and of the other.
    pub cpus: Option<(u32, u32)>,
    /// The server that is the peer, instead of a process of this host's.
    pub server: Option<Rc<Server>>,
    /// The server chooses its CPU.
    pub is_cpu_free: bool,
    /// Buffers, with their size in bytes.
    pub buffers: Vec<(Backing, u64)>,
    /// Where buffers of the other process lie that are located.
    pub location: Location,
}

/// The measuring process and its peer.
pub struct Pair {
    side: Side,
    process: Peer,
    /// What the connections cost.
    pub setup: Setup,
}

impl Pair {
    /// Starts the peer and makes all connections.
    pub fn open(setting: &Setting) -> Result<Pair, Failure> {
        if let Some((own, _)) = setting.cpus {
            pin(own)?;
        }
        let mut setup = Setup::new(setting.connections);
        let mut side = Side::open(&setting.shape)?;
        for (backing, bytes) in &setting.buffers {
            side.buffers_make(*backing, *bytes)?;
        }
        let mut process = match &setting.server {
            Some(server) => server.open(&told(setting))?,
            None => Peer::start(setting.cpus.map(|(_, cpu)| cpu), &told(setting))?,
        };
        let handle = process.handle()?;
        for _ in 0..setting.connections {
            let began = Instant::now();
            side.connect(&handle)?;
            setup.made(began);
        }
        if setting.shape.has_group {
            one_sided::open(&mut side, 0, &mut |mine| process.member(mine))?;
        }
        Ok(Pair { side, process, setup })
    }
}

/// What the peer is told when it starts.
fn told(setting: &Setting) -> Vec<(&'static str, String)> {
    let mut told = [
        ("--device", setting.shape.device.name().to_string()),
        ("--connections", setting.connections.to_string()),
    ]
    .to_vec();
    if let Some(rails) = setting.shape.rails {
        told.push(("--rails", rails.to_string()));
    }
    if setting.shape.has_group {
        told.push(("--one-sided", String::new()));
    }
    match setting.cpus {
        Some(_) if setting.server.is_some() && setting.is_cpu_free => {
            told.push(("--pin", String::new()));
        }
        Some((_, cpu)) if setting.server.is_some() => told.push(("--cpu", cpu.to_string())),
        _ => {}
    }
    for (backing, bytes) in &setting.buffers {
        let name = match backing {
            Backing::Shared => "--shared",
            Backing::Private => "--private",
            Backing::Located => "--located",
        };
        told.push((name, bytes.to_string()));
        if *backing == Backing::Located {
            told.push(("--location", setting.location.to_string()));
        }
    }
    told
}

impl Bench for Pair {
    fn window(
        &mut self,
        window: &Window,
        until: Option<Instant>,
        samples: Option<&mut Vec<u32>>,
    ) -> Result<Ran, Failure> {
        self.process.ask(window)?;
        let side = &mut self.side;
        let connections = side.connections.clone();
        side.signal_wait().map_err(|failure| self.process.why(failure))?;
        side.time_set(until);
        let began = Instant::now();
        let rounds = match window.kind {
            Kind::PingPong => pingpong::ping(side, window, samples).map(|rounds| rounds as f64),
            Kind::Stream | Kind::Both => {
                let receives = if window.kind == Kind::Both { &connections[..] } else { &[] };
                let rounds = Flow::new(window, &connections, receives).run(side);
                rounds.and_then(|rounds| side.signal_wait().map(|()| rounds))
            }
            _ => one_sided::run(side, window).map(|rounds| rounds as f64),
        };
        let took = began.elapsed();
        let rounds = rounds.map_err(|failure| self.process.why(failure))?;
        let process = &mut self.process;
        self.side.attend(|| process.hear_end())?;
        Ok(Ran { took, rounds })
    }

    fn paths(&mut self) -> Paths {
        Paths::of(&mut self.side) + self.process.paths
    }

    fn rails(&mut self) -> Vec<RailView> {
        super::rails::rails(&mut self.side)
    }

    fn has_two_ways(&self) -> bool {
        true
    }

    fn checked(&self) -> (u64, u64) {
        (self.side.verified + self.process.verified, self.side.wrong + self.process.wrong)
    }
}

/// What the peer process does.
pub fn run(given: &ArgMatches) -> Result<(), Failure> {
    log::name_set("peer process");
    once::listen(given);
    let mut words = BufReader::new(std::io::stdin());
    let mut out = std::io::stdout();
    let Some(bytes) = number(given, "socket") else {
        return session(given, &mut words, &mut out, &|| Ok(())).map(|_| ());
    };
    cpu_take(given)?;
    let mut peer = SocketPeer::open(bytes, &mut out)?;
    while let Some(window) = next_window(&mut words, &[])? {
        peer.serve(&window)?;
        said(&mut out, peer.checked(), Paths::default())?;
    }
    Ok(())
}

/// Keeps this process on the CPU that it was told, or on one that it chooses.
fn cpu_take(given: &ArgMatches) -> Result<(), Failure> {
    let told = number(given, "cpu").map(|cpu| cpu as u32);
    let free = || cpus::two().filter(|_| given.get_flag("pin")).map(|(_, cpu)| cpu);
    told.or_else(free).map_or(Ok(()), pin)
}

/// One endpoint and all that is asked of it: says its handle, takes connections as long as they are
/// `wanted`, runs windows until there are no more. Returns the bytes that were verified, and the
/// messages found wrong.
pub fn session(
    given: &ArgMatches,
    words: &mut (impl BufRead + Send),
    out: &mut impl Write,
    wanted: &dyn Fn() -> Result<(), Failure>,
) -> Result<(u64, u64), Failure> {
    cpu_take(given)?;
    let connections = number(given, "connections").unwrap_or(1) as u32;
    let rails = number(given, "rails").map(|rails| rails as u32);
    let location = given.get_one("location").copied().unwrap_or(Location::Host);
    let (device, has_group) = (device(given), given.get_flag("one-sided"));
    let mut side = Side::open(&Shape { device, connections, rails, location, has_group })?;
    let mut rooms = Vec::new();
    for backing in [Backing::Shared, Backing::Private, Backing::Located] {
        if let Some(bytes) = number(given, backing.name()) {
            side.buffers_make(backing, bytes)?;
            rooms.push((backing, bytes));
        }
    }
    let (listener, handle) = side.listen()?;
    let said_handle = out.write_all(format!("handle {}\n", hex(&handle)).as_bytes());
    said_handle.and_then(|()| out.flush()).map_err(gone)?;
    let deadline = Instant::now() + STEP_LIMIT;
    side.accept_while(listener, connections as usize, || match Instant::now() < deadline {
        true => wanted(),
        false => Err("its connections have not come".into()),
    })?;
    if has_group {
        one_sided::open(&mut side, 1, &mut |mine| {
            let said = out.write_all(format!("{}\n", member_line(mine)).as_bytes());
            said.and_then(|()| out.flush()).map_err(gone)?;
            let line = line_read(words)?.ok_or("the measuring process is gone")?;
            member_of(&line).ok_or_else(|| format!("the measuring process says `{line}`"))
        })?;
    }
    while let Some(window) = side.attend(|| next_window(words, &rooms))? {
        serve(&mut side, &window)?;
        said(out, (side.verified, side.wrong), Paths::of(&mut side))?;
    }
    Ok((side.verified, side.wrong))
}

fn gone(error: std::io::Error) -> Failure {
    format!("the measuring process is gone: {error}")
}

/// The next window that is asked for, if there is room for it; `None`: there are no more.
fn next_window(
    words: &mut impl BufRead,
    rooms: &[(Backing, u64)],
) -> Result<Option<Window>, Failure> {
    let Some(line) = line_read(words)?.filter(|line| line != "close") else { return Ok(None) };
    let window = Window::from_line(&line).ok_or_else(|| format!("no window: {line}"))?;
    let room = rooms.iter().find(|(backing, _)| *backing == window.backing);
    match rooms.is_empty() || room.is_some_and(|(_, bytes)| window.buffer_bytes() <= *bytes) {
        true => Ok(Some(window)),
        false => Err(format!("no room for this window: {line}")),
    }
}

/// Says that a window has ended, what was verified until then, and what had arrived.
fn said(out: &mut impl Write, (verified, wrong): (u64, u64), paths: Paths) -> Result<(), Failure> {
    let [engine, staged, all] = paths.words();
    let said = out.write_all(format!("{verified} {wrong} {engine} {staged} {all}\n").as_bytes());
    said.and_then(|()| out.flush()).map_err(gone)
}

/// Runs the peer's half of a window.
fn serve(side: &mut Side, window: &Window) -> Result<(), Failure> {
    let connections = side.connections.clone();
    side.time_set(None);
    match window.kind {
        Kind::PingPong if window.rounds == 0 => side.signal(),
        Kind::PingPong => {
            let first = pingpong::receive(side, connections[0], window, 0)?;
            side.signal()?;
            pingpong::pong(side, window, first)
        }
        Kind::Stream | Kind::Both => {
            let sends = if window.kind == Kind::Both { &connections[..] } else { &[] };
            let mut flow = Flow::new(window, sends, &connections);
            flow.receives_start(side)?;
            side.signal()?;
            flow.run(side)?;
            side.signal()
        }
        _ => one_sided::serve(side, window),
    }
}
