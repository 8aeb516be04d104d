//! Handles of memory that is mapped by hand.

use crate::backing::Backing;
use crate::codes::{Code, INVALID_VALUE};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Handles are counted from here.
const FIRST: u64 = 0x4a00_0000;

/// The memory of a handle, and its references.
struct Handle {
    memory: Arc<Backing>,
    references: u64,
}

static HANDLES: Mutex<(BTreeMap<u64, Handle>, u64)> = Mutex::new((BTreeMap::new(), FIRST));

/// A new handle of memory, or a further reference to the one that it has.
pub fn retain(memory: Arc<Backing>) -> u64 {
    let (handles, next) = &mut *HANDLES.lock().expect("no panic while it is locked");
    let known = handles.iter_mut().find(|(_, handle)| Arc::ptr_eq(&handle.memory, &memory));
    if let Some((number, handle)) = known {
        handle.references += 1;
        return *number;
    }
    *next += 0x10;
    handles.insert(*next, Handle { memory, references: 1 });
    *next
}

/// Gives a reference back.
pub fn release(number: u64) -> Result<(), Code> {
    let (handles, _) = &mut *HANDLES.lock().expect("no panic while it is locked");
    let handle = handles.get_mut(&number).ok_or(INVALID_VALUE)?;
    handle.references -= 1;
    if handle.references == 0 {
        handles.remove(&number);
    }
    Ok(())
}

/// The memory of a handle.
pub fn find(number: u64) -> Result<Arc<Backing>, Code> {
    let (handles, _) = &*HANDLES.lock().expect("no panic while it is locked");
    handles.get(&number).map(|handle| handle.memory.clone()).ok_or(INVALID_VALUE)
}

/// References to handles.
pub fn references() -> u64 {
    let (handles, _) = &*HANDLES.lock().expect("no panic while it is locked");
    handles.values().map(|handle| handle.references).sum()
}
