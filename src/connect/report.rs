//! The door at which `crosstie report` asks: a socket of each endpoint under an abstract name that
//! has the process's id in it. The side band's thread answers, whatever the program does, and
//! answers its own user and root alone.
//!
//! The caller drives: each of its records asks for the next connection, and is answered with one
//! record. Its first questions have both sides of every connection asked how they stand.
#![forbid(unsafe_code)]

use super::address;
use super::connection::Phase;
use super::control::{Control, TOKEN_REPORT};
use super::key::public_number;
use super::memory::LinkMemory;
use super::os;
use super::peer::TextBuffer;
use super::socket::{Name, Socket};
use crate::wire::status::{Status, StatusHello};
use crate::wire::{WIRE_MAJOR, WIRE_MINOR};
use core::fmt::Write;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::string::String;
use std::thread;
use std::time::{Duration, Instant};
use std::vec::Vec;

const NAME: &str = "crosstie-report";
/// Magic and version: question and answer must come from the same wire version.
const MAGIC: u32 = u32::from_le_bytes(*b"XTRP") ^ (WIRE_MAJOR as u32) << 8 ^ WIRE_MINOR as u32;
/// A question: magic, and the number of the connection from which on the next is asked for.
const QUESTION_BYTES: usize = 8;
/// The number of the first questions.
const BEGIN: u32 = u32::MAX;
/// An answer: magic, the connection's number or [`BEGIN`] for none, what the peer has done (0: said
/// nothing, 1: said something, 2: it cannot be asked), ours, the peer's, the name.
const HEAD_BYTES: usize = 16;
const PEER_BYTES_MAX: usize = 128;
const ANSWER_BYTES_MAX: usize = HEAD_BYTES + 2 * Status::SIZE + PEER_BYTES_MAX;
/// Questions answered at a time, so that one caller cannot hold the lock.
const QUESTIONS_MAX: usize = 16;

/// The door, and who stands in it: one at a time.
#[derive(Debug)]
pub(super) struct ReportDoor {
    door: Option<Socket>,
    caller: Option<Socket>,
}

impl ReportDoor {
    /// Not open.
    pub const CLOSED: ReportDoor = ReportDoor { door: None, caller: None };
}

impl<M: LinkMemory> Control<M> {
    /// Opens the door; an endpoint without one works.
    pub fn report_open(&mut self) {
        let mut bytes = [0; 80];
        let mut text = TextBuffer::new(&mut bytes);
        let (pid, id) = (std::process::id(), public_number(self.endpoint_id) as u64);
        let _ = write!(text, "{NAME}-{pid}-{id:016x}");
        let length = text.length();
        let Some(name) = Name::abstract_of(&bytes[..length]) else { return };
        let Ok(door) = Socket::listen(&name) else { return };
        if self.poller.add(door.as_fd(), TOKEN_REPORT).is_ok() {
            self.statuses.report_door.door = Some(door);
        }
    }

    /// Somebody knocks (0), or asks (1).
    pub fn report_ready(&mut self, index: u32) {
        if index == 0 {
            return self.report_answer_door();
        }
        for _ in 0..QUESTIONS_MAX {
            let Some(caller) = &self.statuses.report_door.caller else { return };
            let mut question = [0; QUESTION_BYTES];
            match caller.receive(&mut question) {
                Ok(received) if received.length == QUESTION_BYTES => self.report_asked(question),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => return self.report_goodbye(),
            }
        }
    }

    fn report_answer_door(&mut self) {
        let caller = match self.statuses.report_door.door.as_ref().map(Socket::accept) {
            Some(Ok(caller)) => caller,
            // who waits keeps the door ready for ever
            Some(Err(error)) if address::is_out_of_descriptors(&error) => return self.be_deaf(),
            Some(Err(_)) | None => return,
        };
        if !may_ask(&caller) {
            return;
        }
        self.report_goodbye();
        if self.poller.add(caller.as_fd(), TOKEN_REPORT | 1).is_ok() {
            self.statuses.report_door.caller = Some(caller);
        }
    }

