//! Memory of ranks: of the host, and of GPUs.

use super::cuda_support::driver::*;
use super::cuda_support::steps::{BLOCK, POSIX, create, map, ok, on};
use super::table::{CUDA, HOST};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Where memory lies.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Kind {
    Host,
    /// As NCCL's users allocate windows: other processes can map it.
    Device,
    /// As NCCL allocates signals: none can.
    Private,
}

/// Bytes of the host in all areas of this process.
static OF_HOST: AtomicUsize = AtomicUsize::new(0);

pub fn of_host() -> usize {
    OF_HOST.load(Ordering::Relaxed)
}

/// Memory that is never freed.
#[derive(Copy, Clone)]
pub struct Area {
    pub kind: Kind,
    pub start: u64,
    pub bytes: usize,
    gpu: i32,
}

impl Area {
    pub fn new(kind: Kind, bytes: usize, rank: usize) -> Area {
        let gpu = rank as i32 % 2;
        let start = match kind {
            Kind::Host => {
                OF_HOST.fetch_add(bytes, Ordering::Relaxed);
                let words = vec![0u64; bytes.div_ceil(8)];
                Box::leak(words.into_boxed_slice()).as_mut_ptr() as u64
            }
            Kind::Device | Kind::Private => {
                on(gpu);
                let types = if kind == Kind::Device { POSIX } else { 0 };
                let whole = bytes.next_multiple_of(BLOCK);
                let start = map(create(gpu, types, whole), gpu, whole);
                ok(cuCtxSetCurrent(0)); // NCCL's threads have none
                let area = Area { kind, start, bytes, gpu };
                area.write(0, &vec![0; bytes]);
                start
            }
        };
        Area { kind, start, bytes, gpu }
    }

    /// Memory of the host whose pages are there once they are written.
    pub fn sparse(bytes: usize) -> Area {
        let (rights, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a mapping of its own.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        OF_HOST.fetch_add(bytes, Ordering::Relaxed);
        Area { kind: Kind::Host, start: start as u64, bytes, gpu: 0 }
    }

    pub fn at(&self) -> (u64, usize) {
        (self.start, self.bytes)
    }

    /// NCCL's number of the kind.
    pub fn number(&self) -> c_int {
        if self.kind == Kind::Host { HOST } else { CUDA }
    }

    fn entered(&self, act: impl FnOnce()) {
        on(self.gpu);
        act();
        ok(cuCtxSetCurrent(0));
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.start + at as u64;
        match self.kind {
            // SAFETY: inside the area, which nobody else writes now.
            Kind::Host => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len());
            },
            Kind::Device | Kind::Private => {
                self.entered(|| ok(cuMemcpyHtoD_v2(to, bytes.as_ptr(), bytes.len())));
            }
        }
    }

    pub fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let (from, mut out) = (self.start + at as u64, vec![0; bytes]);
        match self.kind {
            // SAFETY: inside the area, whose bytes are there by the contract that is tested.
            Kind::Host => unsafe {
                std::ptr::copy_nonoverlapping(from as *const u8, out.as_mut_ptr(), bytes);
            },
            Kind::Device | Kind::Private => {
                self.entered(|| ok(cuMemcpyDtoH_v2(out.as_mut_ptr(), from, bytes)));
            }
        }
        out
    }

    /// A word, as a CPU or a kernel that waits reads it.
    pub fn word(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at < self.bytes);
        match self.kind {
            Kind::Host => {
                let word = (self.start + at as u64) as *const AtomicU64;
                // SAFETY: an aligned word inside the area.
                unsafe { &*word }.load(Ordering::Acquire)
            }
            Kind::Device | Kind::Private => {
                u64::from_le_bytes(self.read(at, 8).try_into().unwrap())
            }
        }
    }
}

/// Bytes that tell whose they are, and which.
pub fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (seed * 37 + at * 11 + at / 251) as u8).collect()
}
