//! From the library's errors to result codes and sentences.
#![forbid(unsafe_code)]

use crate::result::xtie_result;
use crate::result::xtie_result::*;
use crate::text::Text;
use core::fmt::{self, Write};
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::connect::OpenError as BandError;
use crosstie::connect::group::GroupError as RanksError;
use crosstie::host::gather::error::GatherError;
use crosstie::host::gin::GinError;
use crosstie::host::group::{GroupError, NicCountError, WaitError};
use crosstie::host::nic_counter::NicCounterError;
use crosstie::host::{
    AcceptError, AllocateError, ConnectError, DeregisterError, ListenError, MemoryError, OpenError,
    RegisterError, Shared,
};
use crosstie::memory::Errno;
use crosstie::transport::limits::LimitsError;
use crosstie::transport::{RequestError, SubmitError};
use crosstie::window::WindowError;
use crosstie::wire::WIRE_MAJOR;

/// An error that can say what it is.
pub(crate) trait Explain {
    /// The code.
    fn result(&self) -> xtie_result;

    /// The sentence; the code's own unless there is more to say.
    fn explain(&self, shared: &Shared, text: &mut Text) -> fmt::Result {
        let _ = shared;
        text.write_str(self.result().sentence().to_str().unwrap_or(""))
    }
}

impl Explain for xtie_result {
    fn result(&self) -> xtie_result {
        *self
    }
}

impl Explain for ConnectError {
    fn result(&self) -> xtie_result {
        match self {
            ConnectError::HandleCorrupt => XTIE_ERR_HANDLE_CORRUPT,
            ConnectError::HandleForeign => XTIE_ERR_HANDLE_FOREIGN,
            ConnectError::Version(theirs) if *theirs > WIRE_MAJOR => XTIE_ERR_VERSION_HERE,
            ConnectError::Version(_) | ConnectError::LocalVersion(_) => XTIE_ERR_VERSION_PEER,
            ConnectError::OtherHost | ConnectError::OtherEndpoint => XTIE_ERR_OTHER_HOST,
            ConnectError::NoInterface | ConnectError::Interface { .. } => XTIE_ERR_INTERFACE,
            ConnectError::NoListener(_) | ConnectError::OtherProgram(_) => XTIE_ERR_NO_LISTENER,
            ConnectError::PeerFull(_) => XTIE_ERR_PEER_FULL,
            ConnectError::PeerMemory(_) => XTIE_ERR_PEER_MEMORY,
            ConnectError::PeerDescriptors(_) => XTIE_ERR_PEER_DESCRIPTORS,
            ConnectError::LocalFull => XTIE_ERR_CONNECTIONS_FULL,
            ConnectError::LinksFull => XTIE_ERR_PEERS_FULL,
            ConnectError::Memory => XTIE_ERR_NO_MEMORY,
            ConnectError::Descriptors(_) => XTIE_ERR_DESCRIPTORS,
            ConnectError::Deadline(_) => XTIE_ERR_DEADLINE,
            ConnectError::PeerDied(_) => XTIE_ERR_PEER_DIED,
            ConnectError::Protocol(_) => XTIE_ERR_PROTOCOL,
            ConnectError::Key(..) | ConnectError::User(..) => XTIE_ERR_KEY,
            ConnectError::Rail { .. } => XTIE_ERR_NO_RAIL,
            ConnectError::Unreachable(..) => XTIE_ERR_UNREACHABLE,
            ConnectError::Stale => XTIE_ERR_ATTEMPT,
            ConnectError::Forked => XTIE_ERR_FORKED,
            ConnectError::SharedMemory | ConnectError::Thread(_) | ConnectError::System(_) => {
                XTIE_ERR_SYSTEM
            }
        }
    }

    fn explain(&self, _shared: &Shared, text: &mut Text) -> fmt::Result {
        write!(text, "{self}")
    }
}

impl Explain for ListenError {
    fn result(&self) -> xtie_result {
        match self {
            ListenError::Full => XTIE_ERR_LISTENERS_FULL,
            ListenError::Descriptors(_) => XTIE_ERR_DESCRIPTORS,
            ListenError::Thread(_) | ListenError::Ports | ListenError::System(_) => XTIE_ERR_SYSTEM,
            ListenError::Forked => XTIE_ERR_FORKED,
        }
    }

