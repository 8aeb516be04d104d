//! The second process of a measurement as the first one sees it: told what to do line by line.
#![forbid(unsafe_code)]

extern crate std;

use super::peer::NAME;
use super::window::Window;
use crate::memory::probe;
use crate::tool::Failure;
use std::format;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::string::{String, ToString};
use std::time::{Duration, Instant};

/// A running peer. It ends when this is dropped.
pub struct PeerProcess {
    child: Child,
    say: Option<ChildStdin>,
    hear: BufReader<ChildStdout>,
    /// Bytes that it has verified.
    pub verified: u64,
    /// Messages whose bytes were wrong there.
    pub wrong: u64,
}

impl PeerProcess {
    /// Starts this program as a peer, on a CPU, with these options.
    pub fn start(cpu: Option<u32>, options: &[(&str, String)]) -> Result<PeerProcess, Failure> {
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let mut command = Command::new(program);
        command.arg(NAME);
        if let Some(cpu) = cpu {
            command.args(["--cpu", &cpu.to_string()]);
        }
        for (name, value) in options {
            command.args([name, value.as_str()]);
        }
        // it listens, where this has no effect but a warning that we have had
        command.env_remove("CROSSTIE_TCP_RAILS");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("starting the peer process: {error}"))?;
        let say = child.stdin.take();
        let hear = BufReader::new(child.stdout.take().ok_or("no pipe from the peer")?);
        Ok(PeerProcess { child, say, hear, verified: 0, wrong: 0 })
    }

    /// Reads what it says first: as many bytes as fit.
    pub fn greeting(&mut self, bytes: &mut [u8]) -> Result<(), Failure> {
        self.hear.read_exact(bytes).map_err(|_| "the peer process could not start".into())
    }

    /// Asks it to run its half of a window.
    pub fn ask(&mut self, window: &Window) -> Result<(), Failure> {
        let say = self.say.as_mut().ok_or("the peer was told to end")?;
        let gone = |error| format!("the peer process is gone: {error}");
        writeln!(say, "{}", window.to_line()).map_err(gone)
    }

    /// Waits until it says that the window has ended.
    pub fn hear_end(&mut self) -> Result<(), Failure> {
        let mut line = String::new();
        self.hear.read_line(&mut line).map_err(|error| format!("the peer process: {error}"))?;
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        match (words.next(), words.next()) {
            (Some(Ok(verified)), Some(Ok(wrong))) => {
                (self.verified, self.wrong) = (verified, wrong);
                Ok(())
            }
            _ => Err("the peer process ended early".into()),
        }
    }
}

impl Drop for PeerProcess {
    /// Waits a moment for the child, then kills it.
    fn drop(&mut self) {
        self.say = None; // the end of its input is the peer's sign to end
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Both fail only for a child that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps this process on one CPU.
pub fn pin(cpu: u32) -> Result<(), Failure> {
    probe::cpu_pin(cpu)
        .map_err(|error| format!("option --cpus: this process may not run on CPU {cpu} ({error})"))
}
