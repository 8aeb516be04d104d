//! Settings that cannot be meant so are errors at open, with a sentence, and widen nothing.

#![allow(dead_code)] // of the shared parts

mod host_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::units::Bytes;
use crosstie::connect::interfaces::{InterfaceName, Interfaces};
use crosstie::host::log::{Level, sink_set};
use crosstie::host::{DeviceKind, Endpoint, OpenError, Options, settings};
use host_support::small;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

static SAID: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());

fn said() -> MutexGuard<'static, Vec<(Level, String)>> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(_: usize, level: Level, text: &str) {
    said().push((level, text.to_owned()));
}

/// How an endpoint opens with this in the environment, and the errors that are said of it.
fn opened(options: &Options, name: &str, value: &str) -> (Result<(), OpenError>, Vec<String>) {
    opened_told(options, name, value, Level::Error)
}

/// The same with what is said at another level.
fn opened_told(
    options: &Options,
    name: &str,
    value: &str,
    at: Level,
) -> (Result<(), OpenError>, Vec<String>) {
    opened_with(options, name, value.as_bytes(), at)
}

/// The same with what may be no text.
fn opened_with(
    options: &Options,
    name: &str,
    value: &[u8],
    at: Level,
) -> (Result<(), OpenError>, Vec<String>) {
    let (result, all) = opened_in(options, &[(name, value)]);
    let told = all.into_iter().filter(|(level, _)| *level == at).map(|(_, text)| text);
    (result, told.collect())
}

/// How an endpoint opens with all of these in the environment, and what is said.
fn opened_in(
    options: &Options,
    variables: &[(&str, &[u8])],
) -> (Result<(), OpenError>, Vec<(Level, String)>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    said().clear();
    sink_set(Some((keep, 0)));
    for (name, value) in variables {
        host_support::set(name, std::ffi::OsStr::from_bytes(value));
    }
    let options = &Options { variables: host_support::variables(), ..*options };
    let mut block = HeapBlock::new(options.bytes());
    // SAFETY: the block outlives the endpoint, and nobody else uses it.
    let endpoint = unsafe { Endpoint::open(block.start(), block.length(), options) };
    for (name, _) in variables {
        host_support::unset(name);
    }
    let result = endpoint.map(Endpoint::close);
    sink_set(None);
    (result, std::mem::take(&mut *said()))
}

#[test]
fn more_rails_than_there_is_room_for_are_said_to_be_capped() {
    let rails = |rails_max| {
        let mut options = small(1);
        options.limits.rails_max = rails_max;
        options
    };
    for (options, capped) in [
        (rails(2), true),
        (rails(4), false),
        (Options { device: DeviceKind::SharedMemory, ..rails(2) }, false),
    ] {
        let (result, said) = opened_told(&options, "CROSSTIE_TCP_RAILS", "4", Level::Warning);
        assert_eq!(result, Ok(()));
        let text = "CROSSTIE_TCP_RAILS=4 is more than rails_max, 2,";
        assert_eq!(said.iter().any(|line| line.starts_with(text)), capped, "{said:?}");
    }
}

