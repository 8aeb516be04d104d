//! Memory: what an address stands for, and the view through which the double reads and writes it.
//!
//! Device memory is a memfd. Its name says what it is, so that a process that gets a descriptor
//! knows the GPU and the kind: `cuda-double:KIND:DEVICE:BYTES`.

use crate::codes::{Code, INVALID_VALUE, OPERATING_SYSTEM, OUT_OF_MEMORY, UNKNOWN};
use crate::settings::{DEVICES_MAX, settings};
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of each GPU that this process has.
static USED: [AtomicUsize; DEVICES_MAX] = [const { AtomicUsize::new(0) }; DEVICES_MAX];
/// Bytes that it may have; 0: what the settings say.
static LIMITS: [AtomicUsize; DEVICES_MAX] = [const { AtomicUsize::new(0) }; DEVICES_MAX];

/// Bytes that a GPU has.
pub fn limit(device: usize) -> usize {
    match LIMITS[device].load(Ordering::Relaxed) {
        0 => settings().memory_bytes,
        bytes => bytes,
    }
}

/// Sets that.
pub fn set_limit(device: usize, bytes: usize) {
    LIMITS[device].store(bytes, Ordering::Relaxed);
}

/// Bytes of a GPU that are used.
pub fn used(device: usize) -> usize {
    USED[device].load(Ordering::Relaxed)
}

/// What made device memory, in the name of its memfd.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Maker {
    /// `cuMemAlloc`, and what else has no handle.
    Alloc,
    /// `cuMemCreate`, and whether it was asked for memory that NICs reach.
    Create { rdma: bool },
}

impl Maker {
    fn name(self) -> &'static str {
        match self {
            Maker::Alloc => "alloc",
            Maker::Create { rdma: false } => "create",
            Maker::Create { rdma: true } => "create-rdma",
        }
    }

    fn of(name: &str) -> Option<Maker> {
        let all = [Maker::Alloc, Maker::Create { rdma: false }, Maker::Create { rdma: true }];
        all.into_iter().find(|maker| maker.name() == name)
    }

    /// Whether the driver says that NICs reach it.
    pub fn is_rdma(self) -> bool {
        matches!(self, Maker::Alloc | Maker::Create { rdma: true })
    }
}

/// One piece of memory, which lives as long as anything refers to it.
pub struct Backing {
    /// None: host memory of somebody else's.
    file: Option<OwnedFd>,
    view: *mut u8,
    bytes: usize,
    /// The GPU that it lies on, by its number in the host.
    device: Option<usize>,
    maker: Maker,
    /// Handle types that it may be exported as.
    handle_types: u32,
    /// Bytes that are counted as used.
    counted: usize,
}

// SAFETY: the view is shared memory of devices, which anyone may touch at any time; only the copy
// and word functions do, by raw pointers.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

/// Maps all of a file, for reads and writes.
fn view(file: RawFd, bytes: usize) -> Result<*mut u8, Code> {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, where the system likes.
    let at = unsafe { libc::mmap(null_mut(), bytes, access, flags, file, 0) };
    if at == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(at.cast()) }
}

/// A file in memory.
fn memfd(name: &CStr, bytes: usize) -> Result<OwnedFd, Code> {
    // SAFETY: a name that ends with a zero.
    let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(OPERATING_SYSTEM);
    }
    // SAFETY: made above, and ours.
    let file = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: a descriptor of ours.
    let sized = unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) };
    if sized == 0 { Ok(file) } else { Err(OUT_OF_MEMORY) }
}

fn count(device: usize, bytes: usize) -> Result<(), Code> {
    let fits = |used: usize| (used + bytes <= limit(device)).then_some(used + bytes);
    let counted = USED[device].fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
    counted.map(|_| ()).map_err(|_| OUT_OF_MEMORY)
}

impl Backing {
    /// Device memory.
    pub fn new(
        device: usize,
        bytes: usize,
        maker: Maker,
        handle_types: u32,
    ) -> Result<Backing, Code> {
        count(device, bytes)?;
        let kind = maker.name();
        let name = CString::new(format!("cuda-double:{kind}:{device}:{bytes}")).expect("no zero");
        let made = memfd(&name, bytes).and_then(|file| {
            let view = view(file.as_raw_fd(), bytes)?;
            Ok((file, view))
        });
        let (file, view) = made.inspect_err(|_| {
            USED[device].fetch_sub(bytes, Ordering::Relaxed);
        })?;
        let (file, device) = (Some(file), Some(device));
        Ok(Backing { file, view, bytes, device, maker, handle_types, counted: bytes })
    }

