//! The test's side of two processes that talk to each other, and of what they say.

use super::{Hosts, Start};
use crate::host_support::Watch;
use crate::host_support::roles::{Line, Process};
use std::fs::File;
use std::path::PathBuf;

/// Two processes with a connection between them.
pub struct Two {
    pub listening: Process,
    pub connecting: Process,
}

impl Two {
    /// One process in host 0, and one in host 1 that connects to it.
    pub fn joined(hosts: &Hosts, environment: &[(&str, &str)]) -> Two {
        Two::logged(hosts, [0, 1], environment, None)
    }

    /// As `joined`, in the hosts that are named, and the first writes what it has to say to a file.
    pub fn logged(
        hosts: &Hosts,
        at: [usize; 2],
        environment: &[(&str, &str)],
        log: Option<File>,
    ) -> Two {
        let listening = hosts.start(at[0], "listen", Start { environment, log });
        let connecting = hosts.start(at[1], "connect", Start { environment, log: None });
        let mut two = Two { listening, connecting };
        let handle = two.listening.line.hear::<128>();
        two.connecting.line.say(&handle);
        assert_eq!(two.connecting.line.hear_text(), "connected");
        two
    }

    pub fn both(&mut self) -> [&mut Line; 2] {
        [&mut self.listening.line, &mut self.connecting.line]
    }

    pub fn say(&mut self, text: &str) {
        self.both().into_iter().for_each(|line| line.say_text(text));
    }

    /// Messages of all kinds cross, and every byte is right.
    pub fn exchange(&mut self, rounds: u64, seed: u64) {
        for line in self.both() {
            line.say_text("exchange");
            line.say_number(rounds);
            line.say_number(seed);
        }
        let arrived = self.both().map(|line| line.hear_number());
        assert!(arrived[0] == arrived[1] && arrived[0] >= rounds, "{arrived:?}, seed {seed}");
    }

    pub fn end(mut self) {
        self.say("close");
        for line in self.both() {
            assert_eq!(line.hear_text(), "closed");
        }
        self.say("end");
        for process in [self.listening, self.connecting] {
            assert!(process.finished().success());
        }
    }
}

/// What a process says of its messages' end, after it has said some times that they flow.
pub fn ended(line: &mut Line) -> String {
    loop {
        let text = line.hear_text();
        if text != "flows" {
            return text;
        }
    }
}

/// Whether a process has said that messages came, after all that it had said before.
pub fn flows_on(line: &mut Line) {
    while line.is_ready() {
        assert_eq!(line.hear_text(), "flows");
    }
    for _ in 0..3 {
        assert_eq!(line.hear_text(), "flows");
    }
}

/// How many threads of a process move payloads.
pub fn copy_threads(process: &Process) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).expect("it lives");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.expect("it lives").path().join("comm")).expect("a name")
    };
    tasks.map(name).filter(|name| name.trim() == "crosstie-copy").count()
}

/// Sockets of TCP that a process holds and that have a peer.
pub fn tcp_sockets(process: &Process) -> usize {
    let id = process.id();
    let held: Vec<String> = std::fs::read_dir(format!("/proc/{id}/fd"))
        .expect("proc")
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.into()))
        .collect();
    let table =
        |name: &str| std::fs::read_to_string(format!("/proc/{id}/net/{name}")).expect("proc");
    let tables = table("tcp") + &table("tcp6");
    let rows = tables.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() > 9 && row[3] == "01" && held.iter().any(|h| h == row[9])).count()
}

/// A file for what a process says on standard error.
pub struct Log(PathBuf);

impl Log {
    pub fn new(name: &str) -> Log {
        Log(std::env::temp_dir().join(format!("xtie-{}-{name}.log", std::process::id())))
    }

    pub fn file(&self) -> File {
        File::create(&self.0).expect("a file")
    }

    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.0).expect("written by the process")
    }

    /// Waits until the process has said something.
    pub fn says(&self, part: &str) {
        let watch = Watch::start();
        while !self.text().contains(part) {
            watch.look(&format!("`{part}` in what a process says:\n{}", self.text()));
            std::thread::yield_now();
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Messages that flowed have all ended by this name.
pub fn all_ended(line: &mut Line, name: &str) {
    let text = ended(line);
    let mut words = text.split_whitespace();
    assert_eq!(words.next(), Some("ended"), "{text}");
    assert!(words.clone().count() > 0, "{text}");
    let failed = format!("Failed({name})");
    assert!(words.all(|word| word == name || word == failed), "{text}");
}