    /// Whether the door is watched.
    pub(super) fn report_hearing(&self, on: bool) {
        if let Some(door) = &self.statuses.report_door.door {
            self.poller.change(door.as_fd(), TOKEN_REPORT, on, false);
        }
    }

    fn report_goodbye(&mut self) {
        if let Some(caller) = self.statuses.report_door.caller.take() {
            self.poller.remove(caller.as_fd());
        }
    }

    fn report_asked(&mut self, question: [u8; QUESTION_BYTES]) {
        let [a, b, c, d, from @ ..] = question;
        if u32::from_le_bytes([a, b, c, d]) != MAGIC {
            return self.report_goodbye();
        }
        let from = u32::from_le_bytes(from);
        let mut answer = [0; ANSWER_BYTES_MAX];
        answer[..4].copy_from_slice(&MAGIC.to_le_bytes());
        answer[4..8].copy_from_slice(&BEGIN.to_le_bytes());
        let mut length = HEAD_BYTES;
        if from == BEGIN {
            self.report_begin();
        } else if let Some(index) = self.report_next(from) {
            length = self.report_entry(index, &mut answer);
        }
        let Some(caller) = &self.statuses.report_door.caller else { return };
        if caller.send(&answer[..length], &[]).is_err() {
            self.report_goodbye();
        }
    }

    /// Has everybody say how they stand.
    fn report_begin(&mut self) {
        let mut from = 0;
        while let Some(index) = self.report_next(from) {
            from = index + 1;
            self.status_want(index);
            let handle = self.connections[index as usize].handle(index);
            self.status_ask(handle, 0);
        }
    }

    fn report_next(&self, from: u32) -> Option<u32> {
        let open = |index: &u32| {
            let connection = &self.connections[*index as usize];
            connection.phase == Phase::Open && !connection.closed_here
        };
        (from..self.connections.len() as u32).find(open)
    }

    fn report_entry(&mut self, index: u32, answer: &mut [u8; ANSWER_BYTES_MAX]) -> usize {
        let handle = self.connections[index as usize].handle(index);
        let ours = self.status_own(index);
        let theirs = self.status_of_peer(handle);
        answer[4..8].copy_from_slice(&index.to_le_bytes());
        answer[8] = match theirs {
            Some(_) => 1,
            None if self.status_owed_ms(handle).is_some() => 0,
            None => 2,
        };
        let (ours_at, theirs_at) = (HEAD_BYTES, HEAD_BYTES + Status::SIZE);
        answer[ours_at..theirs_at].copy_from_slice(&ours.encode());
        let name_at = theirs_at + Status::SIZE;
        answer[theirs_at..name_at].copy_from_slice(&theirs.unwrap_or_default().encode());
        name_at + self.peer_text(handle, &mut answer[name_at..])
    }
}

/// One connection of another process.
#[derive(Clone, Debug)]
pub struct ReportEntry {
    /// Its number.
    pub connection: u32,
    /// Who its peer is.
    pub peer: String,
    /// How it stands.
    pub ours: StatusHello,
    /// How its peer says that it stands.
    pub theirs: Option<StatusHello>,
    /// The peer could be asked.
    pub asked: bool,
}

