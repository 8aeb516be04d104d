//! Whole endpoints over ports of a false libibverbs (`tests/verbs_fake`), each story in a process
//! of its own, before whose eyes stands a sysfs with that device. Of the test programs that tell of
//! hosts: they have `host_support`, too.
#![allow(dead_code, unused_imports)] // of the shared parts

#[path = "sysfs.rs"]
mod sysfs;

use crate::host_support::pair::{Pair, alone};
use crate::host_support::{Memory, Node, Place, Watch, small};
use crate::verbs_support::fake::{libraries, story_in};
use crosstie::host::endpoint::ConnectionRail;
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::RequestId;
pub use sysfs::{GID, class, mounts, said_before};

/// What a story says of endpoints whose port is of this kind of link; `None`: none can be told.
pub fn told(layer: &str, story: &str, fake: &str) -> Option<String> {
    let [new, _] = libraries()?;
    said_before(&class(layer, 1), &story_in(new, story, fake))
}

/// An endpoint of this process.
pub fn open(rails_max: u32) -> Node {
    let mut options = Options { device: DeviceKind::Host, ..small(2) };
    options.limits.rails_max = rails_max;
    open_with(&options)
}

/// One of other options.
pub fn open_with(options: &Options) -> Node {
    for (name, value) in
        [("CROSSTIE_RAILS", "verbs"), ("CROSSTIE_SOCKET_IFNAME", "=lo"), ("CROSSTIE_LOG", "info")]
    {
        if std::env::var_os(name).is_some() {
            continue; // the story is about another value
        }
        crate::host_support::set(name, value);
    }
    Node::open(options)
}

/// Two endpoints of this process, with the port's rail behind rail 0, which is TCP.
pub fn pair() -> Pair {
    let alone = alone();
    let (a, b) = (open(2), open(2));
    let mut pair = Pair::of(alone, a, b, 2);
    assert_eq!(pair.a.connection_rail(pair.to_b), Some(ConnectionRail::Verbs));
    pair
}

/// Messages that stand one way.
pub struct Stream {
    out: Memory,
    into: Vec<Memory>,
    length: usize,
    sends: [Option<RequestId>; DEPTH],
    receives: [Option<RequestId>; DEPTH],
    sent: u64,
    posted: u64,
    received: u64,
}

/// Messages of a stream at a time.
pub const DEPTH: usize = 8;

impl Stream {
    pub fn new(pair: &Pair, length: usize) -> Stream {
        let into = (0..DEPTH).map(|_| Memory::new(&pair.b, Place::Private, length)).collect();
        let out = Memory::new(&pair.a, Place::Private, length);
        let (sends, receives) = ([None; DEPTH], [None; DEPTH]);
        Stream { out, into, length, sends, receives, sent: 0, posted: 0, received: 0 }
    }

    /// Posts what can be posted of so many, and tests what is due.
    pub fn step(&mut self, pair: &mut Pair, messages: u64) {
        let Pair { a, b, to_b, to_a, .. } = pair;
        let at = self.posted as usize % DEPTH;
        if self.receives[at].is_none() && self.posted < messages {
            let room = self.into[at].incoming(0, self.length, 1);
            self.receives[at] = b.irecv(*to_a, &[room]).ok();
            self.posted += u64::from(self.receives[at].is_some());
        }
        let at = self.sent as usize % DEPTH;
        if self.sends[at].is_none() && self.sent < messages {
            self.sends[at] = a.isend(*to_b, self.out.outgoing(0, self.length, 1)).ok();
            self.sent += u64::from(self.sends[at].is_some());
        }
        for send in &mut self.sends {
            if let Some(outcome) = send.and_then(|id| a.test(id).expect("a send")) {
                assert_eq!(outcome.result, Ok(()));
                *send = None;
            }
        }
        let at = self.received as usize % DEPTH;
        if let Some(id) = self.receives[at]
            && let Some(outcome) = b.test(id).expect("a receive")
        {
            assert_eq!(outcome.result, Ok(()));
            (self.receives[at], self.received) = (None, self.received + 1);
        }
    }

    /// Sends so many more, and waits until all of them have ended on both sides.
    pub fn burst(&mut self, pair: &mut Pair, more: u64) {
        let messages = self.posted + more;
        let watch = Watch::start();
        while self.received < messages || self.sends.iter().any(Option::is_some) {
            self.step(pair, messages);
            pair.progress();
            watch.look(&format!("{} messages of {} bytes", self.received, self.length));
        }
    }

    pub fn release(self, pair: &Pair) {
        self.out.release(&pair.a);
        for memory in self.into {
            memory.release(&pair.b);
        }
    }
}
