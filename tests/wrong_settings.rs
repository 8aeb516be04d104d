//! Settings that cannot be meant so are errors at open, with a sentence, and widen nothing.

#![allow(dead_code)] // of the shared parts

mod host_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::units::Bytes;
use crosstie::connect::interfaces::{InterfaceName, Interfaces};
use crosstie::host::log::{Level, sink_set};
use crosstie::host::{DeviceKind, Endpoint, OpenError, Options};
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
        // SAFETY: one test at a time comes here, and nothing else reads the environment.
        unsafe { std::env::set_var(name, std::ffi::OsStr::from_bytes(value)) };
    }
    let mut block = HeapBlock::new(options.bytes());
    // SAFETY: the block outlives the endpoint, and nobody else uses it.
    let endpoint = unsafe { Endpoint::open(block.start(), block.length(), options) };
    for (name, _) in variables {
        // SAFETY: as above.
        unsafe { std::env::remove_var(name) };
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

/// Found by this: as many threads as streams were called a device that cannot be used. Now threads
/// bring their streams along; those that a number of streams leaves without one are in `tool`.
#[test]
fn threads_bring_their_streams_and_too_many_are_ignored_by_name() {
    for (threads, ignored) in [("1", false), ("3", false), ("17", true)] {
        let (result, said) =
            opened_told(&small(1), "CROSSTIE_TCP_THREADS", threads, Level::Warning);
        assert_eq!(result, Ok(()));
        let start = format!("CROSSTIE_TCP_THREADS={threads} is ignored: ");
        let line = said.iter().find(|line| line.starts_with(&start));
        assert_eq!(line.is_some_and(|line| line.contains("from 0 to 5")), ignored, "{said:?}");
    }
}

#[test]
fn a_key_file_that_is_set_and_empty_is_an_error() {
    let (result, said) = opened(&small(1), "CROSSTIE_KEY_FILE", "");
    assert_eq!(result, Err(OpenError::Key));
    assert!(said.len() == 1 && said[0].contains("CROSSTIE_KEY_FILE"), "{said:?}");
}

#[test]
fn rails_that_are_not_understood_are_an_error_and_never_all_of_them() {
    for wrong in ["smh", "shm,", ",", "shm;tcp", "shm,,tcp", "efa"] {
        let (result, said) = opened(&small(1), "CROSSTIE_RAILS", wrong);
        assert_eq!(result, Err(OpenError::Rails), "{wrong}");
        assert!(said.len() == 1 && said[0].contains("CROSSTIE_RAILS"), "{said:?}");
    }
    for right in ["SHM", "Shm, tcp", ""] {
        let (result, said) = opened(&small(1), "CROSSTIE_RAILS", right);
        assert_eq!((result, said), (Ok(()), vec![]), "{right}");
    }
}

/// What was named and not there was a warning, and the endpoint went on over TCP.
#[test]
fn rails_that_must_be_there_and_are_not_are_an_error() {
    for (required, word) in [
        ("efa", "there is no rail efa"),
        ("tcp,vendor", "names vendor, which this endpoint would be without"),
    ] {
        let (result, said) = opened(&small(1), "CROSSTIE_RAILS_REQUIRED", required);
        assert_eq!(result, Err(OpenError::Required), "{required}");
        assert!(said.len() == 1 && said[0].contains(word), "{said:?}");
    }
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
        assert!(is_said(Level::Error, ", which this endpoint would be without"), "{said:?}");
        assert!(!said.iter().any(|(_, text)| text.contains("TCP")), "{said:?}");
    }
}

