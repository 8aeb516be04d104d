//! Whether NCCL hands us memory of GPUs: where `CROSSTIE_NCCL_CUDA=1` says so.
//!
//! NCCL then copies nothing to the host: the copy engine moves what it sends, from GPU to GPU. It
//! is not the default, since NCCL's short messages then take three times as long.

use crate::net::device::Device;
use crate::net::kind::Kind;
use crate::net::log;
use crosstie::host::settings;
use crosstie::memory::Variables;
use crosstie::memory::cuda::Library;
use std::ffi::CStr;
use std::sync::OnceLock;

/// What copy engines bring, as NCCL counts: 400 GB/s over NVLink. More changes nothing in its
/// search for channels.
const SPEED_MBPS: i32 = 3_200_000;

/// NCCL's variables that it needs: to use GPU memory over a device that is not near a GPU, and to
/// have as many channels as the tuner gives to long collectives.
const NCCL_WANTS: [(&CStr, &CStr); 2] =
    [(c"NCCL_NET_GDR_LEVEL", c"SYS"), (c"NCCL_MIN_NCHANNELS", c"16")];

/// Whether GPU memory may be used at all in this process: asked once.
fn is_possible() -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let is_wanted = settings::environment().nccl_cuda;
        let driver = if is_wanted { Library::load().err() } else { return false };
        if let Some(error) = driver {
            log::warn(&format!("CROSSTIE_NCCL_CUDA=1 has no effect: {error}"));
        }
        driver.is_none()
    })
}

/// Whether a device takes memory of GPUs. RDMA ports do not.
pub fn is_offered(device: &Device) -> bool {
    matches!(device.kind, Kind::Alone | Kind::Interfaces(_)) && is_possible()
}

/// What NCCL is told of a device's speed, in Mbit/s.
pub fn speed_mbps(device: &Device) -> i32 {
    if is_offered(device) { SPEED_MBPS.max(device.speed_mbps) } else { device.speed_mbps }
}

/// Sets NCCL's variables where they are not set. It reads them after the first call of a plugin,
/// once for the process.
pub fn variables_set() {
    for (name, value) in NCCL_WANTS {
        let shown = name.to_string_lossy();
        if Variables::of_process().text(&shown).is_some() {
            continue;
        }
        // SAFETY: texts that end with a zero. NCCL calls the first init of a plugin before it
        // starts threads of its own, and we have started none.
        unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 0) };
        let value = value.to_string_lossy();
        log::info(&format!("memory of GPUs: {shown}={value} is set for CROSSTIE_NCCL_CUDA=1"));
    }
}
