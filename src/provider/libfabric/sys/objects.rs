//! Objects of libfabric, closed on drop; whoever owns several closes them in the order that
//! [`super::super`] states. The queue of events is in [`super::events`].

use super::abi::{
    AvAttr, CqAttr, CqEntry, CqErrEntry, CqErrRoom, Fid, FidAv, FidCq, FidDomain, FidFabric, FidMr,
};
use super::calls::{AtomicOps, EpOps, FidEp, MsgAtomic, MsgRma};
use super::events::EventQueue;
use super::library::{Info, Library};
use super::numbers as n;
use crate::base::descriptor::StandardHeld;
use core::ffi::{c_int, c_void};
use core::fmt;
use core::ptr::{NonNull, null_mut};

/// A code of libfabric's, positive: an errno, or one of its own from 256 on.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Code(pub i32);

impl Code {
    /// No room now.
    pub const AGAIN: Code = Code(n::EAGAIN);
    /// Of ours, and of no library: a queue said that it has handed over more than was asked for.
    pub const MISCOUNT: Code = Code(i32::MAX);

    /// What a call said: zero, or a negative code.
    pub fn check(code: c_int) -> Result<(), Code> {
        if code == 0 { Ok(()) } else { Err(Code(code.wrapping_neg())) }
    }

    #[inline]
    fn check_size(code: isize) -> Result<(), Code> {
        if code == 0 { Ok(()) } else { Err(Code(code.wrapping_neg() as i32)) }
    }
}

impl Code {
    /// Those of libfabric's own numbers that an op or a connection may end with, in words
    /// (`rdma/fi_errno.h`).
    const fn words(self) -> Option<&'static str> {
        Some(match self.0 {
            256 => "an error without a name",
            257 => "too little room",
            258 => "its state does not allow this",
            260 => "flags that it does not know",
            264 => "the checksum is wrong",
            265 => "the message was cut",
            266 => "no such key",
            267 => "no such address vector",
            268 => "the queue has overrun",
            269 => "the receiver is not ready",
            270 => "no more registrations",
            _ => return None,
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            0..256 => crate::memory::Errno(self.0).fmt(f),
            _ if *self == Code::MISCOUNT => f.write_str(
                "the completion queue claims more entries than there was room for, so that none \
                 can be trusted",
            ),
            code => {
                write!(f, "libfabric's code {code}")?;
                self.words().map_or(Ok(()), |words| write!(f, ", {words}"))
            }
        }
    }
}

/// # Safety
/// - `fid` is an object that is closed once, after what was made of it.
pub(super) unsafe fn close(fid: *mut Fid) -> Result<(), Code> {
    // SAFETY: every object has a table with this function.
    Code::check(unsafe { ((*(*fid).ops).close)(fid) })
}

macro_rules! closed_on_drop {
    ($($name:ident)*) => {
        $(impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: ours, closed once; its owner drops what was made of it before.
                let _ = unsafe { super::objects::close(self.raw.cast()) };
            }
        })*
    };
}

pub(super) use closed_on_drop;

/// A network.
#[derive(Debug)]
pub struct Fabric {
    pub(super) raw: *mut FidFabric,
    /// What is made of it opens descriptors at any time, also when a peer connects.
    _standard: StandardHeld,
}

/// A domain.
#[derive(Debug)]
pub struct Domain {
    pub(super) raw: *mut FidDomain,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    pub(super) raw: *mut FidCq,
}

/// An address vector.
#[derive(Debug)]
pub struct Vector {
    raw: *mut FidAv,
}

/// An endpoint.
#[derive(Debug)]
pub struct Endpoint {
    raw: *mut FidEp,
    has_atomics: bool,
}

/// An endpoint as ops take it, which somebody else keeps open.
#[derive(Copy, Clone, Debug)]
pub struct Port {
    raw: NonNull<FidEp>,
}

closed_on_drop! { Fabric Domain Cq Vector Endpoint }

