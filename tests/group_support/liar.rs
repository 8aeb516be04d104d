//! A member of a group that speaks the protocol itself, and lies.

use super::super::host_support::{Node, Watch};
use super::{Member as Bootstrapped, Table, limits};
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::host::Options;
use crosstie::host::group::Bootstrap;
use crosstie::transport::{Incoming, Outgoing, RequestError, RequestId, SubmitError};
use crosstie::wire::one_sided::{
    FRAME_BYTES, FRAME_HEAD_BYTES, FrameHead, GREETING_BYTES, Greeting, MEMBER_BYTES, Member,
    RECORD_BYTES, Record, RecordKind, Short,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Rank 1 of a group of two.
pub struct Liar {
    pub node: Node,
    frames: Handle,
    bytes: Handle,
    memory: (*mut u8, Handle),
    heard: Option<RequestId>,
    pub bootstrap: Bootstrapped,
}

/// A record that says nothing but its kind.
pub const fn record(kind: RecordKind) -> Record {
    Record { kind, flags: 0, id: 0, window: 0, generation: 0, offset: 0, length: 0, value: 0 }
}

/// Bytes of its memory: what it sends, and what it hears, is in a part of its own.
const ROOM: usize = 1 << 20;

impl Liar {
    pub fn open(options: &Options, table: &Arc<Table>) -> Liar {
        let mut node = Node::open(options);
        let memory = node.shared.allocate(Bytes::of(2 * ROOM)).expect("memory");
        let patience = Duration::from_secs(60);
        let mut bootstrap = Bootstrapped { table: Arc::clone(table), rank: 1, patience };
        let (listener, handle) = node.shared.listen().expect("a listener");
        let windows_max = limits(2).windows_max;
        let mine = Member { rank: 1, ranks: 2, has_failed: false, windows_max, handle }.to_bytes();
        let mut all = [0; 2 * MEMBER_BYTES];
        bootstrap.gather(&mine, &mut all).expect("both");
        let mut links = [None; 2];
        for _ in 0..2 {
            let connection = node.accepted(listener);
            let room = Incoming {
                region: memory.1,
                address: memory.0 as u64,
                length: GREETING_BYTES as u64,
                tag: 0,
            };
            let request = submit(&mut node, |node| node.irecv(connection, &[room])).unwrap();
            assert_eq!(node.wait(request).result, Ok(()));
            // SAFETY: inside the memory, and the message is there.
            let greeting = unsafe { memory.0.cast::<[u8; GREETING_BYTES]>().read() };
            let greeting = Greeting::from_bytes(&greeting).expect("a greeting");
            links[greeting.kind as usize] = Some(connection);
        }
        node.shared.listener_close(listener).expect("a listener");
        bootstrap.gather(&mine, &mut all).expect("both");
        let [frames, bytes] = links.map(|link| link.expect("both kinds"));
        Liar { node, frames, bytes, memory, heard: None, bootstrap }
    }

    /// Takes part in the first exchange of a window with a part of so many bytes; what the other
    /// has told of its part.
    pub fn share(&mut self, length: u64) -> Record {
        let share = Record { id: 4, offset: 1, length, ..record(RecordKind::Share) };
        self.say(&share, &[]).expect("the group lives");
        let watch = Watch::start();
        loop {
            if let Some(share) = self.hear().into_iter().find(|it| it.kind == RecordKind::Share) {
                return share;
            }
            watch.look("the other's share");
        }
    }

    /// Makes progress until the test has seen what it wants.
    pub fn stay_until(&mut self, is_seen: &AtomicBool) {
        let watch = Watch::start();
        while !is_seen.load(Ordering::SeqCst) {
            self.node.progress();
            std::thread::yield_now();
            watch.look("the other");
        }
    }

    /// Sends a frame of one record.
    pub fn say(&mut self, record: &Record, inline: &[u8]) -> Result<(), RequestError> {
        let mut frame = FrameHead::default().to_bytes().to_vec();
        frame.extend(record.to_bytes());
        frame.extend(inline);
        frame.resize(frame.len().next_multiple_of(8), 0);
        self.frame(&frame)
    }

    /// Sends any bytes as a frame.
    pub fn frame(&mut self, bytes: &[u8]) -> Result<(), RequestError> {
        self.send(self.frames, bytes)
    }

    /// Sends bytes that come apart from their record.
    pub fn apart(&mut self, bytes: &[u8]) -> Result<(), RequestError> {
        self.send(self.bytes, bytes)
    }

    /// An error: the other has closed the connection.
    fn send(&mut self, link: Handle, bytes: &[u8]) -> Result<(), RequestError> {
        assert!(bytes.len() <= ROOM);
        let (start, region) = self.memory;
        // SAFETY: inside the memory, and no request stands on this part.
        unsafe { start.copy_from(bytes.as_ptr(), bytes.len()) };
        let (address, length) = (start as u64, bytes.len() as u64);
        let message = Outgoing { region, address, length, tag: 0 };
        match submit(&mut self.node, |node| node.isend(link, message)) {
            Ok(request) => self.node.wait(request).result,
            Err(error) => Err(error),
        }
    }

    /// The records of the frame that has come, if one has.
    pub fn hear(&mut self) -> Vec<Record> {
        // SAFETY: inside the memory.
        let start = unsafe { self.memory.0.add(ROOM) };
        let Some(request) = self.heard else {
            let room = Incoming {
                region: self.memory.1,
                address: start as u64,
                length: FRAME_BYTES as u64,
                tag: 0,
            };
            self.heard = submit(&mut self.node, |node| node.irecv(self.frames, &[room])).ok();
            return Vec::new();
        };
        self.node.progress();
        let Some(outcome) = self.node.test(request).expect("a live request") else {
            return Vec::new();
        };
        self.heard = None;
        if outcome.result.is_err() {
            return Vec::new();
        }
        // SAFETY: inside the memory, and the message is there.
        let frame = unsafe { std::slice::from_raw_parts(start, outcome.lengths[0] as usize) };
        if let Ok(short) = frame.try_into() {
            return vec![Short::from_bytes(short).expect("a short frame").record];
        }
        let (mut records, mut at) = (Vec::new(), FRAME_HEAD_BYTES);
        while at + RECORD_BYTES <= frame.len() {
            let record = Record::from_bytes(&frame[at..]).expect("a record");
            at += record.frame_bytes();
            records.push(record);
        }
        records
    }

    /// Waits for a record of a kind.
    pub fn await_kind(&mut self, kind: RecordKind) -> Record {
        let watch = Watch::start();
        loop {
            if let Some(record) = self.hear().into_iter().find(|record| record.kind == kind) {
                return record;
            }
            watch.look("a record of the other's");
        }
    }
}

fn submit(
    node: &mut Node,
    mut post: impl FnMut(&mut Node) -> Result<RequestId, SubmitError>,
) -> Result<RequestId, RequestError> {
    let watch = Watch::start();
    loop {
        match post(node) {
            Ok(request) => return Ok(request),
            Err(SubmitError::Again) => _ = node.progress(),
            Err(SubmitError::Failed(error)) => return Err(error),
            Err(_) => return Err(RequestError::Closed),
        }
        watch.look("room");
    }
}
