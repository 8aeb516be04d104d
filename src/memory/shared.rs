//! One mapping shared between processes, backed by an anonymous file, or a private one instead.

use super::available;
use super::errno::Errno;
use super::space::{self, Use};
use crate::base::descriptor;
use crate::base::sync::{AtomicUsize, Ordering};
use core::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// A mapping of an anonymous file, or of none where the kernel makes no such file. A drop unmaps it
/// and closes the descriptor.
///
/// The file is sealed against shrinking, so that no holder of the descriptor can take the pages
/// away. After [`SharedMapping::seal_writes`], only its maker can write it. It is in no core dump,
/// except for ranges that were lent to the program.
#[derive(Debug)]
pub struct SharedMapping {
    start: *mut u8,
    length: usize,
    /// `None`: no other process can map it.
    fd: Option<OwnedFd>,
    /// Nothing from here on was ever handed out by [`SharedMapping::renew`].
    used: AtomicUsize,
}

// SAFETY: the mapping is plain memory reached through raw pointers; the type itself only calls
// the kernel, which orders calls on one descriptor.
unsafe impl Send for SharedMapping {}
// SAFETY: as above; no method touches the bytes.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Reserves `reserve_bytes` of address space over a new file, and allocates none of it.
    ///
    /// *Errors*: the errno of the step that failed. ENOMEM if the address space is limited, EFBIG
    /// if the size of files is, EAGAIN if locked memory is (`mlockall(MCL_FUTURE)`).
    pub fn create(name: &CStr, reserve_bytes: usize) -> Result<SharedMapping, Errno> {
        if reserve_bytes as u64 > file_bytes_max() {
            // asking the kernel would end the process by SIGXFSZ (setrlimit(2), RLIMIT_FSIZE)
            return Err(Errno(libc::EFBIG));
        }
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: `name` is a C string.
        let fd = descriptor::made(|| unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
        let raw = fd.as_raw_fd();
        // SAFETY: a call on a descriptor that we own.
        Errno::check(unsafe { libc::ftruncate(raw, reserve_bytes as libc::off_t) }.into())?;
        seal(&fd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
        let start = map_at(&fd, reserve_bytes, Use::Internal)?;
        let (fd, used) = (Some(fd), AtomicUsize::new(0));
        Ok(SharedMapping { start, length: reserve_bytes, fd, used })
    }

    /// Reserves `reserve_bytes` of address space without a file, all of it [`Use::Reserved`].
    ///
    /// *Errors*: ENOMEM if the address space is limited, EAGAIN if locked memory is.
    pub(super) fn private(reserve_bytes: usize) -> Result<SharedMapping, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = space::map(-1, reserve_bytes, flags, Use::Reserved)?;
        Ok(SharedMapping { start, length: reserve_bytes, fd: None, used: AtomicUsize::new(0) })
    }

    /// Whether other processes can map it.
    pub(super) fn is_shared(&self) -> bool {
        self.fd.is_some()
    }

    /// From now on only the existing mapping can write the file. Other holders of the descriptor
    /// can map it for reading alone, even if they reopen it or change their mapping. Pages cannot
    /// be given back any more.
    ///
    /// *Errors*: EINVAL: the kernel is older than 5.1 and has no such seal.
    pub fn seal_writes(&self) -> Result<(), Errno> {
        // not in the C library's list of every platform
        const F_SEAL_FUTURE_WRITE: i32 = 0x10;
        seal(self.file(), F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)
    }

    /// No seal can be added from now on, so that a peer cannot make the file useless.
    pub fn seal_seals(&self) -> Result<(), Errno> {
        seal(self.file(), libc::F_SEAL_SEAL)
    }

    /// Maps a file that another process made, for reading and writing.
    ///
    /// *Errors*: EINVAL if it is shorter than `bytes`, or its maker could shrink it.
    pub fn from_fd(fd: OwnedFd, bytes: usize) -> Result<SharedMapping, Errno> {
        let (start, length) = map_checked(&fd, bytes, bytes, Use::Internal)?;
        Ok(SharedMapping { start, length, fd: Some(fd), used: AtomicUsize::new(0) })
    }

    /// Allocates the pages of a range.
    ///
    /// *Errors*: ENOSPC or ENOMEM if there is no room. Parts may have been allocated then;
    /// [`SharedMapping::release`] gives them back.
    pub fn populate(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.fallocate(0, offset, length)
    }

    /// [`SharedMapping::populate`] of a range that was lent, also without a file, or where the
    /// kernel refuses the call for files.
    pub(super) fn populate_lent(&self, offset: usize, length: usize) -> Result<(), Errno> {
        let at = self.range(offset, length).ok_or(Errno(libc::EINVAL))?;
        if self.is_shared() {
            match self.populate(offset, length) {
                Err(Errno(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EOPNOTSUPP)) => {}
                result => return result,
            }
        }
        if allocated(at, length) { Ok(()) } else { Err(Errno::NO_MEMORY) }
    }

    /// Makes a range read as zero, and allocates `parts` of it. Each part is an offset into the
    /// range and a length. Memory that the range has stays: pages of a sealed file cannot be given
    /// back.
    ///
    /// *Cost*: a system call for each part. Where the range was used before, two more for each
    /// piece with memory, and a write to it.
    pub fn renew(
        &self,
        offset: usize,
        length: usize,
        parts: &[(usize, usize)],
    ) -> Result<(), Errno> {
        let end = offset.saturating_add(length);
        if offset < self.used.fetch_max(end, Ordering::Relaxed) {
            self.clear(offset, length)?;
        }
        parts.iter().try_for_each(|(at, length)| self.populate(offset + at, *length))
    }

    /// Writes zeros wherever a range has memory.
    fn clear(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.range(offset, length).ok_or(Errno(libc::EINVAL))?;
        let end = offset + length;
        let seek = |from: usize, whence| {
            // SAFETY: a call on a descriptor that we own; nobody reads through it by place.
            let at = unsafe { libc::lseek(self.raw_fd(), from as libc::off_t, whence) };
            Errno::check(at).map(|at| at as usize)
        };
        let mut at = offset;
        while at < end {
            let data = match seek(at, libc::SEEK_DATA) {
                Ok(data) => data,
                Err(Errno(libc::ENXIO)) => return Ok(()), // nothing stands behind
                Err(_) => at,                             // this kernel does not tell
            };
            let until = seek(data, libc::SEEK_HOLE).unwrap_or(end).min(end);
            if data < until {
                // SAFETY: the piece lies in our mapping (`range`), and nobody uses it.
                unsafe { self.start.add(data).write_bytes(0, until - data) };
            }
            at = until.max(data);
        }
        Ok(())
    }

    /// Builds the page tables of an allocated range now rather than at its first touch. A kernel
    /// without the call (before 5.14) faults later: nothing changes but time.
    pub fn touch(&self, offset: usize, length: usize) {
        if let Some(at) = self.range(offset, length) {
            // SAFETY: the range lies in our mapping (`range`).
            unsafe { libc::madvise(at.cast(), length, libc::MADV_POPULATE_WRITE) };
        }
    }

    /// Makes a range, in whole pages, the program's own: core dumps have it.
    pub(super) fn lend(&self, offset: usize, length: usize) -> Result<(), Errno> {
        let at = self.range(offset, length).ok_or(Errno(libc::EINVAL))?;
        // SAFETY: the range lies in our mapping (`range`); nothing is taken away.
        unsafe { space::change(at, length, Use::Reserved, Use::Program) }
    }

    /// Hides a range of whole pages that are not allocated.
    ///
    /// # Safety
    /// - the range is not accessed any more.
    pub(super) unsafe fn reserve(&self, offset: usize, length: usize) -> Result<(), Errno> {
        let at = self.range(offset, length).ok_or(Errno(libc::EINVAL))?;
        // SAFETY: the range lies in our mapping (`range`), and this function's contract.
        unsafe { space::change(at, length, Use::Program, Use::Reserved) }
    }

    /// Gives the pages of a range back to the system; they read as zero afterwards.
    pub fn release(&self, offset: usize, length: usize) -> Result<(), Errno> {
        if !self.is_shared() {
            let at = self.range(offset, length).ok_or(Errno(libc::EINVAL))?;
            // SAFETY: the range lies in our mapping (`range`); nobody keeps references into it.
            let result = unsafe { libc::madvise(at.cast(), length, libc::MADV_DONTNEED) };
            return Errno::check(result.into()).map(|_| ());
        }
        self.fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, length)
    }

    /// How many bytes of a range have no memory yet, or memory that was never accessed.
    ///
    /// *Cost*: two system calls for each piece with memory.
    pub fn missing(&self, offset: usize, length: usize) -> usize {
        let end = offset.saturating_add(length);
        let seek = |from: usize, whence| {
            // SAFETY: a call on a descriptor that we own; nobody reads through it by place.
            let at = unsafe { libc::lseek(self.raw_fd(), from as libc::off_t, whence) };
            // ENXIO: nothing stands behind
            usize::try_from(at).unwrap_or(end).min(end)
        };
        let (mut at, mut missing) = (offset, 0);
        while at < end {
            let data = seek(at, libc::SEEK_DATA);
            missing += data - at;
            at = if data < end { seek(data, libc::SEEK_HOLE) } else { end };
        }
        missing
    }

    /// First byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The file, to be handed to a peer. *Panics* when there is none.
    pub fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.file().as_fd()
    }

    fn file(&self) -> &OwnedFd {
        self.fd.as_ref().expect("private memory is handed to no peer")
    }

    fn raw_fd(&self) -> i32 {
        self.file().as_raw_fd()
    }

    fn range(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // SAFETY: `offset <= end <= length`, so the sum stays inside the mapping.
        (end <= self.length).then(|| unsafe { self.start.add(offset) })
    }

    fn fallocate(&self, mode: i32, offset: usize, length: usize) -> Result<(), Errno> {
        self.range(offset, length).ok_or(Errno(libc::EINVAL))?;
        loop {
            // SAFETY: a call on a descriptor that we own.
            let result =
                unsafe { libc::fallocate(self.raw_fd(), mode, offset as i64, length as i64) };
            match Errno::check(result.into()) {
                Ok(_) => return Ok(()),
                Err(Errno(libc::EINTR)) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `map_at` mapped, once.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A mapping of another process's file for reading alone; unmapped on drop.
#[derive(Debug)]
pub struct ViewMapping {
    start: *mut u8,
    length: usize,
}

// SAFETY: the mapping is plain memory, reached through raw pointers.
unsafe impl Send for ViewMapping {}
// SAFETY: as above; no method touches the bytes.
unsafe impl Sync for ViewMapping {}

impl ViewMapping {
    /// Maps a file as [`SharedMapping::from_fd`] does, and closes the descriptor. If `bytes` are
    /// more than half of the address space that is left, only the first `head_bytes` are mapped:
    /// see [`ViewMapping::length`].
    pub fn new(fd: OwnedFd, bytes: usize, head_bytes: usize) -> Result<ViewMapping, Errno> {
        let (start, length) = map_checked(&fd, bytes, head_bytes, Use::View)?;
        Ok(ViewMapping { start, length })
    }

    /// First byte.
    pub fn start(&self) -> *const u8 {
        self.start
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for ViewMapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `map_checked` mapped, once.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// Allocates the whole pages of a range of a mapping, and builds their page tables. The bytes keep
/// their values. `false`: there is no memory. Kernels before 5.14 have no such call, and a filter
/// may refuse it: then the first access allocates the pages.
pub fn allocated(start: *mut u8, length: usize) -> bool {
    let page = super::heap::page_bytes();
    let from = start as usize;
    let (first, end) = (from.next_multiple_of(page), (from + length) / page * page);
    if cfg!(miri) || first >= end {
        return true;
    }
    let at = start.wrapping_add(first - from).cast();
    loop {
        // SAFETY: the call reads and changes no byte of any mapping; a range that is none it
        // refuses (madvise(2)).
        let result = unsafe { libc::madvise(at, end - first, libc::MADV_POPULATE_WRITE) };
        match Errno::check(result.into()) {
            Ok(_) | Err(Errno(libc::EINVAL | libc::EPERM | libc::EACCES | libc::ENOSYS)) => {
                return true;
            }
            Err(Errno(libc::EINTR | libc::EAGAIN)) => {}
            Err(_) => return false,
        }
    }
}

/// The longest file that this process may make.
pub(super) fn file_bytes_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes for the length of the call.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } {
        0 => limit.rlim_cur,
        _ => libc::RLIM_INFINITY,
    }
}

/// Whether a file is of huge pages: of those there may be none, which the first touch finds.
fn is_of_huge_pages(fd: &OwnedFd) -> Result<bool, Errno> {
    // SAFETY: all-zero bytes are a value of this plain C struct.
    let mut stat: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is valid for writes for the length of the call.
    Errno::check(unsafe { libc::fstatfs(fd.as_raw_fd(), &mut stat) }.into())?;
    Ok(stat.f_type as u64 == libc::HUGETLBFS_MAGIC as u64)
}

fn seal(fd: &OwnedFd, seals: i32) -> Result<(), Errno> {
    // SAFETY: a call on a descriptor that we own.
    Errno::check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }.into())?;
    Ok(())
}

/// Maps a file that another process made: all of it, or the first `head_bytes`.
fn map_checked(
    fd: &OwnedFd,
    bytes: usize,
    head_bytes: usize,
    wanted: Use,
) -> Result<(*mut u8, usize), Errno> {
    // SAFETY: all-zero bytes are a value of this plain C struct.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is valid for writes for the length of the call.
    Errno::check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) }.into())?;
    // SAFETY: a call on a descriptor that we own.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    let sealed = seals >= 0 && seals & libc::F_SEAL_SHRINK != 0;
    if !sealed || (stat.st_size as u64) < bytes as u64 || is_of_huge_pages(fd)? {
        return Err(Errno(libc::EINVAL));
    }
    if head_bytes < bytes && bytes > available::address_space_half() {
        return Ok((map_at(fd, head_bytes, wanted)?, head_bytes));
    }
    match map_at(fd, bytes, wanted) {
        Err(Errno(libc::ENOMEM | libc::EAGAIN)) if head_bytes < bytes => {
            Ok((map_at(fd, head_bytes, wanted)?, head_bytes))
        }
        result => Ok((result?, bytes)),
    }
}

