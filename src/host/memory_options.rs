//! What a user says of memory beside where it lies, and what may be wrong with that.
#![forbid(unsafe_code)]

use super::error::RegisterError;
use super::gpu;
use crate::base::units::Bytes;
use crate::base::words::{said, wraps};
use crate::fabric::MemoryKind;
use crate::memory::cuda::Place;
use crate::memory::dmabuf;
use std::os::fd::RawFd;

/// What a user says of memory.
#[derive(Copy, Clone, Debug)]
pub struct MemoryOptions {
    /// Of the host, or of a GPU; which one, its address tells.
    pub kind: MemoryKind,
    /// The GPU that it must lie on; `None`: on any.
    pub device: Option<i32>,
    /// The dma-buf that it is part of, and the offset of its first byte in that. The descriptor
    /// stays the caller's.
    pub dmabuf: Option<(RawFd, u64)>,
}

said! {
    /// Why memory was not registered. Nothing was changed.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum MemoryError {
        /// As of memory of which nothing is said.
        Register(_it: RegisterError) => "the memory was refused",
        /// It is memory of this GPU, and not of the host.
        OfGpu(number: i32) => "it is memory of GPU {number}: register it with XTIE_MEMORY_CUDA",
        /// It is not on the GPU that was named, but on this one; `None`: it is the host's.
        Device(what: Option<i32>) => |f| match what {
            Some(number) => {
                write!(f, "the memory lies on GPU {number}, which is not the device that was named")
            }
            None => f.write_str("memory of the host lies on no device: set device to -1"),
        },
        NoDmabuf(descriptor: RawFd) => "descriptor {descriptor} is no dma-buf, or not open",
        HostDmabuf => "memory of the host takes no dma-buf: set dmabuf to -1",
        DmabufRange(bytes: u64) => "the memory ends beyond the dma-buf, which has {bytes} bytes",
    }
}

wraps!(MemoryError: Register(RegisterError));

impl MemoryOptions {
    /// Whether it is a GPU's.
    pub(super) const fn is_device(&self) -> bool {
        matches!(self.kind, MemoryKind::Cuda(_))
    }

    /// Whether they fit the memory.
    pub(super) fn check(&self, address: u64, length: Bytes) -> Result<(), MemoryError> {
        let on = match gpu::place_of(address) {
            Some(Place::Device(number)) => Some(number),
            Some(Place::Host | Place::Pinned | Place::Managed) | None => None,
        };
        match (self.kind, on) {
            (MemoryKind::Host | MemoryKind::Mapped, Some(number)) => {
                return Err(MemoryError::OfGpu(number));
            }
            (MemoryKind::Host | MemoryKind::Mapped, None) if self.dmabuf.is_some() => {
                return Err(MemoryError::HostDmabuf);
            }
            (MemoryKind::Host | MemoryKind::Mapped, None) if self.device.is_some() => {
                return Err(MemoryError::Device(None));
            }
            (MemoryKind::Host | MemoryKind::Mapped, None) => return Ok(()),
            // registration says which memory it is instead, or that there is no driver
            (MemoryKind::Cuda(_), None) => return Ok(()),
            (MemoryKind::Cuda(_), Some(_)) => {}
        }
        if self.device.is_some() && self.device != on {
            return Err(MemoryError::Device(on));
        }
        let Some((descriptor, offset)) = self.dmabuf else { return Ok(()) };
        let bytes = dmabuf::bytes_of(descriptor).ok_or(MemoryError::NoDmabuf(descriptor))?;
        match offset.checked_add(length.0) {
            Some(end) if end <= bytes => Ok(()),
            Some(_) | None => Err(MemoryError::DmabufRange(bytes)),
        }
    }
}
