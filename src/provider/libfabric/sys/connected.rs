//! Objects of libfabric for endpoints that are connected one to one.

use super::abi::{EqAttr, EqCmEntry, EqErrEntry, Fid, FidEq, FidPep};
use super::calls::FidEp;
use super::library::{Info, Library};
use super::numbers as n;
use super::objects::{Code, Cq, Domain, Endpoint, Fabric, closed_on_drop};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// Bytes that go with a request for a connection. Providers carry 56 at least (`verbs`).
pub const GREETING_BYTES: usize = 16;
/// Most that any provider hands over with an event.
const ROOM: usize = 256;

/// A queue of what happens to connections.
#[derive(Debug)]
pub struct EventQueue {
    raw: *mut FidEq,
    library: Library,
}

/// An endpoint that listens for requests.
#[derive(Debug)]
pub struct Listener {
    raw: *mut FidPep,
}

closed_on_drop! { EventQueue Listener }

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// Somebody asks for a connection: what the endpoint for it is opened with, and what came with
    /// the request.
    Request(Info, [u8; GREETING_BYTES]),
    /// The connection of this endpoint, as [`Endpoint::as_ptr`] has it, stands.
    Connected(*mut FidEp),
    /// It has ended.
    Shutdown(*mut FidEp),
    /// It has failed: code, and the provider's own.
    Failed(*mut FidEp, Code, c_int),
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
    pub fn open(library: &Library, fabric: &Fabric, size: usize) -> Result<EventQueue, Code> {
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
        Ok(EventQueue { raw, library: *library })
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
        let fid: *mut FidEp = room.entry.fid.cast();
        match (count, what) {
            (1.., n::CONNREQ) if !room.entry.info.is_null() => {
                // SAFETY: the library hands it over with the event.
                let info = unsafe { self.library.adopt(room.entry.info) };
                let greeting = room.data.first_chunk().expect("room for it");
                Ok(Some(Event::Request(info, *greeting)))
            }
            (1.., n::CONNECTED) => Ok(Some(Event::Connected(fid))),
            (1.., n::SHUTDOWN) => Ok(Some(Event::Shutdown(fid))),
            (1.., _) => Ok(Some(Event::Other)),
            (0, _) => Ok(None),
            (code, _) => match code.wrapping_neg() as i32 {
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
                Ok(Some(Event::Failed(entry.fid.cast(), code, entry.prov_errno)))
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

impl Listener {
    /// Opens an endpoint that says who asks to `events`.
    pub fn open(fabric: &Fabric, info: &Info, events: &EventQueue) -> Result<Listener, Code> {
        let mut raw = null_mut();
        // SAFETY: an open network has a table.
        let open = unsafe { (*(*fabric.raw).ops).passive_ep }.ok_or(Code(libc::ENOSYS))?;
        // SAFETY: an open network and an offer of its library.
        Code::check(unsafe { open(fabric.raw, info.as_ptr(), &mut raw, null_mut()) })?;
        let listener = Listener { raw };
        let fid: *mut Fid = raw.cast();
        // SAFETY: an open endpoint has a table.
        let bind = unsafe { (*(*fid).ops).bind }.ok_or(Code(libc::ENOSYS))?;
        // SAFETY: both are open.
        Code::check(unsafe { bind(fid, events.as_fid(), 0) })?;
        // SAFETY: an open endpoint has a table of connections.
        let listen = unsafe { (*(*raw).cm).listen }.ok_or(Code(libc::ENOSYS))?;
        // SAFETY: open, and joined to its queue.
        Code::check(unsafe { listen(raw) })?;
        Ok(listener)
    }

    /// Writes our address to `out` and says how long it is.
    pub fn name(&self, out: &mut [u8]) -> Result<usize, Code> {
        // SAFETY: an open endpoint has a table of addresses.
        let getname = unsafe { (*(*self.raw).cm).getname }.ok_or(Code(libc::ENOSYS))?;
        let mut length = out.len();
        // SAFETY: room for as many bytes.
        Code::check(unsafe { getname(self.raw.cast(), out.as_mut_ptr().cast(), &mut length) })?;
        if length > out.len() { Err(Code(libc::ENAMETOOLONG)) } else { Ok(length) }
    }

    /// Refuses a request, of which no endpoint was opened.
    pub fn reject(&self, request: Info) {
        // SAFETY: an open endpoint has a table of connections.
        if let Some(reject) = unsafe { (*(*self.raw).cm).reject } {
            // SAFETY: the handle of a request that nobody has answered. Who cannot be told finds
            // out by itself.
            let _ = unsafe { reject(self.raw, request.get().handle, core::ptr::null(), 0) };
        }
    }
}

impl Endpoint {
    /// Opens an endpoint that will be connected to `address`, or, without one, by the request that
    /// `info` came with. `info` is as before when this returns.
    pub fn open_for(
        domain: &Domain,
        info: &mut Info,
        cq: &Cq,
        events: &EventQueue,
        address: Option<&[u8]>,
    ) -> Result<Endpoint, Code> {
        let raw = info.get_mut();
        let before = (raw.dest_addr, raw.dest_addrlen);
        if let Some(address) = address {
            // some providers look for the way to it when the endpoint is opened; the library copies
            raw.dest_addr = address.as_ptr().cast_mut().cast();
            raw.dest_addrlen = address.len();
        }
        let opened = Endpoint::open_joined(domain, info, cq, events.as_fid());
        let raw = info.get_mut();
        (raw.dest_addr, raw.dest_addrlen) = before;
        opened
    }

    /// Asks for a connection.
    pub fn connect(&self, address: &[u8], greeting: &[u8; GREETING_BYTES]) -> Result<(), Code> {
        // SAFETY: an open endpoint has a table of connections.
        let connect = unsafe { (*(*self.as_ptr()).cm).connect }.ok_or(Code(libc::ENOSYS))?;
        let (to, with) = (address.as_ptr().cast(), greeting.as_ptr().cast());
        // SAFETY: open; the address has the format that the offer says; both are copied.
        Code::check(unsafe { connect(self.as_ptr(), to, with, GREETING_BYTES) })
    }

    /// Grants the request that it was opened for.
    pub fn accept(&self) -> Result<(), Code> {
        // SAFETY: an open endpoint has a table of connections.
        let accept = unsafe { (*(*self.as_ptr()).cm).accept }.ok_or(Code(libc::ENOSYS))?;
        // SAFETY: open, and of a request.
        Code::check(unsafe { accept(self.as_ptr(), core::ptr::null(), 0) })
    }

    /// Ends its connection, so that the other end hears of it.
    pub fn shutdown(&self) {
        // SAFETY: an open endpoint has a table of connections.
        if let Some(shutdown) = unsafe { (*(*self.as_ptr()).cm).shutdown } {
            // SAFETY: open. One that was not connected refuses, and is closed next.
            let _ = unsafe { shutdown(self.as_ptr(), 0) };
        }
    }
}
