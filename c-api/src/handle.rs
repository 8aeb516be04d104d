//! Objects as C sees them: pointers that are numbers, and the bytes that reach a listener.
#![forbid(unsafe_code)]

use core::ptr::without_provenance_mut;
use crosstie::base::slab::Handle;
use crosstie::connect::ListenerId;
use crosstie::host::Attempt;
use crosstie::transport::RequestId;

/// An endpoint: the address of the storage it was opened in. All other objects belong to one.
pub struct xtie_endpoint {
    _opaque: [u8; 0],
}

/// Takes connections from other endpoints.
pub struct xtie_listener {
    _opaque: [u8; 0],
}

/// An attempt to connect that is under way.
pub struct xtie_attempt {
    _opaque: [u8; 0],
}

/// A connection to one peer: reliable, ordered, both ways.
pub struct xtie_connection {
    _opaque: [u8; 0],
}

/// Registered memory.
pub struct xtie_memory {
    _opaque: [u8; 0],
}

/// An outstanding send, or group of receives.
pub struct xtie_request {
    _opaque: [u8; 0],
}

/// A group of ranks: the address of the storage it was opened in. It belongs to an endpoint.
pub struct xtie_group {
    _opaque: [u8; 0],
}

/// Memory that each rank of a group gives to the others.
pub struct xtie_window {
    _opaque: [u8; 0],
}

/// An AllGather that a group has prepared on a window.
pub struct xtie_all_gather {
    _opaque: [u8; 0],
}

/// Bytes that tell other endpoints where a listener is: send them there in any way, such as a
/// file, a socket or MPI. Plain data without pointers; valid as long as the listener.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_handle {
    /// The bytes, not for reading.
    pub bytes: [u8; 128],
}

/// An object as the number that C holds in a pointer.
pub(crate) trait Tagged {
    /// What the library calls it.
    type Name: Copy;
    fn number(name: Self::Name) -> u64;
    fn name(number: u64) -> Self::Name;
}

macro_rules! tagged {
    ($($c:ty => $name:ty, $into:expr, $from:expr;)*) => {$(
        impl Tagged for $c {
            type Name = $name;
            #[inline(always)]
            fn number(name: $name) -> u64 {
                ($into)(name)
            }
            #[inline(always)]
            fn name(number: u64) -> $name {
                ($from)(number)
            }
        }
    )*};
}

tagged! {
    xtie_listener => ListenerId, |name: ListenerId| name.0.pack(),
        |number| ListenerId(Handle::unpack(number));
    xtie_attempt => Attempt, |name: Attempt| name.0.pack(),
        |number| Attempt(Handle::unpack(number));
    xtie_connection => Handle, Handle::pack, Handle::unpack;
    xtie_memory => Handle, Handle::pack, Handle::unpack;
    xtie_window => Handle, Handle::pack, Handle::unpack;
    xtie_all_gather => Handle, Handle::pack, Handle::unpack;
    xtie_request => RequestId, |name: RequestId| name.0, RequestId;
}

/// The pointer for an object.
#[inline(always)]
pub(crate) fn tag<T: Tagged>(name: T::Name) -> *mut T {
    without_provenance_mut(T::number(name) as usize)
}

/// The object for a pointer; NULL gives a name that was never handed out.
#[inline(always)]
pub(crate) fn untag<T: Tagged>(pointer: *const T) -> T::Name {
    T::name(pointer.addr() as u64)
}
