//! What the library makes, given back when it is dropped.
//!
//! Each keeps pointers into what it was made of; who drops them in the right order is stated at
//! each type, as the rail does.

use super::abi::{
    AsyncEvent, Context, DeviceAttr, DeviceEntry, Ece, Gid, GidEntry, Mr, Pd, PortAttr, Qp, QpAttr,
    QpInitAttr, RecvWr, SendWr,
};
use super::extended::{self, QpEx, QpInitAttrEx};
use super::library::Library;
use super::numbers;
use crate::base::descriptor::StandardHeld;
use crate::memory::Errno;
use core::ffi::{CStr, c_int};
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr::{self, NonNull};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(super) fn made<T>(pointer: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(pointer).ok_or_else(Errno::last)
}

/// What the library's functions return: 0, or an errno.
fn done(result: c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        -1 => Err(Errno::last()),
        code => Err(Errno(code.abs())),
    }
}

/// Sees to it that children of a fork get no copies of registered pages, and this process none in
/// place of those that the device knows. As often as one likes; before anything is registered.
///
/// *Errors*: why not: another library of the process may have registered memory before.
pub fn guard_from_forks(library: &Library) -> Result<(), Errno> {
    match library.fork_init {
        // SAFETY: no arguments; it may be called at any time, and looks itself whether it is late.
        Some(fork_init) if !is_copied_on_fork() => done(unsafe { fork_init() }),
        Some(_) | None => Ok(()),
    }
}

/// Where the files are by which programs use devices.
pub const FILES_FOLDER: &str = "/dev/infiniband";

/// Files that the library has open at a time while it opens a device.
const FILES: usize = 4;

/// Whether there are fewer to be had now.
#[cold]
fn want_of_files() -> Option<Errno> {
    // held until all have been tried
    let files: [_; FILES] = core::array::from_fn(|_| File::open("/dev/null"));
    let code = files.iter().filter_map(|file| file.as_ref().err()?.raw_os_error()).next()?;
    matches!(code, libc::EMFILE | libc::ENFILE).then_some(Errno(code))
}

/// Whether this user may not open the file of a device.
#[cold]
fn want_of_rights(library: Library, name: &str) -> Option<Errno> {
    let mut code = None;
    let looked = Device::each(library, |entry, found| {
        // SAFETY: an entry of the list, whose names end with a zero.
        let file = unsafe { CStr::from_ptr((*entry).dev_name.as_ptr()) };
        if found == name && !file.is_empty() {
            let path = Path::new(FILES_FOLDER).join(OsStr::from_bytes(file.to_bytes()));
            let refused = File::options().read(true).write(true).open(path).err();
            code = refused.and_then(|error| error.raw_os_error());
        }
    });
    let refused = code.filter(|code| matches!(*code, libc::EACCES | libc::EPERM));
    looked.ok().and(refused).map(Errno)
}

/// Whether the kernel gives children of a fork copies of pages that devices use, as Linux does
/// since 5.12. The library may not know, and takes such pages from children, whatever else is in
/// them.
fn is_copied_on_fork() -> bool {
    let mut name = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: a structure of ours, for which zero is a value.
    let release = unsafe {
        libc::uname(name.as_mut_ptr());
        name.assume_init().release.map(|byte| byte as u8)
    };
    let mut numbers = release.split(|byte| !byte.is_ascii_digit()).map(|digits| {
        digits.iter().fold(0, |number: u32, digit| number * 10 + u32::from(digit - b'0'))
    });
    (numbers.next(), numbers.next()) >= (Some(5), Some(12))
}

/// An open device.
#[derive(Debug)]
pub struct Device {
    library: Library,
    context: NonNull<Context>,
    /// The library opens descriptors for as long as the device is open.
    _standard: StandardHeld,
}

