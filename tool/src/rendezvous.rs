//! Where the processes of a launch meet before they can talk through the library. They exchange
//! handles, and signs that all have arrived.
//!
//! Rank 0 is a small TCP server. Each other rank keeps one connection to it. It says its rank, then
//! gives its part of every gathering and takes all parts. A connection without the launch's key is
//! dropped, and disturbs nothing.
//!
//! On the wire, all numbers are little-endian:
//!
//! | message | fields |
//! |---|---|
//! | hello | magic and key (8 bytes each), size and rank (4 each) |
//! | answer | the magic |
//! | part | its length (4 bytes) and its bytes; all parts come back in the order of ranks |
//!
//! Two errors are answered before rank 0 ends:
//!
//! - Two processes have one rank: each gets another magic, or a length that no part has.
//! - A process has the key and another size: it gets the first half of a third magic, and rank 0's
//!   size.
#![forbid(unsafe_code)]

use super::Failure;
use super::launch::{Launch, Meeting};
use crosstie::host::log;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long all ranks may take to arrive.
pub const MEET_SECONDS: u64 = 30;
/// How long rank 0 is looked for before a line says so: it may start a little later.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long one attempt to connect may take, and a stranger may hold a place.
const STEP: Duration = Duration::from_secs(2);
/// Between two looks at sockets: nothing here is timed.
const PAUSE: Duration = Duration::from_millis(1);
/// Connections that have not said who they are, at a time; further ones wait in the kernel.
const STRANGERS_MAX: usize = 256;
/// Longest part of a gathering in bytes.
const PART_BYTES_MAX: usize = 1 << 20;
const HELLO_BYTES: usize = 24;
const MAGIC: [u8; 8] = *b"xtiemeet";
/// Answered to a process whose rank is there already.
const TWIN: [u8; 8] = *b"xtietwin";
/// Answered, with our size in the place of its second half, to a process that says another.
const SIZE: [u8; 4] = *b"size";
/// Instead of a part's length: another process says that it is the same rank.
const TWIN_LENGTH: u32 = u32::MAX;

/// A launch that has met.
pub struct Rendezvous {
    rank: u32,
    size: u32,
    /// To rank 0; on rank 0 to each other rank, in order.
    streams: Vec<TcpStream>,
}

/// A connection that has not said all of its hello.
struct Stranger {
    stream: TcpStream,
    hello: [u8; HELLO_BYTES],
    length: usize,
    since: Instant,
}

/// What a hello is to rank 0.
enum Said {
    NotYet,
    Rank(u32),
    /// Another size than ours, of this rank.
    Size(u32, u32),
    Nonsense,
}

impl Rendezvous {
    /// Meets the other ranks, within half a minute.
    ///
    /// *Errors*: a sentence that says which ranks are missing, or where rank 0 was looked for.
    pub fn meet(launch: &Launch) -> Result<Rendezvous, Failure> {
        let deadline = Instant::now() + Duration::from_secs(MEET_SECONDS);
        if launch.rank == 0 {
            let listener = listen(&launch.meeting)?;
            if !is_here(&launch.meeting.hosts) {
                // an address that is translated on the way may be right all the same
                log::line_write(&format!(
                    "rank 0 waits at {}, which is no address of this host: the others may not find \
                     it; CROSSTIE_RENDEZVOUS=HOST:PORT says where they look",
                    places(&launch.meeting)
                ));
            }
            return Rendezvous::serve(&listener, launch, deadline);
        }
        let stream = find(launch, deadline)?;
        Ok(Rendezvous { rank: launch.rank, size: launch.size, streams: vec![stream] })
    }