/// Values that cannot be meant, of every setting of the library that has such, and what is said of
/// what may be.
const WRONG: &[(&str, &[&str], &str)] = &[
    ("CROSSTIE_SEND_RING_BYTES", &["12345", "99999999999999999999"], "a power of two from 4096"),
    ("CROSSTIE_SEND_RING_BYTES", &["-1", "8k"], "a number from 0 on"),
    ("CROSSTIE_WRITE_RING_BYTES", &["0", "4294967296"], "from 4096 to 16777216"),
    ("CROSSTIE_EAGER_BYTES", &["1000000000"], "16320 at most"),
    ("CROSSTIE_EAGER_BYTES", &["much"], "a number from 0 on"),
    ("CROSSTIE_HEAP_BYTES", &["18446744073709551615", "140737488355328"], "below 140737488355328"),
    ("CROSSTIE_HEAP_BYTES", &["1 GiB"], "a number from 0 on"),
    ("CROSSTIE_CHECKSUM", &["2", "on"], "a number from 0 to 1"),
    ("CROSSTIE_GIN", &["2", "yes"], "0, 1 or proxy"),
    ("CROSSTIE_NCCL_CUDA", &["2", "gpu"], "a number from 0 to 1"),
    ("CROSSTIE_GIN_CPUS", &["0-3", "4096", "all"], "no CPU below"),
    ("CROSSTIE_KERNEL_COPY", &["2", "no"], "a number from 0 to 1"),
    ("CROSSTIE_CONNECT_TIMEOUT_MS", &["0", "1 s", "86400001"], "from 1 to 86400000"),
    (
        "CROSSTIE_SHM_DIR",
        &["/tmp/a-folder-whose-name-is-longer-than-a-socket-has-room-for"],
        "it may have 60 bytes at most",
    ),
    ("CROSSTIE_SHM_DIR", &["tmp", "."], "an absolute path"),
    ("CROSSTIE_SHM_DIR", &["/nowhere/at/all", "/proc/self/status"], "it is no directory"),
    ("CROSSTIE_ALLOW_UIDS", &["root", "1000,"], "no user's number"),
    (
        "CROSSTIE_RAILS",
        &["smh", "shm,", ",", "shm;tcp", "shm,,tcp", "shm+tcp", "efa"],
        "there are shm, verbs",
    ),
    ("CROSSTIE_RAILS_REQUIRED", &["efa", "verbs;tcp", "shm+tcp"], "there are shm, verbs"),
    ("CROSSTIE_SOCKET_IFNAME", &["eth0,^lo", "lo,=eth0", "^lo,^eth", "^", "lo,,eth0"], "^ or ="),
    ("CROSSTIE_TCP_RAILS", &["0", "9", "two"], "from 1 to 8"),
    ("CROSSTIE_TCP_STREAMS", &["0", "99"], "from 1 to 6"),
    ("CROSSTIE_TCP_THREADS", &["6", "-1", "99999999999999999999"], "from 0 to 5"),
    ("CROSSTIE_TCP_THREAD_CPUS", &["0-3", "4096", "all"], "no CPU below"),
    ("CROSSTIE_SHM_THREADS", &["8"], "from 0 to 7"),
    ("CROSSTIE_KEY_FILE", &[""], "unset it to have no key"),
    ("CROSSTIE_KEY_FILE", &["nowhere", "/nowhere/at/all"], "the file cannot be read"),
    ("CROSSTIE_KEY_FILE", &["/", "/dev/null"], "this is not a file"),
    ("CROSSTIE_PEER_TIMEOUT_MS", &["99", "soon"], "from 100 to 86400000"),
    ("CROSSTIE_STALL_MS", &["-1", "86400001"], "from 0 to 86400000"),
    ("CROSSTIE_NODE_ID", &["host", "1ffffffffffffffff"], "a hexadecimal number"),
    ("CROSSTIE_LOG", &["debug"], "error, warning or info"),
    ("CROSSTIE_IB_DISABLE", &["yes", "2"], ""),
    ("CROSSTIE_IB_HCA", &["mlx5_0,", "mlx5_0:x", "mlx5_0:1-2", "^"], ""),
    ("CROSSTIE_IB_GID_INDEX", &["256"], "from -1 to 255"),
    ("CROSSTIE_IB_ADDR_FAMILY", &["IPv4"], "AF_INET or AF_INET6"),
    ("CROSSTIE_IB_ADDR_RANGE", &["10.0.0.0"], "the bits of a prefix"),
    ("CROSSTIE_IB_ROCE_VERSION_NUM", &["3"], "from 1 to 2"),
    ("CROSSTIE_IB_TIMEOUT", &["0", "32", "99999999999999999999"], "from 1 to 31"),
    ("CROSSTIE_IB_RETRY_CNT", &["8"], "from 0 to 7"),
    ("CROSSTIE_IB_PKEY", &["65536"], "from 0 to 65535"),
    ("CROSSTIE_IB_SL", &["16"], "from -1 to 15"),
    ("CROSSTIE_IB_TC", &["256"], "from -1 to 255"),
    ("CROSSTIE_IB_ECE_ENABLE", &["2"], "from 0 to 1"),
    ("CROSSTIE_IB_PCI_RELAXED_ORDERING", &["3"], "from 0 to 2"),
    ("CROSSTIE_IB_ADAPTIVE_ROUTING", &["-1", "2"], ""),
    ("CROSSTIE_IB_AR_THRESHOLD", &["-1"], "from 0 to above"),
    ("CROSSTIE_IB_EXTENDED_POST", &["2"], "from 0 to 1"),
    ("CROSSTIE_IB_QPS_PER_CONNECTION", &["0", "129"], "from 1 to 128"),
    ("CROSSTIE_IB_MERGE_VFS", &["2"], "from 0 to 1"),
    ("CROSSTIE_OFI_DOMAINS", &[",", "lo,", "lo,,lo"], "a name is missing"),
    ("CROSSTIE_OFI_SILENCE_MS", &["99", "86400001"], "it may be 0, or from 100 to 86400000"),
];

/// Settings of which every text can be meant, and those of the program `crosstie`.
const ANY_TEXT: &[&str] = &[
    "CROSSTIE_OFI_PROVIDER",
    "CROSSTIE_OFI_LIBRARY",
    "CROSSTIE_RANK",
    "CROSSTIE_SIZE",
    "CROSSTIE_LOCAL_RANK",
    "CROSSTIE_RENDEZVOUS",
];

