//! What an endpoint is opened with, and how much storage that takes.

use crate::device::kind_or_error;
use crate::guard::{self, ROOM_BYTES};
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use crate::structs::{Sized32, read, write};
use crate::text::Text;
use core::ffi::c_int;
use core::fmt::{Arguments, Write};
use crosstie::base::units::{Bytes, Span};
use crosstie::connect::interfaces::{AddressFamily, Interfaces};
use crosstie::host::device::{DEVICES, DeviceKind};
use crosstie::host::options::StorageTerms;
use crosstie::host::{Options, log};
use crosstie::transport::Limits;
use crosstie::transport::limits::LimitsError;

/// Alignment of an endpoint's storage in bytes.
pub const XTIE_STORAGE_ALIGN: u32 = 64;
/// Most receives in one call of xtie_connection_irecv.
pub const XTIE_GROUP_MAX: u32 = 8;

/// Flag of xtie_endpoint_config: without xtie_memory_alloc, and the address space it reserves.
pub const XTIE_ENDPOINT_NO_HEAP: u32 = 0x1;
/// Flag of xtie_endpoint_config: receives are offered to senders also over shared memory, where the
/// peer's endpoint has the flag, too, and requests_max 32 both or neither, as always over TCP.
/// Messages that nobody receives yet then never stand before others, whatever their tags; a short
/// message takes some 0.3 us more, and from 2 KiB on it waits for its receive, as a long one does.
/// The NCCL plugin's endpoints do so.
pub const XTIE_ENDPOINT_PUSH: u32 = 0x2;

/// Flag of xtie_endpoint_config: RDMA ports have companions, queue pairs by which the NIC adds to
/// counters of this process (doc/verbs.md). A connection then has one RDMA rail at most, whatever
/// rails_max is, and ends when it loses that rail.
pub const XTIE_ENDPOINT_COMPANIONS: u32 = 0x4;

/// All flags that there are.
const FLAGS: u32 = XTIE_ENDPOINT_NO_HEAP | XTIE_ENDPOINT_PUSH | XTIE_ENDPOINT_COMPANIONS;

/// Term of XTIE_ENDPOINT_BYTES: an endpoint without anything.
pub const XTIE_BYTES_FIXED: u32 = 8192;
/// Term of XTIE_ENDPOINT_BYTES: a connection without requests.
pub const XTIE_BYTES_CONNECTION: u32 = 4096;
/// Term of XTIE_RAILS_BYTES: a connection that may have several rails.
pub const XTIE_BYTES_SEVERAL: u32 = 10240;
/// Term of XTIE_RAILS_BYTES: each of them.
pub const XTIE_BYTES_RAIL: u32 = 2560;
/// Term of XTIE_ENDPOINT_BYTES: a send and a group of eight receives of one connection.
pub const XTIE_BYTES_REQUEST: u32 = 880;
/// Term of XTIE_ENDPOINT_BYTES: a transfer that is under way, and news from the side band.
pub const XTIE_BYTES_OPERATION: u32 = 512;
/// Term of XTIE_ENDPOINT_BYTES: registered memory.
pub const XTIE_BYTES_REGION: u32 = 144;
/// Term of XTIE_LOOPBACK_BYTES: what a connection takes more than elsewhere.
pub const XTIE_BYTES_LOOPBACK: u32 = 90112;
/// Term of XTIE_LOOPBACK_BYTES: what a transfer takes more than elsewhere.
pub const XTIE_BYTES_LOOPBACK_OPERATION: u32 = 512;