impl Fabric {
    /// Opens the network of an offer.
    pub fn open(library: &Library, info: &Info) -> Result<Fabric, Code> {
        let standard = StandardHeld::new();
        Ok(Fabric { raw: library.fabric_open(info)?, _standard: standard })
    }
}

impl Domain {
    /// Opens the domain of an offer.
    pub fn open(fabric: &Fabric, info: &Info) -> Result<Domain, Code> {
        let mut raw = null_mut();
        // SAFETY: an open network and an offer of its library.
        let code = unsafe {
            ((*(*fabric.raw).ops).domain)(fabric.raw, info.as_ptr(), &mut raw, null_mut())
        };
        Code::check(code)?;
        Ok(Domain { raw })
    }

    /// As a number, while it is open.
    pub fn as_raw(&self) -> u64 {
        self.raw as u64
    }

    /// The inverse, to be used and not dropped.
    ///
    /// # Safety
    /// - the domain that the number is of stays open as long as this is used.
    pub unsafe fn from_raw(raw: u64) -> core::mem::ManuallyDrop<Domain> {
        core::mem::ManuallyDrop::new(Domain { raw: raw as *mut FidDomain })
    }

    /// Registers memory; with an endpoint, the registration is bound to that and enabled.
    ///
    /// # Safety
    /// - the range stays valid until the registration is closed;
    /// - `endpoint`, where it is given, is open for as long.
    pub unsafe fn register(
        &self,
        range: (u64, usize),
        access: u64,
        key: u64,
        endpoint: Option<*mut FidEp>,
    ) -> Result<Registration, Code> {
        let mut raw = null_mut();
        let (start, length) = (range.0 as *const c_void, range.1);
        let (offset, flags) = (0, 0);
        // SAFETY: an open domain; the caller vouches for the range.
        let code = unsafe {
            let reg = (*(*self.raw).mr).reg;
            reg(self.raw.cast(), start, length, access, offset, key, flags, &mut raw, null_mut())
        };
        Code::check(code)?;
        Registration::of(raw, endpoint)
    }
}

/// A registration. It is closed by [`Registration::close`] alone, because that can fail.
#[derive(Copy, Clone, Debug)]
pub struct Registration {
    raw: *mut FidMr,
}

impl Registration {
    /// One that was made, bound to the endpoint that is given, if one is, and enabled; closed where
    /// that fails.
    pub(super) fn of(raw: *mut FidMr, endpoint: Option<*mut FidEp>) -> Result<Registration, Code> {
        let made = Registration { raw };
        let Some(endpoint) = endpoint else { return Ok(made) };
        match made.bind(endpoint) {
            Ok(()) => Ok(made),
            Err(code) => {
                let _ = made.close();
                Err(code)
            }
        }
    }

    fn bind(self, endpoint: *mut FidEp) -> Result<(), Code> {
        let fid: *mut Fid = self.raw.cast();
        // SAFETY: an open registration has a table.
        let ops = unsafe { &*(*fid).ops };
        let (Some(bind), Some(control)) = (ops.bind, ops.control) else {
            return Err(Code(libc::ENOSYS));
        };
        // SAFETY: both are open.
        Code::check(unsafe { bind(fid, endpoint.cast(), 0) })?;
        // SAFETY: as above.
        Code::check(unsafe { control(fid, n::ENABLE, null_mut()) })
    }

    /// What our own calls name it by.
    pub fn descriptor(self) -> *mut c_void {
        // SAFETY: open.
        unsafe { (*self.raw).mem_desc }
    }

    /// What peers name it by.
    pub fn key(self) -> u64 {
        // SAFETY: open.
        unsafe { (*self.raw).key }
    }

    /// Gives it back. When that fails, it stays.
    pub fn close(self) -> Result<(), Code> {
        // SAFETY: whoever closes it forgets it.
        unsafe { close(self.raw.cast()) }
    }

    /// As a number, not zero, until [`Registration::from_raw`].
    pub fn into_raw(self) -> u64 {
        self.raw as u64
    }

    /// The inverse.
    pub fn from_raw(raw: u64) -> Registration {
        Registration { raw: raw as *mut FidMr }
    }
}