/// Some were errors, some warnings, and the library went on with a default for the others.
#[test]
fn value_of_any_setting_that_cannot_be_meant_is_one_error_and_nothing_opens() {
    for setting in settings::names() {
        let listed = WRONG.iter().any(|(name, ..)| *name == setting);
        assert!(listed != ANY_TEXT.contains(&setting), "{setting} is not tried");
    }
    for (name, values, may_be) in WRONG {
        for value in *values {
            for device in [DeviceKind::Host, DeviceKind::SharedMemory, DeviceKind::Loopback] {
                let options = Options { device, ..small(1) };
                let (result, said) = opened_in(&options, &[(name, value.as_bytes())]);
                assert_eq!(result, Err(OpenError::Setting(name)), "{name}={value}");
                let [(Level::Error, line)] = &said[..] else { panic!("{name}={value}: {said:?}") };
                assert!(line.starts_with(&format!("{name}={value}: ")), "{line}");
                assert!(line.contains(may_be), "{line}");
                assert!(line.ends_with("; no endpoint opens until that is corrected"), "{line}");
            }
        }
    }
}

/// Each that is wrong has its line.
#[test]
fn settings_that_are_wrong_together_have_a_line_each() {
    let both: [(&str, &[u8]); 2] = [("CROSSTIE_TCP_RAILS", b"9"), ("CROSSTIE_STALL_MS", b"soon")];
    let (result, said) = opened_in(&small(1), &both);
    assert_eq!(result, Err(OpenError::Setting("CROSSTIE_TCP_RAILS")));
    assert_eq!(said.len(), 2, "{said:?}");
    let both: [(&str, &[u8]); 2] = [("CROSSTIE_TCP_STREAMS", b"2"), ("CROSSTIE_TCP_THREADS", b"2")];
    let (result, said) = opened_in(&small(1), &both);
    assert_eq!(result, Err(OpenError::Setting("CROSSTIE_TCP_THREADS")));
    let [(Level::Error, line)] = &said[..] else { panic!("{said:?}") };
    assert!(line.contains("1 at most with CROSSTIE_TCP_STREAMS=2"), "{line}");
}

/// A variable that is empty is one that is not set.
#[test]
fn empty_settings_are_not_set() {
    for setting in settings::names().filter(|name| *name != "CROSSTIE_KEY_FILE") {
        let (result, said) = opened(&small(1), setting, "");
        assert_eq!((result, said), (Ok(()), vec![]), "{setting}");
    }
}

/// As many threads as streams were called a device that cannot be used.
#[test]
fn threads_bring_their_streams() {
    for threads in ["1", "3"] {
        let (result, said) = opened(&small(1), "CROSSTIE_TCP_THREADS", threads);
        assert_eq!((result, said), (Ok(()), vec![]), "{threads}");
    }
}

#[test]
fn names_of_rails_are_taken_in_any_case() {
    for right in ["SHM", "Shm, tcp", ""] {
        let (result, said) = opened(&small(1), "CROSSTIE_RAILS", right);
        assert_eq!((result, said), (Ok(()), vec![]), "{right}");
    }
}

/// What was named and not there was a warning, and the endpoint went on over TCP.
#[test]
fn rails_that_must_be_there_and_are_not_are_an_error() {
    let (result, said) = opened(&small(1), "CROSSTIE_RAILS_REQUIRED", "tcp,vendor");
    assert_eq!(result, Err(OpenError::Required));
    let word = "names vendor, which cannot be used here";
    assert!(said.len() == 1 && said[0].contains(word), "{said:?}");
    let alone = Options { device: DeviceKind::SharedMemory, ..small(1) };
    for (options, required) in [(small(1), "shm, TCP"), (small(1), ""), (alone, "libfabric")] {
        let (result, said) = opened(&options, "CROSSTIE_RAILS_REQUIRED", required);
        assert_eq!((result, said), (Ok(()), vec![]), "{required}");
    }
}

/// The first line said that hosts talk over TCP, and the next one refused to open.
#[test]
fn what_is_refused_for_want_of_a_rail_is_not_said_to_go_over_tcp() {
    for rail in ["verbs", "libfabric"] {
        let variables: [(&str, &[u8]); 3] = [
            ("CROSSTIE_RAILS_REQUIRED", rail.as_bytes()),
            ("CROSSTIE_IB_DISABLE", b"1"),
            ("CROSSTIE_OFI_LIBRARY", b"/dev/null"),
        ];
        let (result, said) = opened_in(&small(1), &variables);
        assert_eq!(result, Err(OpenError::Required), "{rail}");
        let names = format!("CROSSTIE_RAILS_REQUIRED names {rail}");
        let is_said = |level, words: &str| {
            said.iter().any(|(at, text)| *at == level && text.contains(&format!("{names}{words}")))
        };
        assert!(is_said(Level::Warning, " ("), "{said:?}");
        assert!(is_said(Level::Error, ", which cannot be used here"), "{said:?}");
        assert!(!said.iter().any(|(_, text)| text.contains("TCP")), "{said:?}");
    }
}