    fn explain(&self, _shared: &Shared, text: &mut Text) -> fmt::Result {
        match self {
            ListenError::Descriptors(limit) => descriptors(*limit, text),
            ListenError::System(code) => system("the kernel gave no listening socket", *code, text),
            ListenError::Thread(_) | ListenError::Ports => write!(text, "{self}"),
            ListenError::Full | ListenError::Forked => {
                text.write_str(self.result().sentence().to_str().unwrap_or(""))
            }
        }
    }
}

impl Explain for AcceptError {
    fn result(&self) -> xtie_result {
        match self {
            AcceptError::Stale => XTIE_ERR_LISTENER,
            AcceptError::Forked => XTIE_ERR_FORKED,
        }
    }
}

impl Explain for RegisterError {
    fn result(&self) -> xtie_result {
        match self {
            RegisterError::Full => XTIE_ERR_REGIONS_FULL,
            RegisterError::Kind => XTIE_ERR_MEMORY_KIND,
            RegisterError::Range => XTIE_ERR_REGISTER_RANGE,
            RegisterError::Fabric(_) => XTIE_ERR_NO_MEMORY,
        }
    }

    fn explain(&self, _shared: &Shared, text: &mut Text) -> fmt::Result {
        match self {
            RegisterError::Fabric(code) => system("the memory was refused", *code, text),
            RegisterError::Full | RegisterError::Kind | RegisterError::Range => {
                text.write_str(self.result().sentence().to_str().unwrap_or(""))
            }
        }
    }
}

impl Explain for MemoryError {
    fn result(&self) -> xtie_result {
        match self {
            MemoryError::Register(error) => error.result(),
            MemoryError::OfGpu(_) => XTIE_ERR_MEMORY_KIND,
            MemoryError::Device(_) => XTIE_ERR_MEMORY_DEVICE,
            MemoryError::NoDmabuf(_) | MemoryError::HostDmabuf => XTIE_ERR_DMABUF,
            MemoryError::DmabufRange(_) => XTIE_ERR_DMABUF_RANGE,
        }
    }

    fn explain(&self, shared: &Shared, text: &mut Text) -> fmt::Result {
        match self {
            MemoryError::Register(error) => error.explain(shared, text),
            MemoryError::OfGpu(_)
            | MemoryError::Device(_)
            | MemoryError::NoDmabuf(_)
            | MemoryError::HostDmabuf
            | MemoryError::DmabufRange(_) => write!(text, "{self}"),
        }
    }
}

impl Explain for AllocateError {
    fn result(&self) -> xtie_result {
        match self {
            AllocateError::HeapFull => XTIE_ERR_REGIONS_FULL,
            AllocateError::Register(error) => error.result(),
        }
    }

    fn explain(&self, shared: &Shared, text: &mut Text) -> fmt::Result {
        match self {
            AllocateError::HeapFull => write!(text, "{self}"),
            AllocateError::Register(error) => error.explain(shared, text),
        }
    }
}

impl Explain for DeregisterError {
    fn result(&self) -> xtie_result {
        match self {
            DeregisterError::Busy => XTIE_ERR_MEMORY_BUSY,
            DeregisterError::Stale => XTIE_ERR_MEMORY,
            DeregisterError::Fabric(_) => XTIE_ERR_FABRIC,
        }
    }
}

impl Explain for GroupError {
    fn result(&self) -> xtie_result {
        match self {
            GroupError::Limits => XTIE_ERR_GROUP_LIMITS,
            GroupError::Storage => XTIE_ERR_STORAGE_SIZE,
            GroupError::Register(error) => error.result(),
            GroupError::Connections(_) => XTIE_ERR_CONNECTIONS_FULL,
            GroupError::Listen(error) => error.result(),
            GroupError::Bootstrap(_) => XTIE_ERR_BOOTSTRAP,
            GroupError::Mismatch(_) => XTIE_ERR_GROUP_MISMATCH,
            GroupError::Connect(_, error) => error.result(),
            GroupError::Accept(error) => error.result(),
            GroupError::Failed(_, error) => Ended::request(*error, None).result,
            GroupError::Missing(_) => XTIE_ERR_RANK_MISSING,
            GroupError::Elsewhere(_) => XTIE_ERR_RANK_FAILED,
        }
    }