// SAFETY: the library locks what threads share of a device.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device of that name. *Errors*: ENODEV when there is none; EMFILE or ENFILE where
    /// no more files can be opened, and EACCES or EPERM where this user may not open the device's,
    /// of which the library says something else.
    pub fn open(library: Library, name: &str) -> Result<Device, Errno> {
        Device::open_as_told(library, name).map_err(|errno| {
            want_of_files().or_else(|| want_of_rights(library, name)).unwrap_or(errno)
        })
    }

    fn open_as_told(library: Library, name: &str) -> Result<Device, Errno> {
        // what is refused was said by whoever asked first
        let _ = guard_from_forks(&library);
        let standard = StandardHeld::new();
        let mut context = None;
        Device::each(library, |entry, found| {
            if found == name && context.is_none() {
                // SAFETY: an entry of the list, which stands until `each` returns.
                context = Some(made(unsafe { (library.open_device)(entry) }));
            }
        })?;
        let context = context.ok_or(Errno(libc::ENODEV))??;
        Ok(Device { library, context, _standard: standard })
    }

    /// Calls `look` with each device and its name.
    pub fn each(
        library: Library,
        mut look: impl FnMut(*mut DeviceEntry, &str),
    ) -> Result<(), Errno> {
        let _standard = StandardHeld::new();
        let mut count = 0;
        // SAFETY: a number of ours to write to.
        let list = made(unsafe { (library.get_device_list)(&mut count) })?;
        for n in 0..count.max(0) as usize {
            // SAFETY: the list has `count` entries.
            let entry = unsafe { *list.as_ptr().add(n) };
            // SAFETY: an entry of the list, whose name ends with a zero.
            let name = unsafe { CStr::from_ptr((*entry).name.as_ptr()) };
            if let Ok(name) = name.to_str() {
                look(entry, name);
            }
        }
        // SAFETY: the list that was got; what was opened of it stays open.
        unsafe { (library.free_device_list)(list.as_ptr()) };
        Ok(())
    }

    /// The functions that it was opened with.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Where its posts and polls are found.
    pub fn context(&self) -> *mut Context {
        self.context.as_ptr()
    }

    /// What it is.
    pub fn attributes(&self) -> Result<DeviceAttr, Errno> {
        let mut attr = MaybeUninit::<DeviceAttr>::zeroed();
        // SAFETY: an open device, and room for the answer.
        done(unsafe { (self.library.query_device)(self.context(), attr.as_mut_ptr()) })?;
        // SAFETY: integers, all of them zero or written.
        Ok(unsafe { attr.assume_init() })
    }

    /// What a port is.
    pub fn port(&self, port: u8) -> Result<PortAttr, Errno> {
        let mut attr = MaybeUninit::<PortAttr>::zeroed();
        // SAFETY: an open device, and room for more than the answer.
        done(unsafe { (self.library.query_port)(self.context(), port, attr.as_mut_ptr()) })?;
        // SAFETY: integers, all of them zero or written.
        Ok(unsafe { attr.assume_init() })
    }

    /// How fast a port is now, in Mbit/s. *Errors*: ENOSYS where the library is too old; what
    /// drivers say that do not know.
    pub fn speed_mbit_s(&self, port: u8) -> Result<u32, Errno> {
        let query = self.library.query_port_speed.ok_or(Errno(libc::ENOSYS))?;
        let mut speed = 0;
        // SAFETY: an open device, and room for the answer.
        done(unsafe { query(self.context(), port.into(), &mut speed) })?;
        Ok(u32::try_from(speed.saturating_mul(100)).unwrap_or(u32::MAX))
    }

    /// A GID of a port.
    pub fn gid(&self, port: u8, index: u8) -> Result<Gid, Errno> {
        let mut gid = Gid::default();
        // SAFETY: an open device, and room for the answer.
        done(unsafe { (self.library.query_gid)(self.context(), port, index.into(), &mut gid) })?;
        Ok(gid)
    }

    /// Whether tables of GIDs can be read: libraries before rdma-core 33 cannot.
    pub fn has_gid_entries(&self) -> bool {
        self.library.query_gid_ex.is_some()
    }

    /// An entry of a port's table of GIDs. *Errors*: ENOSYS where the library is too old (rdma-core
    /// 33 has it); ENODATA where the entry is not in use.
    pub fn gid_entry(&self, port: u8, index: u32) -> Result<GidEntry, Errno> {
        let query = self.library.query_gid_ex.ok_or(Errno(libc::ENOSYS))?;
        let mut entry = MaybeUninit::<GidEntry>::zeroed();
        let room = entry.as_mut_ptr();
        // SAFETY: an open device, and room for the answer.
        done(unsafe { query(self.context(), port.into(), index, room, 0, size_of::<GidEntry>()) })?;
        // SAFETY: integers, all of them zero or written.
        Ok(unsafe { entry.assume_init() })
    }

    /// A GID of a port, and the kind of its packets where the library tells it.
    pub fn gid_and_kind(&self, port: u8, index: u8) -> Result<(Gid, Option<u32>), Errno> {
        match self.gid_entry(port, index.into()) {
            Ok(entry) => Ok((entry.gid, Some(entry.gid_type))),
            // too old a library, or an entry that is not in use
            Err(_) => Ok((self.gid(port, index)?, None)),
        }
    }

    /// Keeps [`Device::event`] from blocking.
    pub fn events_do_not_block(&self) -> Result<(), Errno> {
        // SAFETY: an open device's own descriptor.
        let fd = unsafe { (*self.context()).async_fd };
        // SAFETY: flags of a descriptor that is open as long as the device.
        let flags = Errno::check(unsafe { libc::fcntl(fd, libc::F_GETFL) }.into())? as c_int;
        // SAFETY: as above.
        let result = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
        Errno::check(result.into()).map(|_| ())
    }

    /// Readable when [`Device::event`] has something.
    pub fn event_fd(&self) -> i32 {
        // SAFETY: an open device's own descriptor.
        unsafe { (*self.context()).async_fd }
    }

    /// The next thing that happened to it, if any. *Cost*: a system call.
    pub fn event(&self) -> Option<AsyncEvent> {
        let mut event = AsyncEvent { element: 0, event_type: 0 };
        // SAFETY: an open device, and room for the answer; the descriptor does not block.
        if unsafe { (self.library.get_async_event)(self.context(), &mut event) } != 0 {
            return None;
        }
        // SAFETY: the event that was just got.
        unsafe { (self.library.ack_async_event)(&mut event) };
        Some(event)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened by us, and everything made of it is gone.
        unsafe { (self.library.close_device)(self.context()) };
    }
}