impl Cq {
    /// A queue of completions for `size` of them.
    pub fn open(domain: &Domain, size: usize) -> Result<Cq, Code> {
        let mut attr = CqAttr {
            size,
            flags: 0,
            format: n::CQ_FORMAT_DATA,
            wait_obj: n::WAIT_NONE,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: null_mut(),
        };
        let mut raw = null_mut();
        // SAFETY: an open domain.
        let code =
            unsafe { ((*(*domain.raw).ops).cq_open)(domain.raw, &mut attr, &mut raw, null_mut()) };
        Code::check(code)?;
        Ok(Cq { raw })
    }

    /// Takes completions, as many as there are and find room; [`n::EAGAIN`]: none,
    /// [`n::EAVAIL`]: a failure is next; [`Code::MISCOUNT`]: nobody knows what was taken.
    #[inline]
    pub fn read(&self, out: &mut [CqEntry]) -> Result<usize, Code> {
        // SAFETY: an open queue of this format, and room for as many.
        let count = unsafe {
            let read = (*(*self.raw).ops).read;
            read(self.raw, out.as_mut_ptr().cast(), out.len())
        };
        match count {
            0.. if count as usize <= out.len() => Ok(count as usize),
            0.. => Err(Code::MISCOUNT),
            code => Err(Code(code.wrapping_neg() as i32)),
        }
    }

    /// Takes a failure and has the provider's words written to `text`, with a zero behind them.
    pub fn read_error(&self, text: &mut [u8]) -> Result<CqErrEntry, Code> {
        let mut room = CqErrRoom::NOTHING;
        // SAFETY: an open queue, and room for what a library of any age writes.
        let count = unsafe { ((*(*self.raw).ops).readerr)(self.raw, &mut room.entry, 0) };
        if count <= 0 {
            return Err(Code(if count == 0 { n::EAGAIN } else { count.wrapping_neg() as i32 }));
        }
        let entry = room.entry;
        text[0] = 0;
        // SAFETY: an open queue has a table.
        if let Some(strerror) = unsafe { (*(*self.raw).ops).strerror } {
            // SAFETY: what the failure named, before the queue is read again, and a buffer.
            let said = unsafe {
                let buffer = text.as_mut_ptr().cast();
                strerror(self.raw, entry.prov_errno, entry.err_data, buffer, text.len())
            };
            if !said.is_null() && said != text.as_ptr().cast() {
                // SAFETY: the provider's text ends with a zero.
                let said = unsafe { core::ffi::CStr::from_ptr(said) }.to_bytes();
                let length = said.len().min(text.len() - 1);
                text[..length].copy_from_slice(&said[..length]);
                text[length] = 0;
            }
        }
        Ok(entry)
    }
}

impl Vector {
    /// A vector for about so many addresses.
    pub fn open(domain: &Domain, count: usize) -> Result<Vector, Code> {
        let mut attr = AvAttr {
            av_type: n::AV_TABLE,
            rx_ctx_bits: 0,
            count,
            ep_per_node: 0,
            name: core::ptr::null(),
            map_addr: null_mut(),
            flags: 0,
        };
        let mut raw = null_mut();
        // SAFETY: an open domain.
        let code =
            unsafe { ((*(*domain.raw).ops).av_open)(domain.raw, &mut attr, &mut raw, null_mut()) };
        Code::check(code)?;
        Ok(Vector { raw })
    }

    /// Puts an address in, and says what ops call it.
    pub fn insert(&self, address: &[u8]) -> Result<u64, Code> {
        let mut name = n::ADDR_UNSPEC;
        // SAFETY: an open vector; the address has the format that the offer says.
        let count = unsafe {
            let insert = (*(*self.raw).ops).insert;
            insert(self.raw, address.as_ptr().cast(), 1, &mut name, 0, null_mut())
        };
        match count {
            1 if name != n::ADDR_UNSPEC => Ok(name),
            0 | 1 => Err(Code(libc::EADDRNOTAVAIL)),
            code => Err(Code(code.wrapping_neg())),
        }
    }

