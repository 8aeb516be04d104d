//! One GPU and its primary context.

use super::library::{CudaError, Library};
use core::ffi::c_int;
use core::ptr::null_mut;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_P2PAttribute, CUresult, CUstreamCaptureMode, CUuuid,
};
use std::string::String;
use std::vec::Vec;

/// A GPU as people know it.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct GpuName {
    /// The driver's name of its kind.
    pub name: String,
    /// The same in every process.
    pub uuid: [u8; 16],
    /// By number of another GPU, how this one reaches its memory.
    pub links: Vec<GpuLink>,
}

/// How a GPU reaches memory of another one; what is slower comes first.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub enum GpuLink {
    /// Not at all.
    None,
    /// Over a link without atomics: PCIe.
    Pcie,
    /// Over a link with atomics: NVLink.
    NvLink,
    /// It is the same.
    Own,
}

impl GpuLink {
    /// The slowest link between these; [`GpuLink::Own`] where there are no two.
    pub fn slowest(gpus: &[GpuName]) -> GpuLink {
        gpus.iter().flat_map(|gpu| &gpu.links).copied().min().unwrap_or(GpuLink::Own)
    }
}

/// The GPUs that this process sees, as the driver's calls name them.
pub(super) fn devices(library: &Library) -> Result<Vec<CUdevice>, CudaError> {
    let pointers = library.pointers()?;
    let mut count = 0;
    // SAFETY: valid for a write.
    library.check("cuDeviceGetCount", unsafe { (pointers.device_count)(&mut count) })?;
    let mut devices = Vec::new();
    for number in 0..count {
        let mut device: CUdevice = 0;
        // SAFETY: valid for a write.
        library.check("cuDeviceGet", unsafe { (pointers.device_at)(&mut device, number) })?;
        devices.push(device);
    }
    Ok(devices)
}

/// The GPUs that this process sees. Makes no context.
///
/// *Errors*: the driver's.
pub fn visible(library: &Library) -> Result<Vec<GpuName>, CudaError> {
    let (pointers, devices) = (library.pointers()?, devices(library)?);
    let named = |device: &CUdevice| {
        let (mut text, mut uuid) = ([0u8; 96], CUuuid { bytes: [0; 16] });
        let room = text.len() as c_int;
        // SAFETY: room for so many bytes; a device of the driver's.
        let code = unsafe { (pointers.device_name)(text.as_mut_ptr().cast(), room, *device) };
        library.check("cuDeviceGetName", code)?;
        // SAFETY: valid for a write; a device of the driver's.
        let code = unsafe { (library.device_uuid)(&mut uuid, *device) };
        library.check("cuDeviceGetUuid", code)?;
        let length = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let links = devices.iter().map(|other| {
            let (mut can, mut atomics) = (0, 0);
            if device == other {
                return Ok(GpuLink::Own);
            }
            // SAFETY: valid for a write; devices of the driver's.
            let code = unsafe { (pointers.can_access)(&mut can, *device, *other) };
            library.check("cuDeviceCanAccessPeer", code)?;
            // a driver that cannot tell has no such link
            if let Ok(links) = &library.links {
                let what = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
                // SAFETY: as above.
                let code = unsafe { (links.attribute)(&mut atomics, what, *device, *other) };
                library.check("cuDeviceGetP2PAttribute", code)?;
            }
            Ok(match (can, atomics) {
                (0, _) => GpuLink::None,
                (_, 0) => GpuLink::Pcie,
                _ => GpuLink::NvLink,
            })
        });
        Ok(GpuName {
            name: String::from_utf8_lossy(&text[..length]).into_owned(),
            uuid: uuid.bytes.map(|byte| byte as u8),
            links: links.collect::<Result<_, CudaError>>()?,
        })
    };
    devices.iter().map(named).collect()
}

/// A GPU and a context of it, as a rule the primary one, which is held while this lives.
#[derive(Debug)]
pub struct Gpu {
    library: &'static Library,
    device: CUdevice,
    context: CUcontext,
    /// Whether the context is ours alone, not the primary one.
    is_own: bool,
}

