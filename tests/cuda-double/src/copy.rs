//! Copies, fills and words, as a stream carries them out.
//!
//! A long copy becomes visible in pieces, in any order. Copies of a batch have no order either.
//! Bytes move through the views of the backings. Before a piece moves, its ranges must still be
//! there; otherwise the GPU has read or written memory that is gone, and is lost.

use crate::codes::{Code, INVALID_VALUE};
use crate::context::Context;
use crate::random::Random;
use crate::ranges::{Kind, MOVING, Piece, Place, READ, READ_WRITE, ranges};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// A copy that takes time becomes visible in pieces of about this.
const PIECE_BYTES: usize = 64 << 10;
/// A copy as fast as it goes has pieces of this.
const PIECE_BYTES_FAST: usize = 4 << 20;
/// Delays below this are spent in a loop.
const SLEEP_NS: u64 = 50_000;

/// The ways that bytes are counted by.
pub const WAYS: &[&str] =
    &["peer", "same_device", "device_to_host", "host_to_device", "host_to_host", "pageable"];

static BYTES: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
static COPIES: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
/// Operations that found their memory gone.
pub static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Bytes that went one way, and copies that did.
pub fn moved(way: &str) -> Option<(u64, u64)> {
    let at = WAYS.iter().position(|known| *known == way)?;
    Some((BYTES[at].load(Ordering::Relaxed), COPIES[at].load(Ordering::Relaxed)))
}

/// Where the bytes of a copy come from.
#[derive(Clone)]
enum Source {
    /// Memory, from here on.
    At(Piece),
    /// One byte again and again.
    Byte(u8),
    /// What the memory held when the copy was asked for.
    Taken(Vec<u8>),
}

/// A part of a copy whose bytes lie together on both sides.
#[derive(Clone)]
struct Move {
    to: Piece,
    from: Source,
}

/// A copy that waits in a stream.
#[derive(Clone)]
pub struct Copy(Vec<Move>);

/// A word that waits in a stream, or that a stream waits for.
#[derive(Clone)]
pub struct Word {
    to: Piece,
    value: u64,
}

// SAFETY: the addresses are those of shared memory, whose mappings the pieces keep, or of host
// memory that the caller keeps until the stream is done.
unsafe impl Send for Copy {}
// SAFETY: as above.
unsafe impl Send for Word {}

/// What became of an operation: done, or a fault.
pub type Done = Result<(), Gone>;
/// Memory of the operation is gone.
pub struct Gone;

fn pageable(address: u64, bytes: usize) -> Vec<Piece> {
    let place = Place::Pageable;
    vec![Piece { at: address as *mut u8, bytes, place, id: None, keeps: None }]
}

fn device_only(pieces: Option<Vec<Piece>>) -> Result<Vec<Piece>, Code> {
    pieces.ok_or(INVALID_VALUE)
}

/// What the caller says of a side: a device address (or one that the driver knows), or any.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Side {
    Known,
    Any,
}

fn side(
    address: u64,
    bytes: usize,
    context: Context,
    need: u8,
    side: Side,
) -> Result<Vec<Piece>, Code> {
    let pieces = ranges().pieces(address, bytes, context, need)?;
    match side {
        Side::Known => device_only(pieces),
        Side::Any => Ok(pieces.unwrap_or_else(|| pageable(address, bytes))),
    }
}

/// The first `bytes` of a piece; the rest stays in it.
fn split(piece: &mut Piece, bytes: usize) -> Piece {
    let head = Piece { bytes, ..piece.clone() };
    // SAFETY: inside the piece, or one past its end.
    piece.at = unsafe { piece.at.add(bytes) };
    piece.bytes -= bytes;
    head
}