    /// Memory of another process, by its descriptor, which stays the caller's.
    pub fn import(descriptor: RawFd) -> Result<Backing, Code> {
        let path = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
        let path = path.map_err(|_| UNKNOWN)?;
        let path = path.to_string_lossy();
        let name = path.strip_prefix("/memfd:cuda-double:").ok_or(UNKNOWN)?;
        let name = name.strip_suffix(" (deleted)").unwrap_or(name);
        let parts: Vec<&str> = name.split(':').collect();
        let [kind, device, bytes] = parts[..] else { return Err(UNKNOWN) };
        let maker = Maker::of(kind).ok_or(UNKNOWN)?;
        let device: usize = device.parse().map_err(|_| UNKNOWN)?;
        let bytes: usize = bytes.parse().map_err(|_| UNKNOWN)?;
        // SAFETY: reads flags of a descriptor.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
        if flags & libc::O_APPEND != 0 {
            return Err(UNKNOWN);
        }
        // SAFETY: a descriptor that is open, as the link has shown.
        let own = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
        if own < 0 {
            return Err(OPERATING_SYSTEM);
        }
        // SAFETY: made above, and ours.
        let file = unsafe { OwnedFd::from_raw_fd(own) };
        let view = view(own, bytes)?;
        let handle_types = u32::from(maker != Maker::Alloc);
        let (file, device) = (Some(file), Some(device));
        Ok(Backing { file, view, bytes, device, maker, handle_types, counted: 0 })
    }

    /// Host memory of the driver's.
    pub fn pinned(bytes: usize) -> Result<Backing, Code> {
        let file = memfd(c"cuda-double:host", bytes)?;
        let view = view(file.as_raw_fd(), bytes)?;
        let (file, device) = (Some(file), None);
        Ok(Backing { file, view, bytes, device, maker: Maker::Alloc, handle_types: 0, counted: 0 })
    }

    /// Host memory that stays its owner's.
    pub fn host(view: *mut u8, bytes: usize) -> Backing {
        let (file, device) = (None, None);
        Backing { file, view, bytes, device, maker: Maker::Alloc, handle_types: 0, counted: 0 }
    }

    /// A descriptor of the memory, for another process.
    pub fn export(&self) -> Result<RawFd, Code> {
        let file = self.file.as_ref().ok_or(INVALID_VALUE)?;
        // SAFETY: a descriptor of ours.
        let made = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        if made < 0 { Err(OPERATING_SYSTEM) } else { Ok(made) }
    }

    /// A descriptor that stands for a dma-buf of the memory from `offset` on. A memfd cannot begin
    /// inside another one, so the descriptor's file position says where the range begins.
    pub fn dma_buf(&self, offset: usize) -> Result<RawFd, Code> {
        let file = self.file.as_ref().ok_or(INVALID_VALUE)?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero");
        // Marked by this flag: it is no handle for `cuMemImportFromShareableHandle`.
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_APPEND;
        // SAFETY: a path that ends with a zero.
        let made = unsafe { libc::open(path.as_ptr(), flags) };
        if made < 0 {
            return Err(OPERATING_SYSTEM);
        }
        // SAFETY: a descriptor of ours.
        unsafe { libc::lseek(made, offset as libc::off_t, libc::SEEK_SET) };
        Ok(made)
    }

    /// The number of the memory's descriptor in this process.
    pub fn file(&self) -> Option<RawFd> {
        self.file.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Where the double reads and writes it.
    pub fn view(&self) -> *mut u8 {
        self.view
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The GPU that it lies on, by its number in the host.
    pub fn device(&self) -> Option<usize> {
        self.device
    }

    /// What made it.
    pub fn maker(&self) -> Maker {
        self.maker
    }

    /// Handle types that it may be exported as.
    pub fn handle_types(&self) -> u32 {
        self.handle_types
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if self.file.is_some() {
            // SAFETY: mapped when this was made; nothing refers to it any more.
            unsafe { libc::munmap(self.view.cast(), self.bytes) };
        }
        if let Some(device) = self.device {
            USED[device].fetch_sub(self.counted, Ordering::Relaxed);
        }
    }
}