/// Where registrations and queue pairs belong together. Dropped before its device.
#[derive(Debug)]
pub struct ProtectionDomain {
    library: Library,
    pd: NonNull<Pd>,
}

// SAFETY: the library locks what threads share of it.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A new one.
    pub fn create(device: &Device) -> Result<ProtectionDomain, Errno> {
        let library = *device.library();
        // SAFETY: an open device.
        let pd = made(unsafe { (library.alloc_pd)(device.context()) })?;
        Ok(ProtectionDomain { library, pd })
    }

    /// Registers memory; with `relaxed`, so that writes may overtake each other on the bus where
    /// library, kernel and device can.
    ///
    /// # Safety
    /// - the range stays valid for reads and writes as long as the registration.
    pub unsafe fn register(
        &self,
        address: u64,
        length: usize,
        access: c_int,
        relaxed: bool,
    ) -> Result<MemoryRegion, Errno> {
        let start = address as *mut core::ffi::c_void;
        let pd = self.pd.as_ptr();
        let mr = match self.library.reg_mr_iova2 {
            Some(register) if relaxed => {
                let access = access | numbers::ACCESS_RELAXED_ORDERING;
                // SAFETY: the caller vouches for the range.
                unsafe { register(pd, start, length, address, access as u32) }
            }
            // SAFETY: as above.
            Some(_) | None => unsafe { (self.library.reg_mr)(pd, start, length, access) },
        };
        Ok(MemoryRegion { dereg: self.library.dereg_mr, mr: made(mr)? })
    }

    /// Registers memory that requests name by `iova`, which agrees with its address modulo the
    /// page.
    ///
    /// *Errors*: ENOSYS where the library is too old.
    ///
    /// # Safety
    /// - as [`ProtectionDomain::register`].
    pub unsafe fn register_at(
        &self,
        address: u64,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> Result<MemoryRegion, Errno> {
        let register = self.library.reg_mr_iova2.ok_or(Errno(libc::ENOSYS))?;
        let (start, pd) = (address as *mut core::ffi::c_void, self.pd.as_ptr());
        // SAFETY: the caller vouches for the range.
        let mr = unsafe { register(pd, start, length, iova, access as u32) };
        Ok(MemoryRegion { dereg: self.library.dereg_mr, mr: made(mr)? })
    }

    /// Registers a part of a dma-buf, which peers name by `address`.
    ///
    /// *Errors*: ENOSYS where the library is too old, EOPNOTSUPP where the device cannot.
    pub fn register_dmabuf(
        &self,
        fd: c_int,
        offset: u64,
        length: usize,
        address: u64,
        access: c_int,
    ) -> Result<MemoryRegion, Errno> {
        let register = self.library.reg_dmabuf_mr.ok_or(Errno(libc::ENOSYS))?;
        // SAFETY: the kernel checks the descriptor and the range, and holds the buffer.
        let mr = unsafe { register(self.pd.as_ptr(), offset, length, address, fd, access) };
        Ok(MemoryRegion { dereg: self.library.dereg_mr, mr: made(mr)? })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: made by us, and everything made of it is gone.
        unsafe { (self.library.dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// A registration. Dropped before its protection domain.
#[derive(Debug)]
pub struct MemoryRegion {
    dereg: unsafe extern "C" fn(*mut Mr) -> c_int,
    mr: NonNull<Mr>,
}

// SAFETY: plain data of the library, which locks what threads share.
unsafe impl Send for MemoryRegion {}

impl MemoryRegion {
    /// What our own work requests call it.
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live registration.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// What the peer's call it.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live registration.
        unsafe { (*self.mr.as_ptr()).rkey }
    }

    /// As a number, for a table of atomics. It is no longer given back by itself.
    pub fn into_raw(self) -> u64 {
        let raw = self.mr.as_ptr() as u64;
        core::mem::forget(self);
        raw
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: made by us.
        unsafe { (self.dereg)(self.mr.as_ptr()) };
    }
}

/// Gives back a registration that [`MemoryRegion::into_raw`] made a number of. Where the device is
/// gone the kernel has done so, and says of every call that there is no device (Linux's
/// `ib_uverbs_write`: EIO once it is disassociated): that is as good.
///
/// # Safety
/// - the number names a registration, which nobody else gives back.
pub unsafe fn deregister_raw(library: &Library, raw: u64) -> Result<(), Errno> {
    // SAFETY: the caller vouches for it.
    match done(unsafe { (library.dereg_mr)(raw as *mut Mr) }) {
        Err(Errno(libc::EIO | libc::ENODEV)) => Ok(()),
        done => done,
    }
}

/// A queue pair. Dropped before its protection domain and completion queue.
#[derive(Debug)]
pub struct QueuePair {
    modify: unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int,
    destroy: unsafe extern "C" fn(*mut Qp) -> c_int,
    post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    qp: NonNull<Qp>,
    /// The same, where it posts by functions of its own.
    extended: Option<NonNull<QpEx>>,
}

// SAFETY: used by whoever owns it, by one thread at a time.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// A new one; what it has got stands in `init` afterwards.
    ///
    /// # Safety
    /// - the queues that `init` names are live, and outlive it.
    pub unsafe fn create(
        device: &Device,
        domain: &ProtectionDomain,
        init: &mut QpInitAttr,
    ) -> Result<QueuePair, Errno> {
        let library = device.library();
        // SAFETY: a live domain; the caller vouches for the queues.
        let qp = made(unsafe { (library.create_qp)(domain.pd.as_ptr(), init) })?;
        Ok(QueuePair::of(device, qp, None))
    }

    /// One that posts by the extended interface, requests of the kinds that `kinds` says as
    /// `QP_EX_`.
    ///
    /// *Errors*: EOPNOTSUPP where library or driver know of none; else why there is none.
    ///
    /// # Safety
    /// - as [`QueuePair::create`].
    pub unsafe fn create_extended(
        device: &Device,
        domain: &ProtectionDomain,
        init: &mut QpInitAttr,
        kinds: u64,
    ) -> Result<QueuePair, Errno> {
        let mut whole = QpInitAttrEx {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            comp_mask: numbers::QP_INIT_PD | numbers::QP_INIT_SEND_OPS,
            pd: domain.pd.as_ptr(),
            xrcd: ptr::null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: ptr::null_mut(),
            rx_hash_conf: [0; 3],
            source_qpn: 0,
            send_ops_flags: kinds,
        };
        // SAFETY: this function's contract.
        let (qp, extended) = unsafe { extended::create(device, &mut whole) }?;
        init.cap = whole.cap;
        Ok(QueuePair::of(device, qp, Some(extended)))
    }

    fn of(device: &Device, qp: NonNull<Qp>, extended: Option<NonNull<QpEx>>) -> QueuePair {
        let library = device.library();
        // SAFETY: an open device's table.
        let ops = unsafe { (*device.context()).ops };
        QueuePair {
            modify: library.modify_qp,
            destroy: library.destroy_qp,
            post_send: ops.post_send,
            post_recv: ops.post_recv,
            qp,
            extended,
        }
    }

    /// Whether it posts by the extended interface.
    pub fn is_extended(&self) -> bool {
        self.extended.is_some()
    }

    /// Its number on the wire.
    pub fn number(&self) -> u32 {
        // SAFETY: a live queue pair.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// Whether an event is about it.
    pub fn is(&self, element: u64) -> bool {
        self.qp.as_ptr() as u64 == element
    }

    /// Changes what the mask says.
    pub fn modify(&mut self, attr: &mut QpAttr, mask: c_int) -> Result<(), Errno> {
        // SAFETY: a live queue pair, and attributes of ours.
        done(unsafe { (self.modify)(self.qp.as_ptr(), attr, mask) })
    }

    /// Moves it to the error state, in which it neither sends nor takes packets.
    pub fn stop(&mut self) -> Result<(), Errno> {
        self.modify(&mut QpAttr::to(numbers::QPS_ERR), numbers::QP_STATE)
    }

    /// Extensions of its vendor that it has; none where library or device know of none.
    pub fn extensions(&self, library: &Library) -> Ece {
        let mut ece = Ece::NONE;
        let (Some(query), Some(_)) = (library.query_ece, library.set_ece) else { return ece };
        // SAFETY: a live queue pair, and room for the answer.
        match unsafe { query(self.qp.as_ptr(), &mut ece) } {
            0 => ece,
            _ => Ece::NONE,
        }
    }

    /// Says which it is to use, before it can receive.
    pub fn extensions_set(&mut self, library: &Library, ece: &Ece) -> Result<(), Errno> {
        let mut ece = Ece { comp_mask: 0, ..*ece };
        let set = library.set_ece.ok_or(Errno(libc::ENOSYS))?;
        // SAFETY: a live queue pair, and a structure of ours.
        done(unsafe { set(self.qp.as_ptr(), &mut ece) })
    }

    /// Posts a chain of sends with one doorbell. `has_parts`: some have more parts than one. `Err`:
    /// not all of them were taken.
    ///
    /// # Safety
    /// - the chain is well formed, and its parts lie in registered memory that stays until they
    ///   have completed, but for those that are inline.
    #[inline(always)]
    pub unsafe fn send(&mut self, first: *mut SendWr, has_parts: bool) -> Result<(), Errno> {
        let mut bad = ptr::null_mut();
        let code = match self.extended {
            // SAFETY: a live queue pair, made so; the caller vouches for the chain.
            Some(extended) if !has_parts => unsafe { extended::post(extended, first) },
            // SAFETY: as above.
            Some(_) | None => unsafe { (self.post_send)(self.qp.as_ptr(), first, &mut bad) },
        };
        match code {
            0 => Ok(()),
            code => Err(Errno(code.abs())),
        }
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// - its parts lie in registered memory that stays until it has completed.
    #[inline]
    pub unsafe fn receive(&mut self, request: &mut RecvWr) -> Result<(), Errno> {
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair; the caller vouches for the request.
        match unsafe { (self.post_recv)(self.qp.as_ptr(), request, &mut bad) } {
            0 => Ok(()),
            code => Err(Errno(code.abs())),
        }
    }
}

impl QueuePair {
    /// Ends it: its device touches nothing on its behalf any more. `Err`: the device does not obey,
    /// and nothing has changed.
    pub fn destroy(self) -> Result<(), QueuePair> {
        let this = ManuallyDrop::new(self);
        // SAFETY: made by us; what was destroyed is forgotten here.
        match unsafe { (this.destroy)(this.qp.as_ptr()) } {
            0 => Ok(()),
            _ => Err(ManuallyDrop::into_inner(this)),
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by us.
        unsafe { (self.destroy)(self.qp.as_ptr()) };
    }
}
