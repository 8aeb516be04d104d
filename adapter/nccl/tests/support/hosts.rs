//! Two hosts for the harness: network namespaces with wires between them, one subnet for each.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Two of them; gone when dropped.
pub struct Hosts {
    names: [String; 2],
    /// Where the cables of a common network end.
    hub: Option<String>,
}

/// Whether hosts may be made here; says so in one line when not. Where everything can be
/// installed (`CI=true`) that is a failure.
pub fn may(test: &str) -> bool {
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
        let hosts = Hosts { names: [name("a"), name("b")], hub: None };
        for name in &hosts.names {
            ip(None, &format!("netns add {name}\n"));
            ip(Some(name), "link set lo up\n");
        }
        hosts
    }

    /// A wire from one host's interface of a number to the other's.
    fn wire(&self, at: [usize; 2], addresses: [String; 2]) {
        let ([a, b], [here, there]) = (&self.names, at);
        let lines = format!("link add eth{here} type veth peer name eth{there} netns {b}\n");
        ip(Some(a), &lines);
        for ((name, at), address) in self.names.iter().zip(at).zip(addresses) {
            let up = format!("addr add {address} dev eth{at}\nlink set eth{at} up\n");
            ip(Some(name), &up);
        }
    }

    /// With as many wires; `None`: they cannot be made here, and it was said.
    pub fn wired(test: &str, wires: usize) -> Option<Hosts> {
        let hosts = may(test).then(Hosts::bare)?;
        for at in 0..wires {
            hosts.wire([at, at], [1, 2].map(|host| format!("10.80.{at}.{host}/24")));
        }
        Some(hosts)
    }

    /// Sockets of both hosts hold so many bytes, and no more.
    pub fn scanty(&self, bytes: usize) {
        for name in &self.names {
            let lines = ["tcp_wmem", "tcp_rmem"]
                .map(|file| format!("echo 4096 {bytes} {bytes} >/proc/sys/net/ipv4/{file}"));
            let mut set = Command::new("ip");
            set.args(["netns", "exec", name, "sh", "-c", &lines.join(" && ")]);
            assert!(set.status().is_ok_and(|status| status.success()), "settings of {name}");
        }
    }

    /// A command that runs on a host.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host]]).arg(program);
        command
    }

    /// Bytes that the first host has sent by an interface.
    pub fn sent(&self, at: usize) -> u64 {
        let file = format!("/sys/class/net/eth{at}/statistics/tx_bytes");
        let output = self.command(0, Path::new("cat")).arg(file).output().expect("cat");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
    }

    /// Switches a wire's end on the second host on or off.
    pub fn switch(&self, at: usize, on: bool) {
        let state = if on { "up" } else { "down" };
        ip(Some(&self.names[1]), &format!("link set eth{at} {state}\n"));
    }

    /// Waits until both ends of a wire have a carrier, as the kernel tells in its own time.
    pub fn settle(&self, at: usize) {
        let file = format!("/sys/class/net/eth{at}/operstate");
        let is_up = |host| {
            let output = self.command(host, Path::new("cat")).arg(&file).output().expect("cat");
            output.stdout.starts_with(b"up")
        };
        while !(is_up(0) && is_up(1)) {
            std::thread::yield_now();
        }
    }

    /// Takes a wire's end on the second host out of use: the first's has no carrier.
    pub fn unplug(&self, at: usize) {
        self.switch(at, false);
        // the kernel tells the other end in its own time
        let words = format!("-n {} -o link show dev eth{at}", self.names[0]);
        let shown = || Command::new("ip").args(words.split(' ')).output().expect("ip").stdout;
        while !String::from_utf8_lossy(&shown()).contains("NO-CARRIER") {
            std::thread::yield_now();
        }
    }

    /// With as many wires, whose numbers run the other way round on the second.
    pub fn crossed(test: &str, wires: usize) -> Option<Hosts> {
        let hosts = may(test).then(Hosts::bare)?;
        for at in 0..wires {
            let ends = [at, wires - 1 - at];
            hosts.wire(ends, [1, 2].map(|host| format!("10.80.{at}.{host}/24")));
        }
        Some(hosts)
    }

    /// With as many interfaces each, all in one subnet of one network.
    pub fn flat(test: &str, interfaces: [usize; 2]) -> Option<Hosts> {
        let mut hosts = may(test).then(Hosts::bare)?;
        let hub = hosts.names[0].replace("-a", "-hub");
        ip(None, &format!("netns add {hub}\n"));
        hosts.hub = Some(hub.clone());
        ip(Some(&hub), "link add hub type bridge\nlink set hub up\n");
        for (host, (name, count)) in hosts.names.iter().zip(interfaces).enumerate() {
            for at in 0..count {
                let port = format!("p{host}x{at}");
                let lines = format!(
                    "link add {port} type veth peer name eth{at} netns {name}\n\
                     link set {port} master hub\nlink set {port} up\n"
                );
                ip(Some(&hub), &lines);
                // Linux sends by the first interface of a subnet, and answers for all by each,
                // unless it is told otherwise
                let (address, table) = (format!("10.80.0.{}", 10 * (host + 1) + at), 101 + at);
                let lines = format!(
                    "addr add {address}/24 dev eth{at}\nlink set eth{at} up\n\
                     rule add from {address} table {table}\n\
                     route add 10.80.0.0/24 dev eth{at} table {table}\n"
                );
                ip(Some(name), &lines);
            }
            let settings = [("arp_ignore", 1), ("arp_announce", 2), ("rp_filter", 2)];
            let lines = settings
                .map(|(name, value)| format!("echo {value} >/proc/sys/net/ipv4/conf/all/{name}"));
            let mut set = Command::new("ip");
            set.args(["netns", "exec", name, "sh", "-c", &lines.join(" && ")]);
            assert!(set.status().is_ok_and(|status| status.success()), "settings of {name}");
        }
        Some(hosts)
    }

    /// With one wire, whose ends are in two subnets.
    pub fn strangers(test: &str) -> Option<Hosts> {
        let hosts = may(test).then(Hosts::bare)?;
        hosts.wire([0, 0], [1, 2].map(|host| format!("10.{host}.0.1/24")));
        Some(hosts)
    }

    /// As [`Hosts::strangers`], with a route to each other by a router that answers nothing.
    pub fn lost(test: &str) -> Option<Hosts> {
        let hosts = Hosts::strangers(test)?;
        for (name, host) in hosts.names.iter().zip([1, 2]) {
            let router = format!("10.{host}.0.254");
            let lines = format!(
                "neigh add {router} lladdr 02:00:00:00:00:fe dev eth0 nud permanent\n\
                 route add default via {router}\n"
            );
            ip(Some(name), &lines);
        }
        Some(hosts)
    }

    /// The first, for both processes of the harness.
    pub fn one(&self) -> String {
        format!("{0},{0}", self.names[0])
    }

    /// As the harness wants them.
    pub fn names(&self) -> String {
        self.names.join(",")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain(&self.hub) {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