/// Asks every endpoint of a process how its connections stand, and gives the peers `patience` to
/// answer. Blocks. Needs the same network namespace, and the same user or root.
///
/// *Errors*: `NotFound`: the process has no endpoint that could be asked; `UnexpectedEof`: it has
/// ended, or closed its endpoint, meanwhile; `ConnectionAborted`: it stands, and has hung up;
/// `PermissionDenied`: it is another user's; `TimedOut`: it does not answer.
pub fn reports(pid: u32, patience: Duration) -> io::Result<Vec<Vec<ReportEntry>>> {
    let names = doors(NAME, pid)?;
    if names.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let (mut all, mut ended) = (Vec::new(), None);
    for name in &names {
        let door = Name::abstract_of(name.as_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
        let answer = Socket::connect(&door).and_then(|socket| report_of(&socket, patience));
        match answer.map_err(|error| hung_up(pid, name, error)) {
            Ok(entries) => all.push(entries),
            // others of the process may stand
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => ended = Some(error),
            Err(error) => return Err(error),
        }
    }
    match ended {
        Some(error) if all.is_empty() => Err(error),
        _ => Ok(all),
    }
}

/// The names of the sockets of a process that begin with `prefix` and its id.
pub(super) fn doors(prefix: &str, pid: u32) -> io::Result<Vec<String>> {
    let prefix = std::format!("@{prefix}-{pid}-");
    // of other programs' names not all are text
    let sockets = fs::read("/proc/net/unix")?;
    let sockets = String::from_utf8_lossy(&sockets);
    let mut names = Vec::new();
    for name in sockets.lines().filter_map(|line| line.split_whitespace().last()) {
        let known = |known: &String| known[..] == name[1..];
        // connected sockets have the name too
        if name.starts_with(&prefix) && !names.iter().any(known) {
            names.push(name[1..].into());
        }
    }
    Ok(names)
}

/// Why a conversation broke off: a door that still stands has been shut on us.
fn hung_up(pid: u32, name: &String, error: io::Error) -> io::Error {
    let broken = matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
    );
    if !broken && error.kind() != io::ErrorKind::ConnectionRefused {
        return error;
    }
    match doors(NAME, pid).is_ok_and(|names| names.contains(name)) {
        true if broken => io::ErrorKind::ConnectionAborted.into(),
        true => error,
        false => io::ErrorKind::UnexpectedEof.into(),
    }
}

/// Whether a caller at a door is of our user, or root.
pub(super) fn may_ask(caller: &Socket) -> bool {
    caller.credentials().is_ok_and(|who| who.uid == 0 || who.uid == os::user())
}

/// Whether a door that was dialled is of our user; root asks anybody.
pub(super) fn door_check(socket: &Socket) -> io::Result<()> {
    let user = socket.credentials()?.uid;
    match user == os::user() || os::user() == 0 {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn report_of(socket: &Socket, patience: Duration) -> io::Result<Vec<ReportEntry>> {
    door_check(socket)?;
    let deadline = Instant::now() + patience + Duration::from_secs(2);
    // a look finds what is open, another that it still is
    for _ in 0..2 {
        ask(socket, BEGIN, deadline)?;
        thread::sleep(patience / 2);
    }
    let (mut entries, mut from) = (Vec::new(), 0);
    while let Some(entry) = ask(socket, from, deadline)? {
        from = entry.connection + 1;
        entries.push(entry);
    }
    Ok(entries)
}

fn ask(socket: &Socket, from: u32, deadline: Instant) -> io::Result<Option<ReportEntry>> {
    let mut question = [0; QUESTION_BYTES];
    question[..4].copy_from_slice(&MAGIC.to_le_bytes());
    question[4..].copy_from_slice(&from.to_le_bytes());
    socket.send(&question, &[])?;
    let mut answer = [0; ANSWER_BYTES_MAX];
    loop {
        match socket.receive(&mut answer) {
            Ok(received) if received.length == 0 => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(received) => return decode(&answer[..received.length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() > deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
}

fn decode(answer: &[u8]) -> io::Result<Option<ReportEntry>> {
    let word = |at: usize| answer.get(at..at + 4).and_then(|b| b.try_into().ok());
    if word(0).map(u32::from_le_bytes) != Some(MAGIC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let connection = word(4).map_or(BEGIN, u32::from_le_bytes);
    if connection == BEGIN {
        return Ok(None);
    }
    let status = |at: usize| {
        let bytes = answer.get(at..).unwrap_or_default();
        StatusHello::decode(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    };
    let ours = status(HEAD_BYTES)?;
    let theirs = status(HEAD_BYTES + Status::SIZE)?;
    let name = answer.get(HEAD_BYTES + 2 * Status::SIZE..).unwrap_or_default();
    let peer = String::from_utf8_lossy(name).into_owned();
    let theirs = (answer[8] == 1).then_some(theirs);
    Ok(Some(ReportEntry { connection, peer, ours, theirs, asked: answer[8] != 2 }))
}