    /// Takes an address out.
    pub fn remove(&self, mut name: u64) {
        // SAFETY: an address of this vector. Where it cannot be taken out it stays, which takes
        // memory alone.
        let _ = unsafe { ((*(*self.raw).ops).remove)(self.raw, &mut name, 1, 0) };
    }
}

impl Endpoint {
    /// Opens the endpoint of an offer, joined to a queue and a vector, and enables it.
    pub fn open(domain: &Domain, info: &Info, cq: &Cq, vector: &Vector) -> Result<Endpoint, Code> {
        Endpoint::open_watched(domain, info, (cq, vector), &mut None, false)
    }

    /// The same, joined to `events`, too, if it can be; if not, they are closed. `is_direct`: it
    /// goes by its NIC within a host, too, where that can be said.
    pub fn open_watched(
        domain: &Domain,
        info: &Info,
        (cq, vector): (&Cq, &Vector),
        events: &mut Option<EventQueue>,
        is_direct: bool,
    ) -> Result<Endpoint, Code> {
        let mut endpoint = Endpoint::made(domain, info)?;
        if let Some(queue) = events
            && endpoint.bind(queue.as_fid(), 0).is_err()
        {
            *events = None;
        }
        if is_direct {
            endpoint.shared_memory_forbid();
        }
        endpoint.join(cq, vector)?;
        endpoint.has_atomics = endpoint.adds();
        Ok(endpoint)
    }

    fn made(domain: &Domain, info: &Info) -> Result<Endpoint, Code> {
        let mut raw = null_mut();
        // SAFETY: an open domain and an offer of its library.
        let code = unsafe {
            let open = (*(*domain.raw).ops).endpoint;
            open(domain.raw, info.as_ptr(), &mut raw, null_mut())
        };
        Code::check(code)?;
        Ok(Endpoint { raw, has_atomics: false })
    }

    fn join(&self, cq: &Cq, vector: &Vector) -> Result<(), Code> {
        self.bind(cq.raw.cast(), n::SEND | n::RECV)?;
        self.bind(vector.raw.cast(), 0)?;
        let fid: *mut Fid = self.raw.cast();
        // SAFETY: an open endpoint has a table.
        let control = unsafe { (*(*fid).ops).control }.ok_or(Code(libc::ENOSYS))?;
        // SAFETY: open, and joined to what it needs.
        Code::check(unsafe { control(fid, n::ENABLE, null_mut()) })
    }

    /// Keeps it from going by memory that processes of a host share. Libraries that do not know the
    /// option have no such way, or leave none.
    fn shared_memory_forbid(&self) {
        // SAFETY: an open endpoint; null where it has no options.
        let Some(ops) = (unsafe { (*self.raw).ops.as_ref() }) else { return };
        if ops.size < size_of::<EpOps>() {
            return;
        }
        let Some(setopt) = ops.setopt else { return };
        let (permitted, name) = (false, n::OPT_SHARED_MEMORY_PERMITTED);
        let (value, length) = ((&raw const permitted).cast(), size_of::<bool>());
        // SAFETY: a byte that is read during the call.
        let _ = unsafe { setopt(self.raw.cast(), n::OPT_ENDPOINT, name, value, length) };
    }

    fn bind(&self, other: *mut Fid, flags: u64) -> Result<(), Code> {
        let fid: *mut Fid = self.raw.cast();
        // SAFETY: an open endpoint has a table.
        let bind = unsafe { (*(*fid).ops).bind }.ok_or(Code(libc::ENOSYS))?;
        // SAFETY: both are open.
        Code::check(unsafe { bind(fid, other, flags) })
    }

    fn adds(&self) -> bool {
        let Some(valid) = self.port().atomics().and_then(|ops| ops.writevalid) else {
            return false;
        };
        let mut count = 0;
        // SAFETY: an open endpoint.
        unsafe { valid(self.raw, n::UINT64, n::SUM, &mut count) == 0 && count > 0 }
    }