fn map_at(fd: &OwnedFd, length: usize, wanted: Use) -> Result<*mut u8, Errno> {
    space::map(fd.as_raw_fd(), length, libc::MAP_SHARED, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    const BYTES: usize = 1 << 20;

    #[test]
    fn two_mappings_of_one_file_show_the_same_bytes() {
        let ours = SharedMapping::create(c"test", BYTES).unwrap();
        ours.populate(0, 8192).unwrap();
        let theirs =
            SharedMapping::from_fd(ours.fd().try_clone_to_owned().unwrap(), BYTES).unwrap();
        // SAFETY: the first page of both mappings was just allocated.
        unsafe {
            ours.start().add(5000).write(42);
            assert_eq!(theirs.start().add(5000).read(), 42);
        }
        ours.release(4096, 4096).unwrap();
        // SAFETY: as above; a hole reads as zero.
        assert_eq!(unsafe { theirs.start().add(5000).read() }, 0);
    }

    /// A read-only descriptor alone could be opened again through /proc, a mapping changed.
    #[test]
    fn sealed_memory_is_written_by_its_maker_alone_however_a_peer_tries() {
        let ours = SharedMapping::create(c"test", BYTES).unwrap();
        ours.populate(0, 8192).unwrap();
        ours.seal_writes().unwrap();
        let fd = ours.fd().try_clone_to_owned().unwrap();
        let path = std::format!("/proc/self/fd/{}", fd.as_raw_fd());
        assert!(map_at(&fd, BYTES, Use::Internal).is_err(), "mapped");
        let again = std::fs::File::options().read(true).write(true).open(path);
        if let Ok(again) = again {
            assert!(std::os::unix::fs::FileExt::write_at(&again, &[1], 0).is_err(), "written");
            assert!(again.set_len(0).is_err(), "cut");
            let again = OwnedFd::from(again);
            assert!(map_at(&again, BYTES, Use::Internal).is_err(), "opened anew and mapped");
            assert!(seal(&again, libc::F_SEAL_GROW).is_err(), "another seal");
        }
        let theirs = ViewMapping::new(fd, BYTES, BYTES).unwrap();
        // SAFETY: our mapping.
        let changed = unsafe {
            libc::mprotect(
                theirs.start().cast_mut().cast(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        assert_ne!(changed, 0, "made writable");
        // SAFETY: the first page of both mappings was allocated.
        unsafe {
            ours.start().write(42);
            assert_eq!(theirs.start().read(), 42);
        }
        // more memory, but none can be given back
        ours.populate(8192, 4096).unwrap();
        ours.touch(0, 12288);
        assert_eq!(ours.missing(0, BYTES), BYTES - 12288);
        assert_eq!((ours.missing(4096, 16384), ours.missing(0, 4096)), (8192, 0));
        assert!(ours.release(0, 4096).is_err());
    }

    #[test]
    fn ranges_outside_and_short_files_are_refused() {
        let ours = SharedMapping::create(c"test", BYTES).unwrap();
        assert_eq!(ours.populate(BYTES - 4096, 8192), Err(Errno(libc::EINVAL)));
        let fd = ours.fd().try_clone_to_owned().unwrap();
        assert_eq!(SharedMapping::from_fd(fd, 2 * BYTES).unwrap_err(), Errno(libc::EINVAL));
    }

    /// Such a file is sealed like others, and killed whoever touched it where there are no huge
    /// pages.
    #[test]
    fn file_of_huge_pages_is_refused() {
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_ALLOW_SEALING;
        let flags = flags | libc::MFD_HUGE_2MB;
        // SAFETY: a terminated name.
        let raw = unsafe { libc::memfd_create(c"test".as_ptr(), flags) };
        if raw < 0 {
            return std::println!("SKIP: this kernel has no huge pages of 2 MiB");
        }
        // SAFETY: just made, and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: calls on a descriptor that we own.
        let made = unsafe {
            libc::ftruncate(raw, 2 << 20) == 0
                && libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0
        };
        assert!(made);
        assert_eq!(SharedMapping::from_fd(fd, 2 << 20).unwrap_err(), Errno(libc::EINVAL));
    }
}