/// What an endpoint is opened with. A field that is zero means the default, so that a zeroed
/// structure with struct_size set is complete; xtie_endpoint_config_init writes the defaults out.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_endpoint_config {
    /// sizeof(xtie_endpoint_config).
    pub struct_size: u32,
    /// The device's number; 0 reaches processes of every host, each by the rail that suits it.
    pub device: u32,
    /// Most connections at a time, 1 to 65536; default 64.
    pub connections_max: u32,
    /// Most outstanding sends, and most outstanding groups of receives, of one connection: 32, 64,
    /// 128 or 256; default 32. Peers over TCP must both have 32, or neither.
    pub requests_max: u32,
    /// Most pieces of registered memory, 1 to 65534; default 256.
    pub regions_max: u32,
    /// Longest message in bytes that is copied instead of read in place: up to a quarter of the
    /// send ring less 64, and 16384; default 8192, or what a shorter ring takes. From memory of
    /// xtie_memory_alloc, 1024 at most: peers read that without help. Over TCP sixteen times as
    /// many, and 131072 at most, leave before their receive is there; a connection of several
    /// rails sends 2048 at most so.
    pub eager_bytes_max: u32,
    /// Shared memory in bytes for messages, of each connection and direction: a power of two from
    /// 4096 to 131072; default 65536.
    pub send_ring_bytes: u32,
    /// Shared memory in bytes for control and for transfers in two copies, of each connection and
    /// direction: a power of two from 4096 to 16777216; default 32768. From 262144 on ordinary
    /// memory is always copied through it, which is faster than the kernel's one copy, but takes
    /// place only while its owner calls the library.
    pub write_ring_bytes: u32,
    /// Address space in bytes that xtie_memory_alloc takes from, in whole pages; memory is used as
    /// it is allocated. Below 2^47; under a limit (ulimit -v) half of what is left at most. Each
    /// peer on this host maps it, too, or reads what lies in it more slowly. Default 64 GiB.
    pub heap_bytes: u64,
    /// How long a connect may take, with all addresses that are tried, in milliseconds; default
    /// 10000. CROSSTIE_CONNECT_TIMEOUT_MS overrides it.
    pub connect_timeout_ms: u32,
    /// XTIE_ENDPOINT_ flags, or zero.
    pub flags: u32,
    /// Most rails of one connection, each of which may die without it: 1, 2, 4 or 8; default 2.
    /// Of the loopback device there is one.
    pub rails_max: u32,
    /// Zero.
    pub reserved: u32,
}

/// The size of the first version, which ended before `rails_max`.
const FIRST_BYTES: usize = 48;

// SAFETY: integers without padding (8 of 4 bytes, one of 8, 4 of 4); the snapshot has the offsets.
unsafe impl Sized32 for xtie_endpoint_config {
    const EARLIER_BYTES: &'static [usize] = &[FIRST_BYTES];
}

/// The larger of what was asked for and nothing, which means the default.
fn or<T: PartialEq + Default>(value: T, default: T) -> T {
    if value == T::default() { default } else { value }
}

/// Says which value is wrong and what it may be, since a code has no room for that; hands the code
/// back. There is no endpoint yet that could keep the sentence.
pub(crate) fn refused(result: xtie_result, why: Arguments<'_>) -> xtie_result {
    let text: Text = Text::of(|text| text.write_fmt(why));
    log::say(log::Level::Error, text.as_str());
    result
}

/// A size that no version of the structure has.
fn size_refused(size: usize) -> xtie_result {
    let (ours, first) = (size_of::<xtie_endpoint_config>(), FIRST_BYTES);
    refused(
        XTIE_ERR_STRUCT_SIZE,
        format_args!(
            "xtie_endpoint_config: struct_size is {size}, this version's is {ours}, the first \
             one's was {first}"
        ),
    )
}

/// The structure of the caller's.
///
/// # Safety
/// - `config` is null, or valid for reads of the bytes that its first word says.
unsafe fn told(config: *const xtie_endpoint_config) -> Result<xtie_endpoint_config, xtie_result> {
    // SAFETY: by this function's contract.
    let read = unsafe { read(config) };
    read.map_err(|result| {
        if config.is_null() {
            return result;
        }
        // SAFETY: not null, so that its first word may be read, by this function's contract.
        let size = unsafe { config.cast::<u32>().read_unaligned() } as usize;
        match result {
            XTIE_ERR_STRUCT_SIZE => size_refused(size),
            result => refused(
                result,
                format_args!(
                    "xtie_endpoint_config: a field is set that this version does not know: \
                     struct_size is {size}, this version's is {}",
                    size_of::<xtie_endpoint_config>()
                ),
            ),
        }
    })
}

/// The code of a limit, and its sentence.
fn limit_refused(limits: &Limits, error: LimitsError) -> xtie_result {
    let (result, name, value, wanted) = match error {
        LimitsError::Connections => {
            (XTIE_ERR_CONNECTIONS_MAX, "connections_max", limits.connections_max, "from 1 to 65536")
        }
        LimitsError::Requests => {
            (XTIE_ERR_REQUESTS_MAX, "requests_max", limits.requests_max, "32, 64, 128 or 256")
        }
        LimitsError::Regions => {
            (XTIE_ERR_REGIONS_MAX, "regions_max", limits.regions_max, "from 1 to 65534")
        }
        LimitsError::Rails => (XTIE_ERR_RAILS_MAX, "rails_max", limits.rails_max, "1, 2, 4 or 8"),
    };
    refused(result, format_args!("xtie_endpoint_config: {name} is {value}: it must be {wanted}"))
}