    /// Waits for all other ranks, as rank 0, on a listener that is there already.
    pub fn serve(
        listener: &TcpListener,
        launch: &Launch,
        deadline: Instant,
    ) -> Result<Rendezvous, Failure> {
        let system = |error| format!("rendezvous: {error}");
        listener.set_nonblocking(true).map_err(system)?;
        let mut ranks: Vec<Option<TcpStream>> = (1..launch.size).map(|_| None).collect();
        let mut strangers: Vec<Stranger> = Vec::new();
        while ranks.iter().any(Option::is_none) {
            if Instant::now() > deadline {
                return Err(missing(&ranks, &places(&launch.meeting)));
            }
            let came = arrivals(listener, &mut strangers)?;
            let heard = hear(&mut strangers, launch, &mut ranks)?;
            if !came && !heard {
                sleep(PAUSE);
            }
        }
        let streams = ranks.into_iter().flatten().collect();
        Ok(Rendezvous { rank: 0, size: launch.size, streams })
    }

    /// This process's number.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many processes have met.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Gives `part` and takes the parts of all ranks, in their order: every rank gets the same.
    ///
    /// *Errors*: a rank is gone, or has not come within `limit`.
    pub fn gather(&mut self, part: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, Failure> {
        assert!(part.len() <= PART_BYTES_MAX);
        let deadline = Instant::now() + limit;
        if self.rank != 0 {
            let own = self.rank;
            let stream = &mut self.streams[0];
            let gone = |error: std::io::Error| match error.kind() {
                ErrorKind::AlreadyExists => twins(own),
                _ => of_rank(0, error),
            };
            part_write(stream, part, deadline).map_err(gone)?;
            return (0..self.size).map(|_| part_read(stream, deadline).map_err(gone)).collect();
        }
        let mut parts = vec![part.to_vec()];
        for at in 0..self.streams.len() {
            // whoever waits for a rank that has ended would not come
            while !is_ready(&self.streams[at]) && Instant::now() < deadline {
                self.all_here()?;
                sleep(PAUSE);
            }
            let part = part_read(&mut self.streams[at], deadline);
            parts.push(part.map_err(|error| of_rank(at + 1, error))?);
        }
        let mut all = Vec::new();
        for part in &parts {
            all.extend((part.len() as u32).to_le_bytes());
            all.extend(part);
        }
        for (at, stream) in self.streams.iter_mut().enumerate() {
            all_write(stream, &all, deadline).map_err(|error| of_rank(at + 1, error))?;
        }
        Ok(parts)
    }

    /// Whether nobody has left whom this rank hears of: on rank 0 all, on the others rank 0. To be
    /// asked while something is waited for that the others are to do.
    ///
    /// *Errors*: a rank is gone.
    pub fn all_here(&self) -> Result<(), Failure> {
        let first = u32::from(self.rank == 0);
        for (rank, stream) in (first..).zip(&self.streams) {
            match stream.peek(&mut [0; 1]) {
                Ok(0) => return Err(of_rank(rank as usize, ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(of_rank(rank as usize, error)),
            }
        }
        Ok(())
    }

    /// Waits until all ranks are here.
    pub fn barrier(&mut self, limit: Duration) -> Result<(), Failure> {
        self.gather(&[], limit).map(|_| ())
    }
}

fn of_rank(rank: usize, error: std::io::Error) -> Failure {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("rank {rank} does not come"),
        ErrorKind::UnexpectedEof => format!("rank {rank} is gone; its own error says why"),
        _ => format!("rank {rank} is gone ({error})"),
    }
}

/// Two launches have one rendezvous, or one has two opinions.
fn sizes(other: &str, theirs: u32, launch: &Launch) -> Failure {
    format!(
        "{other} expects {theirs} processes, and this one, rank {}, expects {}; two launches have \
         the rendezvous at {}, or CROSSTIE_SIZE is not the same for all",
        launch.rank,
        launch.size,
        places(&launch.meeting)
    )
}

fn twins(rank: u32) -> Failure {
    format!("two processes say that they are rank {rank}, and this is one of them")
}

/// Nothing has come yet, and something may.
fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Whether reading would not wait.
fn is_ready(stream: &TcpStream) -> bool {
    !matches!(stream.peek(&mut [0; 1]), Err(error) if is_passing(&error))
}

/// Where a launch meets, as it was told.
fn places(meeting: &Meeting) -> String {
    let port = meeting.port;
    let place = |host: &String| match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    let places: Vec<String> = meeting.hosts.iter().map(place).collect();
    places.join(", ")
}

fn missing(ranks: &[Option<TcpStream>], at: &str) -> Failure {
    let missing: Vec<String> = (1..=ranks.len())
        .filter(|rank| ranks[rank - 1].is_none())
        .map(|rank| format!("{rank}"))
        .collect();
    let count = missing.len();
    let shown = missing[..count.min(8)].join(", ");
    let more = if count > 8 { ", …" } else { "" };
    let who = match count {
        1 => format!("rank {shown} has"),
        _ => format!("{count} ranks have"),
    };
    let list = if count == 1 { String::new() } else { format!(": {shown}{more}") };
    format!("{who} not come to the rendezvous at {at}, which waited {MEET_SECONDS} s{list}")
}

// ---------------------------------------------------------------- rank 0

/// Rank 0's listener: on the loopback address when all meet there, else on all addresses.
pub fn listen(meeting: &Meeting) -> Result<TcpListener, Failure> {
    let port = meeting.port;
    let address = meeting.hosts.first().and_then(|host| host.parse::<IpAddr>().ok());
    let listener = match address {
        Some(address) if address.is_loopback() => TcpListener::bind((address, port)),
        _ => TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))),
    };
    listener.map_err(|error| {
        let at = places(meeting);
        let why = match error.kind() {
            ErrorKind::AddrInUse => "another process has the port: a second rank 0, or another \
                                     program; "
                .into(),
            _ => format!("{error}; "),
        };
        format!("rank 0 cannot listen at {at}: {why}set CROSSTIE_RENDEZVOUS=HOST:PORT")
    })
}