    /// Whether it adds to 64-bit words.
    pub fn has_atomics(&self) -> bool {
        self.has_atomics
    }

    /// For ops, as long as it is open.
    #[inline]
    pub fn port(&self) -> Port {
        Port { raw: NonNull::new(self.raw).expect("an open endpoint") }
    }

    /// For binding registrations.
    pub fn as_ptr(&self) -> *mut FidEp {
        self.raw
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
}

impl Port {
    fn atomics(&self) -> Option<&AtomicOps> {
        // SAFETY: an open endpoint; null where it has no atomics.
        let ops = unsafe { (*self.raw.as_ptr()).atomic.as_ref() }?;
        (ops.size >= size_of::<AtomicOps>()).then_some(ops)
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// - the endpoint is open;
    /// - the range is registered as `descriptor`, and nobody else uses it or `context` until the
    ///   receive has ended.
    #[inline]
    pub unsafe fn receive(
        &self,
        range: (u64, usize),
        descriptor: *mut c_void,
        context: *mut c_void,
    ) -> Result<(), Code> {
        let ep = self.raw.as_ptr();
        let (start, length) = (range.0 as *mut c_void, range.1);
        // SAFETY: open; the caller vouches for the rest.
        Code::check_size(unsafe {
            ((*(*ep).msg).recv)(ep, start, length, descriptor, n::ADDR_UNSPEC, context)
        })
    }

    /// Sends.
    ///
    /// # Safety
    /// - as [`Port::receive`], of reading.
    #[inline]
    pub unsafe fn send(
        &self,
        range: (u64, usize),
        descriptor: *mut c_void,
        to: u64,
        context: *mut c_void,
    ) -> Result<(), Code> {
        let ep = self.raw.as_ptr();
        let (start, length) = (range.0 as *const c_void, range.1);
        // SAFETY: open; the caller vouches for the rest.
        Code::check_size(unsafe { ((*(*ep).msg).send)(ep, start, length, descriptor, to, context) })
    }

    /// Sends bytes that are copied now, as many as the offer allows.
    ///
    /// # Safety
    /// - the endpoint is open, and the range is valid for reads.
    #[inline]
    pub unsafe fn inject(&self, start: u64, length: usize, to: u64) -> Result<(), Code> {
        let ep = self.raw.as_ptr();
        // SAFETY: open; the caller vouches for the rest.
        Code::check_size(unsafe { ((*(*ep).msg).inject)(ep, start as *const c_void, length, to) })
    }

    /// Writes to a peer's memory.
    ///
    /// # Safety
    /// - our memory is as in [`Port::receive`], of reading.
    #[inline]
    pub unsafe fn write(&self, message: &MsgRma, flags: u64) -> Result<(), Code> {
        let ep = self.raw.as_ptr();
        // SAFETY: open; the caller vouches for the rest.
        Code::check_size(unsafe { ((*(*ep).rma).writemsg)(ep, message, flags) })
    }

    /// Reads a peer's memory.
    ///
    /// # Safety
    /// - our memory is as in [`Port::receive`].
    #[inline]
    pub unsafe fn read(&self, message: &MsgRma, flags: u64) -> Result<(), Code> {
        let ep = self.raw.as_ptr();
        // SAFETY: open; the caller vouches for the rest.
        Code::check_size(unsafe { ((*(*ep).rma).readmsg)(ep, message, flags) })
    }

    /// Adds to words of a peer's memory. [`Endpoint::has_atomics`].
    ///
    /// # Safety
    /// - our memory is as in [`Port::receive`], of reading.
    #[inline]
    pub unsafe fn add(&self, message: &MsgAtomic, flags: u64) -> Result<(), Code> {
        let ep = self.raw.as_ptr();
        let write = self.atomics().and_then(|ops| ops.writemsg).ok_or(Code(libc::ENOSYS))?;
        // SAFETY: open; the caller vouches for the rest.
        Code::check_size(unsafe { write(ep, message, flags) })
    }
}
