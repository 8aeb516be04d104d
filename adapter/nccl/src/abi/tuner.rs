//! `ncclTuner` of each version: functions by birth version, then the tables made of them.

use super::table::Pointer;
use super::{Logger, Rc, Text, layout};
use core::ffi::c_int;
use static_assertions::assert_impl_all;

/// Begins a communicator: ranks, nodes.
pub type InitV2 = unsafe extern "C" fn(usize, usize, Option<Logger>, *mut Pointer) -> Rc;
/// The same: context, communicator, ranks, nodes; NVLink domains and constants of NCCL's model.
pub type InitV5 =
    unsafe extern "C" fn(*mut Pointer, u64, usize, usize, Option<Logger>, Pointer, Pointer) -> Rc;
/// Chooses for a collective: kind, bytes; algorithm, protocol and channels are written.
pub type InfoV2 = unsafe extern "C" fn(
    Pointer,
    c_int,
    usize,
    c_int,
    c_int,
    c_int,
    *mut c_int,
    *mut c_int,
    *mut c_int,
) -> Rc;
/// The same: kind, bytes, operations in the group, a table of costs by algorithm and protocol with
/// its two lengths; channels are written.
pub type InfoV3 =
    unsafe extern "C" fn(Pointer, c_int, usize, c_int, *mut f32, c_int, c_int, *mut c_int) -> Rc;
/// The same, and whether the user's buffers are registered.
pub type InfoV4 = unsafe extern "C" fn(
    Pointer,
    c_int,
    usize,
    c_int,
    *mut f32,
    c_int,
    c_int,
    c_int,
    *mut c_int,
) -> Rc;
/// Ends a communicator.
pub type End = unsafe extern "C" fn(Pointer) -> Rc;

/// A table: a name and three functions.
#[repr(C)]
pub struct Tuner<Init, Info> {
    /// What the log calls it.
    pub name: Text,
    /// See the type.
    pub init: Init,
    /// See the type.
    pub get_coll_info: Info,
    /// See the type.
    pub end: End,
}

/// `ncclTuner_v2_t`.
pub type TunerV2 = Tuner<InitV2, InfoV2>;
/// `ncclTuner_v3_t`.
pub type TunerV3 = Tuner<InitV2, InfoV3>;
/// `ncclTuner_v4_t`.
pub type TunerV4 = Tuner<InitV2, InfoV4>;
/// `ncclTuner_v5_t`.
pub type TunerV5 = Tuner<InitV5, InfoV4>;

layout!(TunerV2, 32 / 8, name 0, init 8, get_coll_info 16, end 24);
layout!(TunerV3, 32 / 8, name 0, init 8, get_coll_info 16, end 24);
layout!(TunerV4, 32 / 8, name 0, init 8, get_coll_info 16, end 24);
layout!(TunerV5, 32 / 8, name 0, init 8, get_coll_info 16, end 24);

// The tables hold no state: function pointers and text of static life.
assert_impl_all!(TunerV2: Sync);
assert_impl_all!(TunerV3: Sync);
assert_impl_all!(TunerV4: Sync);
assert_impl_all!(TunerV5: Sync);
