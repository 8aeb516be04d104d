//! The second process: this program again, with a hidden command. It listens, then runs every
//! window that it reads from its standard input.
#![forbid(unsafe_code)]

extern crate std;

use super::Bench;
use super::flow::Flow;
use super::options::device;
use super::pingpong;
use super::process::{PeerProcess, pin};
use super::setup::Setup;
use super::side::{Shape, Side};
use super::socket::SocketPeer;
use super::window::{Kind, Window};
use crate::host::RailView;
use crate::host::log;
use crate::host::owned::Backing;
use crate::tool::Failure;
use crate::tool::arguments::{Command, Flag};
use crate::wire::RAILS_MAX;
use crate::wire::handle::HANDLE_BYTES;
use std::format;
use std::io::Write;
use std::string::{String, ToString};
use std::time::{Duration, Instant};
use std::vec::Vec;

/// The hidden command.
pub const NAME: &str = "perf-peer";

const COMMAND: Command = Command {
    name: "crosstie perf-peer",
    about: "The second process of `crosstie perf`, which starts it.",
    operands: "",
    flags: &[
        Flag { name: "--device", value: "NAME", help: "device to open" },
        Flag { name: "--socket", value: "BYTES", help: "a socket instead, and its buffers" },
        Flag { name: "--connections", value: "N", help: "connections to accept" },
        Flag { name: "--rails", value: "N", help: "rails of each connection" },
        Flag { name: "--cpu", value: "N", help: "CPU to stay on" },
        Flag { name: "--shared", value: "BYTES", help: "size of each buffer in shared memory" },
        Flag { name: "--private", value: "BYTES", help: "size of each buffer on the heap" },
    ],
};

/// How both processes are set up.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Of each endpoint.
    pub shape: Shape,
    /// Connections that are made at once.
    pub connections: u32,
    /// CPU of this process and of the other.
    pub cpus: Option<(u32, u32)>,
    /// Buffers, with their size in bytes.
    pub buffers: Vec<(Backing, u64)>,
}

/// The measuring process and its peer.
pub struct Pair {
    side: Side,
    process: PeerProcess,
    /// What the connections cost.
    pub setup: Setup,
}

impl Pair {
    /// Starts the peer and makes all connections.
    pub fn open(setting: &Setting) -> Result<Pair, Failure> {
        let mut process = PeerProcess::start(setting.cpus.map(|(_, cpu)| cpu), &told(setting))?;
        if let Some((own, _)) = setting.cpus {
            pin(own)?;
        }
        let mut setup = Setup::new(setting.connections);
        let mut side = Side::open(&setting.shape)?;
        for (backing, bytes) in &setting.buffers {
            side.buffers_make(*backing, *bytes)?;
        }
        let mut handle = [0u8; HANDLE_BYTES];
        process.greeting(&mut handle)?;
        for _ in 0..setting.connections {
            let began = Instant::now();
            side.connect(&handle)?;
            setup.made(began);
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
    for (backing, bytes) in &setting.buffers {
        let name = match backing {
            Backing::Shared => "--shared",
            Backing::Private => "--private",
        };
        told.push((name, bytes.to_string()));
    }
    told
}

impl Bench for Pair {
    fn window(
        &mut self,
        window: &Window,
        samples: Option<&mut Vec<u32>>,
    ) -> Result<Duration, Failure> {
        self.process.ask(window)?;
        let side = &mut self.side;
        let connections = side.connections.clone();
        side.signal_wait()?;
        let began = Instant::now();
        let took = match window.kind {
            Kind::PingPong => {
                pingpong::ping(side, window, samples)?;
                began.elapsed()
            }
            Kind::Stream | Kind::Both => {
                let receives = if window.kind == Kind::Both { &connections[..] } else { &[] };
                Flow::new(window, &connections, receives).run(side)?;
                side.signal_wait()?;
                began.elapsed()
            }
        };
        let process = &mut self.process;
        self.side.attend(|| process.hear_end())?;
        Ok(took)
    }

    fn rails(&mut self) -> Vec<RailView> {
        super::rails::rails(&mut self.side)
    }

    fn checked(&self) -> (u64, u64) {
        (self.side.verified + self.process.verified, self.side.wrong + self.process.wrong)
    }
}

/// What the peer process does.
pub fn run(args: &[String]) -> Result<(), Failure> {
    log::name_set("peer process");
    let given = COMMAND.parse(args)?;
    if let Some(cpu) = given.number("--cpu", 0, u64::from(u32::MAX))? {
        pin(cpu as u32)?;
    }
    if let Some(bytes) = given.number("--socket", 0, u64::MAX)? {
        let mut peer = SocketPeer::open(bytes, std::io::stdout().lock())?;
        while let Some(window) = next_window()? {
            peer.serve(&window)?;
            let (verified, wrong) = peer.checked();
            said(verified, wrong)?;
        }
        return Ok(());
    }
    let connections = given.number("--connections", 1, u64::from(u32::MAX))?.unwrap_or(1) as u32;
    let rails = given.number("--rails", 1, RAILS_MAX as u64)?.map(|rails| rails as u32);
    let mut side = Side::open(&Shape { device: device(&given)?, connections, rails })?;
    for (name, backing) in [("--shared", Backing::Shared), ("--private", Backing::Private)] {
        if let Some(bytes) = given.number(name, 0, u64::MAX)? {
            side.buffers_make(backing, bytes)?;
        }
    }
    let (listener, handle) = side.listen()?;
    let mut out = std::io::stdout().lock();
    out.write_all(&handle).and_then(|()| out.flush()).map_err(gone)?;
    drop(out);
    side.accept(listener, connections as usize)?;
    while let Some(window) = side.attend(next_window)? {
        serve(&mut side, &window)?;
        said(side.verified, side.wrong)?;
    }
    Ok(())
}

fn gone(error: std::io::Error) -> Failure {
    format!("the measuring process is gone: {error}")
}

/// The next window that is asked for; `None`: there are no more.
fn next_window() -> Result<Option<Window>, Failure> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line).map_err(gone)? {
        0 => Ok(None),
        _ => {
            Window::from_line(line.trim_end()).map(Some).ok_or_else(|| format!("no window: {line}"))
        }
    }
}

/// Says that a window has ended, and what was verified until then.
fn said(verified: u64, wrong: u64) -> Result<(), Failure> {
    writeln!(std::io::stdout().lock(), "{verified} {wrong}").map_err(gone)
}

/// Runs the peer's half of a window.
fn serve(side: &mut Side, window: &Window) -> Result<(), Failure> {
    let connections = side.connections.clone();
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
    }
}
