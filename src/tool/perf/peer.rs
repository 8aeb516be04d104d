//! The second process: this program again, with a hidden command. It listens, then runs every
//! window that it reads from its standard input.
#![forbid(unsafe_code)]

extern crate std;

use super::Bench;
use super::flow::Flow;
use super::pingpong;
use super::side::{Shape, Side};
use super::window::{Kind, Window};
use crate::host::DeviceKind;
use crate::host::owned::Backing;
use crate::memory::probe;
use crate::tool::Failure;
use crate::tool::arguments::{Command, Flag};
use crate::wire::handle::HANDLE_BYTES;
use std::format;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
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
        Flag { name: "--connections", value: "N", help: "connections to accept" },
        Flag { name: "--device", value: "NAME", help: "device to open" },
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
    child: Child,
    say: Option<ChildStdin>,
    hear: BufReader<ChildStdout>,
    /// How long each connection took, in order.
    pub setup: Vec<Duration>,
    peer_verified: u64,
    peer_wrong: u64,
}

impl Pair {
    /// Starts the peer and makes all connections.
    pub fn open(setting: &Setting) -> Result<Pair, Failure> {
        let mut child = spawn(setting)?;
        let say = child.stdin.take();
        let mut hear = BufReader::new(child.stdout.take().ok_or("no pipe from the peer")?);
        let opened = open_side(setting, &mut hear);
        let (side, setup) = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                drop(say);
                end(&mut child);
                return Err(failure);
            }
        };
        Ok(Pair { side, child, say, hear, setup, peer_verified: 0, peer_wrong: 0 })
    }

    fn ask(&mut self, line: &str) -> Result<(), Failure> {
        let say = self.say.as_mut().ok_or("the peer was told to end")?;
        writeln!(say, "{line}").map_err(|error| format!("the peer process is gone: {error}"))
    }

    fn hear_end(&mut self) -> Result<(), Failure> {
        let mut line = String::new();
        self.hear.read_line(&mut line).map_err(|error| format!("the peer process: {error}"))?;
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        match (words.next(), words.next()) {
            (Some(Ok(verified)), Some(Ok(wrong))) => {
                (self.peer_verified, self.peer_wrong) = (verified, wrong);
                Ok(())
            }
            _ => Err("the peer process ended early".into()),
        }
    }
}

impl Bench for Pair {
    fn window(
        &mut self,
        window: &Window,
        samples: Option<&mut Vec<u32>>,
    ) -> Result<Duration, Failure> {
        self.ask(&window.to_line())?;
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
        self.hear_end()?;
        Ok(took)
    }

    fn checked(&self) -> (u64, u64) {
        (self.side.verified + self.peer_verified, self.side.wrong + self.peer_wrong)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.say = None; // the end of its input is the peer's sign to end
        end(&mut self.child);
    }
}

/// Waits a moment for the child, then kills it.
fn end(child: &mut Child) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // Both fail only for a child that has ended.
    let _ = child.kill();
    let _ = child.wait();
}

fn open_side(
    setting: &Setting,
    hear: &mut BufReader<ChildStdout>,
) -> Result<(Side, Vec<Duration>), Failure> {
    if let Some((own, _)) = setting.cpus {
        pin(own)?;
    }
    let mut side = Side::open(&setting.shape)?;
    for (backing, bytes) in &setting.buffers {
        side.buffers_make(*backing, *bytes)?;
    }
    let mut handle = [0u8; HANDLE_BYTES];
    hear.read_exact(&mut handle).map_err(|_| "the peer process could not start")?;
    let mut setup = Vec::with_capacity(setting.connections as usize);
    for _ in 0..setting.connections {
        let began = Instant::now();
        side.connect(&handle)?;
        setup.push(began.elapsed());
    }
    Ok((side, setup))
}

fn pin(cpu: u32) -> Result<(), Failure> {
    probe::cpu_pin(cpu).map_err(|error| {
        format!("option --cpus: this process may not run on CPU {cpu} (errno {})", error.0)
    })
}

fn spawn(setting: &Setting) -> Result<Child, Failure> {
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut command = std::process::Command::new(program);
    command.arg(NAME).args(["--connections", &setting.connections.to_string()]);
    command.args(["--device", setting.shape.device.name()]);
    if let Some((_, cpu)) = setting.cpus {
        command.args(["--cpu", &cpu.to_string()]);
    }
    for (backing, bytes) in &setting.buffers {
        let name = match backing {
            Backing::Shared => "--shared",
            Backing::Private => "--private",
        };
        command.args([name, &bytes.to_string()]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|error| format!("starting the peer process: {error}"))
}

/// What the peer process does.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let given = COMMAND.parse(args)?;
    let connections = given.number("--connections", 1, u64::from(u32::MAX))?.unwrap_or(1) as u32;
    if let Some(cpu) = given.number("--cpu", 0, u64::from(u32::MAX))? {
        pin(cpu as u32)?;
    }
    let device = given.text("--device").and_then(DeviceKind::named).unwrap_or(DeviceKind::Host);
    let mut side = Side::open(&Shape { device, connections })?;
    for (name, backing) in [("--shared", Backing::Shared), ("--private", Backing::Private)] {
        if let Some(bytes) = given.number(name, 0, u64::MAX)? {
            side.buffers_make(backing, bytes)?;
        }
    }
    let (listener, handle) = side.listen()?;
    let gone = |error| format!("the measuring process is gone: {error}");
    let mut out = std::io::stdout().lock();
    out.write_all(&handle).and_then(|()| out.flush()).map_err(gone)?;
    side.accept(listener, connections as usize)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(gone)?;
        let window = Window::from_line(&line).ok_or_else(|| format!("no window: {line}"))?;
        serve(&mut side, &window)?;
        writeln!(out, "{} {}", side.verified, side.wrong).map_err(gone)?;
    }
    Ok(())
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
