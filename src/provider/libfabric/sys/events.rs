//! The queue of events: failures of an endpoint that belong to no op.

use super::abi::{EqAttr, EqCmEntry, EqErrEntry, Fid, FidEq};
use super::numbers as n;
use super::objects::{Code, Fabric, closed_on_drop};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// Most that any provider hands over with an event.
const ROOM: usize = 256;

/// A queue of events.
#[derive(Debug)]
pub struct EventQueue {
    raw: *mut FidEq,
}

closed_on_drop! { EventQueue }

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// A failure: code, and the provider's own.
    Failed(Code, c_int),
    /// Something else.
    Other,
}

#[repr(C)]
struct Room {
    entry: EqCmEntry,
    data: [u8; ROOM],
}

impl EventQueue {
    /// A queue for about so many events.
    pub fn open(fabric: &Fabric, size: usize) -> Result<EventQueue, Code> {
        let mut attr = EqAttr {
            size,
            flags: 0,
            wait_obj: n::WAIT_NONE,
            signaling_vector: 0,
            wait_set: null_mut(),
        };
        let mut raw = null_mut();
        // SAFETY: an open network has a table.
        let open = unsafe { (*(*fabric.raw).ops).eq_open }.ok_or(Code(libc::ENOSYS))?;
        // SAFETY: an open network.
        Code::check(unsafe { open(fabric.raw, &mut attr, &mut raw, null_mut()) })?;
        Ok(EventQueue { raw })
    }

    /// Takes an event; `None`: there is none.
    pub fn read(&self) -> Result<Option<Event>, Code> {
        let entry = EqCmEntry { fid: null_mut(), info: null_mut() };
        let mut room = Room { entry, data: [0; ROOM] };
        let mut what = 0;
        // SAFETY: an open queue, and room for the longest event.
        let count = unsafe {
            let out: *mut c_void = (&raw mut room).cast();
            ((*(*self.raw).ops).read)(self.raw, &mut what, out, size_of::<Room>(), 0)
        };
        match count {
            1.. => Ok(Some(Event::Other)),
            0 => Ok(None),
            code => match code.wrapping_neg() as i32 {
                n::EAGAIN => Ok(None),
                n::EAVAIL => self.read_error(),
                code => Err(Code(code)),
            },
        }
    }

    fn read_error(&self) -> Result<Option<Event>, Code> {
        let mut entry = EqErrEntry {
            fid: null_mut(),
            context: null_mut(),
            data: 0,
            err: 0,
            prov_errno: 0,
            err_data: null_mut(),
            err_data_size: 0,
        };
        // SAFETY: an open queue, and room for a failure.
        let count = unsafe { ((*(*self.raw).ops).readerr)(self.raw, &mut entry, 0) };
        match count {
            1.. => {
                // the sign is not the same everywhere
                let code = Code(entry.err.wrapping_abs());
                Ok(Some(Event::Failed(code, entry.prov_errno)))
            }
            0 => Ok(None),
            code if code.wrapping_neg() as i32 == n::EAGAIN => Ok(None),
            code => Err(Code(code.wrapping_neg() as i32)),
        }
    }

    pub(super) fn as_fid(&self) -> *mut Fid {
        self.raw.cast()
    }
}
