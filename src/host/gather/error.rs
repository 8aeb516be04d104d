//! Why an AllGather was not prepared or not carried out.
#![forbid(unsafe_code)]

use crate::host::RegisterError;
use crate::host::group::error::WaitError;
use crate::memory::Errno;
use crate::memory::cuda::CudaError;
use crate::transport::RequestError;
use crate::window::WindowError;
use core::fmt;

/// Why an AllGather was not prepared or not carried out.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum GatherError {
    /// No such request, or it was destroyed, or its window freed.
    Request,
    /// All requests of the group are in use.
    Full,
    /// The chunks of all ranks do not fit into the bytes that the request was made for.
    Bytes(u64),
    /// The bytes to send overlap memory that the operation writes.
    Overlap,
    /// The stream is not the one that the request was made for, or the window has no GPU and a
    /// stream was given.
    Stream,
    /// The pipeline needs teams of equal size, whose ranks follow one another.
    Teams,
    /// The window, or its exchange.
    Window(WindowError),
    /// A wait for the other ranks.
    Wait(WaitError),
    /// That rank could not do its part; its own error says why.
    Elsewhere(u32),
    /// That rank makes another call.
    Mismatch(u32),
    /// Memory for what the ranks tell each other cannot be registered.
    Register(RegisterError),
    /// The ranks of this host cannot share memory for their words.
    Share,
    /// The memory of that rank cannot be mapped; the driver's code, or an errno below 0.
    Map(u32, i32),
    /// The system has refused a thread or memory.
    System(Errno),
    /// The driver has refused a call.
    Cuda(CudaError),
    /// It has not ended in time. The request is of no use any more.
    Late,
    /// The connection to that rank has failed meanwhile. The request is of no use any more.
    Failed(u32, RequestError),
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

impl From<CudaError> for GatherError {
    fn from(error: CudaError) -> GatherError {
        GatherError::Cuda(error)
    }
}

impl fmt::Display for GatherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GatherError::Request => f.write_str("no such AllGather, or its window was freed"),
            GatherError::Full => f.write_str("all AllGathers of the group are in use"),
            GatherError::Bytes(bytes) => {
                write!(f, "the chunks of all ranks do not fit into the AllGather's {bytes} bytes")
            }
            GatherError::Overlap => f.write_str("the bytes to send overlap what is received"),
            GatherError::Stream => f.write_str("the AllGather is not one of that stream"),
            GatherError::Teams => f.write_str(
                "the pipeline needs as many ranks on each host, numbered one after another",
            ),
            GatherError::Window(error) => error.fmt(f),
            GatherError::Wait(error) => error.fmt(f),
            GatherError::Elsewhere(rank) => {
                write!(f, "rank {rank} could not do its part; its own error says why")
            }
            GatherError::Mismatch(rank) => write!(f, "rank {rank} makes another call"),
            GatherError::Register(error) => write!(f, "memory is not registered: {error:?}"),
            GatherError::Share => f.write_str("ranks of this host cannot share memory"),
            GatherError::Map(rank, code) => {
                write!(f, "the memory of rank {rank} cannot be mapped (code {code})")
            }
            GatherError::System(errno) => write!(f, "the system refused: errno {}", errno.0),
            GatherError::Cuda(error) => error.fmt(f),
            GatherError::Late => f.write_str("the AllGather has not ended in time"),
            GatherError::Failed(rank, error) => {
                write!(f, "the connection to rank {rank} has failed: {error}")
            }
        }
    }
}
