//! Why calls of an endpoint fail. Small values; `Display` is the sentence for people.
#![forbid(unsafe_code)]

use super::choice::sizes::{
    HEAP_BYTES_END, RING_BYTES_MIN, SEND_RING_BYTES_MAX, WRITE_RING_BYTES_MAX,
};
use crate::base::words::{said, wraps};
pub use crate::connect::{AcceptError, ConnectError, ListenError};
use crate::connect::{SHM_DIR_BYTES_MAX, descriptor_limit};
pub use crate::fabric::{DeregisterError, RegisterError};
use crate::memory::Errno;
use crate::memory::available::address_space_limit;
use crate::provider::vendor::TableError;
use crate::transport::limits::LimitsError;
use core::fmt;
use std::format;
use std::string::String;

/// Which size breaks which rule.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum RingsError {
    /// The send ring's, in bytes.
    Send(u32),
    /// The write ring's, in bytes.
    Write(u32),
    /// The heap's.
    Heap(u64),
    /// The eager size, and the most that the send ring of the other size allows.
    Eager {
        /// What was asked for.
        bytes: u64,
        /// What may be.
        most: u64,
        /// The send ring's size.
        ring: u32,
    },
}

impl RingsError {
    /// The variables that it may come of, the likeliest first.
    pub(super) const fn settings(&self) -> &'static [&'static str] {
        match self {
            RingsError::Send(_) => &["CROSSTIE_SEND_RING_BYTES"],
            RingsError::Write(_) => &["CROSSTIE_WRITE_RING_BYTES"],
            RingsError::Heap(_) => &["CROSSTIE_HEAP_BYTES"],
            RingsError::Eager { .. } => &["CROSSTIE_EAGER_BYTES", "CROSSTIE_SEND_RING_BYTES"],
        }
    }

    /// What may be.
    pub(super) fn rule(&self) -> String {
        let ring = |most| format!("it must be a power of two from {RING_BYTES_MIN} to {most}");
        match self {
            RingsError::Send(_) => ring(SEND_RING_BYTES_MAX),
            RingsError::Write(_) => ring(WRITE_RING_BYTES_MAX),
            RingsError::Heap(_) => format!(
                "it must be below {HEAP_BYTES_END}, the address space of a process; every peer on \
                 the host maps it, too"
            ),
            RingsError::Eager { most, ring, .. } => format!(
                "with a send ring of {ring} bytes (CROSSTIE_SEND_RING_BYTES) it may be {most} at \
                 most: a quarter of the ring less 64, and never over 16384"
            ),
        }
    }
}

impl fmt::Display for RingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bytes) = match *self {
            RingsError::Send(bytes) => ("send_ring_bytes", bytes.into()),
            RingsError::Write(bytes) => ("write_ring_bytes", bytes.into()),
            RingsError::Heap(bytes) => ("heap_bytes", bytes),
            RingsError::Eager { bytes, .. } => ("eager_bytes_max", bytes),
        };
        write!(f, "{name} is {bytes}: {}", self.rule())
    }
}

said! {
    /// Why no memory was allocated. Nothing was changed.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum AllocateError {
        HeapFull =>
            "the endpoint's heap (heap_bytes, CROSSTIE_HEAP_BYTES) has no gap of that length left",
        /// There is no heap (`Kind`), the system has no memory (`Fabric`), or the memory could not
        /// be registered.
        Register(error: RegisterError) => |f| match error {
            RegisterError::Kind => f.write_str(
                "the endpoint was opened without a heap (its options, or CROSSTIE_HEAP_BYTES=0)",
            ),
            RegisterError::Full => f.write_str("regions_max regions are registered already"),
            RegisterError::Range => f.write_str("the range is empty or wraps around"),
            RegisterError::Fabric(code) => write!(f, "the memory was refused ({})", Errno(*code)),
        },
    }
}

wraps!(AllocateError: Register(RegisterError));

said! {
    /// Why a rail that a program gives is none. The endpoint is not opened.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum VendorRailError {
        /// The structure, or its size.
        Struct => "struct_size is not the size of any version",
        Reserved => "reserved is not zero",
        /// The table.
        Table(what: TableError) => |f| match what {
            TableError::Null => f.write_str("ops is NULL"),
            TableError::Size => {
                f.write_str("struct_size of its ops is not the size of any version")
            }
            TableError::Longer => {
                f.write_str("its ops have entries that this version does not know")
            }
            TableError::Reserved => f.write_str("reserved of its ops is not zero"),
            TableError::Entry(name) => write!(f, "the entry {name} of its ops is NULL"),
        },
        /// The name is missing, too long, or not of printed characters.
        Name => "its name is not 1 to 32 printed characters without a space",
        /// It reaches nobody, or its flags are unknown.
        Flags => "its flags exclude every peer, or are unknown",
        /// There are more than so many.
        TooMany(most: usize) => "there are more than {most}",
    }
}

