//! Both processes of `crosstie perf --chaos`, as their parent talks to them.
#![forbid(unsafe_code)]

use super::rails::{Rail, rails_read};
use super::traffic::numbers;
use super::worker::NAME;
use crate::Failure;
use crate::perf::once::WARNED;
use crosstie::memory::Variables;
use crosstie::memory::pidfd::Process;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// What a side is called, by its number.
pub const SIDES: [&str; 2] = ["listener", "connector"];
/// How long ending by themselves may take, before they are killed.
const END: Duration = Duration::from_secs(2);

/// The settings that both processes have from us, whatever the user's are.
pub const OVERRIDDEN: [&str; 2] = ["CROSSTIE_TCP_RAILS", "CROSSTIE_SOCKET_IFNAME"];

struct Worker {
    child: Child,
    say: Option<ChildStdin>,
    process: Process,
}

/// Both, and what they say.
pub struct Workers {
    workers: Vec<Worker>,
    heard: Receiver<(usize, Option<String>)>,
    /// Lines that one has said while the other was listened to.
    kept: Vec<(usize, String)>,
    /// When it is over, whatever happens.
    deadline: Instant,
}

impl Workers {
    /// Starts both over so many rails, and waits until they are connected.
    pub fn start(rails: u8, deadline: Instant) -> Result<Workers, Failure> {
        let (sender, heard) = channel();
        let mut both = Workers { workers: Vec::new(), heard, kept: Vec::new(), deadline };
        both.workers.push(Worker::start(0, rails, "", sender.clone())?);
        // what the listener has warned of the connector need not
        let warned = both.hear(0, "warned", deadline)?;
        let handle = both.hear(0, "handle", deadline)?;
        both.workers.push(Worker::start(1, rails, &warned, sender)?);
        both.say(1, &handle)?;
        for side in 0..SIDES.len() {
            both.hear(side, "ready", deadline)?;
        }
        Ok(both)
    }

    /// The process of a side.
    pub fn process(&self, side: usize) -> &Process {
        &self.workers[side].process
    }

    /// Says a line to one side.
    pub fn say(&mut self, side: usize, line: &str) -> Result<(), Failure> {
        let pipe = self.workers[side].say.as_mut().ok_or("it was told to end")?;
        let said = pipe.write_all(format!("{line}\n").as_bytes()).and_then(|()| pipe.flush());
        match said {
            Ok(()) => Ok(()),
            // why it has ended is what it said last
            Err(_) => self.hear(side, "", self.deadline).map(|_| ()),
        }
    }

    /// Says a line to both.
    pub fn say_both(&mut self, line: &str) -> Result<(), Failure> {
        (0..SIDES.len()).try_for_each(|side| self.say(side, line))
    }

    /// Waits until a side says `word`; returns what stands behind it. What either has to say of a
    /// failure ends the wait.
    pub fn hear(&mut self, side: usize, word: &str, until: Instant) -> Result<String, Failure> {
        loop {
            let said =
                |(of, line): &(usize, String)| *of == side && line.split(' ').next() == Some(word);
            if let Some(at) = self.kept.iter().position(said) {
                let (_, line) = self.kept.remove(at);
                return Ok(line[word.len()..].trim_start().to_string());
            }
            let left = until.min(self.deadline).saturating_duration_since(Instant::now());
            if !self.listen(left)? {
                return Err(format!("the {} does not say `{word}`", SIDES[side]));
            }
        }
    }

    /// Waits for so long, unless either fails.
    pub fn pause(&mut self, span: Duration) -> Result<(), Failure> {
        let until = Instant::now() + span;
        while self.listen(until.saturating_duration_since(Instant::now()))? {}
        Ok(())
    }

    /// Keeps the next line; `false`: none came in time.
    fn listen(&mut self, span: Duration) -> Result<bool, Failure> {
        match self.heard.recv_timeout(span) {
            Ok((side, Some(line))) => match line.strip_prefix("failed ") {
                Some(failure) => Err(format!("{}: {failure}", SIDES[side])),
                None => {
                    self.kept.push((side, line));
                    Ok(true)
                }
            },
            Ok((side, None)) => Err(format!("the {} is gone", SIDES[side])),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err("both processes are gone".into()),
        }
    }

    /// Numbers that a side says behind a word.
    pub fn hear_numbers(
        &mut self,
        side: usize,
        word: &str,
        until: Instant,
    ) -> Result<Vec<u64>, Failure> {
        let line = self.hear(side, word, until)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        numbers(&words).ok_or_else(|| format!("the {} says: {word} {line}", SIDES[side]))
    }

    /// How the rails are, by side.
    pub fn rails(&mut self, until: Instant) -> Result<[Vec<Rail>; 2], Failure> {
        self.say_both("rails")?;
        let mut both = [Vec::new(), Vec::new()];
        for (side, rails) in both.iter_mut().enumerate() {
            let line = self.hear(side, "rails", until)?;
            let words: Vec<&str> = line.split_whitespace().collect();
            *rails = rails_read(&words).ok_or_else(|| format!("no rails: {line}"))?;
        }
        Ok(both)
    }
}

impl Worker {
    fn start(
        side: usize,
        rails: u8,
        warned: &str,
        sender: Sender<(usize, Option<String>)>,
    ) -> Result<Worker, Failure> {
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let mut command = Command::new(program);
        command.args([NAME, "--side", &side.to_string(), "--rails", &rails.to_string()]);
        command.args([WARNED, warned]);
        // all rails between the same two addresses, which every host has
        let [wish, interfaces] = OVERRIDDEN;
        command.env(wish, rails.to_string());
        command.env(interfaces, "=lo");
        if Variables::of_process().get("CROSSTIE_LOG").is_none() {
            command.env("CROSSTIE_LOG", "error"); // that nobody else can connect is meant
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("starting the {}: {error}", SIDES[side]))?;
        let process = Process::open(child.id());
        let process = process.map_err(|errno| format!("pidfd_open: {errno}"))?;
        let say = child.stdin.take();
        let out = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let worker = Worker { child, say, process };
        let hear = move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send((side, Some(line))).is_err() {
                    return;
                }
            }
            let _ = sender.send((side, None)); // nobody listens any more
        };
        match std::thread::Builder::new().spawn(hear) {
            Ok(_) => Ok(worker),
            Err(error) => Err(format!("a thread that hears the {}: {error}", SIDES[side])),
        }
    }
}

impl Drop for Worker {
    /// Both fail only for a child that has ended.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Workers {
    /// Waits a moment for both, then kills them.
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.say = None);
        let until = Instant::now() + END;
        for worker in &mut self.workers {
            while matches!(worker.child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