/// Whether one of the hosts has an address of this one, or has none that can be found out.
fn is_here(hosts: &[String]) -> bool {
    let here = |address: SocketAddr| match TcpListener::bind((address.ip(), 0)) {
        Ok(_) => true,
        Err(error) => error.kind() != ErrorKind::AddrNotAvailable,
    };
    hosts.iter().any(|host| match (host.as_str(), 0).to_socket_addrs() {
        Ok(mut addresses) => addresses.any(here),
        Err(_) => true,
    })
}

/// Takes in whoever has connected; says whether anybody has.
fn arrivals(listener: &TcpListener, strangers: &mut Vec<Stranger>) -> Result<bool, Failure> {
    let mut came = false;
    while strangers.len() < STRANGERS_MAX {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // A connection that was reset while it waited; out of descriptors, too, may pass.
            Err(_) => break,
        };
        if stream.set_nonblocking(true).is_ok() {
            let since = Instant::now();
            strangers.push(Stranger { stream, hello: [0; HELLO_BYTES], length: 0, since });
            came = true;
        }
    }
    Ok(came)
}

/// Reads what strangers say; makes ranks of those who say the right thing, drops the others.
fn hear(
    strangers: &mut Vec<Stranger>,
    launch: &Launch,
    ranks: &mut [Option<TcpStream>],
) -> Result<bool, Failure> {
    let mut heard = false;
    let mut at = 0;
    while at < strangers.len() {
        match strangers[at].read(launch) {
            Said::NotYet => {
                at += 1;
                continue;
            }
            Said::Nonsense => drop(strangers.swap_remove(at)),
            Said::Size(size, rank) => {
                let mut stream = strangers.swap_remove(at).stream;
                let [a, b, c, d] = launch.size.to_le_bytes();
                let [s, i, z, e] = SIZE;
                // whoever cannot be told notices that we are gone
                let _ = stream.write_all(&[s, i, z, e, a, b, c, d]);
                return Err(sizes(&format!("rank {rank}"), size, launch));
            }
            Said::Rank(rank) => {
                let mut stream = strangers.swap_remove(at).stream;
                let place = &mut ranks[rank as usize - 1];
                // It may have waited too long for our answer, and have come again.
                if let Some(first) = place.as_mut().filter(|first| is_open(first)) {
                    // whoever cannot be told notices that we are gone
                    let _ = stream.write_all(&TWIN);
                    let _ = first.write_all(&TWIN_LENGTH.to_le_bytes());
                    return Err(format!("two processes say that they are rank {rank}"));
                }
                if stream.set_nodelay(true).and_then(|()| stream.write_all(&MAGIC)).is_ok() {
                    *place = Some(stream);
                }
            }
        }
        heard = true;
    }
    Ok(heard)
}