said! {
    /// Why an endpoint could not be opened. Nothing is left behind.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum OpenError {
        /// A limit is zero, too large, or of a wrong shape.
        Limits(what: LimitsError) => |f| match what {
            LimitsError::Connections => f.write_str("connections_max must be from 1 to 65536"),
            LimitsError::Requests => f.write_str("requests_max must be 32, 64, 128 or 256"),
            LimitsError::Regions => f.write_str("regions_max must be from 1 to 65534"),
            LimitsError::Rails => f.write_str("rails_max must be 1, 2, 4 or 8"),
        },
        /// A ring's size, or the eager size, breaks a rule.
        Rings(error: RingsError) => "{error}",
        /// The block is smaller than [`super::Options::bytes`].
        Storage => "the storage is smaller than the endpoint's size",
        Device => "the device cannot be used on this host",
        /// `CROSSTIE_TCP_THREAD_CPUS` names a CPU that no thread of this process may use.
        Cpu(cpu: u32) =>
            "CROSSTIE_TCP_THREAD_CPUS names CPU {cpu}, which this host does not have or the \
             cpuset of this process leaves out",
        /// The value of this setting cannot be meant; the log says what may be.
        Setting(name: &'static str) =>
            "the value of {name} is not valid; the log says which values are",
        /// `CROSSTIE_RAILS` allows no rail that the device has.
        Rails => "CROSSTIE_RAILS allows no rail that the device has",
        /// `CROSSTIE_RAILS_REQUIRED` names a rail that is not to be had.
        Required => "a rail that CROSSTIE_RAILS_REQUIRED names cannot be used here",
        /// No interface is left that other hosts could reach us by.
        Interface =>
            "no interface that is up and chosen (CROSSTIE_SOCKET_IFNAME) has an address, and the \
             device has no rail but TCP",
        /// The kernel does not tell which interfaces there are.
        Interfaces(code: i32) =>
            "the kernel does not list the interfaces of this host, which TCP needs (errno {code})",
        /// `CROSSTIE_SOCKET_IFNAME` cannot be understood.
        InterfaceChoice =>
            "CROSSTIE_SOCKET_IFNAME cannot be understood: list names with commas; ^ or = may \
             stand only in front of the list",
        /// A rail of a vendor's that the program gives is none.
        VendorRail(error: VendorRailError) => "a rail of a vendor's: {error}",
        /// The side band could not be opened.
        Band(what: crate::connect::OpenError) => |f| match what {
            crate::connect::OpenError::Descriptors(limit) => descriptors(*limit, f),
            crate::connect::OpenError::ShmDir => write!(
                f,
                "CROSSTIE_SHM_DIR is too long: the name of a socket has room for \
                 {SHM_DIR_BYTES_MAX} bytes of it"
            ),
            crate::connect::OpenError::Thread(why) => why.fmt(f),
            crate::connect::OpenError::System(code) => {
                write!(f, "the side band could not be opened ({})", Refusal(*code))
            }
            crate::connect::OpenError::HostNumber(code) => write!(
                f,
                "the number of this host, /proc/sys/kernel/random/boot_id, cannot be read ({}): \
                 mount /proc, or set CROSSTIE_NODE_ID",
                Errno(*code)
            ),
            error => write!(f, "the side band could not be opened: {error:?}"),
        },
        /// Shared memory is the only rail that is allowed, and the kernel refuses it.
        SharedMemory {
            /// The call that it refuses.
            call: &'static str,
            /// Its code.
            code: i32,
            /// Whether tcp is allowed and has no address.
            no_address: bool,
        } => |f| {
            write!(f, "the kernel refuses to make shared memory ({call}: {}), and ", Errno(*code))?;
            f.write_str(if *no_address { NO_ADDRESS } else { NO_OTHER })
        },
        /// The kernel refused, with its code.
        System(what: i32) => |f| match *what {
            libc::EMFILE => descriptors(descriptor_limit(), f),
            libc::ENFILE => {
                f.write_str("this host may open no more file descriptors (fs.file-max)")
            }
            code => write!(f, "the kernel refused ({})", Refusal(code)),
        },
    }
}

/// A code of the kernel's, and of want of memory the limit that may be its cause.
struct Refusal(i32);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Errno(self.0).fmt(f)?;
        match address_space_limit() {
            Some(bytes) if self.0 == libc::ENOMEM => write!(
                f,
                "; the address space of this process may have {} KiB (ulimit -v), of which the \
                 heap takes half: raise that, or lower heap_bytes (CROSSTIE_HEAP_BYTES)",
                bytes / 1024
            ),
            Some(_) | None => Ok(()),
        }
    }
}

/// Why no other rail takes the place of shared memory.
const NO_OTHER: &str = "no other rail is allowed; allow tcp (CROSSTIE_RAILS, or the device host0), \
                        or allow the call";
const NO_ADDRESS: &str = "tcp, which is allowed, has no interface with an address; the log says \
                          why";

fn descriptors(limit: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "this process may open no more than {limit} file descriptors (ulimit -n)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::NoThread;
    use std::string::ToString;

    #[test]
    fn the_limit_of_descriptors_is_named_with_its_value() {
        let band = OpenError::Band(crate::connect::OpenError::Descriptors(77));
        assert!(band.to_string().contains("no more than 77 file descriptors"), "{band}");
        let system = OpenError::System(libc::EMFILE).to_string();
        assert!(system.contains(&descriptor_limit().to_string()), "{system}");
        assert!(system.contains("ulimit -n"), "{system}");
    }

    #[test]
    fn what_starts_no_thread_is_named_by_its_cause_and_not_as_the_side_band() {
        let of = |why| OpenError::Band(crate::connect::OpenError::Thread(why)).to_string();
        let many = of(NoThread::TooMany(77));
        assert!(many.contains("cannot start a thread: its user may have 77 threads"), "{many}");
        assert!(many.contains("pids.max"), "{many}");
        let space = of(NoThread::AddressSpace(1 << 20));
        assert!(space.contains("ulimit -v, 1024 KiB") && !space.contains("ulimit -u"), "{space}");
        let filter = of(NoThread::Refused(libc::EPERM));
        assert!(filter.contains("clone3: errno 1") && filter.contains("seccomp"), "{filter}");
        assert!(!filter.contains("side band"), "{filter}");
        let text = OpenError::Band(crate::connect::OpenError::System(libc::ENOENT)).to_string();
        assert!(!text.contains("System("), "{text}");
    }
}
