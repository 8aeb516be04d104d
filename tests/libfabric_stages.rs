//! What the first connection of a process waits for: libfabric's own start, and ours.
#![allow(dead_code)] // of the shared parts

mod host_support;
mod libfabric_support;

use crosstie::host::{DeviceKind, Options};
use crosstie::provider::libfabric::sys::library::{FILE, text};
use crosstie::provider::libfabric::sys::numbers as n;
use crosstie::provider::libfabric::sys::{Cq, Domain, Endpoint, Fabric, Info, Library, Vector};
use crosstie::provider::libfabric::{Config, survey::survey};
use host_support::pair::{Pair, alone};
use host_support::{Node, joined, small};
use libfabric_support::skip;
use std::ffi::{CStr, CString};
use std::process::Command;
use std::time::{Duration, Instant};

/// Says in a child what is opened there, and how it says what that took.
const STAGES: &str = "XTIE_LIBFABRIC_STAGES";
/// A library is loaded once in a process: each kind has one of its own. The stages of both, one
/// after the other.
const KINDS: [(&str, &[&str]); 2] = [
    ("bare", &["loading the file", "first question", "second question", "endpoint"]),
    (
        "endpoints",
        &[
            "first endpoint of the process",
            "second endpoint",
            "connection",
            "a message each way",
            "rail in use",
        ],
    ),
];

/// Runs in children alone: opens what libfabric has for an endpoint, by its calls alone, or two
/// whole endpoints, and says what each stage took.
#[test]
fn stages() {
    let Ok(what) = std::env::var(STAGES) else { return };
    let (kind, provider) = what.split_once(' ').unwrap();
    let provider: &'static CStr = Box::leak(CString::new(provider).unwrap().into_boxed_c_str());
    assert!(!is_loaded(), "nobody has asked for it");
    let said = match kind {
        "bare" => bare_stages(provider),
        _ => endpoint_stages(provider),
    };
    let words: Vec<_> = said.iter().map(|(what, took)| format!("{what} {took:.1?}")).collect();
    println!("STAGES {}", words.join(", "));
}

type Stages = Vec<(&'static str, Duration)>;

/// Whether libfabric is in this process.
fn is_loaded() -> bool {
    // SAFETY: loads nothing.
    unsafe { !libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD).is_null() }
}

/// Time since the last stage.
struct Stopwatch(Instant, Stages);

impl Stopwatch {
    fn stage(&mut self, what: &'static str) {
        assert!(is_loaded(), "{what}: the first stage of each kind loads it");
        self.1.push((what, self.0.elapsed()));
        self.0 = Instant::now();
    }
}

fn bare_stages(provider: &CStr) -> Stages {
    let mut watch = Stopwatch(Instant::now(), Vec::new());
    let library = Library::load(FILE).unwrap();
    watch.stage("loading the file");
    let offers = || {
        let mut hints = library.hints().unwrap();
        hints.set_provider(provider.to_bytes());
        hints.set_domain(c"lo");
        let raw = hints.get_mut();
        raw.caps = n::MSG | n::RMA;
        raw.mode = n::CONTEXT | n::CONTEXT2 | n::RX_CQ_DATA;
        // SAFETY: the library allocates all parts of hints.
        unsafe {
            (*raw.ep_attr).ep_type = n::EP_RDM;
            (*raw.domain_attr).mr_mode = n::MR_LOCAL | n::MR_VIRT_ADDR | n::MR_PROV_KEY;
        }
        library.offers(&hints).unwrap()
    };
    let info = offers();
    watch.stage("first question");
    let again = offers();
    watch.stage("second question");
    // what is asked once could be kept
    assert_eq!(names(&again), names(&info), "asking again has another answer");
    drop(again);
    let fabric = Fabric::open(&library, &info).unwrap();
    let domain = Domain::open(&fabric, &info).unwrap();
    let (cq, vector) = (Cq::open(&domain, 1024).unwrap(), Vector::open(&domain, 64).unwrap());
    let endpoint = Endpoint::open(&domain, &info, &cq, &vector).unwrap();
    watch.stage("endpoint");
    drop((endpoint, vector, cq));
    watch.1
}

/// Which providers are offered, in which order.
fn names(info: &Info) -> Vec<CString> {
    let mut names = Vec::new();
    let mut next: *const _ = info.get();
    while !next.is_null() {
        // SAFETY: an offer of the list, whose parts and texts the library has allocated.
        let (name, after) = unsafe { (text((*(*next).fabric_attr).prov_name), (*next).next) };
        names.push(name.to_owned());
        next = after;
    }
    names
}

fn endpoint_stages(provider: &CStr) -> Stages {
    for (name, value) in [
        ("CROSSTIE_RAILS", "libfabric"),
        ("CROSSTIE_SOCKET_IFNAME", "=lo"),
        ("CROSSTIE_OFI_PROVIDER", provider.to_str().unwrap()),
        ("CROSSTIE_OFI_DOMAINS", "lo"),
    ] {
        host_support::set(name, value);
    }
    let mut options = Options { device: DeviceKind::Host, ..small(2) };
    options.limits.rails_max = 2;
    let mut watch = Stopwatch(Instant::now(), Vec::new());
    let mut a = Node::open(&options);
    watch.stage("first endpoint of the process");
    let mut b = Node::open(&options);
    watch.stage("second endpoint");
    let (to_b, to_a) = joined(&mut a, &mut b);
    watch.stage("connection");
    let mut pair = Pair::joined(alone(), a, b, (to_b, to_a));
    pair.hello();
    watch.stage("a message each way");
    pair.all_up(2);
    watch.stage("rail in use");
    watch.1
}

/// How long each took is for people; that they come, and in this order, is asserted.
#[test]
fn stages_of_the_first_connection_are_told() {
    if std::env::var_os(STAGES).is_some() {
        return;
    }
    let provider = "tcp;ofi_rxm";
    let name = CString::new(provider).unwrap();
    match survey(&Config { provider: Some(&name), ..Config::DEFAULT }) {
        Ok(found) if !found.offers.is_empty() => {}
        Ok(_) => return skip("no tcp;ofi_rxm"),
        Err(why) => return skip(&why.to_string()),
    }
    for (kind, stages) in KINDS {
        let done = Command::new(std::env::current_exe().unwrap())
            .args(["stages", "--exact", "--nocapture"])
            .env(STAGES, format!("{kind} {provider}"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let line = said.lines().find_map(|line| line.split_once("STAGES "));
        let line = line.unwrap_or_else(|| panic!("{provider} {kind}: {said}")).1;
        println!("{provider}, {kind}: {line}");
        assert!(done.status.success(), "{provider} {kind}: {said}");
        let told = line.split(", ").map(|stage| stage.rsplit_once(' ').unwrap().0);
        assert_eq!(told.collect::<Vec<_>>(), stages, "{provider} {kind}");
    }
}
