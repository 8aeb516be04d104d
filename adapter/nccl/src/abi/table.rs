//! `ncclNet` of each version: functions by birth version, then the tables made of them. A slot is
//! the same from the version in its type's name until a later one takes its place.

use super::props::{PropsV6, PropsV7, PropsV8, PropsV9, PropsV11, PropsV12};
use super::{
    CommConfig, DeviceHandle, Logger, NetAttr, ProfilerCallback, Rc, Text, VPropsV9, VPropsV12,
    layout,
};
use core::ffi::{c_int, c_void};

/// Any object of the plugin's, or memory of NCCL's.
pub type Pointer = *mut c_void;

/// Opens the plugin.
pub type InitV6 = unsafe extern "C" fn(Option<Logger>) -> Rc;

/// With a profiler.
pub type InitV10 = unsafe extern "C" fn(Option<Logger>, Option<ProfilerCallback>) -> Rc;

/// Once per communicator, whose context it makes.
pub type InitV11 = unsafe extern "C" fn(
    *mut Pointer,
    u64,
    *const CommConfig,
    Option<Logger>,
    Option<ProfilerCallback>,
) -> Rc;

/// How many devices there are.
pub type Devices = unsafe extern "C" fn(*mut c_int) -> Rc;

/// What a device is.
pub type PropertiesV6 = unsafe extern "C" fn(c_int, *mut PropsV6) -> Rc;

/// What a device is.
pub type PropertiesV7 = unsafe extern "C" fn(c_int, *mut PropsV7) -> Rc;

/// What a device is.
pub type PropertiesV8 = unsafe extern "C" fn(c_int, *mut PropsV8) -> Rc;

/// What a device is.
pub type PropertiesV9 = unsafe extern "C" fn(c_int, *mut PropsV9) -> Rc;

/// What a device is.
pub type PropertiesV11 = unsafe extern "C" fn(c_int, *mut PropsV11) -> Rc;

/// What a device is.
pub type PropertiesV12 = unsafe extern "C" fn(c_int, *mut PropsV12) -> Rc;

/// Opens a listener, and writes its handle.
pub type ListenV6 = unsafe extern "C" fn(c_int, Pointer, *mut Pointer) -> Rc;

/// For a communicator.
pub type ListenV11 = unsafe extern "C" fn(Pointer, c_int, Pointer, *mut Pointer) -> Rc;

/// Connects to a listener: again until it has.
pub type ConnectV6 = unsafe extern "C" fn(c_int, Pointer, *mut Pointer) -> Rc;

/// With a handle for the GPU.
pub type ConnectV7 =
    unsafe extern "C" fn(c_int, Pointer, *mut Pointer, *mut *mut DeviceHandle) -> Rc;

/// With a configuration.
pub type ConnectV10 = unsafe extern "C" fn(
    c_int,
    *const CommConfig,
    Pointer,
    *mut Pointer,
    *mut *mut DeviceHandle,
) -> Rc;

/// For a communicator.
pub type ConnectV11 =
    unsafe extern "C" fn(Pointer, c_int, Pointer, *mut Pointer, *mut *mut DeviceHandle) -> Rc;

/// Takes a connection: again until there is one.
pub type AcceptV6 = unsafe extern "C" fn(Pointer, *mut Pointer) -> Rc;

/// With a handle for the GPU.
pub type AcceptV7 = unsafe extern "C" fn(Pointer, *mut Pointer, *mut *mut DeviceHandle) -> Rc;

/// Registers memory.
pub type RegMrV6 = unsafe extern "C" fn(Pointer, Pointer, c_int, c_int, *mut Pointer) -> Rc;

/// Registers memory of any length.
pub type RegMrV8 = unsafe extern "C" fn(Pointer, Pointer, usize, c_int, *mut Pointer) -> Rc;

/// Registers memory of a GPU.
pub type RegMrDmaBuf =
    unsafe extern "C" fn(Pointer, Pointer, usize, c_int, u64, c_int, *mut Pointer) -> Rc;

/// Forgets memory.
pub type DeregMr = unsafe extern "C" fn(Pointer, Pointer) -> Rc;

/// Sends a message.
pub type IsendV6 =
    unsafe extern "C" fn(Pointer, Pointer, c_int, c_int, Pointer, *mut Pointer) -> Rc;

