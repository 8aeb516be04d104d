//! The second process of a measurement as the first one sees it, a child of it or a server: told
//! what to do line by line.
#![forbid(unsafe_code)]

use super::once;
use super::rails::Paths;
use super::window::Window;
use crate::text::{hex, unhex};
use crate::{Failure, SAID, STATUS_USAGE};
use crosstie::memory::probe;
use crosstie::wire::handle::HANDLE_BYTES;
use crosstie::wire::one_sided::MEMBER_BYTES;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The hidden command of the second process.
pub const PEER_COMMAND: &str = "perf-peer";
/// How long either waits for a line of the other: far more than making connections takes.
pub const LINE: Duration = Duration::from_secs(120);
/// Longest line that is read.
const LINE_BYTES_MAX: u64 = 4096;

/// A running peer. It ends when this is dropped; a server then is open to the next.
pub struct Peer {
    child: Option<Child>,
    say: Option<Box<dyn Write + Send>>,
    hear: BufReader<Box<dyn Read + Send>>,
    /// Bytes that it has verified.
    pub verified: u64,
    /// Messages whose bytes were wrong there.
    pub wrong: u64,
    /// What has arrived there.
    pub paths: Paths,
}

impl Peer {
    /// Starts this program as a peer, on a CPU, with these options.
    pub fn start(cpu: Option<u32>, options: &[(&str, String)]) -> Result<Peer, Failure> {
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let mut command = Command::new(program);
        command.args([PEER_COMMAND, once::WARNED, &once::warned()]);
        if let Some(cpu) = cpu {
            command.args(["--cpu", &cpu.to_string()]);
        }
        for (name, value) in options {
            let value = Some(value.as_str()).filter(|value| !value.is_empty());
            command.arg(name).args(value);
        }
        // it listens, where this has no effect but a warning that we have had
        command.env_remove("CROSSTIE_TCP_RAILS");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("starting the peer process: {error}"))?;
        let say: Box<dyn Write + Send> = Box::new(child.stdin.take().ok_or("no pipe to the peer")?);
        let hear: Box<dyn Read + Send> =
            Box::new(child.stdout.take().ok_or("no pipe from the peer")?);
        Ok(Peer::new(Some(child), say, hear))
    }

    /// A server, which is told what to do over a connection.
    pub fn of_stream(say: TcpStream, hear: TcpStream) -> Peer {
        Peer::new(None, Box::new(say), Box::new(hear))
    }

    fn new(child: Option<Child>, say: Box<dyn Write + Send>, hear: Box<dyn Read + Send>) -> Peer {
        let (say, hear) = (Some(say), BufReader::new(hear));
        Peer { child, say, hear, verified: 0, wrong: 0, paths: Paths::default() }
    }

    fn name(&self) -> &'static str {
        if self.child.is_some() { "the peer process" } else { "the server" }
    }

    /// Reads what a process says first: as many bytes as fit.
    pub fn greeting(&mut self, bytes: &mut [u8]) -> Result<(), Failure> {
        self.hear.read_exact(bytes).map_err(|_| self.gone())
    }

    /// Reads the handle of its listener, which it says first.
    pub fn handle(&mut self) -> Result<[u8; HANDLE_BYTES], Failure> {
        let line = self.hear()?;
        let handle = line.strip_prefix("handle ").and_then(unhex);
        handle.ok_or_else(|| format!("{} says `{line}`", self.name()))
    }

    /// Says what this process gives to a gathering of both, and hears what the other gives.
    pub fn member(&mut self, mine: &[u8]) -> Result<[u8; MEMBER_BYTES], Failure> {
        self.say(&member_line(mine))?;
        let line = self.hear()?;
        member_of(&line).ok_or_else(|| format!("{} says `{line}`", self.name()))
    }

    /// Says a line.
    pub fn say(&mut self, line: &str) -> Result<(), Failure> {
        let say = self.say.as_mut().ok_or("the peer was told to end")?;
        // one segment
        let said = say.write_all(format!("{line}\n").as_bytes());
        said.map_err(|_| self.hear().err().unwrap_or_else(|| self.gone()))
    }

    /// Asks it to run its half of a window.
    pub fn ask(&mut self, window: &Window) -> Result<(), Failure> {
        self.say(&window.to_line())
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let name = self.name();
        match line_read(&mut self.hear).map_err(|why| format!("{name}: {why}"))? {
            None => Err(self.gone()),
            Some(line) => match line.strip_prefix("failed ") {
                Some(why) => Err(format!("{name}: {why}")),
                None => Ok(line),
            },
        }
    }

    /// Waits until it says that the window has ended.
    pub fn hear_end(&mut self) -> Result<(), Failure> {
        let line = self.hear()?;
        let numbers: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[verified, wrong, engine, staged, all]) => {
                (self.verified, self.wrong) = (verified, wrong);
                self.paths = Paths::of_words([engine, staged, all]);
                Ok(())
            }
            _ => Err(format!("{} says `{line}`", self.name())),
        }
    }

    /// What is said of a failure of ours: nothing where a child has said why it ended before.
    pub fn why(&mut self, failure: Failure) -> Failure {
        let Some(child) = &mut self.child else { return failure };
        match child_end(child) {
            Some(status) if status.code() == Some(STATUS_USAGE.into()) => SAID.into(),
            _ => failure,
        }
    }

    /// Why there is nothing to hear of it. Of a child that ended with an error nothing: it has
    /// said which.
    fn gone(&mut self) -> Failure {
        self.say = None;
        let Some(child) = &mut self.child else {
            return "the server is gone; its own error says why".into();
        };
        match child_end(child) {
            Some(status) if status.code() == Some(STATUS_USAGE.into()) => SAID.into(),
            Some(status) => format!("the peer process ended early, with {status}"),
            None => "the peer process says nothing and does not end".into(),
        }
    }
}

impl Drop for Peer {
    /// Waits a moment for the child, then kills it.
    fn drop(&mut self) {
        let Some(child) = &mut self.child else {
            if let Some(say) = &mut self.say {
                let _ = say.write_all(b"close\n"); // whom it cannot be told has gone
            }
            return;
        };
        self.say = None; // the end of its input is the peer's sign to end
        if child_end(child).is_none() {
            // Both fail only for a child that has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits a moment for a child that is about to end.
fn child_end(child: &mut Child) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// A line of the other; `None`: it has ended.
pub fn line_read(words: &mut impl BufRead) -> Result<Option<String>, Failure> {
    let mut line = String::new();
    match words.take(LINE_BYTES_MAX).read_line(&mut line) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(line.trim_end().to_string())),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(format!("nothing was heard of it for {} s", LINE.as_secs()))
        }
        Err(error) => Err(format!("lost: {error}")),
    }
}

/// What a process gives to a gathering, as a line.
pub fn member_line(mine: &[u8]) -> String {
    format!("member {}", hex(mine))
}

/// The inverse of [`member_line`].
pub fn member_of(line: &str) -> Option<[u8; MEMBER_BYTES]> {
    line.strip_prefix("member ").and_then(unhex)
}

/// Keeps this process on one CPU.
pub fn pin(cpu: u32) -> Result<(), Failure> {
    probe::cpu_pin(cpu)
        .map_err(|error| format!("option --cpus: this process may not run on CPU {cpu} ({error})"))
}
