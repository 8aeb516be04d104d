//! A data stream of an open rail that leads over the test, which changes some of its frames.

use crosstie::wire::stream::{HEADER_BYTES_MAX, SUM_BYTES, StreamFrame};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// What becomes of frames.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum Change {
    Nothing,
    /// Of a write of 64 bytes without an answer, the last byte.
    Lines,
    /// The same of the next one alone.
    Line,
    /// Of the next slot for messages with tag 7, the tag.
    Tag,
    /// The same, the number of messages that were delivered.
    Delivered,
    /// Of the next message, the length of its payload, by 8 bytes more.
    Length,
    /// Of the next message, the tag.
    MessageTag,
    /// Of an answer to writes, the number, which is that of the answer before.
    Answers,
    /// Of a payload of more than 64 bytes, its middle byte.
    Payload,
}

/// Where a line begins in the frame that writes it, and fields of a slot in it.
const LINE_AT: usize = 32;
const SLOT_TAG_AT: usize = 24;
const SLOT_DELIVERED_AT: usize = 44;

/// Whether the line of a frame is the slot of one receive for tag 7.
fn is_slot(frame: &[u8]) -> bool {
    let line = &frame[LINE_AT..];
    line[SLOT_TAG_AT..][..4] == 7i32.to_le_bytes() && line[32..34] == [0, 1]
}

/// One direction of the stream.
#[derive(Clone, Default)]
pub struct Direction(Arc<(AtomicU8, AtomicUsize)>);

impl Direction {
    pub fn set(&self, change: Change) {
        self.0.0.store(change as u8, Ordering::SeqCst);
    }

    fn is(&self, change: Change) -> bool {
        self.0.0.load(Ordering::SeqCst) == change as u8
    }

    fn count(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }

    /// Changes one whole frame, or not.
    fn change(&self, frame: &mut [u8], header: &StreamFrame) {
        let end = frame.len() - 1;
        match *header {
            // with sums it is that of the line
            StreamFrame::Write { length: 64, silent: true, .. } if self.is(Change::Lines) => {
                frame[end] ^= 1;
            }
            StreamFrame::Write { length: 64, silent: true, .. } if self.is(Change::Line) => {
                frame[end] ^= 1;
                self.set(Change::Nothing);
            }
            StreamFrame::Write { length: 64, silent: true, .. } if is_slot(frame) => {
                let at = match () {
                    () if self.is(Change::Tag) => SLOT_TAG_AT + 1,
                    () if self.is(Change::Delivered) => SLOT_DELIVERED_AT,
                    () => return,
                };
                frame[LINE_AT + at] ^= 0x10;
                self.set(Change::Nothing);
            }
            StreamFrame::Send { .. } if self.is(Change::Length) => {
                frame[4] += 8;
                self.set(Change::Nothing);
            }
            StreamFrame::Send { .. } if self.is(Change::MessageTag) => {
                frame[16] ^= 0x10;
                self.set(Change::Nothing);
            }
            StreamFrame::Done { through } if self.is(Change::Answers) => {
                frame[4..8].copy_from_slice(&(through - 1).to_le_bytes());
            }
            StreamFrame::Write { length: 65.., .. } if self.is(Change::Payload) => {
                frame[end / 2] ^= 1;
                self.set(Change::Nothing);
            }
            _ => return,
        }
        self.0.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// Both: from the end whose descriptor was swapped, and back to it.
pub struct Way {
    pub out: Direction,
    pub back: Direction,
}

impl Way {
    /// Frames that were changed.
    pub fn changed(&self) -> usize {
        self.out.count() + self.back.count()
    }
}

/// Has an open socket's number name another, whose bytes go both ways over this process to the
/// first. Nothing is under way. `sums`: as the connection has them.
pub fn swap(fd: i32, sums: bool) -> Way {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (inner, _) = listener.accept().unwrap();
    // SAFETY: calls without pointers on open descriptors; the copy is ours.
    let outer = unsafe {
        let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3);
        assert!(copy >= 0);
        OwnedFd::from_raw_fd(copy)
    };
    let start = 0i32;
    let value: *const i32 = &start;
    // SAFETY: four readable bytes. The library reads on behind what it has peeked at.
    let rc = unsafe {
        libc::setsockopt(near.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, value.cast(), 4)
    };
    assert_eq!(rc, 0);
    // SAFETY: a call without pointers.
    assert_eq!(unsafe { libc::dup3(near.as_raw_fd(), fd, libc::O_CLOEXEC) }, fd);
    let outer = TcpStream::from(outer);
    for stream in [&near, &inner, &outer] {
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(false).unwrap();
    }
    near.set_nonblocking(true).unwrap();
    let way = Way { out: Direction::default(), back: Direction::default() };
    for (from, to, direction) in [(&inner, &outer, &way.out), (&outer, &inner, &way.back)] {
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let direction = direction.clone();
        std::thread::spawn(move || carry(from, to, &direction, sums));
    }
    way
}

/// Hands on whole frames until one end closes.
fn carry(mut from: TcpStream, mut to: TcpStream, direction: &Direction, sums: bool) {
    let (mut held, mut part) = (Vec::new(), vec![0; 256 << 10]);
    while let Ok(count @ 1..) = from.read(&mut part) {
        held.extend_from_slice(&part[..count]);
        let mut at = 0;
        while let Some((header, length)) = whole(&held[at..], sums) {
            direction.change(&mut held[at..at + length], &header);
            if to.write_all(&held[at..at + length]).is_err() {
                break;
            }
            at += length;
        }
        held.drain(..at);
    }
    for end in [&from, &to] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// The first frame, if all of it is there.
fn whole(bytes: &[u8], sums: bool) -> Option<(StreamFrame, usize)> {
    let header = StreamFrame::header_bytes(*bytes.first()?).expect("a frame");
    let frame = StreamFrame::decode(bytes.get(..header.min(HEADER_BYTES_MAX))?).expect("a frame");
    let payload = match frame {
        StreamFrame::Send { length }
        | StreamFrame::Write { length, .. }
        | StreamFrame::ReadReply { length, .. } => length as usize,
        StreamFrame::Read { .. }
        | StreamFrame::Add { .. }
        | StreamFrame::Done { .. }
        | StreamFrame::Failed { .. }
        | StreamFrame::Bye => 0,
    };
    let sums = usize::from(sums) * (1 + usize::from(payload > 0));
    let length = header + payload + sums * SUM_BYTES;
    (bytes.len() >= length).then_some((frame, length))
}