/// Of any length.
pub type IsendV9 =
    unsafe extern "C" fn(Pointer, Pointer, usize, c_int, Pointer, *mut Pointer) -> Rc;

/// With the profiler's parent.
pub type IsendV10 =
    unsafe extern "C" fn(Pointer, Pointer, usize, c_int, Pointer, Pointer, *mut Pointer) -> Rc;

/// Receives a group of messages.
pub type IrecvV6 = unsafe extern "C" fn(
    Pointer,
    c_int,
    *mut Pointer,
    *mut c_int,
    *mut c_int,
    *mut Pointer,
    *mut Pointer,
) -> Rc;

/// Of any length.
pub type IrecvV9 = unsafe extern "C" fn(
    Pointer,
    c_int,
    *mut Pointer,
    *mut usize,
    *mut c_int,
    *mut Pointer,
    *mut Pointer,
) -> Rc;

/// With the profiler's parents.
pub type IrecvV10 = unsafe extern "C" fn(
    Pointer,
    c_int,
    *mut Pointer,
    *mut usize,
    *mut c_int,
    *mut Pointer,
    *mut Pointer,
    *mut Pointer,
) -> Rc;

/// Makes received bytes visible to the GPU.
pub type Iflush = unsafe extern "C" fn(
    Pointer,
    c_int,
    *mut Pointer,
    *mut c_int,
    *mut Pointer,
    *mut Pointer,
) -> Rc;

/// Asks for the end of a request.
pub type Test = unsafe extern "C" fn(Pointer, *mut c_int, *mut c_int) -> Rc;

/// Closes an object.
pub type Close = unsafe extern "C" fn(Pointer) -> Rc;

/// Memory as the GPU knows it.
pub type GetDeviceMr = unsafe extern "C" fn(Pointer, Pointer, *mut Pointer) -> Rc;

/// The GPU has taken a group.
pub type IrecvConsumed = unsafe extern "C" fn(Pointer, c_int, Pointer) -> Rc;

/// Makes one device of several.
pub type MakeVDeviceV9 = unsafe extern "C" fn(*mut c_int, *mut VPropsV9) -> Rc;

/// Makes one device of up to eight.
pub type MakeVDeviceV12 = unsafe extern "C" fn(*mut c_int, *mut VPropsV12) -> Rc;

/// Ends a communicator's context.
pub type Finalize = unsafe extern "C" fn(Pointer) -> Rc;

/// Hints.
pub type SetNetAttr = unsafe extern "C" fn(Pointer, *mut NetAttr) -> Rc;

/// `ncclNet_v6_t`, from NCCL 2.13 on.
#[repr(C)]
#[allow(missing_docs)] // slots are explained with the types of their functions
pub struct NetV6 {
    pub name: Text,
    pub init: InitV6,
    pub devices: Devices,
    pub get_properties: PropertiesV6,
    pub listen: ListenV6,
    pub connect: ConnectV6,
    pub accept: AcceptV6,
    pub reg_mr: RegMrV6,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: DeregMr,
    pub isend: IsendV6,
    pub irecv: IrecvV6,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
}

layout!(NetV6, 136 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    accept 48, reg_mr 56, reg_mr_dma_buf 64, dereg_mr 72, isend 80, irecv 88, iflush 96, test 104,
    close_send 112, close_recv 120, close_listen 128);

/// `ncclNet_v7_t`, from NCCL 2.19 on.
#[repr(C)]
#[allow(missing_docs)] // slots are explained with the types of their functions
pub struct NetV7 {
    pub name: Text,
    pub init: InitV6,
    pub devices: Devices,
    pub get_properties: PropertiesV7,
    pub listen: ListenV6,
    pub connect: ConnectV7,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV6,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: DeregMr,
    pub isend: IsendV6,
    pub irecv: IrecvV6,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
}

layout!(NetV7, 152 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    accept 48, reg_mr 56, reg_mr_dma_buf 64, dereg_mr 72, isend 80, irecv 88, iflush 96, test 104,
    close_send 112, close_recv 120, close_listen 128, get_device_mr 136, irecv_consumed 144);

