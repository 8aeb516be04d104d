//! Whether NCCL hands us memory of GPUs. It does for two reasons:
//!
//! - Copy engines: `CROSSTIE_NCCL_CUDA=1` says so, or the launcher says that all ranks run on this
//!   host. They move what NCCL sends, from GPU to GPU. To another host such messages would go
//!   through the host, and NCCL's own way there is faster.
//! - NICs: those of the device register memory of every GPU that this process sees.

use crate::driver::driver;
use crate::launcher;
use crate::net::device::{Device, GpuWay};
use crate::net::log;
use crate::variables;
use crosstie::host::settings;
use crosstie::memory::Variables;
use crosstie::memory::cuda::Library;
use crosstie::memory::cuda::dmabuf::all_suit_nics;
use crosstie::memory::cuda::gpu::{GpuLink, visible};
use std::ffi::CStr;
use std::sync::OnceLock;

/// What copy engines bring over a link, in Mbit/s. More than over NVLink (400 GB/s) changes nothing
/// in NCCL's search for channels.
const fn mbps(link: GpuLink) -> i32 {
    match link {
        GpuLink::None => 40_000, // through host memory
        GpuLink::Pcie => 400_000,
        GpuLink::NvLink | GpuLink::Own => 3_200_000,
    }
}

/// NCCL's variables that it needs: to use GPU memory over a device that is not near a GPU, and to
/// have as many channels as the tuner gives to long collectives.
const NCCL_WANTS: [(&CStr, &CStr); 2] =
    [(c"NCCL_NET_GDR_LEVEL", c"SYS"), (c"NCCL_MIN_NCHANNELS", OUR_CHANNELS)];
/// Spelled as no user does: a plugin that is loaded again knows what the one before has set.
pub const OUR_CHANNELS: &CStr = c"+16";

/// Why GPU memory is used in this process, if it is: asked once.
fn reason() -> Option<&'static str> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    let reason = REASON.get_or_init(|| {
        let wish = settings::environment().nccl_cuda;
        let why = match wish {
            Some(true) => "CROSSTIE_NCCL_CUDA=1".into(),
            Some(false) => return None,
            None => launcher::one_host(Variables::of_process())?,
        };
        match (Library::load(), wish) {
            (Ok(_), _) => return Some(why),
            (Err(error), Some(_)) => log::warn(&format!("{why} has no effect: {error}")),
            // without a wish it is no news that there is no GPU
            (Err(_), None) => {}
        }
        None
    });
    reason.as_deref()
}

/// Whether copy engines move memory of GPUs, under each kind of device.
pub fn by_copies() -> bool {
    reason().is_some()
}

/// Whether the NICs of a device register memory of every GPU that this process sees.
pub fn by_nics(device: &Device) -> bool {
    let suit =
        |exported| driver().is_some_and(|it| all_suit_nics(it, exported, true).unwrap_or(false));
    match device.gpus {
        GpuWay::None => false,
        GpuWay::Dmabuf => suit(true),
        GpuWay::Address => suit(false),
    }
}

/// What NCCL is told of a device's speed, in Mbit/s.
pub fn speed_mbps(device: &Device) -> i32 {
    if by_copies() { copies_mbps().max(device.speed_mbps) } else { device.speed_mbps }
}

/// The speed of the slowest link between GPUs: asked once.
fn copies_mbps() -> i32 {
    static SPEED: OnceLock<i32> = OnceLock::new();
    *SPEED.get_or_init(|| {
        let gpus = Library::load().ok().and_then(|library| visible(library).ok());
        mbps(GpuLink::slowest(&gpus.unwrap_or_default()))
    })
}

/// Says that NICs of a device take memory of GPUs.
pub fn nics_say(device: &Device) {
    if by_nics(device) {
        let name = device.name.to_string_lossy();
        log::info(&format!("memory of GPUs goes by the NICs of {name} to other hosts"));
    }
}

/// Sets NCCL's variables where they are not set.
pub fn variables_set() {
    let Some(why) = reason() else { return };
    log::info(&format!(
        "memory of GPUs goes by copy engine ({why}); CROSSTIE_NCCL_CUDA=0 ends that"
    ));
    for (name, value) in NCCL_WANTS {
        variables::set(name, value, "memory of GPUs");
    }
}
