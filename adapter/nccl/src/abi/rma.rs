//! `ncclRma` of each version, and the functions of proxy mode, which older tables of GIN have too:
//! functions by birth version, then the tables made of them.

use super::gin::{Connect, DeregMrSym, Init, Listen, OfObject, PropertiesV13, QueryLastError};
use super::table::{Devices, Pointer};
use super::{Rc, Text, layout};
use core::ffi::c_int;
use static_assertions::assert_impl_all;

/// Puts bytes: communicator; source offset, memory and bytes; target offset, memory and rank;
/// request.
pub type IputV11 =
    unsafe extern "C" fn(Pointer, u64, Pointer, usize, u64, Pointer, u32, *mut Pointer) -> Rc;
/// The same, and then a signal: its offset, memory, value and operation.
pub type IputSignalV11 = unsafe extern "C" fn(
    Pointer,
    u64,
    Pointer,
    usize,
    u64,
    Pointer,
    u32,
    u64,
    Pointer,
    u64,
    u32,
    *mut Pointer,
) -> Rc;
/// Of a context: contexts, and which of them.
pub type IputV13 = unsafe extern "C" fn(
    Pointer,
    c_int,
    u64,
    Pointer,
    usize,
    u64,
    Pointer,
    u32,
    *mut Pointer,
) -> Rc;
/// The same, and then a signal.
pub type IputSignalV13 = unsafe extern "C" fn(
    Pointer,
    c_int,
    u64,
    Pointer,
    usize,
    u64,
    Pointer,
    u32,
    u64,
    Pointer,
    u64,
    u32,
    *mut Pointer,
) -> Rc;
/// Gets bytes; the remote side stands first.
pub type IgetV13 = IputV13;
/// Waits for gets: contexts and which of them, memory, rank, request.
pub type Iflush = unsafe extern "C" fn(Pointer, c_int, Pointer, u32, *mut Pointer) -> Rc;
/// How a request of a communicator stands.
pub type Test = unsafe extern "C" fn(Pointer, Pointer, *mut c_int) -> Rc;
/// With whether the signal covers what came before, a `bool` of C.
pub type IputSignalV14 = unsafe extern "C" fn(
    Pointer,
    c_int,
    u64,
    Pointer,
    usize,
    u64,
    Pointer,
    u32,
    u64,
    Pointer,
    u64,
    u32,
    u8,
    *mut Pointer,
) -> Rc;
/// With flags.
pub type IputV15 = unsafe extern "C" fn(
    Pointer,
    c_int,
    u64,
    Pointer,
    usize,
    u64,
    Pointer,
    u32,
    u32,
    *mut Pointer,
) -> Rc;
/// With flags.
pub type IputSignalV15 = unsafe extern "C" fn(
    Pointer,
    c_int,
    u64,
    Pointer,
    usize,
    u64,
    Pointer,
    u32,
    u64,
    Pointer,
    u64,
    u32,
    u8,
    u32,
    *mut Pointer,
) -> Rc;
/// With flags.
pub type IgetV15 = IputV15;
/// Makes contexts.
pub type CreateContextV14 = unsafe extern "C" fn(Pointer, *const ConfigV14, *mut Pointer) -> Rc;
/// Registers memory at all ranks.
pub type RegMrSym = unsafe extern "C" fn(Pointer, Pointer, usize, c_int, u64, *mut Pointer) -> Rc;
/// The same for memory with a dma-buf.
pub type RegMrSymDmaBuf =
    unsafe extern "C" fn(Pointer, Pointer, usize, c_int, u64, c_int, u64, *mut Pointer) -> Rc;

/// `ncclRmaConfig_v14_t`.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ConfigV14 {
    /// How many contexts.
    pub contexts: c_int,
    /// −1: undefined.
    pub traffic_class: c_int,
    /// Only ranks that many apart are addressed.
    pub rank_stride: c_int,
}

layout!(ConfigV14, 12 / 4, contexts 0, traffic_class 4, rank_stride 8);

/// A table from v14 on: `P`, `S` and `G` are its put, put with signal, and get.
#[repr(C)]
pub struct Rma<P, S, G> {
    /// The plugin's name.
    pub name: Text,
    /// See the type.
    pub init: Init,
    /// See the type.
    pub devices: Devices,
    /// See the type.
    pub get_properties: PropertiesV13,
    /// See the type.
    pub listen: Listen,
    /// See the type.
    pub connect: Connect,
    /// See the type.
    pub create_context: CreateContextV14,
    /// See the type.
    pub reg_mr_sym: RegMrSym,
    /// See the type.
    pub reg_mr_sym_dma_buf: RegMrSymDmaBuf,
    /// See the type.
    pub dereg_mr_sym: DeregMrSym,
    /// See the type.
    pub destroy_context: OfObject,
    /// See the type.
    pub close_coll: OfObject,
    /// See the type.
    pub close_listen: OfObject,
    /// See the type.
    pub iput: P,
    /// See the type.
    pub iput_signal: S,
    /// See the type.
    pub iget: G,
    /// See the type.
    pub iflush: Iflush,
    /// See the type.
    pub test: Test,
    /// See the type.
    pub rma_progress: OfObject,
    /// See the type.
    pub query_last_error: QueryLastError,
    /// See the type.
    pub finalize: OfObject,
}

/// `ncclRma_v14_t`.
pub type RmaV14 = Rma<IputV13, IputSignalV14, IgetV13>;
/// `ncclRma_v15_t`.
pub type RmaV15 = Rma<IputV15, IputSignalV15, IgetV15>;

layout!(RmaV14, 168 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    create_context 48, reg_mr_sym 56, reg_mr_sym_dma_buf 64, dereg_mr_sym 72, destroy_context 80,
    close_coll 88, close_listen 96, iput 104, iput_signal 112, iget 120, iflush 128, test 136,
    rma_progress 144, query_last_error 152, finalize 160);
layout!(RmaV15, 168 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    create_context 48, reg_mr_sym 56, reg_mr_sym_dma_buf 64, dereg_mr_sym 72, destroy_context 80,
    close_coll 88, close_listen 96, iput 104, iput_signal 112, iget 120, iflush 128, test 136,
    rma_progress 144, query_last_error 152, finalize 160);

// The tables hold no state: function pointers and text of static life.
assert_impl_all!(RmaV14: Sync);
assert_impl_all!(RmaV15: Sync);
