//! Hosts for tests: network namespaces of this machine, joined by a bridge, or by a wire that
//! delays and loses packets. A process in one has an IPv4 and an IPv6 address of its own, sees
//! no other network, and shares neither `/dev/shm` nor abstract sockets with the others.
//!
//! Names carry the number of the process that made them; what a killed run has left is swept
//! by the next.
#![allow(dead_code)]

pub mod two;
pub mod wire;
pub mod work;

use crate::host_support::roles::{Process, start_as};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "xtie-";

/// The interface of a host that leads to the others.
pub const INTERFACE: &str = "eth0";

/// A second one, where there is one.
pub const SECOND: &str = "eth1";

/// Whether hosts may be made here; says so in one line when not. Where everything can be
/// installed (`CI=true`) that is a failure.
pub fn may(test: &str) -> bool {
    // SAFETY: no pointers.
    let reason = if unsafe { libc::geteuid() } != 0 {
        "needs root"
    } else if Command::new("ip").arg("-V").output().is_err() {
        "the command ip is missing (Debian: iproute2)"
    } else {
        sweep();
        return true;
    };
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{test}: no hosts: {reason}");
    eprintln!("SKIP {test}: no network namespaces: {reason}");
    false
}

/// As [`may`], for hosts on a [`wire`].
pub fn may_wire(test: &str) -> bool {
    if !may(test) {
        return false;
    }
    if std::path::Path::new("/dev/net/tun").exists() {
        return true;
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{test}: no /dev/net/tun");
    eprintln!("SKIP {test}: no /dev/net/tun");
    false
}

/// Deletes the namespaces of runs that are over.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/var/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let maker = rest.split('-').next().unwrap_or_default();
        let is_number = maker.parse::<u32>().is_ok();
        if is_number && !std::path::Path::new(&format!("/proc/{maker}")).exists() {
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

/// Runs lines of `ip`, in one namespace or in the test's own.
fn ip(namespace: Option<&str>, lines: &str) {
    let mut command = Command::new("ip");
    if let Some(namespace) = namespace {
        command.args(["-n", namespace]);
    }
    let piped = command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = piped.expect("ip");
    child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("ip reads");
    let output = child.wait_with_output().expect("ip");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip: {lines}\n{said}");
}

/// Waits until the kernel has seen that an interface which is up has a carrier: before, it is none
/// that is used.
fn carrier_wait(namespace: &str, interface: &str) {
    let words = ["-n", namespace, "-o", "link", "show", "dev", interface];
    let shown = || Command::new("ip").args(words).output().expect("ip").stdout;
    while String::from_utf8_lossy(&shown()).contains("NO-CARRIER") {
        std::thread::yield_now();
    }
}

/// Hosts that see each other and nobody else.
pub struct Hosts {
    names: Vec<String>,
    hub: Option<String>,
}

/// What a process is started with besides its role.
#[derive(Default)]
pub struct Start<'a> {
    pub environment: &'a [(&'a str, &'a str)],
    /// Where it writes what it has to say.
    pub log: Option<File>,
}

impl Hosts {
    fn named(count: usize) -> Hosts {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |part: &str| format!("{PREFIX}{}-{number}-{part}", std::process::id());
        let names = (0..count).map(|at| name(&at.to_string())).collect();
        let hosts = Hosts { names, hub: Some(name("hub")) };
        for name in hosts.names.iter().chain(&hosts.hub) {
            ip(None, &format!("netns add {name}\n"));
            ip(Some(name), "link set lo up\n");
        }
        hosts
    }

    /// Hosts on one bridge, at full speed.
    pub fn bridged(count: usize) -> Hosts {
        Hosts::bridged_behind(count, "")
    }

    /// The same, and each has run these lines of `ip` before it got its interface.
    pub fn bridged_behind(count: usize, lines: &str) -> Hosts {
        let hosts = Hosts::named(count);
        hosts.names.iter().for_each(|name| ip(Some(name), lines));
        let hub = hosts.hub.clone().expect("made above");
        ip(Some(&hub), "link add hub type bridge\nlink set hub up\n");
        for (at, name) in hosts.names.iter().enumerate() {
            let lines = format!(
                "link add p{at} type veth peer name {INTERFACE} netns {name}\n\
                 link set p{at} master hub\nlink set p{at} up\n"
            );
            ip(Some(&hub), &lines);
            hosts.configure(at);
        }
        hosts
    }

    /// Hosts with two interfaces each, on two bridges, with IPv4 addresses in two subnets.
    pub fn bridged_twice(count: usize) -> Hosts {
        let hosts = Hosts::bridged(count);
        let hub = hosts.hub.clone().expect("made above");
        ip(Some(&hub), "link add second type bridge\nlink set second up\n");
        for (at, name) in hosts.names.iter().enumerate() {
            let lines = format!(
                "link add s{at} type veth peer name {SECOND} netns {name}\n\
                 link set s{at} master second\nlink set s{at} up\n"
            );
            ip(Some(&hub), &lines);
            hosts.forget(at, "-6");
            let lines =
                format!("addr add 10.78.0.{}/24 dev {SECOND}\nlink set {SECOND} up\n", at + 1);
            ip(Some(name), &lines);
            carrier_wait(name, SECOND);
        }
        hosts
    }

    /// Takes a host's addresses of one family away (`-4`, `-6`), and with them its routes.
    pub fn forget(&self, at: usize, family: &str) {
        let words = ["-n", &self.names[at], family, "addr", "flush", "dev", INTERFACE];
        assert!(Command::new("ip").args(words).status().expect("ip").success());
    }

    /// Gives a host its addresses.
    pub fn configure(&self, at: usize) {
        let (four, six) = (self.ipv4(at), self.ipv6(at));
        let lines = format!(
            "addr replace {four}/24 dev {INTERFACE}\n\
             addr replace {six}/64 dev {INTERFACE} nodad\n\
             link set {INTERFACE} up\n"
        );
        ip(Some(&self.names[at]), &lines);
        carrier_wait(&self.names[at], INTERFACE);
    }

    pub fn ipv4(&self, at: usize) -> String {
        format!("10.77.0.{}", at + 1)
    }

    pub fn ipv6(&self, at: usize) -> String {
        format!("fd77::{}", at + 1)
    }

    /// Runs lines of `ip` in a host.
    pub fn ip(&self, at: usize, lines: &str) {
        ip(Some(&self.names[at]), lines);
    }

    /// Shapes what a host sends: `rate 1gbit burst 32k limit 64k`; as little as `limit` says waits,
    /// and what does not fit is lost.
    pub fn shape(&self, at: usize, tbf: &str) {
        self.shape_one(at, INTERFACE, tbf);
    }

    /// The same for one of its interfaces.
    pub fn shape_one(&self, at: usize, interface: &str, tbf: &str) {
        let words = format!("-n {} qdisc replace dev {interface} root tbf {tbf}", self.names[at]);
        let output = Command::new("tc").args(words.split(' ')).output().expect("tc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Packets that a host's queue has dropped.
    pub fn dropped(&self, at: usize) -> u64 {
        let words = format!("-n {} -s qdisc show dev {INTERFACE}", self.names[at]);
        let output = Command::new("tc").args(words.split(' ')).output().expect("tc");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = text.split("dropped ").nth(1).and_then(|rest| rest.split(',').next());
        number.and_then(|number| number.trim().parse().ok()).expect("statistics of the queue")
    }

    /// Pulls a host's cable, or puts it back: neither end is told anything but its carrier.
    pub fn cable(&self, at: usize, joined: bool) {
        self.cable_of(at, INTERFACE, joined);
    }

    /// The same for one of its interfaces.
    pub fn cable_of(&self, at: usize, interface: &str, joined: bool) {
        let state = if joined { "up" } else { "down" };
        let port = if interface == SECOND { "s" } else { "p" };
        ip(self.hub.as_deref(), &format!("link set {port}{at} {state}\n"));
    }

    /// Starts a process in a host.
    pub fn start(&self, at: usize, role: &str, start: Start<'_>) -> Process {
        let namespace = self.file(at);
        let enter = move || enter(&namespace).and_then(|()| hide());
        start_as(role, start.environment, start.log, enter)
    }

    /// Runs a program in a host, and waits for its end.
    pub fn output(&self, at: usize, mut command: Command) -> Output {
        let namespace = self.file(at);
        let enter = move || enter(&namespace).and_then(|()| hide());
        // SAFETY: between fork and exec it makes system calls alone, as for processes of roles.
        unsafe { command.pre_exec(enter) };
        command.output().expect("the program starts")
    }

    fn file(&self, at: usize) -> File {
        File::open(format!("/var/run/netns/{}", self.names[at])).expect("a namespace")
    }

    /// Runs something in a thread whose sockets are a host's.
    pub fn inside<T: Send>(&self, at: usize, act: impl FnOnce() -> T + Send) -> T {
        let namespace = self.file(at);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                enter(&namespace).expect("a namespace");
                act()
            });
            thread.join().expect("what runs inside ends well")
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain(&self.hub) {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Takes the calling thread into a namespace.
fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: a descriptor that lives until the call returns.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the process a `/dev/shm` of its own, and a `/sys` that shows its own interfaces.
fn hide() -> io::Result<()> {
    // SAFETY: no pointers.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    mount(c"", c"/", c"", libc::MS_REC | libc::MS_PRIVATE)?;
    // SAFETY: a C string. Where nothing is mounted there is nothing to take away.
    unsafe { libc::umount2(c"/sys".as_ptr(), libc::MNT_DETACH) };
    mount(c"sysfs", c"/sys", c"sysfs", 0)?;
    mount(c"tmpfs", c"/dev/shm", c"tmpfs", 0)
}

fn mount(what: &CStr, place: &CStr, kind: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: C strings that live until the call returns, and no options.
    let answer = unsafe {
        libc::mount(what.as_ptr(), place.as_ptr(), kind.as_ptr(), flags, std::ptr::null())
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