impl Copy {
    /// A copy of `bytes`.
    pub fn new(
        context: Context,
        (to, to_side): (u64, Side),
        (from, from_side): (u64, Side),
        bytes: usize,
    ) -> Result<Copy, Code> {
        let mut targets = side(to, bytes, context, READ_WRITE, to_side)?.into_iter();
        let mut sources = side(from, bytes, context, READ, from_side)?.into_iter();
        let mut moves = Vec::new();
        let (mut target, mut source) = (targets.next(), sources.next());
        while let (Some(to), Some(from)) = (&mut target, &mut source) {
            let together = to.bytes.min(from.bytes);
            moves.push(Move { to: split(to, together), from: Source::At(split(from, together)) });
            if to.bytes == 0 {
                target = targets.next();
            }
            if from.bytes == 0 {
                source = sources.next();
            }
        }
        Ok(Copy(moves))
    }

    /// A fill of `bytes` with one byte.
    pub fn fill(context: Context, to: u64, byte: u8, bytes: usize) -> Result<Copy, Code> {
        let pieces = side(to, bytes, context, READ_WRITE, Side::Known)?;
        let fill = |to| Move { to, from: Source::Byte(byte) };
        Ok(Copy(pieces.into_iter().map(fill).collect()))
    }

    /// Reads the source now, and not when the stream gets there.
    pub fn take_source(&mut self) {
        for part in &mut self.0 {
            if let Source::At(from) = &part.from {
                let mut bytes = vec![0; from.bytes];
                // SAFETY: a piece of memory that the caller of the copy keeps, and as many bytes.
                unsafe { from.at.copy_to_nonoverlapping(bytes.as_mut_ptr(), from.bytes) };
                part.from = Source::Taken(bytes);
            }
        }
    }

    /// Whether a side is host memory that the driver does not know.
    pub fn is_pageable(&self) -> bool {
        self.0.iter().any(|part| {
            let from = matches!(&part.from, Source::At(from) if from.place == Place::Pageable);
            from || part.to.place == Place::Pageable
        })
    }

    /// Whether it needs a processor of the GPU: copies within a device, and fills.
    pub fn needs_processors(&self) -> bool {
        self.0.iter().any(|part| match &part.from {
            Source::At(from) => is_device(from.place) && from.place == part.to.place,
            Source::Byte(_) => is_device(part.to.place),
            Source::Taken(_) => false,
        })
    }

    fn count(&self) {
        for (at, part) in self.0.iter().enumerate() {
            let Source::At(from) = &part.from else { continue };
            let way = match (from.place, part.to.place) {
                (Place::Device(from), Place::Device(to)) => usize::from(from == to),
                (Place::Device(_), _) => 2,
                (_, Place::Device(_)) => 3,
                (_, _) => 4,
            };
            let pageable = from.place == Place::Pageable || part.to.place == Place::Pageable;
            for way in [Some(way), pageable.then_some(5)].into_iter().flatten() {
                BYTES[way].fetch_add(part.to.bytes as u64, Ordering::Relaxed);
                COPIES[way].fetch_add(u64::from(at == 0), Ordering::Relaxed);
            }
        }
    }
}

fn is_device(place: Place) -> bool {
    matches!(place, Place::Device(_))
}

