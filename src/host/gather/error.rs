//! Why an AllGather was not prepared or not carried out.
#![forbid(unsafe_code)]

use crate::base::words::{said, wraps};
use crate::host::RegisterError;
use crate::host::group::error::WaitError;
use crate::memory::Errno;
use crate::memory::cuda::CudaError;
use crate::transport::RequestError;
use crate::window::WindowError;

said! {
    /// Why an AllGather was not prepared or not carried out.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum GatherError {
        /// No such request, or it was destroyed, or its window freed.
        Request => "no such AllGather, or its window was freed",
        Full => "all AllGathers of the group are in use",
        Bytes(bytes: u64) =>
            "the chunks of all ranks do not fit into the AllGather's {bytes} bytes",
        /// The bytes to send overlap memory that the operation writes.
        Overlap => "the bytes to send overlap what is received",
        /// The stream is not the one that the request was made for, or the window has no GPU and a
        /// stream was given.
        Stream => "the AllGather is not one of that stream",
        /// The pipeline needs teams of equal size, whose ranks follow one another.
        Teams => "the pipeline needs as many ranks on each host, numbered one after another",
        /// The window, or its exchange.
        Window(error: WindowError) => "{error}",
        /// A wait for the other ranks.
        Wait(error: WaitError) => "{error}",
        /// That rank could not do its part; its own error says why.
        Elsewhere(rank: u32) => "rank {rank} could not do its part; its own error says why",
        Mismatch(rank: u32) => "rank {rank} makes another call",
        /// Memory for what the ranks tell each other cannot be registered.
        Register(error: RegisterError) => "memory is not registered: {error:?}",
        Share => "ranks of this host cannot share memory",
        /// The memory of that rank cannot be mapped; the driver's code, or an errno below 0.
        Map(rank: u32, code: i32) => "the memory of rank {rank} cannot be mapped (code {code})",
        /// The system has refused a thread or memory.
        System(errno: Errno) => |f| write!(f, "the system refused: errno {}", errno.0),
        /// The driver has refused a call.
        Cuda(error: CudaError) => "{error}",
        /// It has not ended in time. The request is of no use any more.
        Late => "the AllGather has not ended in time",
        /// The connection to that rank has failed meanwhile. The request is of no use any more.
        Failed(rank: u32, error: RequestError) =>
            "the connection to rank {rank} has failed: {error}",
    }
}

impl From<WindowError> for GatherError {
    fn from(error: WindowError) -> GatherError {
        match error {
            WindowError::Failed(rank, error) => GatherError::Failed(rank, error),
            error => GatherError::Window(error),
        }
    }
}

impl From<WaitError> for GatherError {
    fn from(error: WaitError) -> GatherError {
        match error {
            WaitError::Window(error) => error.into(),
            error => GatherError::Wait(error),
        }
    }
}

wraps!(GatherError: Cuda(CudaError));
