//! `crosstie perf --listen` on one host and `crosstie perf HOST` on another: a measurement between
//! two processes without a launcher. Both may run on one host.
//!
//! They talk in lines over a TCP connection beside the measured ones.
//!
//! 1. Each side says [`HELLO`].
//! 2. The client says `open`, and the options that its peer process would be started with.
//! 3. The server answers `handle` and a listener's handle.
//! 4. The client asks for windows as over a pipe, until it says `close`.
//!
//! Instead of any answer the server may say `failed` and why. It ends when its client has gone.
#![forbid(unsafe_code)]

use super::options;
use super::peer;
use super::place::{PORT, Place};
use super::process::{LINE, Peer, line_read};
use crate::arguments::{is_given, operands, parse, refused};
use crate::{Failure, write_out};
use clap::ArgMatches;
use crosstie::connect::interfaces::all_addresses;
use crosstie::host::log;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server waits for its client.
const CLIENT: Duration = Duration::from_secs(600);
/// How long one address may take to answer, and somebody who connects to say who that is.
const STEP: Duration = Duration::from_secs(5);
/// Between two looks for a client.
const PAUSE: Duration = Duration::from_millis(5);
/// What each says first: the protocol between them, and its version.
const HELLO: &str = "crosstie perf 2\n";

// ---------------------------------------------------------------- the client

/// A server that has answered.
#[derive(Debug)]
pub struct Server {
    stream: TcpStream,
}

impl Server {
    /// Connects to it.
    ///
    /// *Errors*: a sentence that says whether the name, the host or the program is missing.
    pub fn find(place: &Place) -> Result<Server, Failure> {
        let addresses = (place.host.as_str(), place.port).to_socket_addrs().map_err(|error| {
            let known = options::measures_known();
            format!("`{}` is neither a host ({error}) nor a thing to measure: {known}", place.host)
        })?;
        let mut why = String::from("the name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, STEP) {
                Ok(stream) => return Server::greet(stream, place),
                Err(error) => why = format!("{}: {error}", address.ip()),
            }
        }
        let port = if place.port == PORT { String::new() } else { format!(" {}", place.port) };
        Err(format!(
            "{place}: no server answers ({why}); start `crosstie perf --listen{port}` there first"
        ))
    }

    fn greet(mut stream: TcpStream, place: &Place) -> Result<Server, Failure> {
        let mut heard = [0; HELLO.len()];
        let said = timed(&stream, STEP)
            .and_then(|()| stream.write_all(HELLO.as_bytes()))
            .and_then(|()| stream.read_exact(&mut heard));
        match said {
            Ok(()) if heard == HELLO.as_bytes() => {}
            Ok(()) => return Err(format!("{place}: another program, or version, has this port")),
            Err(error) => {
                let busy = "it has another client, or is no `crosstie perf --listen`";
                return Err(format!("{place}: no answer ({error}): {busy}"));
            }
        }
        timed(&stream, LINE).map_err(|error| format!("{place}: {error}"))?;
        Ok(Server { stream })
    }

    /// Has it open an endpoint, as a peer process with these options would; until the result is
    /// dropped.
    pub fn open(&self, options: &[(&str, String)]) -> Result<Peer, Failure> {
        let lost = |error| format!("the server: {error}");
        let say = self.stream.try_clone().map_err(lost)?;
        let mut peer = Peer::of_stream(say, self.stream.try_clone().map_err(lost)?);
        let word = |(name, value): &(&str, String)| match value.is_empty() {
            true => name.to_string(),
            false => format!("{name}={value}"),
        };
        let words: Vec<String> = options.iter().map(word).collect();
        peer.say(&format!("open {}", words.join(" ")))?;
        Ok(peer)
    }
}

/// Bounds every read and write.
fn timed(stream: &TcpStream, limit: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))
}

// ---------------------------------------------------------------- the server

