//! Two hosts for the harness: network namespaces with wires between them, one subnet for each.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Two of them; gone when dropped.
pub struct Hosts {
    names: [String; 2],
}

/// Whether hosts may be made here; says so in one line when not. Where everything can be
/// installed (`CI=true`) that is a failure.
fn may(test: &str) -> bool {
    let made = Command::new("unshare").args(["--net", "true"]).output();
    let may = made.is_ok_and(|made| made.status.success())
        && Command::new("ip").arg("-V").output().is_ok();
    if !may {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{test}: no hosts");
        eprintln!("SKIP {test}: no network namespaces: needs root and the command ip");
    }
    may
}

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

impl Hosts {
    fn bare() -> Hosts {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |part| format!("xtie-{}-plugin{number}-{part}", std::process::id());
        let hosts = Hosts { names: [name("a"), name("b")] };
        for name in &hosts.names {
            ip(None, &format!("netns add {name}\n"));
            ip(Some(name), "link set lo up\n");
        }
        hosts
    }

    fn wire(&self, at: usize, addresses: [String; 2]) {
        let [a, b] = &self.names;
        let lines = format!("link add eth{at} type veth peer name eth{at} netns {b}\n");
        ip(Some(a), &lines);
        for (name, address) in self.names.iter().zip(addresses) {
            let up = format!("addr add {address} dev eth{at}\nlink set eth{at} up\n");
            ip(Some(name), &up);
        }
    }

    /// With as many wires; `None`: they cannot be made here, and it was said.
    pub fn wired(test: &str, wires: usize) -> Option<Hosts> {
        let hosts = may(test).then(Hosts::bare)?;
        for at in 0..wires {
            hosts.wire(at, [1, 2].map(|host| format!("10.80.{at}.{host}/24")));
        }
        Some(hosts)
    }

    /// With one wire, whose ends are in two subnets.
    pub fn strangers(test: &str) -> Option<Hosts> {
        let hosts = may(test).then(Hosts::bare)?;
        hosts.wire(0, [1, 2].map(|host| format!("10.{host}.0.1/24")));
        Some(hosts)
    }

    /// As the harness wants them.
    pub fn names(&self) -> String {
        self.names.join(",")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
