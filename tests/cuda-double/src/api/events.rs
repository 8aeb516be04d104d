//! Events.

use crate::codes::{Code, INVALID_HANDLE, INVALID_VALUE, put};
use crate::context::{Context, current, lives};
use crate::stream::{self, Event, Operation};
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Arc, Mutex};

/// Handles of events are counted from here.
const FIRST: usize = 0x0e7e_0000;

/// An event, and the context that it was made in.
#[derive(Clone)]
struct Known {
    event: Arc<Event>,
    context: Context,
}

static EVENTS: Mutex<(BTreeMap<usize, Known>, usize)> = Mutex::new((BTreeMap::new(), FIRST));

fn find(handle: usize) -> Result<Known, Code> {
    let (events, _) = &*EVENTS.lock().expect("no panic while it is locked");
    events.get(&handle).cloned().ok_or(INVALID_HANDLE)
}

/// Events that live.
pub fn count() -> u64 {
    EVENTS.lock().expect("no panic while it is locked").0.len() as u64
}

driver! {
    fn cuEventCreate(out: *mut usize, flags: c_uint) {
        let context = current()?;
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        let (events, next) = &mut *EVENTS.lock().expect("no panic while it is locked");
        *next += 0x10;
        events.insert(*next, Known { event: Arc::default(), context });
        put(out, *next)
    }

    fn cuEventDestroy_v2(handle: usize) {
        let known = find(handle)?;
        EVENTS.lock().expect("no panic while it is locked").0.remove(&handle);
        lives(known.context.device)
    }

    fn cuEventRecord(handle: usize, stream: usize) {
        let (known, stream) = (find(handle)?, stream::find(stream, current()?)?);
        if known.context.device != stream.context.device {
            return Err(INVALID_HANDLE);
        }
        known.event.post();
        stream.post(Operation::Event(known.event));
        Ok(())
    }

    fn cuEventQuery(handle: usize) {
        let known = find(handle)?;
        stream::query(&known.event, known.context.device)
    }

    fn cuEventSynchronize(handle: usize) {
        let known = find(handle)?;
        known.event.wait();
        stream::query(&known.event, known.context.device)
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        let (known, stream) = (find(event)?, stream::find(stream, current()?)?);
        let posted = known.event.posted();
        stream.post(Operation::Await(known.event, posted));
        Ok(())
    }
}