/// Lets a random time pass.
fn nap(random: &mut Random, mean_ns: u64) {
    let ns = random.below(2 * mean_ns + 1);
    if ns >= SLEEP_NS {
        return std::thread::sleep(Duration::from_nanos(ns));
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_nanos(ns) {
        std::thread::yield_now();
    }
}

/// Carries out copies that have no order among each other.
pub fn copies(copies: &[Copy], random: &mut Random, delay_ns: u64) -> Done {
    let piece_bytes = if delay_ns == 0 { PIECE_BYTES_FAST } else { PIECE_BYTES };
    let mut order: Vec<(&Move, usize)> = Vec::new();
    let mut whole: Vec<&Copy> = copies.iter().collect();
    random.shuffle(&mut whole);
    for part in whole.iter().flat_map(|copy| &copy.0) {
        order.extend((0..part.to.bytes).step_by(piece_bytes).map(|offset| (part, offset)));
    }
    if delay_ns > 0 {
        random.shuffle(&mut order);
    }
    let pause_ns = delay_ns / order.len().max(1) as u64;
    for (part, offset) in order {
        if pause_ns > 0 {
            nap(random, pause_ns);
        }
        part.carry(offset, piece_bytes)?;
    }
    copies.iter().for_each(Copy::count);
    Ok(())
}

/// Whether the memory of an operation is still there.
fn are_there(pieces: &[&Piece]) -> Done {
    let ranges = ranges();
    let there = pieces.iter().filter_map(|piece| piece.id).all(|id| ranges.lives(id));
    if there { Ok(()) } else { Err(Gone) }
}

impl Move {
    /// Moves a piece of at most `most` bytes.
    fn carry(&self, offset: usize, most: usize) -> Done {
        let bytes = most.min(self.to.bytes - offset);
        let _moving = MOVING.read().expect("no panic while it is locked");
        // SAFETY: inside the piece.
        let to = unsafe { self.to.at.add(offset) };
        let from = match &self.from {
            Source::At(from) => {
                are_there(&[&self.to, from])?;
                // SAFETY: inside the piece.
                unsafe { from.at.add(offset) }
            }
            Source::Taken(taken) => {
                are_there(&[&self.to])?;
                taken[offset..].as_ptr().cast_mut()
            }
            Source::Byte(byte) => {
                are_there(&[&self.to])?;
                // SAFETY: mapped, since the range is there and is not taken away meanwhile.
                unsafe { to.write_bytes(*byte, bytes) };
                return Ok(());
            }
        };
        move_bytes(to, from, bytes);
        Ok(())
    }
}

/// A word of a copy becomes visible as a whole, as on a GPU.
fn move_bytes(to: *mut u8, from: *mut u8, bytes: usize) {
    let is_word =
        bytes == 8 && (to as usize).is_multiple_of(8) && (from as usize).is_multiple_of(8);
    if is_word {
        // SAFETY: aligned, and mapped as below.
        let value = unsafe { AtomicU64::from_ptr(from.cast()) }.load(Ordering::Acquire);
        // SAFETY: as above.
        return unsafe { AtomicU64::from_ptr(to.cast()) }.store(value, Ordering::Release);
    }
    // SAFETY: both are mapped: a range is there and is not taken away meanwhile, and other host
    // memory is kept by the caller of the copy. They may be the same memory.
    unsafe { to.copy_from(from, bytes) };
}

impl Word {
    /// A word of four or eight bytes.
    pub fn new(context: Context, to: u64, value: u64, bytes: usize) -> Result<Word, Code> {
        // memory of a pool is refused (driver 580, seen in another context than the pool's)
        let is_pool = ranges().find(to).is_some_and(|range| range.kind == Kind::Pool);
        if !to.is_multiple_of(bytes as u64) || is_pool {
            return Err(INVALID_VALUE);
        }
        let pieces = side(to, bytes, context, READ_WRITE, Side::Known)?;
        let to = pieces.into_iter().next().ok_or(INVALID_VALUE)?;
        Ok(Word { to, value })
    }

    /// Whether it has its value already; of eight bytes.
    pub fn is_equal(&self) -> Result<bool, Gone> {
        let _moving = MOVING.read().expect("no panic while it is locked");
        are_there(&[&self.to])?;
        // SAFETY: aligned as `new` has checked, and mapped since the range is there.
        let word = unsafe { AtomicU64::from_ptr(self.to.at.cast()) };
        Ok(word.load(Ordering::SeqCst) == self.value)
    }
}

/// Writes words in their order, after all that came before.
pub fn words(words: &[Word]) -> Done {
    for word in words {
        let _moving = MOVING.read().expect("no panic while it is locked");
        are_there(&[&word.to])?;
        fence(Ordering::SeqCst);
        if word.to.bytes == 4 {
            // SAFETY: aligned as `new` has checked, and mapped since the range is there.
            let to = unsafe { AtomicU32::from_ptr(word.to.at.cast()) };
            to.store(word.value as u32, Ordering::Release);
        } else {
            // SAFETY: as above.
            let to = unsafe { AtomicU64::from_ptr(word.to.at.cast()) };
            to.store(word.value, Ordering::Release);
        }
    }
    Ok(())
}
