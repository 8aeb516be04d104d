//! A bare socket in the library's place, between the same two processes and in the same windows:
//! what the kernel's TCP gives to a program that makes one `send` per message.
//!
//! Non-blocking, without delay, on the loopback interface, buffers as the kernel chooses. A stream
//! has no window of its own: the kernel's buffers alone bound what is under way.
#![forbid(unsafe_code)]

use super::bench::{Bench, Ran};
use super::process::{Peer, pin};
use super::window::{Kind, Window};
use crate::Failure;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Its name where devices are named.
pub const DEVICE: &str = "socket";
/// Fruitless calls after which the CPU is offered to others.
const CALLS_BEFORE_YIELD: u32 = 1 << 12;
/// How long the peer may take to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// One end of the connection, and a ring of messages for each direction.
struct End {
    stream: TcpStream,
    send: Vec<u8>,
    receive: Vec<u8>,
    verified: u64,
    wrong: u64,
}

impl End {
    fn new(stream: TcpStream, bytes: usize) -> Result<End, Failure> {
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        // Not zero: pages that were never written would all be one.
        Ok(End { stream, send: vec![1; bytes], receive: vec![1; bytes], verified: 0, wrong: 0 })
    }

    /// Sends one message.
    #[inline]
    fn send(&mut self, window: &Window, round: u64) -> Result<(), Failure> {
        let (bytes, at) = (window.bytes as usize, place(window, round));
        let message = &mut self.send[at..at + bytes];
        if window.verify {
            fill(message, window.seed(round, 0));
        }
        let mut sent = 0;
        let mut waiting = 0;
        while sent < bytes {
            match self.stream.write(&message[sent..]) {
                Ok(more) => sent += more,
                Err(error) => wait(error, &mut waiting)?,
            }
        }
        Ok(())
    }

    /// Receives messages `round` up to `end`: as much at a time as is there and fits.
    #[inline]
    fn receive(&mut self, window: &Window, round: u64, end: u64) -> Result<(), Failure> {
        let bytes = window.bytes as usize;
        let ring = bytes * window.outstanding as usize;
        let (mut from, mut round, mut waiting) = (place(window, round), round, 0);
        let mut at = from;
        while round < end {
            let wanted = ((end - round) as usize * bytes - (at - from)).min(ring - at);
            match self.stream.read(&mut self.receive[at..at + wanted]) {
                Ok(0) => return Err("the other end of the socket is gone".into()),
                Ok(more) => at += more,
                Err(error) => wait(error, &mut waiting)?,
            }
            while at - from >= bytes {
                if window.verify {
                    let message = &self.receive[from..from + bytes];
                    self.wrong += u64::from(!same(message, window.seed(round, 0)));
                    self.verified += window.bytes;
                }
                (from, round) = (from + bytes, round + 1);
            }
            if at == ring {
                (at, from) = (0, 0);
            }
        }
        Ok(())
    }

    /// A byte that starts or ends a window.
    fn signal(&mut self) -> Result<(), Failure> {
        let mut waiting = 0;
        loop {
            match self.stream.write(&[0]) {
                Ok(0) => return Err("the other end of the socket is gone".into()),
                Ok(_) => return Ok(()),
                Err(error) => wait(error, &mut waiting)?,
            }
        }
    }

    fn signal_wait(&mut self) -> Result<(), Failure> {
        let mut waiting = 0;
        loop {
            match self.stream.read(&mut [0]) {
                Ok(0) => return Err("the other end of the socket is gone".into()),
                Ok(_) => return Ok(()),
                Err(error) => wait(error, &mut waiting)?,
            }
        }
    }
}

/// Where a message lies: one after the other, in a ring of as many as are outstanding.
#[inline]
fn place(window: &Window, round: u64) -> usize {
    ((round % window.outstanding) * window.bytes) as usize
}

fn failed(error: std::io::Error) -> Failure {
    format!("socket: {error}")
}

