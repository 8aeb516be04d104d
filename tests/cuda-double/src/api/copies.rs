//! Copies, fills and words.

use crate::codes::{Answer, Code, INVALID_VALUE, NOT_SUPPORTED, put};
use crate::context::current;
use crate::copy::{Copy, Side, Word};
use crate::stream::{self, Operation, Stream};
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUmemcpyAttributes, CUmemorytype, CUstreamBatchMemOpParams,
};
use std::ffi::{c_uchar, c_uint};
use std::mem::size_of;
use std::slice::from_raw_parts;
use std::sync::Arc;

/// Most words of one call.
const WORDS_MAX: c_uint = 256;
/// A wait until a word is equal.
const WAIT_EQUAL: c_uint = 1;
/// Orders in which a batch may read its sources.
const STREAM_ORDER: u32 = 1;
const DURING_CALL: u32 = 2;
const ANY_ORDER: u32 = 3;

/// A word as the driver's interface has it, with numbers that may be wrong.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct WordOp {
    operation: u32,
    address: u64,
    value: u64,
    flags: u32,
    _alias: u64,
    _rest: u64,
}

/// How a batch copies, with numbers that may be wrong.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct How {
    order: u32,
    _hints: [u32; 4],
    _flags: u32,
}

const _: () = assert!(size_of::<WordOp>() == size_of::<CUstreamBatchMemOpParams>());
const _: () = assert!(size_of::<How>() == size_of::<CUmemcpyAttributes>());

/// Copies behind all that the stream has. Pageable memory is done with on return.
fn post(stream: &Stream, copies: Vec<Copy>) -> Answer {
    let is_pageable = copies.iter().any(Copy::is_pageable);
    stream.call(vec![Operation::Copies(copies)])?;
    if is_pageable { stream.synchronize() } else { Ok(()) }
}

fn copy(
    to: (u64, Side),
    from: (u64, Side),
    bytes: usize,
    stream: usize,
) -> Result<Arc<Stream>, Code> {
    let context = current()?;
    let stream = stream::find(stream, context)?;
    if bytes > 0 {
        post(&stream, vec![Copy::new(stream.context, to, from, bytes)?])?;
    }
    Ok(stream)
}

/// Copies on the legacy stream, and waits.
fn copy_now(to: (u64, Side), from: (u64, Side), bytes: usize) -> Answer {
    copy(to, from, bytes, 0)?.synchronize()
}

fn fill(to: u64, byte: u8, bytes: usize, stream: usize) -> Result<Arc<Stream>, Code> {
    let stream = stream::find(stream, current()?)?;
    if bytes > 0 {
        stream.call(vec![Operation::Copies(vec![Copy::fill(stream.context, to, byte, bytes)?])])?;
    }
    Ok(stream)
}

/// A batch as it comes.
struct Batch<'a> {
    to: &'a [u64],
    from: &'a [u64],
    bytes: &'a [usize],
    how: &'a [How],
    /// From which copy on each of these counts.
    first: &'a [usize],
}

impl Batch<'_> {
    fn order_of(&self, copy: usize) -> u32 {
        let at = self.first.iter().rposition(|first| *first <= copy).unwrap_or(0);
        self.how[at].order
    }

    fn is_right(&self) -> bool {
        let orders = [STREAM_ORDER, DURING_CALL, ANY_ORDER];
        let ascends = self.first.windows(2).all(|pair| pair[0] < pair[1]);
        let in_range = self.first.last().is_some_and(|last| *last < self.to.len());
        let known = self.how.iter().all(|how| orders.contains(&how.order));
        self.first.first() == Some(&0) && ascends && in_range && known
    }

    fn post(&self, stream: usize) -> Answer {
        let context = current()?;
        if stream::is_legacy(stream) || !self.is_right() {
            return Err(INVALID_VALUE);
        }
        let stream = stream::find(stream, context)?;
        let mut copies = Vec::new();
        for (at, ((to, from), bytes)) in self.to.iter().zip(self.from).zip(self.bytes).enumerate() {
            if *bytes == 0 {
                return Err(INVALID_VALUE);
            }
            let sides = ((*to, Side::Any), (*from, Side::Any));
            let mut copy = Copy::new(stream.context, sides.0, sides.1, *bytes)?;
            if self.order_of(at) == DURING_CALL {
                copy.take_source();
            }
            copies.push(copy);
        }
        post(&stream, copies)
    }
}

/// A list of the caller's.
fn list<'a, T>(start: *const T, count: usize) -> Result<&'a [T], Code> {
    if start.is_null() || count == 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: `count` values of the caller's, which stay for the call.
    Ok(unsafe { from_raw_parts(start, count) })
}

fn write_words(stream: usize, words: &[WordOp], flags: c_uint) -> Answer {
    let stream = stream::find(stream, current()?)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    let (mut posted, mut operations) = (Vec::new(), Vec::new());
    for word in words {
        let bytes = match word.operation {
            2 => 4,
            5 => 8,
            // A wait, until the word is equal.
            4 if word.flags == WAIT_EQUAL => {
                if !posted.is_empty() {
                    operations.push(Operation::Words(std::mem::take(&mut posted)));
                }
                let awaited = Word::new(stream.context, word.address, word.value, 8)?;
                operations.push(Operation::AwaitWord(awaited));
                continue;
            }
            // A barrier: every word has one.
            6 => continue,
            // Other waits, which the double does not imitate; and flushes, which H200 has not.
            1 | 3 | 4 => return Err(NOT_SUPPORTED),
            _ => return Err(INVALID_VALUE),
        };
        // A word without a barrier is refused by driver 580.
        if word.flags != 0 {
            return Err(INVALID_VALUE);
        }
        posted.push(Word::new(stream.context, word.address, word.value, bytes)?);
    }
    if !posted.is_empty() {
        operations.push(Operation::Words(posted));
    }
    stream.call(operations)
}