/// Whether the other end has not closed: it may have said its first part already.
fn is_open(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0; 1]) {
        Ok(length) => length != 0,
        Err(error) => is_passing(&error),
    }
}

impl Stranger {
    fn read(&mut self, launch: &Launch) -> Said {
        match self.stream.read(&mut self.hello[self.length..]) {
            Ok(0) => return Said::Nonsense,
            Ok(length) => self.length += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Said::Nonsense,
        }
        let wanted = hello(launch);
        let common = self.length.min(HELLO_BYTES - 8);
        if self.hello[..common] != wanted[..common] || self.since.elapsed() > STEP {
            return Said::Nonsense;
        }
        if self.length < HELLO_BYTES {
            return Said::NotYet;
        }
        let number =
            |at: usize| self.hello[at..at + 4].iter().rfold(0, |n, b| n << 8 | u32::from(*b));
        let (size, rank) = (number(16), number(20));
        if size != launch.size {
            return Said::Size(size, rank);
        }
        match rank {
            rank if (1..launch.size).contains(&rank) => Said::Rank(rank),
            _ => Said::Nonsense,
        }
    }
}

fn hello(launch: &Launch) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..16].copy_from_slice(&launch.meeting.key.to_le_bytes());
    hello[16..20].copy_from_slice(&launch.size.to_le_bytes());
    hello[20..].copy_from_slice(&launch.rank.to_le_bytes());
    hello
}

// ---------------------------------------------------------------- the other ranks

/// Looks for rank 0 until it answers: it may not have started yet, and another program may sit on
/// its port for a moment.
fn find(launch: &Launch, deadline: Instant) -> Result<TcpStream, Failure> {
    let meeting = &launch.meeting;
    let mut last = String::from("no address");
    let (began, mut told) = (Instant::now(), false);
    while Instant::now() < deadline {
        if !told && began.elapsed() >= PATIENCE {
            told = true;
            log::line_write(&format!(
                "rank {} waits for rank 0 at {} ({last}), for at most {MEET_SECONDS} s; \
                 CROSSTIE_RENDEZVOUS=HOST:PORT says where it is",
                launch.rank,
                places(meeting)
            ));
        }
        for host in &meeting.hosts {
            let addresses = match (host.as_str(), meeting.port).to_socket_addrs() {
                Ok(addresses) => addresses,
                Err(error) => {
                    last = format!("{host}: {error}");
                    continue;
                }
            };
            for address in addresses {
                match introduce(launch, address, deadline) {
                    Ok(stream) => return Ok(stream),
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        return Err(match error.get_ref().and_then(|it| it.downcast_ref()) {
                            Some(Other(size)) => sizes("rank 0", *size, launch),
                            None => twins(launch.rank),
                        });
                    }
                    Err(error) => last = format!("{address}: {error}"),
                }
            }
        }
        sleep(10 * PAUSE);
    }
    Err(format!(
        "rank 0 did not answer at {} for {MEET_SECONDS} s (last try: {last}); is it running, and \
         is that its address? If not, set CROSSTIE_RENDEZVOUS=HOST:PORT",
        places(meeting)
    ))
}

/// Rank 0 is of a launch of another size.
#[derive(Debug)]
struct Other(u32);

impl core::fmt::Display for Other {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "rank 0 is of {} processes", self.0)
    }
}

impl core::error::Error for Other {}