    fn explain(&self, shared: &Shared, text: &mut Text) -> fmt::Result {
        match self {
            GroupError::Register(error) => error.explain(shared, text),
            GroupError::Limits
            | GroupError::Storage
            | GroupError::Connections(_)
            | GroupError::Listen(_)
            | GroupError::Bootstrap(_)
            | GroupError::Mismatch(_)
            | GroupError::Connect(..)
            | GroupError::Accept(_)
            | GroupError::Failed(..)
            | GroupError::Missing(_)
            | GroupError::Elsewhere(_) => write!(text, "{self}"),
        }
    }
}

impl Explain for GinError {
    fn result(&self) -> xtie_result {
        match self {
            GinError::Driver(_) => XTIE_ERR_DEVICE_UNAVAILABLE,
            GinError::Cuda(_) => XTIE_ERR_FABRIC,
            GinError::Group(RanksError::NoAddress(_)) => XTIE_ERR_OTHER_HOST,
            GinError::Group(RanksError::Handle(_)) => XTIE_ERR_GROUP_MISMATCH,
            GinError::Group(RanksError::Missing(_)) | GinError::Late(_) => XTIE_ERR_RANK_MISSING,
            GinError::Group(RanksError::Stranger(_) | RanksError::Refused(_)) => XTIE_ERR_KEY,
            GinError::Group(RanksError::Ended(_) | RanksError::Order(_)) | GinError::Rank(_) => {
                XTIE_ERR_RANK_FAILED
            }
            GinError::Key(_) => XTIE_ERR_KEY_FILE,
            GinError::Pin(_) => XTIE_ERR_SETTING,
            GinError::Group(RanksError::System(_))
            | GinError::System(_)
            | GinError::Endpoint(_) => XTIE_ERR_SYSTEM,
            GinError::NotExportable(_) | GinError::Argument(_) => XTIE_ERR_MEMORY_KIND,
            GinError::Full => XTIE_ERR_WINDOWS_FULL,
            GinError::Hosts(error) => error.result(),
            GinError::Register(error) => error.result(),
            GinError::Window(error) => error.result(),
        }
    }

    fn explain(&self, _shared: &Shared, text: &mut Text) -> fmt::Result {
        write!(text, "{self}")
    }
}

impl Explain for WindowError {
    fn result(&self) -> xtie_result {
        match self {
            WindowError::Again => XTIE_AGAIN,
            WindowError::Window => XTIE_ERR_WINDOW,
            WindowError::WindowsFull => XTIE_ERR_WINDOWS_FULL,
            WindowError::NotExchanged => XTIE_ERR_NOT_EXCHANGED,
            WindowError::Exchanged => XTIE_ERR_EXCHANGED,
            WindowError::Rank => XTIE_ERR_RANK,
            WindowError::Id => XTIE_ERR_ID,
            WindowError::Range(_) => XTIE_ERR_WINDOW_RANGE,
            WindowError::ReadOnly => XTIE_ERR_READ_ONLY,
            WindowError::Freed => XTIE_ERR_WINDOW_FREED,
            WindowError::Buffer(error) => Ended::submit(*error, Handle::default()).result,
            WindowError::Memory => XTIE_ERR_WINDOW_MEMORY,
            WindowError::OutcomeUnknown => XTIE_ERR_OUTCOME_UNKNOWN,
            WindowError::Failed(_, error) => Ended::request(*error, None).result,
        }
    }

    fn explain(&self, _shared: &Shared, text: &mut Text) -> fmt::Result {
        match self {
            WindowError::Buffer(_) => {
                text.write_str(self.result().sentence().to_str().unwrap_or(""))
            }
            WindowError::Again
            | WindowError::Window
            | WindowError::WindowsFull
            | WindowError::NotExchanged
            | WindowError::Exchanged
            | WindowError::Rank
            | WindowError::Id
            | WindowError::Range(_)
            | WindowError::ReadOnly
            | WindowError::Freed
            | WindowError::Memory
            | WindowError::OutcomeUnknown
            | WindowError::Failed(..) => write!(text, "{self}"),
        }
    }
}

