//! Settings that cannot be meant so are errors at open, with a sentence, and widen nothing.

#![allow(dead_code)] // of the shared parts

mod host_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::host::log::{Level, sink_set};
use crosstie::host::{Endpoint, OpenError, Options};
use host_support::small;
use std::sync::{Mutex, MutexGuard, PoisonError};

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn said() -> MutexGuard<'static, Vec<String>> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(_: usize, level: Level, text: &str) {
    if level == Level::Error {
        said().push(text.to_owned());
    }
}

/// How an endpoint opens with this in the environment, and the errors that are said of it.
fn opened(options: &Options, name: &str, value: &str) -> (Result<(), OpenError>, Vec<String>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    said().clear();
    sink_set(Some((keep, 0)));
    // SAFETY: one test at a time comes here, and nothing else reads the environment.
    unsafe { std::env::set_var(name, value) };
    let mut block = HeapBlock::new(options.bytes());
    // SAFETY: the block outlives the endpoint, and nobody else uses it.
    let endpoint = unsafe { Endpoint::open(block.start(), block.length(), options) };
    // SAFETY: as above.
    unsafe { std::env::remove_var(name) };
    let result = endpoint.map(Endpoint::close);
    sink_set(None);
    (result, said().clone())
}

#[test]
fn a_key_file_that_is_set_and_empty_is_an_error() {
    let (result, said) = opened(&small(1), "CROSSTIE_KEY_FILE", "");
    assert_eq!(result, Err(OpenError::Key));
    assert!(said.len() == 1 && said[0].contains("CROSSTIE_KEY_FILE"), "{said:?}");
}

#[test]
fn rails_that_are_not_understood_are_an_error_and_never_all_of_them() {
    for wrong in ["smh", "shm,", ",", "shm;tcp", "shm,,tcp", "verbs"] {
        let (result, said) = opened(&small(1), "CROSSTIE_RAILS", wrong);
        assert_eq!(result, Err(OpenError::Rails), "{wrong}");
        assert!(said.len() == 1 && said[0].contains("CROSSTIE_RAILS"), "{said:?}");
    }
    for right in ["SHM", "Shm, tcp", ""] {
        let (result, said) = opened(&small(1), "CROSSTIE_RAILS", right);
        assert_eq!((result, said), (Ok(()), vec![]), "{right}");
    }
}

#[test]
fn names_of_interfaces_that_mix_signs_are_an_error_with_whatever_rails() {
    for wrong in ["eth0,^lo", "lo,=eth0", "^lo,^eth", "^", "lo,,eth0"] {
        let (result, said) = opened(&small(1), "CROSSTIE_SOCKET_IFNAME", wrong);
        assert_eq!(result, Err(OpenError::InterfaceChoice), "{wrong}");
        assert!(said.len() == 1 && said[0].contains("CROSSTIE_SOCKET_IFNAME"), "{said:?}");
    }
}
