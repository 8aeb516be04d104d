//! The CUDA driver, where memory of GPUs may go by NICs.

use crosstie::host::settings;
use crosstie::memory::cuda::Library;

/// Whether NICs may be asked for memory of GPUs: the process has the driver, as NCCL's has, and
/// `CROSSTIE_NCCL_CUDA` is not 0.
pub fn is_wanted() -> bool {
    driver().is_some()
}

/// The driver, where that is so.
pub fn driver() -> Option<&'static Library> {
    match settings::environment().nccl_cuda {
        Some(false) => None,
        Some(true) => Library::load().ok(),
        None => Library::loaded(),
    }
}