#[inline]
fn wait(error: std::io::Error, waiting: &mut u32) -> Result<(), Failure> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => {
            *waiting += 1;
            if (*waiting).is_multiple_of(CALLS_BEFORE_YIELD) {
                std::thread::yield_now();
            }
            Ok(())
        }
        _ => Err(failed(error)),
    }
}

fn byte(seed: u64, at: usize) -> u8 {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at as u64).wrapping_mul(0x1_0001_00b3);
    (mixed >> 24) as u8
}

fn fill(message: &mut [u8], seed: u64) {
    for (at, place) in message.iter_mut().enumerate() {
        *place = byte(seed, at);
    }
}

fn same(message: &[u8], seed: u64) -> bool {
    message.iter().enumerate().all(|(at, found)| *found == byte(seed, at))
}

/// The measuring process and its peer, with a socket between them.
pub struct SocketPair {
    end: End,
    process: Peer,
}

impl SocketPair {
    /// Starts the peer and connects to it. `bytes` is the longest ring of messages.
    pub fn open(cpus: Option<(u32, u32)>, bytes: u64) -> Result<SocketPair, Failure> {
        let options = [("--socket", bytes.to_string())];
        let mut process = Peer::start(cpus.map(|(_, cpu)| cpu), &options)?;
        if let Some((own, _)) = cpus {
            pin(own)?;
        }
        let mut port = [0; 2];
        process.greeting(&mut port)?;
        let address = (Ipv4Addr::LOCALHOST, u16::from_le_bytes(port)).into();
        let stream = TcpStream::connect_timeout(&address, CONNECT).map_err(failed)?;
        Ok(SocketPair { end: End::new(stream, bytes as usize)?, process })
    }
}

impl Bench for SocketPair {
    fn window(
        &mut self,
        window: &Window,
        _until: Option<Instant>, // nothing that the kernel's TCP on one host would keep
        mut samples: Option<&mut Vec<u32>>,
    ) -> Result<Ran, Failure> {
        self.process.ask(window)?;
        let end = &mut self.end;
        end.signal_wait()?;
        let began = Instant::now();
        let mut last = began;
        for round in 0..window.rounds {
            end.send(window, round)?;
            if window.kind == Kind::PingPong {
                end.receive(window, round, round + 1)?;
            }
            if let Some(samples) = &mut samples {
                let now = Instant::now();
                samples.push(u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX));
                last = now;
            }
        }
        if window.kind == Kind::Stream {
            end.signal_wait()?;
        }
        let took = began.elapsed();
        self.process.hear_end()?;
        Ok(Ran { took, rounds: window.rounds as f64 })
    }

    fn checked(&self) -> (u64, u64) {
        (self.end.verified + self.process.verified, self.end.wrong + self.process.wrong)
    }
}

/// The peer's end: listens, says where, accepts.
pub struct SocketPeer(End);

impl SocketPeer {
    /// `announce` writes to the measuring process.
    pub fn open(bytes: u64, mut announce: impl Write) -> Result<SocketPeer, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let said = announce.write_all(&port.to_le_bytes()).and_then(|()| announce.flush());
        said.map_err(|error| format!("the measuring process is gone: {error}"))?;
        let (stream, _) = listener.accept().map_err(failed)?;
        Ok(SocketPeer(End::new(stream, bytes as usize)?))
    }

    /// Runs its half of a window.
    pub fn serve(&mut self, window: &Window) -> Result<(), Failure> {
        let end = &mut self.0;
        end.signal()?;
        if window.kind == Kind::Stream {
            end.receive(window, 0, window.rounds)?;
            return end.signal();
        }
        for round in 0..window.rounds {
            end.receive(window, round, round + 1)?;
            end.send(window, round)?;
        }
        Ok(())
    }

    /// Bytes verified and messages found wrong until now.
    pub fn checked(&self) -> (u64, u64) {
        (self.0.verified, self.0.wrong)
    }
}
