//! Streams.

use super::devices::PRIORITY_GREATEST;
use crate::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, put};
use crate::context::{current, lives, named};
use crate::stream::{self, NON_BLOCKING};
use std::ffi::{c_int, c_uint};

fn create(out: *mut usize, flags: c_uint, priority: c_int) -> Answer {
    if flags > NON_BLOCKING || out.is_null() {
        return Err(INVALID_VALUE);
    }
    let context = current()?;
    put(out, stream::create(context, flags, priority.clamp(PRIORITY_GREATEST, 0)))
}

driver! {
    fn cuStreamCreate(out: *mut usize, flags: c_uint) {
        create(out, flags, 0)
    }

    fn cuStreamCreateWithPriority(out: *mut usize, flags: c_uint, priority: c_int) {
        create(out, flags, priority)
    }

    fn cuStreamDestroy_v2(handle: usize) {
        if handle <= 2 {
            return Err(INVALID_HANDLE);
        }
        // A lost GPU's stream ends, too, although the call fails.
        let stream = stream::find_any(handle, named()?)?;
        stream.close();
        lives(stream.context.device)
    }

    fn cuStreamQuery(handle: usize) {
        stream::find(handle, current()?)?.query()
    }

    fn cuStreamSynchronize(handle: usize) {
        stream::find(handle, current()?)?.synchronize()
    }

    fn cuStreamGetPriority(handle: usize, out: *mut c_int) {
        put(out, stream::find(handle, current()?)?.priority)
    }

    fn cuStreamGetFlags(handle: usize, out: *mut c_uint) {
        put(out, stream::find(handle, current()?)?.flags & NON_BLOCKING)
    }

    fn cuStreamGetCtx(handle: usize, out: *mut usize) {
        put(out, stream::find(handle, current()?)?.context.handle)
    }
}
