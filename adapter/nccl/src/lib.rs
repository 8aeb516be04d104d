//! The net plugin for NCCL and RCCL: `libnccl-net-crosstie.so`.
//!
//! NCCL finds a table of functions by its symbol, and takes the newest that it knows. The tables'
//! layouts stand in [`abi`], their functions in [`birth`], one file per version in which any of
//! them was born, and what they do, without versions, in [`net`]. Nothing but the tables is
//! visible outside.
//!
//! Slots that NCCL allows to be NULL, and for which there is nothing to do, are those of devices
//! that unpack messages.

// The names of the tables are NCCL's.
#![allow(non_upper_case_globals)]

pub mod abi;
pub mod birth;
mod cuda;
mod driver;
pub mod gin;
mod launcher;
pub mod net;
pub mod one_sided;
pub mod rma;
pub mod tuner;
mod variables;

use abi::Text;
use abi::gin::{GinV11, GinV13, GinV14};
use abi::rma::{RmaV14, RmaV15};
use abi::table::{NetV6, NetV7, NetV8, NetV9, NetV10, NetV11, NetV12};
use abi::tuner::{TunerV2, TunerV3, TunerV4, TunerV5};
use birth::{gin_v11, gin_v13, gin_v14, rma_v14, rma_v15, v6, v7, v8, v9, v10, v11, v12};
use one_sided::{GIN_V11, GIN_V13, GIN_V14, RMA_V14, RMA_V15};

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
    reg_mr_dma_buf: Some(v6::reg_mr_dma_buf),
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
    reg_mr_dma_buf: Some(v6::reg_mr_dma_buf),
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
    reg_mr_dma_buf: Some(v6::reg_mr_dma_buf),
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
    reg_mr_dma_buf: Some(v6::reg_mr_dma_buf),
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
    reg_mr_dma_buf: Some(v6::reg_mr_dma_buf),
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
    reg_mr_dma_buf: Some(v6::reg_mr_dma_buf),
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
    reg_mr_dma_buf: Some(v6::reg_mr_dma_buf),
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

/// GIN, for NCCL's that know version 11 of it.
#[unsafe(no_mangle)]
pub static ncclGinPlugin_v11: GinV11 = GinV11 {
    name: NAME,
    init: gin_v11::init,
    devices: gin_v11::devices::<GIN_V11>,
    get_properties: gin_v11::get_properties,
    listen: gin_v11::listen::<GIN_V11>,
    connect: gin_v11::connect,
    create_context: gin_v11::create_context,
    reg_mr_sym: gin_v11::reg_mr_sym,
    reg_mr_sym_dma_buf: gin_v11::reg_mr_sym_dma_buf,
    dereg_mr_sym: gin_v11::dereg_mr_sym,
    destroy_context: gin_v11::destroy_context,
    close_coll: gin_v11::close_coll,
    close_listen: gin_v11::close_listen,
    iput: gin_v11::iput,
    iput_signal: gin_v11::iput_signal,
    test: gin_v11::test,
    gin_progress: gin_v11::gin_progress,
    query_last_error: gin_v11::query_last_error,
    finalize: gin_v11::finalize,
};

/// GIN, for NCCL's that know version 13 of it.
#[unsafe(no_mangle)]
pub static ncclGinPlugin_v13: GinV13 = GinV13 {
    name: NAME,
    init: gin_v11::init,
    devices: gin_v11::devices::<GIN_V13>,
    get_properties: gin_v13::get_properties::<GIN_V13>,
    listen: gin_v11::listen::<GIN_V13>,
    connect: gin_v11::connect,
    create_context: gin_v13::create_context,
    reg_mr_sym: gin_v11::reg_mr_sym,
    reg_mr_sym_dma_buf: gin_v11::reg_mr_sym_dma_buf,
    dereg_mr_sym: gin_v11::dereg_mr_sym,
    destroy_context: gin_v11::destroy_context,
    close_coll: gin_v11::close_coll,
    close_listen: gin_v11::close_listen,
    iput: gin_v13::iput,
    iput_signal: gin_v13::iput_signal,
    iget: gin_v13::iget,
    iflush: gin_v13::iflush,
    test: gin_v11::test,
    gin_progress: gin_v13::gin_progress,
    query_last_error: gin_v11::query_last_error,
    finalize: gin_v11::finalize,
};

