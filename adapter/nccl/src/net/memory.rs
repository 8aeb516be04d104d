//! Registered memory of a connection.

use super::close;
use super::comm::Comm;
use super::process::locked;
use super::room::REGIONS_MAX;
use super::{Fault, log};
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::{DeregisterError, MemoryKind, RegisterError};
use crosstie::host::{MemoryError, MemoryOptions};
use std::ffi::c_int;

/// Makes memory known; no bytes need no handle. Memory of a GPU may lie in a dma-buf, at an offset.
///
/// # Safety
/// - the range stays valid for reads and writes until it was deregistered with success.
pub unsafe fn register(
    comm: &Comm,
    address: u64,
    length: usize,
    kind: MemoryKind,
    dmabuf: Option<(c_int, u64)>,
) -> Result<Handle, Fault> {
    if length == 0 {
        return Ok(Handle::default());
    }
    if comm.room.is_forked() {
        return Err(Fault::Usage);
    }
    let shared = comm.room.shared();
    let bytes = Bytes(length as u64);
    let registered = match dmabuf {
        // SAFETY: the caller's promise.
        None => unsafe { shared.register(address, bytes, kind).map_err(MemoryError::from) },
        Some(_) => {
            let options = MemoryOptions { kind, device: None, dmabuf };
            // SAFETY: as above.
            unsafe { shared.register_with(address, bytes, &options) }
        }
    };
    let memory = registered.map_err(|error| {
        let (why, fault) = match error {
            MemoryError::Register(RegisterError::Full) => {
                let why = format!("{REGIONS_MAX} regions are registered, which is the limit");
                (why, Fault::from(RegisterError::Full))
            }
            MemoryError::Register(error) => (format!("{error:?}"), Fault::from(error)),
            other => (other.to_string(), Fault::Argument),
        };
        log::warn(&format!("{length} bytes of memory cannot be registered: {why}"));
        fault
    })?;
    locked(&comm.memories).push(memory);
    Ok(memory)
}

/// Forgets memory. Requests that still use it are those of a communicator that was aborted: the
/// connection is given up with them, so that NCCL may free the memory.
pub fn deregister(comm: &Comm, memory: Handle) -> Result<(), Fault> {
    if memory == Handle::default() {
        return Ok(());
    }
    if comm.room.is_forked() {
        return Ok(());
    }
    let forget = || comm.room.shared().deregister(memory).is_ok();
    match comm.room.shared().deregister(memory) {
        Ok(()) => {}
        Err(DeregisterError::Busy) if close::settle(comm, forget) => {}
        Err(DeregisterError::Busy) => {
            comm.give_up();
            if !close::stop(comm, forget) {
                log::warn("memory of a connection is still in use: a rail cannot be fenced");
                return Err(Fault::System); // the connection's close tries once more
            }
        }
        Err(DeregisterError::Stale) => return Err(Fault::Argument),
        Err(DeregisterError::Fabric(_)) => return Err(Fault::System),
    }
    locked(&comm.memories).retain(|it| *it != memory);
    Ok(())
}
