//! What kind of memory an address lies in.

use super::library::{CudaError, Library};
use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute, CUresult};

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

/// A number that the driver knows of an address; `None`: it does not know the address.
fn number(
    library: &Library,
    attribute: CUpointer_attribute,
    address: u64,
) -> Result<Option<u32>, CudaError> {
    let mut value: u64 = 0; // some attributes are one byte long, others four
    // SAFETY: room for the longest of the attributes asked for.
    let code =
        unsafe { (library.pointers()?.attribute)((&raw mut value).cast(), attribute, address) };
    match code {
        CUresult::CUDA_ERROR_INVALID_VALUE => Ok(None),
        code => library.check("cuPointerGetAttribute", code).map(|()| Some(value as u32)),
    }
}
