//! A test double of the CUDA driver, loaded as `libcuda.so.1` in place of the real one.
//!
//! GPUs are made of shared memory and threads:
//!
//! | Of a GPU | Here |
//! | --- | --- |
//! | memory | a memfd for each allocation (`backing`), with a view of the double's own |
//! | a device address | one in a region without access (`space`, `ranges`) |
//! | an exported handle | a descriptor of the memfd, which another process maps too |
//! | a stream | a queue with a thread (`stream`), which takes random times (`random`) |
//! | a fault | the device is lost: each later call answers `CUDA_ERROR_ILLEGAL_ADDRESS` |
//!
//! The exported functions of the driver are in `api`. Tests control the double by the functions of
//! `control`, which they find in the same library, and by environment variables (`settings`).
//!
//! The double is stricter than a driver where a driver would silently do harm. A queued operation
//! that finds its memory unmapped is a fault. Addresses are not used again.
//!
//! Not imitated: kernels; graphs but for copies and words of one stream; waits of streams but for a
//! word that is equal; a dma-buf over several mappings.
//! Blocking streams wait for a kernel on the legacy stream (`double_spin`) and for nothing else
//! there.

// The names are the driver's.
#![allow(non_snake_case)]

/// Defines exported functions of the driver. Each is counted, and fails when a test asked for that.
macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        /// The driver's function of this name.
        ///
        /// # Safety
        /// - every pointer is null, or valid for what the driver does with it.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::codes::Code {
            $crate::calls::answer(stringify!($name), move || $body)
        }
    )* };
}

mod api;
mod attributes;
mod backing;
mod calls;
mod codes;
mod context;
mod control;
mod copy;
mod random;
mod ranges;
mod settings;
mod space;
mod stream;
mod vmm;