impl Explain for NicCountError {
    fn result(&self) -> xtie_result {
        match self {
            NicCountError::Window(error) => error.result(),
            NicCountError::Nic(NicCounterError::Connection) => XTIE_ERR_CONNECTION,
            NicCountError::Nic(_) => XTIE_ERR_NO_NIC_COUNTER,
        }
    }

    fn explain(&self, shared: &Shared, text: &mut Text) -> fmt::Result {
        match self {
            NicCountError::Window(error) => error.explain(shared, text),
            NicCountError::Nic(error) => write!(text, "{error}"),
        }
    }
}

impl Explain for WaitError {
    fn result(&self) -> xtie_result {
        match self {
            WaitError::Timeout(_) => XTIE_ERR_TIMEOUT,
            WaitError::Aborted => XTIE_ERR_ABORTED,
            WaitError::Window(error) => error.result(),
        }
    }

    fn explain(&self, shared: &Shared, text: &mut Text) -> fmt::Result {
        match self {
            WaitError::Timeout(_) | WaitError::Aborted => write!(text, "{self}"),
            WaitError::Window(error) => error.explain(shared, text),
        }
    }
}

impl Explain for GatherError {
    fn result(&self) -> xtie_result {
        match self {
            GatherError::Request | GatherError::Stream => XTIE_ERR_ALL_GATHER,
            GatherError::Full => XTIE_ERR_ALL_GATHERS_FULL,
            GatherError::Bytes(_) => XTIE_ERR_WINDOW_RANGE,
            GatherError::Overlap => XTIE_ERR_RANGE,
            GatherError::Teams => XTIE_ERR_ALGORITHM,
            GatherError::Window(error) => error.result(),
            GatherError::Wait(error) => error.result(),
            GatherError::Elsewhere(_) => XTIE_ERR_RANK_FAILED,
            GatherError::Mismatch(_) => XTIE_ERR_GROUP_MISMATCH,
            GatherError::Register(error) => error.result(),
            GatherError::Share | GatherError::System(_) => XTIE_ERR_SYSTEM,
            GatherError::Map(..) | GatherError::Cuda(_) => XTIE_ERR_GPU,
            GatherError::Late => XTIE_ERR_TIMEOUT,
            GatherError::Failed(rank, error) => WindowError::Failed(*rank, *error).result(),
        }
    }

    fn explain(&self, _shared: &Shared, text: &mut Text) -> fmt::Result {
        write!(text, "{self}")
    }
}

/// The code for an endpoint that could not be opened; its sentence goes to the log.
pub(crate) fn open_result(error: &OpenError) -> xtie_result {
    match error {
        OpenError::Limits(LimitsError::Connections) => XTIE_ERR_CONNECTIONS_MAX,
        OpenError::Limits(LimitsError::Requests) => XTIE_ERR_REQUESTS_MAX,
        OpenError::Limits(LimitsError::Regions) => XTIE_ERR_REGIONS_MAX,
        OpenError::Limits(LimitsError::Rails) => XTIE_ERR_RAILS_MAX,
        OpenError::Rings(_) => XTIE_ERR_RINGS,
        OpenError::Setting(_) => XTIE_ERR_SETTING,
        OpenError::Storage => XTIE_ERR_STORAGE_SIZE,
        OpenError::Device | OpenError::Cpu(_) | OpenError::SharedMemory { .. } => {
            XTIE_ERR_DEVICE_UNAVAILABLE
        }
        OpenError::Rails | OpenError::Required => XTIE_ERR_NO_RAIL,
        OpenError::Interface | OpenError::InterfaceChoice => XTIE_ERR_INTERFACE,
        OpenError::VendorRail(_) => XTIE_ERR_VENDOR_RAIL,
        OpenError::Band(BandError::Descriptors(_))
        | OpenError::System(libc::EMFILE | libc::ENFILE) => XTIE_ERR_DESCRIPTORS,
        OpenError::System(libc::ENOMEM | libc::ENOSPC) => XTIE_ERR_NO_MEMORY,
        OpenError::Band(
            BandError::ShmDir
            | BandError::Tables
            | BandError::HostNumber(_)
            | BandError::Thread(_)
            | BandError::System(_),
        )
        | OpenError::Interfaces(_)
        | OpenError::System(_) => XTIE_ERR_SYSTEM,
    }
}

