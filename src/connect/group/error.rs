//! Why ranks do not come together.

use crate::base::words::{said, wraps};
use std::io;

said! {
    /// Why ranks do not come together.
    #[derive(Debug)]
    pub enum GroupError {
        /// The handle of a rank is not one of ours, or of another version.
        Handle(rank: usize) => "the handle of rank {rank} is not of this version of crosstie",
        NoAddress(rank: usize) =>
            "rank {rank} runs on another host and has told no address: its launcher says that all \
             ranks run on one host, or CROSSTIE_SOCKET_IFNAME leaves no interface",
        /// A rank has not come within the deadline.
        Missing(rank: usize) => "rank {rank} did not come in time",
        Ended(rank: usize) => "rank {rank} has ended",
        /// A process of the user given here dialled, or listens, and may not take part: its user,
        /// its handle or its key is not right. `None`: it is of another host.
        Stranger(what: Option<u32>) => |f| match what {
            Some(user) => write!(f, "a process of user {user} is refused as a rank: {PROOF}"),
            None => write!(f, "a process of another host is refused as a rank: {PROOF_FAR}"),
        },
        /// This rank takes this process for a stranger.
        Refused(rank: usize) => "rank {rank} refuses this process as a rank: {PROOF}",
        /// Ranks make different calls.
        Order(rank: usize) => "rank {rank} makes another call than this rank",
        /// The kernel refused.
        System(error: io::Error) => "{error}",
    }
}

impl GroupError {
    /// The same of ranks that `members` numbers.
    pub(super) fn of(self, members: &[usize]) -> GroupError {
        let of = |rank: usize| members.get(rank).copied().unwrap_or(rank);
        match self {
            GroupError::Missing(rank) => GroupError::Missing(of(rank)),
            GroupError::Ended(rank) => GroupError::Ended(of(rank)),
            GroupError::Refused(rank) => GroupError::Refused(of(rank)),
            GroupError::Order(rank) => GroupError::Order(of(rank)),
            GroupError::Handle(_)
            | GroupError::NoAddress(_)
            | GroupError::Stranger(_)
            | GroupError::System(_) => self,
        }
    }
}

const PROOF: &str = "ranks must run as one user or root (CROSSTIE_ALLOW_UIDS names others), or \
                     have the same CROSSTIE_KEY_FILE";
const PROOF_FAR: &str = "all ranks must have the same CROSSTIE_KEY_FILE, or none";

wraps!(GroupError: System(io::Error));