/// Rows between host and device memory, or within device memory.
fn rows_post(rows: &CUDA_MEMCPY2D, stream: usize) -> Answer {
    let side = |kind, host: u64, device: u64, x: usize, y: usize, pitch: usize| match kind {
        CUmemorytype::CU_MEMORYTYPE_HOST => Ok((host + (y * pitch + x) as u64, Side::Any)),
        CUmemorytype::CU_MEMORYTYPE_DEVICE => Ok((device + (y * pitch + x) as u64, Side::Known)),
        _ => Err(NOT_SUPPORTED),
    };
    let (host, device) = (rows.dstHost as u64, rows.dstDevice);
    let to = side(rows.dstMemoryType, host, device, rows.dstXInBytes, rows.dstY, rows.dstPitch)?;
    let (host, device) = (rows.srcHost as u64, rows.srcDevice);
    let from = side(rows.srcMemoryType, host, device, rows.srcXInBytes, rows.srcY, rows.srcPitch)?;
    let (width, height) = (rows.WidthInBytes, rows.Height);
    if height > 1 && (rows.srcPitch < width || rows.dstPitch < width) {
        return Err(INVALID_VALUE);
    }
    let context = current()?;
    let stream = stream::find(stream, context)?;
    let at =
        |(start, side): (u64, Side), pitch: usize, row: usize| (start + (row * pitch) as u64, side);
    let row = |n| {
        let (to, from) = (at(to, rows.dstPitch, n), at(from, rows.srcPitch, n));
        Copy::new(stream.context, to, from, width)
    };
    post(&stream, (0..height).map(row).collect::<Result<_, Code>>()?)
}

fn word(stream: usize, to: u64, value: u64, flags: c_uint, operation: u32) -> Answer {
    let word = WordOp { operation, address: to, value, flags, _alias: 0, _rest: 0 };
    write_words(stream, &[word], 0)
}

driver! {
    fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) {
        copy_now((to, Side::Known), (from, Side::Any), bytes)
    }

    fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) {
        copy_now((to, Side::Any), (from, Side::Known), bytes)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        copy_now((to, Side::Known), (from, Side::Known), bytes)
    }

    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        copy_now((to, Side::Any), (from, Side::Any), bytes)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy((to, Side::Known), (from, Side::Any), bytes, stream).map(|_| ())
    }

    fn cuMemcpy2DAsync_v2(rows: *const CUDA_MEMCPY2D, stream: usize) {
        rows_post(&list(rows, 1)?[0], stream)
    }

    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy((to, Side::Any), (from, Side::Known), bytes, stream).map(|_| ())
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy((to, Side::Known), (from, Side::Known), bytes, stream).map(|_| ())
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) {
        copy((to, Side::Any), (from, Side::Any), bytes, stream).map(|_| ())
    }

    fn cuMemcpyBatchAsync_v2(
        to: *const u64, from: *const u64, bytes: *const usize, count: usize,
        how: *const How, first: *const usize, hows: usize, stream: usize,
    ) {
        let (to, from, bytes) = (list(to, count)?, list(from, count)?, list(bytes, count)?);
        let (how, first) = (list(how, hows)?, list(first, hows)?);
        Batch { to, from, bytes, how, first }.post(stream)
    }

    fn cuMemcpyBatchAsync(
        to: *const u64, from: *const u64, bytes: *const usize, count: usize,
        how: *const How, first: *const usize, hows: usize, failed: *mut usize, stream: usize,
    ) {
        let (to, from, bytes) = (list(to, count)?, list(from, count)?, list(bytes, count)?);
        let (how, first) = (list(how, hows)?, list(first, hows)?);
        let posted = Batch { to, from, bytes, how, first }.post(stream);
        if posted.is_err() && !failed.is_null() {
            // No copy has failed by itself.
            put(failed, usize::MAX)?;
        }
        posted
    }

    fn cuMemsetD8_v2(to: u64, byte: c_uchar, bytes: usize) {
        fill(to, byte, bytes, 0)?.synchronize()
    }

    fn cuMemsetD8Async(to: u64, byte: c_uchar, bytes: usize, stream: usize) {
        fill(to, byte, bytes, stream).map(|_| ())
    }

    fn cuStreamWriteValue32_v2(stream: usize, to: u64, value: u32, flags: c_uint) {
        word(stream, to, u64::from(value), flags, 2)
    }

    fn cuStreamWriteValue64_v2(stream: usize, to: u64, value: u64, flags: c_uint) {
        word(stream, to, value, flags, 5)
    }

    fn cuStreamBatchMemOp_v2(stream: usize, count: c_uint, words: *const WordOp, flags: c_uint) {
        if count > WORDS_MAX {
            return Err(INVALID_VALUE);
        }
        let words = if count == 0 { &[] } else { list(words, count as usize)? };
        write_words(stream, words, flags)
    }
}