/// A request that was refused, or ended badly, and on which connection if that is known.
#[derive(Copy, Clone)]
pub(crate) struct Ended {
    pub result: xtie_result,
    /// The provider's code, where there is one.
    pub code: i32,
    /// Of a message that was too long: what the connection takes, where that is known.
    pub bytes_max: Option<Bytes>,
    pub connection: Option<Handle>,
}

impl Ended {
    /// The error that a request ended with.
    pub fn request(error: RequestError, connection: Option<Handle>) -> Ended {
        let code = match error {
            RequestError::Fabric(code) | RequestError::RailsLost(code) => code,
            _ => 0,
        };
        let result = match error {
            RequestError::Truncated => XTIE_ERR_TRUNCATED,
            RequestError::PeerClosed => XTIE_ERR_PEER_CLOSED,
            RequestError::PeerDied => XTIE_ERR_PEER_DIED,
            RequestError::Closed => XTIE_ERR_CONNECTION_CLOSED,
            RequestError::Canceled => XTIE_ERR_CANCELED,
            RequestError::Protocol => XTIE_ERR_PROTOCOL,
            RequestError::Fabric(_) => XTIE_ERR_FABRIC,
            RequestError::RailsLost(_) => XTIE_ERR_RAILS_LOST,
            RequestError::NoAnswer => XTIE_ERR_NO_ANSWER,
            RequestError::PeerGaveUp => XTIE_ERR_PEER_GAVE_UP,
            RequestError::Unfenced => XTIE_ERR_UNFENCED,
            RequestError::Silent => XTIE_ERR_SILENT,
        };
        Ended { result, code, bytes_max: None, connection }
    }

    /// The error that a request was refused with. No room is no error of the callers'.
    #[cold]
    pub fn submit(error: SubmitError, connection: Handle) -> Ended {
        let result = match error {
            SubmitError::Again => XTIE_AGAIN,
            SubmitError::Failed(error) => return Ended::request(error, Some(connection)),
            SubmitError::Connection => XTIE_ERR_CONNECTION,
            SubmitError::Region => XTIE_ERR_MEMORY,
            SubmitError::Range => XTIE_ERR_RANGE,
            SubmitError::Device => XTIE_ERR_MEMORY_KIND,
            SubmitError::Group => XTIE_ERR_GROUP,
            SubmitError::TooLong => XTIE_ERR_TOO_LONG,
            SubmitError::RequestsMax => XTIE_ERR_REQUESTS_MAX,
        };
        Ended { result, code: 0, bytes_max: None, connection: Some(connection) }
    }
}

impl Explain for Ended {
    fn result(&self) -> xtie_result {
        self.result
    }

    fn explain(&self, shared: &Shared, text: &mut Text) -> fmt::Result {
        let died = self.connection.filter(|_| self.result == XTIE_ERR_PEER_DIED);
        match died.and_then(|connection| shared.peer_ending(connection)) {
            // what was seen, instead of all that it may be
            Some(ending) => write!(text, "the peer is gone: {ending}")?,
            None => text.write_str(self.result.sentence().to_str().unwrap_or(""))?,
        }
        if let Some(Bytes(most)) = self.bytes_max {
            write!(text, ": {most} bytes at most over its rail 0")?;
        }
        if self.code != 0 {
            // what host rails say is an errno
            write!(text, ": {}", Errno(self.code))?;
        }
        let mut peer = [0u8; 128];
        let length = self.connection.map_or(0, |handle| shared.peer_text(handle, &mut peer));
        match core::str::from_utf8(&peer[..length]) {
            Ok(peer) if !peer.is_empty() => write!(text, "; the peer is {peer}"),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

fn descriptors(limit: u64, text: &mut Text) -> fmt::Result {
    write!(text, "this process may open no more than {limit} file descriptors (ulimit -n)")
}

fn system(what: &str, code: i32, text: &mut Text) -> fmt::Result {
    write!(text, "{what} ({})", Errno(code))
}