/// The kind of a device's number.
fn device(device: u32) -> Result<DeviceKind, xtie_result> {
    kind_or_error(device).map_err(|result| {
        let last = DEVICES.len() - 1;
        refused(
            result,
            format_args!("xtie_endpoint_config: device is {device}: it must be from 0 to {last}"),
        )
    })
}

/// The options for a configuration of the caller's.
///
/// # Safety
/// - `config` is null, or valid for reads of the bytes that its first word says.
pub(crate) unsafe fn options(config: *const xtie_endpoint_config) -> Result<Options, xtie_result> {
    // SAFETY: by this function's contract.
    let config = unsafe { told(config)? };
    if config.flags & !FLAGS != 0 {
        return Err(refused(
            XTIE_ERR_FLAGS,
            format_args!(
                "xtie_endpoint_config: flags is {:#x}: the known flags are \
                 {XTIE_ENDPOINT_NO_HEAP:#x}, {XTIE_ENDPOINT_PUSH:#x} and \
                 {XTIE_ENDPOINT_COMPANIONS:#x}",
                config.flags
            ),
        ));
    }
    if config.reserved != 0 {
        return Err(refused(
            XTIE_ERR_STRUCT,
            format_args!("xtie_endpoint_config: reserved is {}, not zero", config.reserved),
        ));
    }
    let default = Options::default();
    let mut options = Options {
        device: device(config.device)?,
        limits: Limits {
            connections_max: or(config.connections_max, default.limits.connections_max),
            requests_max: or(config.requests_max, default.limits.requests_max),
            regions_max: or(config.regions_max, default.limits.regions_max),
            rails_max: match config.struct_size as usize {
                // a program of a time when there was one, and of the storage that this takes
                FIRST_BYTES => 1,
                _ => or(config.rails_max, default.limits.rails_max),
            },
        },
        eager_bytes_max: or(Bytes(config.eager_bytes_max.into()), default.eager_bytes_max),
        send_ring_bytes: or(config.send_ring_bytes, default.send_ring_bytes),
        write_ring_bytes: or(config.write_ring_bytes, default.write_ring_bytes),
        push: config.flags & XTIE_ENDPOINT_PUSH != 0,
        accept_taken: default.accept_taken,
        thread_retires: default.thread_retires,
        shm_threads: default.shm_threads,
        tcp_threads: default.tcp_threads,
        variables: None,
        verbs_names: default.verbs_names,
        verbs_traffic_class: default.verbs_traffic_class,
        ports: default.ports,
        nics: default.nics,
        heap_bytes: match config.flags & XTIE_ENDPOINT_NO_HEAP {
            0 => or(Bytes(config.heap_bytes), default.heap_bytes),
            _ => Bytes::ZERO,
        },
        handshake_deadline: or(
            Span::millis(config.connect_timeout_ms.into()),
            default.handshake_deadline,
        ),
        interfaces: Interfaces::NONE,
        interfaces_spare: None,
        family: AddressFamily::Any,
        tcp_rails: 0,
        tcp_call_bytes: default.tcp_call_bytes,
        companions: config.flags & XTIE_ENDPOINT_COMPANIONS != 0,
        gpu_flushes: default.gpu_flushes,
    };
    if options.eager_bytes_max == default.eager_bytes_max {
        // who wants a short ring need not know what else follows from it
        options.eager_bytes_fit();
    }
    checked(options)
}

/// The options, if they are possible.
fn checked(options: Options) -> Result<Options, xtie_result> {
    let limits = &options.limits;
    limits.check().map_err(|error| limit_refused(limits, error))?;
    if limits.regions_max > 65534 {
        return Err(limit_refused(limits, LimitsError::Regions));
    }
    options
        .check()
        .map_err(|error| refused(crate::errors::open_result(&error), format_args!("{error}")))?;
    Ok(options)
}

/// Bytes of storage for options: the sum that stands as a macro in the header.
pub(crate) fn storage_bytes(options: &Options) -> usize {
    options.storage_bytes()
}

