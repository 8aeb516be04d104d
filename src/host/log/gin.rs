//! Sentences about GPU-initiated operations: of the log, and of the report.
#![forbid(unsafe_code)]

use super::Level;
use super::event::Event;
use crate::base::words::said;
use crate::hca::executor::Lane;
use crate::hca::queue::Failure;
use crate::hca::stuck::{Stuck, Why};
use crate::memory::cuda::CudaError;
use crate::transport::RequestError;
use core::fmt;

/// What is to be said of GPU-initiated operations.
pub(in crate::host) enum GinEvent<'a> {
    /// A rank asks for adds that make no sense.
    Adds { rank: usize },
    /// The driver refuses an add.
    AddRefused(CudaError),
    /// The driver refuses a copy.
    CopyRefused(CudaError),
    /// The driver refuses copies to one rank.
    RoadRefused(CudaError),
    /// The driver refuses the launch of a kernel.
    LaunchRefused(CudaError),
    /// A kernel has not run when its memory was to be unmapped.
    KernelWaits,
    /// Copies do not end when their memory is deregistered.
    CopiesWait,
    /// How memory of one GPU is copied: by a kernel, or why not.
    Within { refused: Option<&'a str>, through: Through },
    /// A rank has ended.
    Ended { rank: usize },
    /// A rank of another host is out of reach.
    Lost { rank: usize, error: RequestError },
    /// A queue of another rank has failed.
    Told { rank: usize },
    /// An entry stands for too long.
    Stalled { rank: usize, sentence: &'a str },
}

said! {
    /// Where copies within a GPU go that no kernel makes.
    #[derive(Copy, Clone)]
    pub(in crate::host) enum Through {
        Gpu => "another GPU",
        /// Memory of the host.
        Host => "the host",
    }
}

impl Event for GinEvent<'_> {
    fn level(&self) -> Level {
        match self {
            GinEvent::Adds { .. }
            | GinEvent::AddRefused(_)
            | GinEvent::CopyRefused(_)
            | GinEvent::RoadRefused(_) => Level::Error,
            GinEvent::LaunchRefused(_)
            | GinEvent::KernelWaits
            | GinEvent::CopiesWait
            | GinEvent::Ended { .. }
            | GinEvent::Lost { .. }
            | GinEvent::Told { .. }
            | GinEvent::Stalled { .. } => Level::Warning,
            GinEvent::Within { .. } => Level::Info,
        }
    }

    fn is_once(&self) -> bool {
        match self {
            GinEvent::AddRefused(_)
            | GinEvent::CopyRefused(_)
            | GinEvent::RoadRefused(_)
            | GinEvent::LaunchRefused(_) => true,
            GinEvent::Adds { .. }
            | GinEvent::KernelWaits
            | GinEvent::CopiesWait
            | GinEvent::Within { .. }
            | GinEvent::Ended { .. }
            | GinEvent::Lost { .. }
            | GinEvent::Told { .. }
            | GinEvent::Stalled { .. } => false,
        }
    }
}

impl fmt::Display for GinEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("gin: ")?;
        match self {
            GinEvent::Adds { rank } => {
                write!(
                    f,
                    "rank {rank} asks for impossible adds; its requests are ignored from now on"
                )
            }
            GinEvent::AddRefused(error) => {
                write!(f, "an add was refused ({error}); its queue fails")
            }
            GinEvent::CopyRefused(error) => {
                write!(f, "a copy was refused ({error}); its queue fails")
            }
            GinEvent::RoadRefused(error) => {
                write!(f, "the driver refused copies ({error}); queues to that rank fail")
            }
            GinEvent::LaunchRefused(error) => {
                write!(
                    f,
                    "the launch of a kernel was refused ({error}); no further copy uses a kernel"
                )
            }
            GinEvent::KernelWaits => {
                f.write_str("a kernel has not run yet; its memory stays mapped")
            }
            GinEvent::CopiesWait => {
                f.write_str("copies under way do not end; their memory stays mapped")
            }
            GinEvent::Within { refused: None, through } => write!(
                f,
                "a kernel copies within the GPU; if it cannot start, copies go through {through}"
            ),
            GinEvent::Within { refused: Some(why), through } => {
                write!(f, "no kernel copies within the GPU ({why}); copies go through {through}")
            }
            GinEvent::Ended { rank } => {
                write!(f, "rank {rank} has ended; operations to it fail")
            }
            GinEvent::Lost { rank, error } => {
                write!(f, "rank {rank} is out of reach ({error}); operations to it fail")
            }
            GinEvent::Told { rank } => {
                write!(f, "a queue of rank {rank} has failed, see its log; the communicator failed")
            }
            GinEvent::Stalled { rank, sentence } => write!(f, "stalled: rank {rank}, {sentence}"),
        }
    }
}