/// GIN, for NCCL's that know version 14 of it.
#[unsafe(no_mangle)]
pub static ncclGinPlugin_v14: GinV14 = GinV14 {
    name: NAME,
    init: gin_v11::init,
    devices: gin_v11::devices::<GIN_V14>,
    get_gin_properties: gin_v14::get_gin_properties,
    get_properties: gin_v13::get_properties::<GIN_V14>,
    listen: gin_v11::listen::<GIN_V14>,
    connect: gin_v11::connect,
    create_context: gin_v14::create_context,
    reg_mr_sym: gin_v11::reg_mr_sym,
    reg_mr_sym_dma_buf: gin_v11::reg_mr_sym_dma_buf,
    dereg_mr_sym: gin_v11::dereg_mr_sym,
    destroy_context: gin_v11::destroy_context,
    close_coll: gin_v11::close_coll,
    close_listen: gin_v11::close_listen,
    gin_progress: gin_v13::gin_progress,
    query_last_error: gin_v11::query_last_error,
    finalize: gin_v11::finalize,
};

/// RMA, for NCCL's that know version 14 of it.
#[unsafe(no_mangle)]
pub static ncclRmaPlugin_v14: RmaV14 = RmaV14 {
    name: NAME,
    init: gin_v11::init,
    devices: gin_v11::devices::<RMA_V14>,
    get_properties: gin_v13::get_properties::<RMA_V14>,
    listen: gin_v11::listen::<RMA_V14>,
    connect: gin_v11::connect,
    create_context: rma_v14::create_context,
    reg_mr_sym: rma_v14::reg_mr_sym,
    reg_mr_sym_dma_buf: rma_v14::reg_mr_sym_dma_buf,
    dereg_mr_sym: gin_v11::dereg_mr_sym,
    destroy_context: gin_v11::destroy_context,
    close_coll: gin_v11::close_coll,
    close_listen: gin_v11::close_listen,
    iput: gin_v13::iput,
    iput_signal: rma_v14::iput_signal,
    iget: gin_v13::iget,
    iflush: gin_v13::iflush,
    test: gin_v11::test,
    rma_progress: gin_v13::gin_progress,
    query_last_error: gin_v11::query_last_error,
    finalize: gin_v11::finalize,
};

/// RMA, for NCCL's that know version 15 of it.
#[unsafe(no_mangle)]
pub static ncclRmaPlugin_v15: RmaV15 = RmaV15 {
    name: NAME,
    init: gin_v11::init,
    devices: gin_v11::devices::<RMA_V15>,
    get_properties: gin_v13::get_properties::<RMA_V15>,
    listen: gin_v11::listen::<RMA_V15>,
    connect: gin_v11::connect,
    create_context: rma_v14::create_context,
    reg_mr_sym: rma_v14::reg_mr_sym,
    reg_mr_sym_dma_buf: rma_v14::reg_mr_sym_dma_buf,
    dereg_mr_sym: gin_v11::dereg_mr_sym,
    destroy_context: gin_v11::destroy_context,
    close_coll: gin_v11::close_coll,
    close_listen: gin_v11::close_listen,
    iput: rma_v15::iput,
    iput_signal: rma_v15::iput_signal,
    iget: rma_v15::iget,
    iflush: gin_v13::iflush,
    test: gin_v11::test,
    rma_progress: gin_v13::gin_progress,
    query_last_error: gin_v11::query_last_error,
    finalize: gin_v11::finalize,
};

/// The tuner, for NCCL's that know version 2 of it.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v2: TunerV2 = TunerV2 {
    name: NAME,
    init: birth::tuner::init_v2,
    get_coll_info: birth::tuner::info_v2,
    end: birth::tuner::end,
};

/// The tuner, for NCCL's that know version 3 of it.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v3: TunerV3 = TunerV3 {
    name: NAME,
    init: birth::tuner::init_v2,
    get_coll_info: birth::tuner::info_v3,
    end: birth::tuner::end,
};

/// The tuner, for NCCL's that know version 4 of it.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v4: TunerV4 = TunerV4 {
    name: NAME,
    init: birth::tuner::init_v2,
    get_coll_info: birth::tuner::info_v4,
    end: birth::tuner::end,
};

/// The tuner, for NCCL's that know version 5 of it.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v5: TunerV5 = TunerV5 {
    name: NAME,
    init: birth::tuner::init_v5,
    get_coll_info: birth::tuner::info_v4,
    end: birth::tuner::end,
};
