//! Why a call fails, as NCCL distinguishes it.
#![forbid(unsafe_code)]

use crate::abi::{Rc, result};
use crosstie::host::{ConnectError, ListenError, OpenError, RegisterError};
use crosstie::transport::{RequestError, SubmitError};

/// What NCCL is told; the sentence goes to its log.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Fault {
    /// The operating system refused, or a rail of this host failed.
    System,
    /// A bug, or a limit of this library.
    Internal,
    /// An argument is wrong.
    Argument,
    /// The application, or its settings, did what they must not.
    Usage,
    /// The peer, or the way to it, failed.
    Remote,
}

impl Fault {
    /// NCCL's number.
    pub const fn code(self) -> Rc {
        match self {
            Fault::System => result::SYSTEM,
            Fault::Internal => result::INTERNAL,
            Fault::Argument => result::ARGUMENT,
            Fault::Usage => result::USAGE,
            Fault::Remote => result::REMOTE,
        }
    }

    /// The fault of a number that [`Fault::code`] gave.
    pub const fn of_code(code: Rc) -> Fault {
        match code {
            result::SYSTEM => Fault::System,
            result::ARGUMENT => Fault::Argument,
            result::USAGE => Fault::Usage,
            result::REMOTE => Fault::Remote,
            _ => Fault::Internal,
        }
    }
}

impl From<RequestError> for Fault {
    fn from(error: RequestError) -> Fault {
        match error {
            RequestError::Truncated | RequestError::Closed | RequestError::Canceled => Fault::Usage,
            RequestError::PeerClosed
            | RequestError::PeerDied
            | RequestError::RailsLost(_)
            | RequestError::NoAnswer
            | RequestError::PeerGaveUp
            | RequestError::Silent => Fault::Remote,
            RequestError::Protocol => Fault::Internal,
            RequestError::Fabric(_) | RequestError::Unfenced => Fault::System,
        }
    }
}

impl From<SubmitError> for Fault {
    fn from(error: SubmitError) -> Fault {
        match error {
            SubmitError::Failed(error) => error.into(),
            SubmitError::Again => Fault::Internal,
            SubmitError::Connection | SubmitError::RequestsMax => Fault::Usage,
            SubmitError::Region
            | SubmitError::Device
            | SubmitError::Range
            | SubmitError::Group
            | SubmitError::TooLong => Fault::Argument,
        }
    }
}

impl From<&ConnectError> for Fault {
    fn from(error: &ConnectError) -> Fault {
        match error {
            ConnectError::HandleCorrupt | ConnectError::HandleForeign => Fault::Argument,
            ConnectError::Version(_)
            | ConnectError::OtherHost
            | ConnectError::OtherEndpoint
            | ConnectError::NoInterface
            | ConnectError::Interface { .. }
            | ConnectError::Key(..)
            | ConnectError::User(..)
            | ConnectError::LocalVersion(_)
            | ConnectError::Rail { .. }
            | ConnectError::Forked => Fault::Usage,
            ConnectError::NoListener(_)
            | ConnectError::OtherProgram(_)
            | ConnectError::PeerFull(_)
            | ConnectError::PeerMemory(_)
            | ConnectError::PeerDescriptors(_)
            | ConnectError::Deadline(_)
            | ConnectError::PeerDied(_)
            | ConnectError::Protocol(_)
            | ConnectError::Unreachable(..) => Fault::Remote,
            ConnectError::LocalFull | ConnectError::LinksFull | ConnectError::Stale => {
                Fault::Internal
            }
            ConnectError::Memory
            | ConnectError::SharedMemory
            | ConnectError::Descriptors(_)
            | ConnectError::Thread(_)
            | ConnectError::System(_) => Fault::System,
        }
    }
}

impl From<&ListenError> for Fault {
    fn from(error: &ListenError) -> Fault {
        match error {
            ListenError::Full => Fault::Internal,
            ListenError::Descriptors(_)
            | ListenError::Ports
            | ListenError::Thread(_)
            | ListenError::System(_) => Fault::System,
            ListenError::Forked => Fault::Usage,
        }
    }
}

impl From<RegisterError> for Fault {
    fn from(error: RegisterError) -> Fault {
        match error {
            RegisterError::Full => Fault::Internal,
            RegisterError::Kind | RegisterError::Range => Fault::Argument,
            RegisterError::Fabric(_) => Fault::System,
        }
    }
}

impl From<&OpenError> for Fault {
    fn from(error: &OpenError) -> Fault {
        match error {
            OpenError::Limits(_) | OpenError::Storage | OpenError::VendorRail(_) => Fault::Internal,
            OpenError::Rings(_)
            | OpenError::Device
            | OpenError::Cpu(_)
            | OpenError::Setting(_)
            | OpenError::Rails
            | OpenError::Required
            | OpenError::Interface
            | OpenError::InterfaceChoice => Fault::Usage,
            OpenError::Band(_)
            | OpenError::SharedMemory { .. }
            | OpenError::Interfaces(_)
            | OpenError::System(_) => Fault::System,
        }
    }
}