// SAFETY: a context may be pushed by any thread, and the driver's calls may come from any.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// The GPU of the calling thread's context.
    ///
    /// *Errors*: the driver's, for a thread without a context among others.
    pub fn of_thread(library: &'static Library) -> Result<Gpu, CudaError> {
        let mut device: CUdevice = 0;
        // SAFETY: valid for a write.
        let code = unsafe { (library.context_device)(&mut device) };
        library.check("cuCtxGetDevice", code)?;
        Gpu::of_device(library, device)
    }

    /// The GPU of that number among those that this process sees.
    pub fn at(library: &'static Library, number: i32) -> Result<Gpu, CudaError> {
        let mut device: CUdevice = 0;
        let pointers = library.pointers()?;
        // SAFETY: valid for a write.
        let code = unsafe { (pointers.device_at)(&mut device, number) };
        library.check("cuDeviceGet", code)?;
        Gpu::of_device(library, device)
    }

    /// The same GPU with a context of our own. Its calls do not wait while another thread is in a
    /// call of the primary context that waits for the GPU, such as one that frees memory.
    pub fn own(&self) -> Result<Gpu, CudaError> {
        let (library, device, mut context) = (self.library, self.device, null_mut());
        let pointers = library.pointers()?;
        // SAFETY: valid for a write; a device of the driver's.
        let code = unsafe { (pointers.context_create)(&mut context, 0, device) };
        library.check("cuCtxCreate", code)?;
        let mut popped = null_mut();
        // SAFETY: valid for a write; the context was made the thread's just now.
        unsafe { (library.context_pop)(&mut popped) };
        Ok(Gpu { library, device, context, is_own: true })
    }

    fn of_device(library: &'static Library, device: CUdevice) -> Result<Gpu, CudaError> {
        let mut context = null_mut();
        // SAFETY: valid for a write; a device of the driver's.
        let code = unsafe { (library.primary_retain)(&mut context, device) };
        library.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Gpu { library, device, context, is_own: false })
    }

    /// Its number among those that this process sees.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// Its context.
    pub fn context(&self) -> CUcontext {
        self.context
    }

    /// The id of the GPU, the same in every process.
    pub fn uuid(&self) -> Result<[u8; 16], CudaError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: valid for a write; a device of the driver's.
        let code = unsafe { (self.library.device_uuid)(&mut uuid, self.device) };
        self.library.check("cuDeviceGetUuid", code)?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// The driver.
    pub fn library(&self) -> &'static Library {
        self.library
    }

    /// Lets the context reach memory of another GPU's context.
    ///
    /// *Errors*: the driver's. That it was allowed before is none.
    pub fn reach(&self, other: &Gpu) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        // SAFETY: a context that `other` holds.
        let code = unsafe { (self.library.pointers()?.peer_enable)(other.context, 0) };
        match code {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => self.library.check("cuCtxEnablePeerAccess", code),
        }
    }

    /// Makes its context the calling thread's, until the result is dropped.
    pub fn enter(&self) -> Result<Entered<'_>, CudaError> {
        // SAFETY: a context that this value holds.
        let code = unsafe { (self.library.context_push)(self.context) };
        self.library.check("cuCtxPushCurrent", code)?;
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: valid for reads and writes. It cannot fail for a mode of the driver's.
        unsafe { (self.library.capture_mode)(&mut mode) };
        Ok(Entered { gpu: self, mode })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        match (self.is_own, self.library.pointers()) {
            // SAFETY: made in `own`, and nobody's but ours.
            (true, Ok(pointers)) => unsafe { (pointers.context_destroy)(self.context) },
            // SAFETY: the reference taken in `of_device`.
            _ => unsafe { (self.library.primary_release)(self.device) },
        };
    }
}

/// While it lives, the calling thread works on a GPU, and its calls end no capture of another
/// thread's.
#[derive(Debug)]
pub struct Entered<'g> {
    gpu: &'g Gpu,
    mode: CUstreamCaptureMode,
}

impl<'g> Entered<'g> {
    /// The GPU.
    pub fn gpu(&self) -> &'g Gpu {
        self.gpu
    }

    /// The driver.
    pub fn library(&self) -> &'static Library {
        self.gpu.library
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let library = self.gpu.library;
        // SAFETY: valid for reads and writes; the mode before.
        unsafe { (library.capture_mode)(&mut self.mode) };
        let mut context = null_mut();
        // SAFETY: valid for a write; the context was pushed in `enter`.
        unsafe { (library.context_pop)(&mut context) };
    }
}
