//! Processes of a test: its binary starts itself again, with a role. Both talk over a socket that
//! is the child's standard input.
//!
//! A test binary that uses this has a test `role` that calls `take` with names and functions.

use super::WATCHDOG;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::PoisonError;

const ROLE: &str = "HOST_TEST_ROLE";

/// A process with a role, killed when it is dropped.
pub struct Process {
    child: Child,
    pub line: Line,
}

/// One end of the socket between a test and its process.
pub struct Line(UnixStream);

impl Line {
    pub fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the other process is there");
    }

    pub fn hear<const N: usize>(&mut self) -> [u8; N] {
        self.try_hear().expect("the other process answers")
    }

    pub fn try_hear<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).map(|()| bytes)
    }

    pub fn say_number(&mut self, number: u64) {
        self.say(&number.to_le_bytes());
    }

    pub fn hear_number(&mut self) -> u64 {
        u64::from_le_bytes(self.hear())
    }

    pub fn say_text(&mut self, text: &str) {
        self.say_number(text.len() as u64);
        self.say(text.as_bytes());
    }

    pub fn hear_text(&mut self) -> String {
        let length = self.hear_number() as usize;
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).expect("the other process answers");
        String::from_utf8(bytes).expect("text")
    }

    /// Whether the other end has said something, or has ended. Does not wait.
    pub fn is_ready(&self) -> bool {
        use std::os::fd::AsRawFd;
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which lives until the call returns.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }
}

/// Starts this binary with a role, and with more environment.
pub fn start(role: &str, environment: &[(&str, &str)]) -> Process {
    start_as(role, environment, None, || Ok(()))
}

/// As [`start`]; what it says on standard error goes to a file, and `prepare` runs in the new
/// process before its program: it must not allocate.
pub fn start_as(
    role: &str,
    environment: &[(&str, &str)],
    log: Option<File>,
    mut prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> Process {
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    ours.set_read_timeout(Some(WATCHDOG)).expect("a timeout");
    let mut command = command(role);
    command.envs(environment.iter().copied()).stdin(Stdio::from(OwnedFd::from(theirs)));
    if let Some(log) = log {
        command.stderr(Stdio::from(log));
    }
    // SAFETY: system calls, without memory; what is prepared keeps to that by its contract.
    unsafe {
        command.pre_exec(move || {
            // ends with the thread that started it
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            prepare()
        });
    }
    Process { child: command.spawn().expect("a process"), line: Line(ours) }
}

/// This binary with a role; what it says on standard output is of the test harness.
pub fn command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a name"));
    command.args(["--exact", "role", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdout(Stdio::null());
    for (name, value) in super::SET.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// In the process: the way to whoever started it.
pub fn line() -> Line {
    // SAFETY: standard input is the socket that `start` made, and nobody else reads it.
    let stream = unsafe { UnixStream::from_raw_fd(0) };
    stream.set_read_timeout(Some(WATCHDOG)).expect("a timeout");
    Line(stream)
}

/// Does nothing unless this process was started for a role; never returns then.
pub fn take(known: &[(&str, fn())]) {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (_, act) = known.iter().find(|(name, _)| *name == role).expect("a known role");
    act();
    std::process::exit(0);
}

impl Process {
    /// Ends it at once, and collects it.
    pub fn kill(&mut self) {
        self.child.kill().expect("a process that was not collected");
        self.child.wait().expect("a child");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it, or lets it go on (`SIGSTOP`, `SIGCONT`).
    pub fn signal(&self, number: i32) {
        // SAFETY: our own child, which was not collected.
        assert_eq!(unsafe { libc::kill(self.id() as i32, number) }, 0);
    }

    /// Stops it, and waits until it does not run any more: a signal is sent before it is obeyed.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let watch = super::Watch::start();
        while !self.is_stopped() {
            watch.look("a process to stop");
            std::thread::yield_now();
        }
    }

    /// Whether all of it has stopped, each thread.
    pub fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).expect("proc");
        let is_stopped = |task: io::Result<std::fs::DirEntry>| {
            let path = task.expect("a thread").path().join("stat");
            let stat = std::fs::read_to_string(path).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        };
        tasks.into_iter().all(is_stopped)
    }

    /// Waits until it has ended by itself.
    pub fn finished(mut self) -> ExitStatus {
        let watch = super::Watch::start();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            watch.look("a process");
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
