//! What kind of memory an address lies in.

use super::library::{Attribute, CudaError, Library, attribute_where_loaded};
use cudarc::driver::sys::{CUmemAccess_flags, CUmemorytype, CUpointer_attribute, CUresult};

/// Where memory lies, as the driver knows it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Place {
    /// Memory of the process that the driver does not know.
    Host,
    /// Memory of the process that GPUs reach: of cudaHostAlloc, or registered.
    Pinned,
    /// Memory that moves between the process and GPUs by itself: of cudaMallocManaged.
    Managed,
    /// Memory of the GPU of that number.
    Device(i32),
}

impl Place {
    /// Where `address` lies.
    ///
    /// *Errors*: the driver's; an address that it does not know is host memory, no error.
    pub fn of(library: &Library, address: u64) -> Result<Place, CudaError> {
        let known = |name| number(library, name, address);
        let Some(kind) = known(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)? else {
            return Ok(Place::Host);
        };
        if known(CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED)?.is_some_and(|it| it != 0) {
            return Ok(Place::Managed);
        }
        if kind != CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 {
            return Ok(Place::Pinned);
        }
        let ordinal = known(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?;
        Ok(Place::Device(ordinal.unwrap_or(0) as i32))
    }
}

/// Whether a GPU may write memory at a device address.
///
/// *Errors*: the driver's.
pub fn is_writable(library: &Library, address: u64) -> Result<bool, CudaError> {
    const BOTH: u32 = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32;
    let flags = number(library, CUpointer_attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address)?;
    Ok(flags.is_none_or(|flags| flags == BOTH))
}

/// Whether `address` lies in memory of a GPU that the process itself cannot touch. The driver is
/// neither loaded nor started for this: without it there is no such memory.
pub fn is_of_gpu(address: u64) -> bool {
    let Some(attribute) = attribute_where_loaded() else { return false };
    let known = |name| ask(attribute, name, address).ok();
    let is_managed = known(CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED);
    let kind = known(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    kind == Some(CUmemorytype::CU_MEMORYTYPE_DEVICE as u32) && is_managed == Some(0)
}

/// A number that the driver knows of an address; `None`: it does not know the address.
fn number(
    library: &Library,
    name: CUpointer_attribute,
    address: u64,
) -> Result<Option<u32>, CudaError> {
    match ask(library.pointers()?.attribute, name, address) {
        Ok(value) => Ok(Some(value)),
        Err(CUresult::CUDA_ERROR_INVALID_VALUE) => Ok(None),
        Err(code) => library.check("cuPointerGetAttribute", code).map(|()| None),
    }
}

fn ask(attribute: Attribute, name: CUpointer_attribute, address: u64) -> Result<u32, CUresult> {
    let mut value: u64 = 0; // some attributes are one byte long, others four
    // SAFETY: room for the longest of the attributes asked for.
    match unsafe { attribute((&raw mut value).cast(), name, address) } {
        CUresult::CUDA_SUCCESS => Ok(value as u32),
        code => Err(code),
    }
}
