//! Memory of GPUs, by the CUDA driver.
//!
//! The driver is loaded when it is first asked for, so one program runs on hosts with and without
//! it. Every call that an older driver may lack is an option, and its absence an error value.
//!
//! - [`library`]: the functions
//! - [`gpu`]: one GPU and its primary context, entered and left around calls
//! - [`vmm`]: memory with an exportable handle, here and in another process
//! - [`pinned`]: host memory that the GPU maps
//! - [`mod@pointer`]: what kind of memory an address lies in
//! - [`dmabuf`]: memory as NICs register it
//! - [`adder`]: adds to words of its memory
//! - [`batch`]: copies that go to the driver in one call
//! - [`stream`]: copies in order
//! - [`marked`]: a stream with the number that it has reached
//! - [`words`]: words that a stream writes, such as markers, in one call
//! - [`kernel`]: copies by a kernel, which can be taken back until it starts
//!
//! *Rules of the data path*: no allocation, no free, no synchronisation, no wait of a stream. A
//! thread that has entered a GPU captures nothing by accident: see [`gpu::Entered`].

pub mod adder;
pub mod batch;
pub mod dmabuf;
pub mod gpu;
pub mod kernel;
pub mod library;
pub mod marked;
pub mod pinned;
pub mod pointer;
pub mod stream;
pub mod vmm;
pub mod words;

pub use adder::Adder;
pub use batch::Batch;
pub use gpu::{Entered, Gpu};
pub use kernel::{Kernel, KernelError, Program, Progress};
pub use library::{CudaError, Library, LoadError};
pub use marked::Marked;
pub use pinned::{DeviceBlock, Pinned};
pub use pointer::Place;
pub use stream::Stream;
pub use vmm::{Export, Handle, Import, Segment};
pub use words::{Words, post_word};