/// Waits for a client, and measures with it.
pub fn serve(given: &ArgMatches) -> Result<(), Failure> {
    let operands = operands(given);
    let port = port_of(&operands)?;
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .map_err(|error| refused("--listen", &format!("port {port}: {error}")))?;
    let own = listener.local_addr().map_err(|error| refused("--listen", &error.to_string()))?;
    let options = given.ids().map(clap::Id::as_str).filter(|name| is_given(given, name));
    let more = options.into_iter().any(|name| !["listen", "warned", "what"].contains(&name));
    if more || operands.iter().any(|operand| operand.parse::<u16>().is_err()) {
        log::line_write("option --listen: other options have no effect; the client decides");
    }
    write_out(&format!(
        "listening on port {} for {} s: crosstie perf HOST{}, where HOST is {}\n",
        own.port(),
        CLIENT.as_secs(),
        if own.port() == PORT { String::new() } else { format!(" {}", own.port()) },
        addresses()
    ))?;
    let (stream, client) = client(&listener, own.port())?;
    drop(listener);
    write_out(&format!("client {client}\n"))?;
    let (verified, wrong) = sessions(&stream).map_err(|why| format!("client {client}: {why}"))?;
    if wrong > 0 {
        return Err(format!("client {client}: {wrong} messages arrived with wrong bytes"));
    }
    write_out(&format!("client {client} has ended; {verified} bytes verified here, none wrong\n"))
}

/// The operand of `--listen`; 0: a port that the kernel chooses.
fn port_of(operands: &[String]) -> Result<u16, Failure> {
    let numbers = || operands.iter().filter(|it| it.bytes().all(|b| b.is_ascii_digit()));
    match (numbers().next(), numbers().count()) {
        (None, _) => Ok(PORT),
        (Some(text), 1) => text
            .parse()
            .map_err(|_| refused("--listen", &format!("`{text}` is not a port from 0 to 65535"))),
        _ => Err(refused("--listen", "takes one port")),
    }
}

/// How other hosts may call this one.
fn addresses() -> String {
    let far = all_addresses().unwrap_or_default().into_iter();
    let far = far.filter(|address| address.up && !address.loopback && !address.link_local);
    let mut all: Vec<String> = far.map(|address| address.ip.to_string()).collect();
    all.push("here localhost".into());
    all.join(", ")
}

/// Whoever connects and says hello; others are dropped.
fn client(listener: &TcpListener, port: u16) -> Result<(TcpStream, SocketAddr), Failure> {
    let failed = |error| format!("port {port}: {error}");
    listener.set_nonblocking(true).map_err(failed)?;
    let until = Instant::now() + CLIENT;
    while Instant::now() < until {
        match listener.accept() {
            Ok((mut stream, address)) => {
                if hello(&mut stream).is_ok() {
                    return Ok((stream, address));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(PAUSE),
            // a connection that was reset while it waited; out of descriptors, too, may pass
            Err(_) => sleep(PAUSE),
        }
    }
    Err(format!("port {port}: no client came within {} s", CLIENT.as_secs()))
}

fn hello(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    timed(stream, STEP)?;
    let mut heard = [0; HELLO.len()];
    stream.read_exact(&mut heard)?;
    // of another version: that one says which
    stream.write_all(HELLO.as_bytes())?;
    match heard == HELLO.as_bytes() {
        true => timed(stream, LINE),
        false => Err(ErrorKind::InvalidData.into()),
    }
}

/// Opens what the client asks for, one after the other, until it is gone. Returns the bytes that
/// were verified, and the messages found wrong.
fn sessions(stream: &TcpStream) -> Result<(u64, u64), Failure> {
    let lost = |error: std::io::Error| format!("lost: {error}");
    let mut words = BufReader::new(stream.try_clone().map_err(lost)?);
    let mut out = stream.try_clone().map_err(lost)?;
    let (mut verified, mut wrong) = (0, 0);
    while let Some(line) = line_read(&mut words)? {
        let session = match line.strip_prefix("open ") {
            Some(options) => {
                let options: Vec<String> = options.split(' ').map(String::from).collect();
                parse(peer::command(), &options).and_then(|given| {
                    let here = || is_here(stream);
                    peer::session(&given, &mut words, &mut out, &here)
                })
            }
            None => Err(format!("it says `{line}`")),
        };
        match session {
            Ok(checked) => (verified, wrong) = (verified + checked.0, wrong + checked.1),
            Err(failure) => {
                // whom it cannot be told has gone
                let _ = writeln!(out, "failed {failure}");
                return Err(failure);
            }
        }
    }
    Ok((verified, wrong))
}

/// Whether the client waits for its connections.
fn is_here(stream: &TcpStream) -> Result<(), Failure> {
    let seen = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0; 1]));
    stream.set_nonblocking(false).map_err(|error| format!("lost: {error}"))?;
    match seen {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
        Ok(1..) => Ok(()),
        Ok(0) => Err("it has gone before it was connected; its own error says why".into()),
        Err(error) => Err(format!("lost: {error}")),
    }
}