#[test]
fn variables_of_rdma_devices_that_cannot_be_are_named_and_the_endpoint_opens() {
    for (name, wrong, word) in [
        ("CROSSTIE_IB_HCA", "mlx5_0,", "leaves no RDMA port"),
        ("CROSSTIE_IB_HCA", "mlx5_0:x", "no port from 1 to 255"),
        ("CROSSTIE_IB_TIMEOUT", "0", "from 1 to 31"),
        ("CROSSTIE_IB_ADDR_RANGE", "10.0.0.0", "is ignored"),
    ] {
        let (result, said) = opened_told(&small(1), name, wrong, Level::Warning);
        assert_eq!(result, Ok(()), "{name}={wrong}");
        let line = said.iter().find(|line| line.starts_with(&format!("{name}={wrong} ")));
        assert!(line.is_some_and(|line| line.contains(word)), "{name}={wrong}: {said:?}");
    }
    let right = opened_told(&small(1), "CROSSTIE_IB_HCA", "^=mlx5_0:1", Level::Warning);
    assert!(!right.1.iter().any(|line| line.contains("CROSSTIE_IB_HCA")), "{right:?}");
}

#[test]
fn names_of_interfaces_that_mix_signs_are_an_error_with_whatever_rails() {
    for wrong in ["eth0,^lo", "lo,=eth0", "^lo,^eth", "^", "lo,,eth0"] {
        let (result, said) = opened(&small(1), "CROSSTIE_SOCKET_IFNAME", wrong);
        assert_eq!(result, Err(OpenError::InterfaceChoice), "{wrong}");
        assert!(said.len() == 1 && said[0].contains("CROSSTIE_SOCKET_IFNAME"), "{said:?}");
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
fn variable_that_is_no_text_is_ignored_by_name() {
    for name in [
        "CROSSTIE_HEAP_BYTES",
        "CROSSTIE_SOCKET_IFNAME",
        "CROSSTIE_IB_HCA",
        "CROSSTIE_OFI_PROVIDER",
    ] {
        let (result, said) = opened_with(&small(1), name, b"1\xff", Level::Warning);
        assert_eq!(result, Ok(()), "{name}");
        let line = said.iter().find(|line| line.starts_with(&format!("{name}=1")));
        assert!(line.is_some_and(|line| line.contains("it is not UTF-8")), "{name}: {said:?}");
    }
}

/// Both were taken without a word.
#[test]
fn kernel_copy_that_is_no_switch_and_a_directory_that_is_not_there_are_named() {
    for (name, wrong, words) in [
        ("CROSSTIE_KERNEL_COPY", "2", "is ignored: it may be from 0 to 1"),
        ("CROSSTIE_SHM_DIR", "/nowhere/at/all", "is no directory"),
    ] {
        let (result, said) = opened_told(&small(1), name, wrong, Level::Warning);
        assert_eq!(result, Ok(()), "{name}");
        let line = said.iter().find(|line| line.starts_with(&format!("{name}={wrong} ")));
        assert!(line.is_some_and(|line| line.contains(words)), "{name}: {said:?}");
    }
}

/// `it is not a number` was said of them.
#[test]
fn numbers_of_whatever_length_are_told_the_range() {
    for (name, range) in [
        ("CROSSTIE_TCP_STREAMS", "from 1 to 6"),
        ("CROSSTIE_STALL_MS", "from 0 to 86400000"),
        ("CROSSTIE_IB_TIMEOUT", "from 1 to 31"),
    ] {
        let long = "9".repeat(60);
        for wrong in ["99999999999999999999", "-1", &long] {
            let (result, said) = opened_told(&small(1), name, wrong, Level::Warning);
            assert_eq!(result, Ok(()), "{name}");
            let line = said.iter().find(|line| line.starts_with(&format!("{name}={wrong} ")));
            assert!(line.is_some_and(|line| line.contains(range)), "{name}: {said:?}");
        }
    }
    let (_, said) = opened_told(&small(1), "CROSSTIE_SEND_RING_BYTES", "-1", Level::Warning);
    assert!(said.iter().any(|line| line.contains("it may be from 0 on")), "{said:?}");
    let too_long = "99999999999999999999";
    let (result, _) = opened(&small(1), "CROSSTIE_SEND_RING_BYTES", too_long);
    assert!(matches!(result, Err(OpenError::Rings(_))), "{result:?}");
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
    assert!(matches!(result, Err(OpenError::Rings(_))), "{said:?}");
    let (result, said) = opened(&small(1), "CROSSTIE_SEND_RING_BYTES", "100");
    assert!(matches!(result, Err(OpenError::Rings(_))), "{said:?}");
}