fn introduce(
    launch: &Launch,
    address: SocketAddr,
    deadline: Instant,
) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, STEP)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    all_write(&mut stream, &hello(launch), deadline)?;
    let mut answer = [0; MAGIC.len()];
    // Rank 0 answers when it looks; what is not rank 0 says something else, or closes.
    let said = all_read(&mut stream, &mut answer, deadline.min(Instant::now() + 2 * STEP));
    let otherwise = |kind, text: &str| Err(std::io::Error::new(kind, text));
    match said {
        Ok(()) if answer == MAGIC => Ok(stream),
        Ok(()) if answer == TWIN => otherwise(ErrorKind::AlreadyExists, "the rank is there"),
        Ok(()) if answer[..4] == SIZE => {
            let size = answer[4..].iter().rfold(0, |n, b| n << 8 | u32::from(*b));
            Err(std::io::Error::new(ErrorKind::AlreadyExists, Other(size)))
        }
        Ok(()) => otherwise(ErrorKind::InvalidData, "another program answers"),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            otherwise(ErrorKind::TimedOut, "a program took the connection and did not answer")
        }
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            otherwise(error.kind(), "a program took the connection and closed it")
        }
        Err(error) => Err(error),
    }
}

// ---------------------------------------------------------------- parts

fn part_write(stream: &mut TcpStream, part: &[u8], deadline: Instant) -> std::io::Result<()> {
    let mut all = (part.len() as u32).to_le_bytes().to_vec();
    all.extend(part);
    all_write(stream, &all, deadline)
}

fn part_read(stream: &mut TcpStream, deadline: Instant) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    all_read(stream, &mut length, deadline)?;
    if u32::from_le_bytes(length) == TWIN_LENGTH {
        return Err(ErrorKind::AlreadyExists.into());
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > PART_BYTES_MAX {
        return Err(std::io::Error::new(ErrorKind::InvalidData, "too long a part"));
    }
    let mut part = vec![0; length];
    all_read(stream, &mut part, deadline)?;
    Ok(part)
}

fn all_write(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) => wait(error, deadline)?,
        }
    }
    Ok(())
}

fn all_read(stream: &mut TcpStream, bytes: &mut [u8], deadline: Instant) -> std::io::Result<()> {
    let mut length = 0;
    while length < bytes.len() {
        match stream.read(&mut bytes[length..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => length += more,
            Err(error) => wait(error, deadline)?,
        }
    }
    Ok(())
}

/// Waits a moment where that may help.
fn wait(error: std::io::Error, deadline: Instant) -> std::io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock if Instant::now() < deadline => {
            sleep(PAUSE);
            Ok(())
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who looks for rank 0 where another program listens.
    fn looked_for(at: SocketAddr) -> Failure {
        let meeting = at.to_string();
        let get = |name: &str| match name {
            "CROSSTIE_RANK" => Some(String::from("1")),
            "CROSSTIE_SIZE" => Some(String::from("2")),
            "CROSSTIE_RENDEZVOUS" => Some(meeting.clone()),
            _ => None,
        };
        let launch = super::super::launch::read(&get).unwrap().unwrap();
        find(&launch, Instant::now() + Duration::from_millis(200)).unwrap_err()
    }

    #[test]
    fn address_of_another_host_is_told_from_our_own() {
        let of =
            |hosts: &[&str]| is_here(&hosts.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(of(&["127.0.0.1"]) && of(&["203.0.113.77", "localhost"]));
        // TEST-NET-3: nobody has it
        assert!(!of(&["203.0.113.77"]));
    }

    #[test]
    fn a_program_that_is_no_rank_0_is_told_from_nobody() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        // nobody accepts: the kernel takes the connection, and no answer comes
        let silent = looked_for(at);
        assert!(silent.contains("a program took the connection and did not answer"), "{silent}");
        assert!(silent.contains(&at.to_string()), "{silent}");
        drop(listener);
        assert!(looked_for(at).contains("refused"));
    }
}
