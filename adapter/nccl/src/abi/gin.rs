//! `ncclGin` of each version: functions by birth version, then the tables made of them.

use super::props::{PropsV11, PropsV12};
use super::rma::{Iflush, IgetV13, IputSignalV11, IputSignalV13, IputV11, IputV13, Test};
use super::table::{Devices, Pointer};
use super::{DeviceHandle, Logger, Rc, Text, layout};
use core::ffi::c_int;
use static_assertions::assert_impl_all;

/// Opens the plugin, once more for each communicator.
pub type Init = unsafe extern "C" fn(*mut Pointer, u64, Option<Logger>) -> Rc;
/// What a device is.
pub type PropertiesV11 = unsafe extern "C" fn(c_int, *mut PropsV11) -> Rc;
/// What a device is.
pub type PropertiesV13 = unsafe extern "C" fn(c_int, *mut PropsV12) -> Rc;
/// What the plugin can do.
pub type GinPropertiesV14 = unsafe extern "C" fn(*mut GinPropsV14) -> Rc;
/// Opens a listener, and writes its handle.
pub type Listen = unsafe extern "C" fn(Pointer, c_int, Pointer, *mut Pointer) -> Rc;
/// Brings the ranks together.
pub type Connect =
    unsafe extern "C" fn(Pointer, *mut Pointer, c_int, c_int, Pointer, *mut Pointer) -> Rc;
/// Makes a context.
pub type CreateContextV11 =
    unsafe extern "C" fn(Pointer, c_int, c_int, *mut Pointer, *mut *mut DeviceHandle) -> Rc;
/// Makes contexts.
pub type CreateContextV13 =
    unsafe extern "C" fn(Pointer, *const ConfigV13, *mut Pointer, *mut *mut DeviceHandle) -> Rc;
/// With a version of the device structures.
pub type CreateContextV14 =
    unsafe extern "C" fn(Pointer, *const ConfigV14, *mut Pointer, *mut *mut DeviceHandle) -> Rc;
/// Registers memory at all ranks.
pub type RegMrSym =
    unsafe extern "C" fn(Pointer, Pointer, usize, c_int, u64, *mut Pointer, *mut Pointer) -> Rc;
/// The same for memory with a dma-buf.
pub type RegMrSymDmaBuf = unsafe extern "C" fn(
    Pointer,
    Pointer,
    usize,
    c_int,
    u64,
    c_int,
    u64,
    *mut Pointer,
    *mut Pointer,
) -> Rc;
/// Ends a registration.
pub type DeregMrSym = unsafe extern "C" fn(Pointer, Pointer) -> Rc;
/// Ends or drives an object.
pub type OfObject = unsafe extern "C" fn(Pointer) -> Rc;
/// Whether a queue has failed.
pub type QueryLastError = unsafe extern "C" fn(Pointer, *mut bool) -> Rc;

/// `ncclGinConfig_v13_t`.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ConfigV13 {
    /// Signals of each context.
    pub signals: c_int,
    /// Counters of each context.
    pub counters: c_int,
    /// How many contexts.
    pub contexts: c_int,
    /// Entries of a queue; 0 or less: the plugin's choice.
    pub queue_depth: c_int,
    /// −1: undefined.
    pub traffic_class: c_int,
}

/// `ncclGinConfig_v14_t`.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ConfigV14 {
    /// As before.
    pub base: ConfigV13,
    /// Which structures the device code reads.
    pub backend_version: c_int,
    /// Only ranks that many apart are addressed.
    pub rank_stride: c_int,
}

/// `ncclGinProperties_v14_t`.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct GinPropsV14 {
    /// Whether a signal covers all that came before it.
    pub strong_signals: bool,
    /// Whether words of windows may be signals.
    pub va_signals: bool,
}

layout!(ConfigV13, 20 / 4, signals 0, counters 4, contexts 8, queue_depth 12, traffic_class 16);
layout!(ConfigV14, 28 / 4, base 0, backend_version 20, rank_stride 24);
layout!(GinPropsV14, 2 / 1, strong_signals 0, va_signals 1);

/// `ncclGin_v11_t`.
#[repr(C)]
pub struct GinV11 {
    /// The plugin's name.
    pub name: Text,
    /// See the type.
    pub init: Init,
    /// See the type.
    pub devices: Devices,
    /// See the type.
    pub get_properties: PropertiesV11,
    /// See the type.
    pub listen: Listen,
    /// See the type.
    pub connect: Connect,
    /// See the type.
    pub create_context: CreateContextV11,
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
    pub iput: IputV11,
    /// See the type.
    pub iput_signal: IputSignalV11,
    /// See the type.
    pub test: Test,
    /// See the type.
    pub gin_progress: OfObject,
    /// See the type.
    pub query_last_error: QueryLastError,
    /// See the type.
    pub finalize: OfObject,
}

/// `ncclGin_v13_t`.
#[repr(C)]
pub struct GinV13 {
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
    pub create_context: CreateContextV13,
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
    pub iput: IputV13,
    /// See the type.
    pub iput_signal: IputSignalV13,
    /// See the type.
    pub iget: IgetV13,
    /// See the type.
    pub iflush: Iflush,
    /// See the type.
    pub test: Test,
    /// See the type.
    pub gin_progress: OfObject,
    /// See the type.
    pub query_last_error: QueryLastError,
    /// See the type.
    pub finalize: OfObject,
}

/// `ncclGin_v14_t`.
#[repr(C)]
pub struct GinV14 {
    /// The plugin's name.
    pub name: Text,
    /// See the type.
    pub init: Init,
    /// See the type.
    pub devices: Devices,
    /// See the type.
    pub get_gin_properties: GinPropertiesV14,
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
    pub gin_progress: OfObject,
    /// See the type.
    pub query_last_error: QueryLastError,
    /// See the type.
    pub finalize: OfObject,
}

layout!(GinV11, 152 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    create_context 48, reg_mr_sym 56, reg_mr_sym_dma_buf 64, dereg_mr_sym 72, destroy_context 80,
    close_coll 88, close_listen 96, iput 104, iput_signal 112, test 120, gin_progress 128,
    query_last_error 136, finalize 144);
layout!(GinV13, 168 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    create_context 48, reg_mr_sym 56, reg_mr_sym_dma_buf 64, dereg_mr_sym 72, destroy_context 80,
    close_coll 88, close_listen 96, iput 104, iput_signal 112, iget 120, iflush 128, test 136,
    gin_progress 144, query_last_error 152, finalize 160);
layout!(GinV14, 136 / 8, name 0, init 8, devices 16, get_gin_properties 24, get_properties 32,
    listen 40, connect 48, create_context 56, reg_mr_sym 64, reg_mr_sym_dma_buf 72,
    dereg_mr_sym 80, destroy_context 88, close_coll 96, close_listen 104, gin_progress 112,
    query_last_error 120, finalize 128);

// The tables hold no state: function pointers and text of static life.
assert_impl_all!(GinV11: Sync);
assert_impl_all!(GinV13: Sync);
assert_impl_all!(GinV14: Sync);