/// A queue of a set of contexts.
pub(in crate::host) struct Queue<'a> {
    pub(in crate::host) lane: &'a Lane<'a>,
    /// Its place among all queues.
    pub(in crate::host) at: usize,
    pub(in crate::host) ranks: usize,
}

/// Its number, and whose it is.
impl fmt::Display for Queue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, place) = (self.lane.queue.number(), self.at / (2 * self.ranks));
        match self.at / self.ranks % 2 {
            0 => write!(f, "queue {number:#x} of context {place} to rank {}", self.lane.rank),
            _ => write!(f, "queue {number:#x} of context {place}, for counters"),
        }
    }
}

/// An entry that is open.
pub(in crate::host) struct OpenEntry<'a> {
    pub(in crate::host) queue: Queue<'a>,
    pub(in crate::host) stuck: &'a Stuck,
    pub(in crate::host) age_ms: u64,
    /// Of a queue to a rank of another host: operations with it that have not ended.
    pub(in crate::host) beyond: Option<u64>,
}

impl fmt::Display for OpenEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenEntry { queue, stuck, age_ms, beyond } = self;
        let counts = queue.lane.queue.counts();
        write!(
            f,
            "{queue}: {} entries announced, {} taken, {} completed; entry {} is open for {age_ms} \
             ms: {}",
            counts.produced, counts.taken, counts.completed, stuck.index, stuck.why
        )?;
        let (Some(beyond), Why::UnderWay(_)) = (beyond, stuck.why) else { return Ok(()) };
        let operations = if *beyond == 1 { "operation" } else { "operations" };
        write!(
            f,
            "; the rank runs on another host, which has confirmed all but {beyond} {operations}"
        )
    }
}

/// A queue that has failed.
pub(in crate::host) struct FailedQueue<'a> {
    pub(in crate::host) queue: Queue<'a>,
    pub(in crate::host) failure: Failure,
}

impl fmt::Display for FailedQueue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailedQueue { queue, failure } = self;
        write!(
            f,
            "{queue}: {} entries announced, failed from entry {} on ({:?})",
            queue.lane.queue.counts().produced,
            failure.index,
            failure.syndrome
        )
    }
}

/// How many queues of a set of contexts have an open entry.
pub(in crate::host) struct Queues {
    pub(in crate::host) number: u64,
    pub(in crate::host) queues: usize,
    pub(in crate::host) open: usize,
}

impl fmt::Display for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Queues { number, queues, open } = self;
        write!(f, "contexts {number}: {queues} queues, {} without an open entry", queues - open)
    }
}

/// The first line of a rank's report. `ended`: the ranks that have ended.
pub(in crate::host) struct ReportHead<'a> {
    pub(in crate::host) rank: usize,
    pub(in crate::host) ranks: usize,
    pub(in crate::host) ended: &'a [usize],
}

impl fmt::Display for ReportHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU-initiated: rank {} of {}", self.rank, self.ranks)?;
        if self.ended.is_empty() { Ok(()) } else { write!(f, ", ended: {:?}", self.ended) }
    }
}