/// `ncclNet_v8_t`, from NCCL 2.20 on.
#[repr(C)]
#[allow(missing_docs)] // slots are explained with the types of their functions
pub struct NetV8 {
    pub name: Text,
    pub init: InitV6,
    pub devices: Devices,
    pub get_properties: PropertiesV8,
    pub listen: ListenV6,
    pub connect: ConnectV7,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV8,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: DeregMr,
    pub isend: IsendV6,
    pub irecv: IrecvV6,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
}

layout!(NetV8, 152 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    accept 48, reg_mr 56, reg_mr_dma_buf 64, dereg_mr 72, isend 80, irecv 88, iflush 96, test 104,
    close_send 112, close_recv 120, close_listen 128, get_device_mr 136, irecv_consumed 144);

/// `ncclNet_v9_t`, from NCCL 2.24 on.
#[repr(C)]
#[allow(missing_docs)] // slots are explained with the types of their functions
pub struct NetV9 {
    pub name: Text,
    pub init: InitV6,
    pub devices: Devices,
    pub get_properties: PropertiesV9,
    pub listen: ListenV6,
    pub connect: ConnectV7,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV8,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: DeregMr,
    pub isend: IsendV9,
    pub irecv: IrecvV9,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
    pub make_v_device: Option<MakeVDeviceV9>,
}

layout!(NetV9, 160 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    accept 48, reg_mr 56, reg_mr_dma_buf 64, dereg_mr 72, isend 80, irecv 88, iflush 96, test 104,
    close_send 112, close_recv 120, close_listen 128, get_device_mr 136, irecv_consumed 144,
    make_v_device 152);

/// `ncclNet_v10_t`, from NCCL 2.26 on.
#[repr(C)]
#[allow(missing_docs)] // slots are explained with the types of their functions
pub struct NetV10 {
    pub name: Text,
    pub init: InitV10,
    pub devices: Devices,
    pub get_properties: PropertiesV9,
    pub listen: ListenV6,
    pub connect: ConnectV10,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV8,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: DeregMr,
    pub isend: IsendV10,
    pub irecv: IrecvV10,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
    pub make_v_device: Option<MakeVDeviceV9>,
}

layout!(NetV10, 160 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    accept 48, reg_mr 56, reg_mr_dma_buf 64, dereg_mr 72, isend 80, irecv 88, iflush 96, test 104,
    close_send 112, close_recv 120, close_listen 128, get_device_mr 136, irecv_consumed 144,
    make_v_device 152);

/// `ncclNet_v11_t`, from NCCL 2.28.3 on.
#[repr(C)]
#[allow(missing_docs)] // slots are explained with the types of their functions
pub struct NetV11 {
    pub name: Text,
    pub init: InitV11,
    pub devices: Devices,
    pub get_properties: PropertiesV11,
    pub listen: ListenV11,
    pub connect: ConnectV11,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV8,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: DeregMr,
    pub isend: IsendV10,
    pub irecv: IrecvV10,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
    pub make_v_device: Option<MakeVDeviceV9>,
    pub finalize: Finalize,
    pub set_net_attr: Option<SetNetAttr>,
}

layout!(NetV11, 176 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    accept 48, reg_mr 56, reg_mr_dma_buf 64, dereg_mr 72, isend 80, irecv 88, iflush 96, test 104,
    close_send 112, close_recv 120, close_listen 128, get_device_mr 136, irecv_consumed 144,
    make_v_device 152, finalize 160, set_net_attr 168);

/// `ncclNet_v12_t`, from NCCL 2.30.3 on.
#[repr(C)]
#[allow(missing_docs)] // slots are explained with the types of their functions
pub struct NetV12 {
    pub name: Text,
    pub init: InitV11,
    pub devices: Devices,
    pub get_properties: PropertiesV12,
    pub listen: ListenV11,
    pub connect: ConnectV11,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV8,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: DeregMr,
    pub isend: IsendV10,
    pub irecv: IrecvV10,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
    pub make_v_device: Option<MakeVDeviceV12>,
    pub finalize: Finalize,
    pub set_net_attr: Option<SetNetAttr>,
}

layout!(NetV12, 176 / 8, name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
    accept 48, reg_mr 56, reg_mr_dma_buf 64, dereg_mr 72, isend 80, irecv 88, iflush 96, test 104,
    close_send 112, close_recv 120, close_listen 128, get_device_mr 136, irecv_consumed 144,
    make_v_device 152, finalize 160, set_net_attr 168);