/// The same was said of them twice, in two lines.
#[test]
fn names_of_which_no_interface_has_any_are_said_in_one_line() {
    const NAME: &str = "CROSSTIE_SOCKET_IFNAME";
    let beginning = "CROSSTIE_SOCKET_IFNAME=nobodys0,nobodys1 matches no interface with an address";
    for (device, result, level) in [
        (DeviceKind::Host, Ok(()), Level::Warning),
        (DeviceKind::Tcp, Err(OpenError::Interface), Level::Error),
    ] {
        let options = Options { device, ..small(1) };
        let (opened, said) = opened_in(&options, &[(NAME, b"nobodys0,nobodys1")]);
        assert_eq!(opened, result);
        let lines: Vec<_> = said.iter().filter(|(_, text)| text.contains("nobodys")).collect();
        let one = lines.len() == 1 && lines[0].0 == level && lines[0].1.starts_with(beginning);
        assert!(one, "{said:?}");
    }
    let (_, said) = opened_told(&small(1), NAME, "lo,nobodys0", Level::Warning);
    let words = "CROSSTIE_SOCKET_IFNAME=lo,nobodys0: no interface matches nobodys0; there are ";
    assert!(said.iter().filter(|line| line.starts_with(words)).count() == 1, "{said:?}");
}

/// A variable that nobody had set was blamed, in a second line.
#[test]
fn interface_of_a_device_that_is_gone_is_said_in_one_line_that_blames_no_variable() {
    let interfaces = Interfaces::one(InterfaceName::new(b"nobodys0"));
    let (opened, said) = opened_in(&Options { interfaces, ..small(1) }, &[]);
    assert_eq!(opened, Ok(()));
    let lines: Vec<_> = said.iter().filter(|(_, text)| text.contains("nobodys")).collect();
    let [(Level::Warning, line)] = &lines[..] else { panic!("{said:?}") };
    assert!(line.starts_with("the device's interface nobodys0 is gone; there are "), "{line}");
    assert!(line.ends_with(": other hosts cannot be reached"), "{line}");
}

/// It was ignored without a word.
#[test]
fn variable_that_is_no_text_is_refused_by_name() {
    for name in [
        "CROSSTIE_HEAP_BYTES",
        "CROSSTIE_SOCKET_IFNAME",
        "CROSSTIE_IB_HCA",
        "CROSSTIE_OFI_PROVIDER",
    ] {
        let (result, said) = opened_with(&small(1), name, b"1\xff", Level::Error);
        assert_eq!(result, Err(OpenError::Setting(name)));
        let line = said.iter().find(|line| line.starts_with(&format!("{name}=1")));
        assert!(line.is_some_and(|line| line.contains("it is not UTF-8")), "{name}: {said:?}");
    }
}

/// `CROSSTIE_RAILS=TCP` was taken, and this was not.
#[test]
fn levels_of_the_log_are_taken_in_any_case() {
    for level in ["INFO", "Warning", "error"] {
        let (_, said) = opened_told(&small(1), "CROSSTIE_LOG", level, Level::Warning);
        assert!(!said.iter().any(|line| line.starts_with("CROSSTIE_LOG")), "{said:?}");
    }
}

/// Who opens without a heap stays without.
#[test]
fn heap_bytes_of_the_environment_make_a_small_heap_and_none_where_there_is_none() {
    for (heap_bytes, value) in [(Bytes::ZERO, "5"), (Bytes(1 << 30), "5"), (Bytes(8192), "0")] {
        let mut options = Options { heap_bytes, ..small(1) };
        options.limits.regions_max = 256;
        let (result, said) = opened(&options, "CROSSTIE_HEAP_BYTES", value);
        assert_eq!((result, said), (Ok(()), vec![]), "{heap_bytes:?} {value}");
    }
}

/// Every endpoint of who set that variable alone was refused, for the default of another.
#[test]
fn short_send_ring_is_enough_to_say() {
    for ring in ["4096", "8192", "16384", "32768", "131072"] {
        let (result, said) = opened(&small(1), "CROSSTIE_SEND_RING_BYTES", ring);
        assert_eq!((result, said), (Ok(()), vec![]), "{ring}");
    }
    let long = Options { eager_bytes_max: Bytes::kib(15), ..small(1) };
    let (result, said) = opened(&long, "CROSSTIE_EAGER_BYTES", "17000");
    assert_eq!(result, Err(OpenError::Setting("CROSSTIE_EAGER_BYTES")), "{said:?}");
}
