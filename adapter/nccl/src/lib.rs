//! The net plugin for NCCL and RCCL: `libnccl-net-crosstie.so`.
//!
//! NCCL finds a table of functions by its symbol, and takes the newest that it knows. The tables'
//! layouts stand in [`abi`], their functions in [`birth`], one file per version in which any of
//! them was born, and what they do, without versions, in [`net`]. Nothing but the tables is
//! visible outside.
//!
//! Slots that NCCL allows to be NULL, and for which there is nothing to do, are: memory of GPUs,
//! and handles for devices that unpack messages.

// The names of the tables are NCCL's.
#![allow(non_upper_case_globals)]

pub mod abi;
pub mod birth;
pub mod net;

use abi::Text;
use abi::table::{NetV6, NetV7, NetV8, NetV9, NetV10, NetV11, NetV12};
use birth::{v6, v7, v8, v9, v10, v11, v12};

/// What NCCL calls the plugin: `NCCL_NET=crosstie`.
const NAME: Text = Text::new(c"crosstie");

/// For NCCL's that know version 6.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v6: NetV6 = NetV6 {
    name: NAME,
    init: v6::init,
    devices: v6::devices,
    get_properties: v6::get_properties,
    listen: v6::listen,
    connect: v6::connect,
    accept: v6::accept,
    reg_mr: v6::reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr: v6::dereg_mr,
    isend: v6::isend,
    irecv: v6::irecv,
    iflush: v6::iflush,
    test: v6::test,
    close_send: v6::close,
    close_recv: v6::close,
    close_listen: v6::close_listen,
};

/// For NCCL's that know version 7.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v7: NetV7 = NetV7 {
    name: NAME,
    init: v6::init,
    devices: v6::devices,
    get_properties: v7::get_properties,
    listen: v6::listen,
    connect: v7::connect,
    accept: v7::accept,
    reg_mr: v6::reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr: v6::dereg_mr,
    isend: v6::isend,
    irecv: v6::irecv,
    iflush: v6::iflush,
    test: v6::test,
    close_send: v6::close,
    close_recv: v6::close,
    close_listen: v6::close_listen,
    get_device_mr: None,
    irecv_consumed: None,
};

/// For NCCL's that know version 8.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v8: NetV8 = NetV8 {
    name: NAME,
    init: v6::init,
    devices: v6::devices,
    get_properties: v8::get_properties,
    listen: v6::listen,
    connect: v7::connect,
    accept: v7::accept,
    reg_mr: v8::reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr: v6::dereg_mr,
    isend: v6::isend,
    irecv: v6::irecv,
    iflush: v6::iflush,
    test: v6::test,
    close_send: v6::close,
    close_recv: v6::close,
    close_listen: v6::close_listen,
    get_device_mr: None,
    irecv_consumed: None,
};

/// For NCCL's that know version 9.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v9: NetV9 = NetV9 {
    name: NAME,
    init: v6::init,
    devices: v6::devices,
    get_properties: v9::get_properties,
    listen: v6::listen,
    connect: v7::connect,
    accept: v7::accept,
    reg_mr: v8::reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr: v6::dereg_mr,
    isend: v9::isend,
    irecv: v9::irecv,
    iflush: v6::iflush,
    test: v6::test,
    close_send: v6::close,
    close_recv: v6::close,
    close_listen: v6::close_listen,
    get_device_mr: None,
    irecv_consumed: None,
    make_v_device: Some(v9::make_v_device),
};

/// For NCCL's that know version 10.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v10: NetV10 = NetV10 {
    name: NAME,
    init: v10::init,
    devices: v6::devices,
    get_properties: v9::get_properties,
    listen: v6::listen,
    connect: v10::connect,
    accept: v7::accept,
    reg_mr: v8::reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr: v6::dereg_mr,
    isend: v10::isend,
    irecv: v10::irecv,
    iflush: v6::iflush,
    test: v6::test,
    close_send: v6::close,
    close_recv: v6::close,
    close_listen: v6::close_listen,
    get_device_mr: None,
    irecv_consumed: None,
    make_v_device: Some(v9::make_v_device),
};

/// For NCCL's that know version 11.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v11: NetV11 = NetV11 {
    name: NAME,
    init: v11::init,
    devices: v6::devices,
    get_properties: v11::get_properties,
    listen: v11::listen,
    connect: v11::connect,
    accept: v7::accept,
    reg_mr: v8::reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr: v6::dereg_mr,
    isend: v10::isend,
    irecv: v10::irecv,
    iflush: v6::iflush,
    test: v6::test,
    close_send: v6::close,
    close_recv: v6::close,
    close_listen: v6::close_listen,
    get_device_mr: None,
    irecv_consumed: None,
    make_v_device: Some(v9::make_v_device),
    finalize: v11::finalize,
    set_net_attr: Some(v11::set_net_attr),
};

/// For NCCL's that know version 12.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v12: NetV12 = NetV12 {
    name: NAME,
    init: v11::init,
    devices: v6::devices,
    get_properties: v12::get_properties,
    listen: v11::listen,
    connect: v11::connect,
    accept: v7::accept,
    reg_mr: v8::reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr: v6::dereg_mr,
    isend: v10::isend,
    irecv: v10::irecv,
    iflush: v6::iflush,
    test: v6::test,
    close_send: v6::close,
    close_recv: v6::close,
    close_listen: v6::close_listen,
    get_device_mr: None,
    irecv_consumed: None,
    make_v_device: Some(v12::make_v_device),
    finalize: v11::finalize,
    set_net_attr: Some(v11::set_net_attr),
};