/// The header's terms are those of the library.
const _: () = {
    let (host, loopback) = (StorageTerms::HOST, StorageTerms::LOOPBACK);
    assert!(host.fixed == XTIE_BYTES_FIXED && loopback.fixed == XTIE_BYTES_FIXED);
    assert!(host.connection == XTIE_BYTES_CONNECTION);
    assert!(loopback.connection == XTIE_BYTES_CONNECTION + XTIE_BYTES_LOOPBACK);
    assert!(host.request == XTIE_BYTES_REQUEST && loopback.request == XTIE_BYTES_REQUEST);
    assert!(host.operation == XTIE_BYTES_OPERATION);
    assert!(loopback.operation == XTIE_BYTES_OPERATION + XTIE_BYTES_LOOPBACK_OPERATION);
    assert!(host.region == XTIE_BYTES_REGION && loopback.region == XTIE_BYTES_REGION);
    assert!(host.several == XTIE_BYTES_SEVERAL && loopback.several == XTIE_BYTES_SEVERAL);
    assert!(host.rail == XTIE_BYTES_RAIL && loopback.rail == XTIE_BYTES_RAIL);
};

/// For tests: what the endpoint and the guard really take.
#[doc(hidden)]
pub fn exact_bytes_for_tests(options: &Options) -> usize {
    ROOM_BYTES + options.bytes()
}

/// ---- Endpoint ----------------------------------------------------------------------------------
///
/// Writes the defaults.
///
/// config_out: all of it is written, struct_size too.
/// struct_size: sizeof(xtie_endpoint_config) of the program, so that a library older than the
///     program's header can tell when it is asked for something that it does not know.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE.
/// Threads: any. Cost: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_config_init(
    config_out: *mut xtie_endpoint_config,
    struct_size: usize,
) -> c_int {
    guard::free(|| {
        if config_out.is_null() {
            return XTIE_ERR_NULL;
        }
        let Ok(size) = u32::try_from(struct_size) else { return size_refused(struct_size) };
        if !xtie_endpoint_config::is_size(struct_size) {
            return size_refused(struct_size);
        }
        let default = Options::default();
        let config = xtie_endpoint_config {
            struct_size: size,
            device: 0,
            connections_max: default.limits.connections_max,
            requests_max: default.limits.requests_max,
            regions_max: default.limits.regions_max,
            eager_bytes_max: default.eager_bytes_max.0 as u32,
            send_ring_bytes: default.send_ring_bytes,
            write_ring_bytes: default.write_ring_bytes,
            heap_bytes: default.heap_bytes.0,
            connect_timeout_ms: (default.handshake_deadline.0 / 1_000_000) as u32,
            flags: 0,
            rails_max: default.limits.rails_max,
            reserved: 0,
        };
        // SAFETY: not null, and the caller says that it has `struct_size` bytes.
        unsafe { config_out.cast::<u32>().write_unaligned(size) };
        // SAFETY: as above, and its first word says so now.
        match unsafe { write(config_out, &config) } {
            Ok(()) => XTIE_OK,
            Err(result) => result,
        }
    })
}

/// How much storage an endpoint takes; XTIE_ENDPOINT_BYTES and XTIE_LOOPBACK_BYTES say the same to
/// the compiler. Only the device's kind, connections_max, requests_max, regions_max and rails_max
/// matter.
///
/// config: the caller's, read only during the call.
/// bytes_out: the size in bytes.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE, XTIE_ERR_STRUCT, XTIE_ERR_FLAGS,
///     XTIE_ERR_DEVICE, XTIE_ERR_CONNECTIONS_MAX, XTIE_ERR_REQUESTS_MAX, XTIE_ERR_REGIONS_MAX,
///     XTIE_ERR_RAILS_MAX, XTIE_ERR_RINGS. The log says which value was wrong and what is needed.
/// Threads: any. Cost: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_size(
    config: *const xtie_endpoint_config,
    bytes_out: *mut usize,
) -> c_int {
    guard::free(|| {
        if bytes_out.is_null() {
            return XTIE_ERR_NULL;
        }
        // SAFETY: null, or a structure whose size its first word says (crosstie.h).
        match unsafe { options(config) } {
            Ok(options) => {
                // SAFETY: not null, and the caller's to be written.
                unsafe { bytes_out.write(storage_bytes(&options)) };
                XTIE_OK
            }
            Err(result) => result,
        }
    })
}
