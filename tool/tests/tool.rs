//! The program `crosstie`, from outside: its arguments, and that what it prints can be read. Times
//! are never compared with anything.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output, Stdio};

fn crosstie(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    command.args(args).env("CROSSTIE_EGER_BYTES", "1");
    command.output().expect("the program runs")
}

/// Found by this: name and text went out one after the other, and two processes mixed their lines.
#[test]
fn what_is_said_goes_to_standard_error_line_by_line() {
    for args in [&["perf", "latency", "--device", "loopback0", "--iterations", "1"][..], &["sing"]]
    {
        // every write(2) is a datagram of its own
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
        command.args(args).env("CROSSTIE_EGER_BYTES", "1").stdout(Stdio::null());
        let status = command.stderr(OwnedFd::from(theirs)).status().unwrap();
        assert_eq!(status.success(), args[0] == "perf", "{args:?}");
        drop(command);
        ours.set_nonblocking(true).unwrap();
        let mut lines = 0;
        let mut room = [0; 8192];
        while let Ok(length) = ours.recv(&mut room) {
            let line = std::str::from_utf8(&room[..length]).unwrap();
            assert!(line.starts_with("crosstie: ") && line.ends_with('\n'), "{line:?}");
            lines += 1;
        }
        assert!(lines > 0, "{args:?}");
    }
}

/// What both processes of a measurement said could not be told apart.
#[test]
fn lines_of_the_peer_process_are_told_from_our_own() {
    let args = ["perf", "latency", "--device", "shm0", "--iterations", "1", "--sizes", "8"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    let output = command.args(args).env("CROSSTIE_LOG", "info").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    for before in ["crosstie: ", "crosstie, peer process: "] {
        let opened = format!("{before}endpoint opened");
        let lines = said.lines().filter(|line| line.starts_with(&opened));
        assert_eq!(lines.count(), 1, "{before}: {said}");
    }
}

#[test]
fn number_that_has_no_effect_on_a_simulation_is_refused() {
    let output = crosstie(&["sim", "--seed", "5", "--peers", "10"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("'--seed <N>' cannot be used with '--peers <N>'"), "{said}");
}

/// Standard output of a run that must succeed.
fn said(args: &[&str]) -> String {
    let output = crosstie(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A value of one level of a JSON line.
fn member<'a>(line: &'a str, name: &str) -> &'a str {
    let start = format!("\"{name}\":");
    let at = line.find(&start).unwrap_or_else(|| panic!("no {name} in {line}")) + start.len();
    let end = line[at..].find([',', '}']).expect("an end") + at;
    line[at..end].trim_matches('"')
}

/// Reads a JSON value and returns what follows it.
fn json_value(text: &str) -> Result<&str, String> {
    let wrong = || Err(format!("no JSON value at: {text}"));
    match text.as_bytes().first() {
        Some(b'{') => json_members(&text[1..]),
        Some(b'"') => json_string(text),
        Some(b't') => text.strip_prefix("true").ok_or("true".into()),
        Some(b'f') => text.strip_prefix("false").ok_or("false".into()),
        Some(b'n') => text.strip_prefix("null").ok_or("null".into()),
        Some(b'-' | b'0'..=b'9') => {
            let end = text.find([',', '}']).unwrap_or(text.len());
            text[..end].parse::<f64>().map_err(|error| format!("{error}: {text}"))?;
            Ok(&text[end..])
        }
        _ => wrong(),
    }
}

fn json_members(mut text: &str) -> Result<&str, String> {
    loop {
        text = json_string(text)?.strip_prefix(':').ok_or("a colon is missing")?;
        text = json_value(text)?;
        match text.as_bytes().first() {
            Some(b',') => text = &text[1..],
            Some(b'}') => return Ok(&text[1..]),
            _ => return Err(format!("no end of an object at: {text}")),
        }
    }
}

fn json_string(text: &str) -> Result<&str, String> {
    let body = text.strip_prefix('"').ok_or_else(|| format!("no string at: {text}"))?;
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            '"' if !escaped => return Ok(&body[at + 1..]),
            c if (c as u32) < 0x20 => return Err("a control character in a string".into()),
            c => escaped = c == '\\' && !escaped,
        }
    }
    Err("a string without end".into())
}

fn assert_json(line: &str) {
    assert_eq!(json_value(line), Ok(""), "{line}");
}

/// Checks that tags are closed in order and that attributes are quoted.
fn assert_well_formed(svg: &str) {
    let mut open: Vec<String> = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, _) = part.split_once('>').expect("a tag ends");
        let name: String = tag.trim_matches('/').split_whitespace().next().unwrap().into();
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name)),
            (false, true) => {}
            (false, false) => open.push(name),
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert!(open.is_empty(), "{open:?} left open");
}

#[test]
fn every_argument_error_names_its_option() {
    for (args, wanted) in [
        (
            &["perf", "--sizs", "8"][..],
            "'--sizs' found\n\n  tip: a similar argument exists: '--sizes'",
        ),
        (&["perf", "--sizes", "8x"], "'8x' for '--sizes <LIST>': `8x` is not a size"),
        (&["perf", "--sizes"], "a value is required for '--sizes <LIST>'"),
        (&["perf", "--sizes", "2G"], "'--sizes <LIST>': 2G is over 1G"),
        (&["perf", "--outstanding", "0"], "'0' for '--outstanding <N>'"),
        (&["perf", "--group", "9"], "'9' for '--group <K>'"),
        (&["perf", "--memory", "gpu"], "'gpu' for '--memory <KIND>'"),
        (&["perf", "--device", "shm9"], "'shm9' for '--device <NAME>'"),
        (&["perf", "--cpus", "0"], "'0' for '--cpus <A,B>'"),
        (&["perf", "--cpus", "0,1", "--no-pin"], "'--no-pin'"),
        (&["perf", "--seconds", "-1"], "'-1' for '--seconds <S>'"),
        (&["perf", "--iterations", "many"], "'many' for '--iterations <N>'"),
        (&["perf", "--json", "--json"], "'--json' cannot be used multiple times"),
        (&["perf", "--verify", "--one-buffer"], "--verify"),
        (&["perf", "--device", "loopback0", "--both"], "--both"),
        (&["perf", "--device", "loopback0", "--memory", "shared"], "--memory"),
        (&["perf", "pair"], "--device loopback0"),
        (&["perf", "latencies"], "`latencies`"),
        (&["info", "--peer", "host:port"], "--peer: `host:port`"),
        (&["info", "--jsn"], "'--jsn' found\n\n  tip: a similar argument exists: '--json'"),
        // found after all was measured
        (&["perf", "--svg", "/nowhere/plot.svg"], "--svg: /nowhere/plot.svg: there is no folder"),
        (&["sim", "--threads", "0"], "'0' for '--threads <T>'"),
        (&["sim", "--schedules", "0"], "'0' for '--schedules <M>'"),
        (&["prf"], "'prf'\n\n  tip: a similar subcommand exists: 'perf'"),
        (&[], "requires a subcommand"),
    ] {
        let output = crosstie(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(wanted), "{args:?}: {errors}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn usage_texts_name_every_option() {
    let help = said(&["--help"]);
    assert!(help.contains("perf"));
    // of which one was left out
    assert!(help.contains("the answer is no (info --peer, perf --chaos, sim)"), "{help}");
    assert!(said(&["--version"]).starts_with("crosstie "));
    let usage = said(&["perf", "--help"]);
    for option in ["--sizes", "--outstanding", "--both", "--connections", "--seconds", "--svg"] {
        assert!(usage.contains(option), "{option}");
    }
}

#[test]
fn perf_over_shm_verifies_its_bytes_and_writes_json_lines() {
    let common = ["--sizes", "8,100K", "--iterations", "20", "--verify", "--json", "--no-pin"];
    let text = said(&[&["perf"][..], &common, &["--connections", "3"]].concat());
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines {
        assert_json(line);
        assert_eq!(member(line, "device"), "host0");
        if member(line, "measure") != "setup" {
            let verified: u64 = member(line, "verified_bytes").parse().unwrap();
            assert!(verified > 0, "{line}");
        }
    }
    // Two sizes in two kinds of memory for latency and bandwidth, two sizes for the rate.
    assert_eq!(lines.len(), 4 + 4 + 2 + 1);
}

#[test]
fn perf_over_shm_takes_groups_both_directions_and_checks_inside() {
    let text = said(&[
        "perf",
        "latency",
        "bandwidth",
        "--sizes",
        "0,1K,20K",
        "--iterations",
        "30",
        "--group",
        "5",
        "--both",
        "--verify-inside",
        "--outstanding",
        "4",
        "--memory",
        "private",
        "--no-pin",
    ]);
    assert!(text.contains("bytes verified, none wrong"), "{text}");
    assert!(text.contains("both directions added"), "{text}");
}

#[test]
fn perf_over_loopback_verifies_its_bytes() {
    let text = said(&[
        "perf",
        "--device",
        "loopback0",
        "--sizes",
        "0,8,100K",
        "--iterations",
        "20",
        "--group",
        "3",
        "--verify-inside",
        "--json",
    ]);
    assert_eq!(text.lines().count(), 10);
    text.lines().for_each(assert_json);
    let pair = said(&["perf", "pair", "--device", "loopback0", "--iterations", "20", "--json"]);
    assert_json(pair.trim_end());
    assert_eq!(member(&pair, "measure"), "pair");
}

#[test]
fn perf_draws_a_well_formed_plot() {
    let file = std::env::temp_dir().join(format!("crosstie-plot-{}.svg", std::process::id()));
    let path = file.to_str().unwrap();
    said(&["perf", "latency", "bandwidth", "--iterations", "4", "--svg", path, "--no-pin"]);
    let svg = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_well_formed(&svg);
    let is_curve = |line: &&str| {
        line.starts_with("<polyline") && ["#0072B2", "#D55E00"].iter().any(|it| line.contains(it))
    };
    assert_eq!(svg.lines().filter(is_curve).count(), 4);
    assert!(svg.contains("shared memory") && svg.contains("private memory"));
}

#[test]
fn perf_names_the_file_that_it_cannot_write() {
    let output = crosstie(&[
        "perf",
        "pair",
        "--device",
        "loopback0",
        "--iterations",
        "1",
        "--svg",
        "/dev/full",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--svg: /dev/full"));
}

#[test]
fn info_says_what_there_is_and_which_variable_is_unknown() {
    let text = said(&["info", "--all"]);
    for wanted in [
        "shm0",
        "loopback0",
        "kernel copy",
        "yama",
        "membarrier",
        "memfd",
        "RLIMIT_NOFILE",
        "RLIMIT_MEMLOCK",
        "huge pages",
        "GIN",
        "GPUs",
        "bytes of storage",
        "the nearest is CROSSTIE_EAGER_BYTES",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
    let json = said(&["info", "--json"]);
    assert_json(json.trim_end());
    assert!(json.contains("\"devices\":{\"host0\":"));
}

/// It was sixty long lines, most of them defaults of settings.
#[test]
fn info_is_one_screen_and_all_of_it_more() {
    let text = said(&["info"]);
    assert!(text.lines().count() <= 24, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for wanted in ["host0", "node id", "rails", "RLIMIT_NOFILE", "CROSSTIE_EGER_BYTES", "--all"] {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
    assert!(said(&["info", "--all"]).lines().count() > 24);
}

/// What `crosstie info` says with these variables set, and nothing of the other tests'.
fn info_with(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    let output = command.args(["info", "--all"]).envs(variables.iter().copied()).output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{variables:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn line_of<'a>(text: &'a str, name: &str) -> &'a str {
    let of = |line: &&str| line.split_whitespace().next() == Some(name);
    text.lines().find(of).unwrap_or_else(|| panic!("no {name} in:\n{text}"))
}

#[test]
fn info_calls_no_device_available_that_an_open_refuses() {
    let threads = [("CROSSTIE_TCP_STREAMS", "2"), ("CROSSTIE_TCP_THREADS", "1")];
    for (variables, refused, why) in [
        (&[("CROSSTIE_KEY_FILE", "/nowhere/at/all")][..], "host0", "CROSSTIE_KEY_FILE"),
        (
            &[("CROSSTIE_SEND_RING_BYTES", "5000")],
            "host0",
            "CROSSTIE_SEND_RING_BYTES=5000: it must be",
        ),
        (&[("CROSSTIE_WRITE_RING_BYTES", "33554432")], "shm0", "from 4096 to 16777216"),
        (&[("CROSSTIE_EAGER_BYTES", "16321")], "shm0", "16320 at most"),
        (&[("CROSSTIE_RAILS", "shm")], "tcp0", "CROSSTIE_RAILS"),
        (&[("CROSSTIE_RAILS", "tcp")], "shm0", "CROSSTIE_RAILS"),
        (&[("CROSSTIE_RAILS", "foo")], "host0", "CROSSTIE_RAILS=foo: there is no rail foo; "),
        (&[("CROSSTIE_RAILS_REQUIRED", "foo")], "host0", "there is no rail foo; "),
        (
            &[("CROSSTIE_TCP_STREAMS", "2"), ("CROSSTIE_TCP_THREADS", "3")],
            "loopback0",
            "CROSSTIE_TCP_THREADS=3: it may be 1 at most with CROSSTIE_TCP_STREAMS=2",
        ),
        (
            &[threads[0], threads[1], ("CROSSTIE_TCP_THREAD_CPUS", "63")],
            "tcp0",
            "CROSSTIE_TCP_THREAD_CPUS names CPU 63",
        ),
    ] {
        let text = info_with(variables);
        let line = line_of(&text, refused);
        assert!(line.contains("unavailable: ") && line.contains(why), "{line}");
    }
    let text = info_with(&[]);
    assert!(line_of(&text, "host0").contains(" available; "));
    // which was said of host0 alone
    let effect = "The rails that the devices host0, shm0 and tcp0 may use. ";
    assert!(line_of(&text, "CROSSTIE_RAILS").contains(effect), "{text}");
}

#[test]
fn info_marks_values_that_are_refused_or_ignored() {
    for (name, value) in [
        ("CROSSTIE_CONNECT_TIMEOUT_MS", "0"),
        ("CROSSTIE_LOG", "debug"),
        ("CROSSTIE_KERNEL_COPY", "2"),
        ("CROSSTIE_TCP_THREADS", "6"),
        ("CROSSTIE_TCP_THREAD_CPUS", "0-3"),
        ("CROSSTIE_PEER_TIMEOUT_MS", "soon"),
        ("CROSSTIE_IB_TIMEOUT", "0"),
        ("CROSSTIE_OFI_SILENCE_MS", "99"),
        ("CROSSTIE_IB_HCA", "mlx5_0:1-2"),
    ] {
        let text = info_with(&[(name, value)]);
        let line = line_of(&text, name);
        assert!(line.contains(&format!("set to {value}, and refused: ")), "{line}");
    }
    let text = info_with(&[("CROSSTIE_TCP_THREAD_CPUS", "0")]);
    let line = line_of(&text, "CROSSTIE_TCP_THREAD_CPUS");
    assert!(line.contains("set to 0, and ignored: "), "{line}");
    let text = info_with(&[("CROSSTIE_RAILS", "tcp"), ("CROSSTIE_OFI_PROVIDER", "tcp;ofi_rxm")]);
    let line = line_of(&text, "CROSSTIE_OFI_PROVIDER");
    assert!(line.contains("ignored: CROSSTIE_RAILS leaves libfabric out"), "{line}");
    let text = info_with(&[("CROSSTIE_TCP_RAILS", "4")]);
    let line = line_of(&text, "CROSSTIE_TCP_RAILS");
    assert!(line.contains("set to 4, and capped: 4 is more than rails_max, 2,"), "{line}");
    let text = info_with(&[("CROSSTIE_TCP_RAILS", "2")]);
    let line = line_of(&text, "CROSSTIE_TCP_RAILS");
    assert!(line.contains("that this side makes, up to the smaller rails_max"), "{line}");
}

/// One line said that nothing is used, another that the provider is not there, also where it is,
/// and its domains are others.
#[test]
fn info_says_of_a_provider_that_is_not_there_in_one_line() {
    let lines = |variables: &[(&str, &str)]| {
        let text = info_with(variables);
        let told = |line: &&str| ["used", "not there"].iter().any(|it| line.trim().starts_with(it));
        let lines: Vec<_> = text.lines().filter(told).map(str::to_owned).collect();
        (lines, text)
    };
    let (said, text) = lines(&[("CROSSTIE_OFI_PROVIDER", "none-such")]);
    if text.contains("libfabric.so.1 cannot be loaded") {
        return println!("SKIP: there is no libfabric");
    }
    let words = "none: there is no provider none-such that can carry a rail";
    assert!(said.len() == 1 && said[0].contains(words), "{said:?}");
    let (said, _) = lines(&[("CROSSTIE_OFI_PROVIDER", "sockets")]);
    let words = "sockets: libfabric's software providers net, sockets and udp are not used";
    assert!(said.len() == 1 && said[0].contains(words), "{said:?}");
    let both = [("CROSSTIE_OFI_PROVIDER", "tcp"), ("CROSSTIE_OFI_DOMAINS", "none-such")];
    let (said, _) = lines(&both);
    let words = "none: no domain of CROSSTIE_OFI_DOMAINS=none-such is there; libfabric has tcp";
    assert!(said.len() == 1 && said[0].contains(words), "{said:?}");
}

/// There was no such line where the library is not, and nobody said what is wrong with it.
#[test]
fn info_says_what_libfabric_is_used_for_and_why_its_file_is_not_loaded() {
    let of = |variables: &[(&str, &str)]| {
        let text = info_with(variables);
        let section = text.split("\nlibfabric\n").nth(1).unwrap().split("\nkernel\n").next();
        section.unwrap().to_owned()
    };
    let file = ("CROSSTIE_OFI_LIBRARY", "/dev/null");
    let text = of(&[file, ("CROSSTIE_OFI_PROVIDER", "tcp")]);
    let why = "no libfabric: /dev/null (CROSSTIE_OFI_LIBRARY) cannot be loaded (file too short)";
    assert!(line_of(&text, "used").contains(&format!("none: {why}")), "{text}");
    assert!(line_of(&text, "library").ends_with(why), "{text}");
    assert!(!text.contains("CROSSTIE_OFI_LIBRARY=/dev/null"), "the name comes once: {text}");
    let text = of(&[file, ("CROSSTIE_RAILS", "tcp")]);
    let why = "none: CROSSTIE_RAILS leaves out libfabric";
    assert!(line_of(&text, "used").ends_with(why), "{text}");
    assert!(line_of(&of(&[file]), "used").contains("no setting asks for libfabric"));
}

/// It said `Shared memory of 64 bytes: Kind`.
#[test]
fn perf_without_a_heap_says_what_is_missing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    command.args(["perf", "latency", "--memory", "shared", "--no-pin"]);
    let output = command.env("CROSSTIE_HEAP_BYTES", "0").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let sentence = " bytes of shared memory: the endpoint was opened without a heap";
    assert!(!output.status.success() && errors.contains(sentence), "{errors}");
    assert!(errors.contains("--memory private"), "{errors}");
}

#[test]
fn info_says_the_storage_that_a_program_must_give_and_the_hosts_number() {
    let text = info_with(&[("CROSSTIE_NODE_ID", "2a")]);
    // XTIE_ENDPOINT_BYTES(64, 32, 256): 8192 + 64 * 4096 + 64 * 32 * 880 + 64 * 512 + 256 * 144,
    // and for two rails 64 * (10240 + 2 * 2560)
    assert!(text.contains(" 3125248 bytes of storage"), "{text}");
    assert!(line_of(&text, "node").contains("000000000000002a (CROSSTIE_NODE_ID)"), "{text}");
}

#[test]
fn who_chooses_the_loopback_interface_is_not_told_that_other_hosts_cannot_connect() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    command.args(["perf", "latency", "--device", "tcp0", "--sizes", "8", "--iterations", "10"]);
    let output = command.arg("--no-pin").env("CROSSTIE_SOCKET_IFNAME", "=lo").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("other hosts"), "{errors}");
}

#[test]
fn info_logs_are_once_per_object() {
    let args = ["perf", "latency", "--sizes", "8", "--iterations", "10", "--no-pin"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    let output = command.args(args).env("CROSSTIE_LOG", "info").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    for wanted in [
        "endpoint opened on host0, host ",
        "listening",
        "connected to crosstie (pid ",
        "connected by crosstie (pid ",
        " over shm",
        "closed a connection with ",
        "endpoint closed",
    ] {
        assert!(log.contains(wanted), "{wanted} is not in:\n{log}");
    }
    assert!(log.lines().count() < 20, "{log}");
}

#[test]
fn info_explains_by_which_rail_a_peer_is_reached() {
    let text = said(&["info", "--peer", "127.0.0.1"]);
    for wanted in ["same host", "yes: 127.0.0.1", "choice", "shm: the peer is on this host"] {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
    assert!(text.lines().count() < 10, "{text}");
    // An address for documentation (RFC 5737): nobody's. Nothing is sent there without a port.
    let output = crosstie(&["info", "--peer", "203.0.113.9", "--json"]);
    let json = String::from_utf8(output.stdout).unwrap();
    assert_json(json.trim_end());
    assert!(json.contains("\"same host\":\"no"), "{json}");
    assert!(json.contains("another host, unless its node id is ours, "), "{json}");
    assert!(json.contains("\"peer\":\"203.0.113.9\","), "{json}");
    assert!(json.contains("\"libfabric\":\""), "{json}");
    let nowhere = json.contains("\"choice\":\"none");
    assert_eq!(output.status.code(), Some(i32::from(nowhere)), "{json}");
}

#[test]
fn info_fails_when_no_rail_leads_to_the_peer_and_refuses_what_is_no_hosts_address() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
    // an interface that nobody has
    command.args(["info", "--peer", "203.0.113.9"]).env("CROSSTIE_SOCKET_IFNAME", "=nobodys0");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(line_of(&text, "choice").contains("none: tcp leads nowhere"), "{text}");
    assert_eq!(output.status.code(), Some(1));
    for (peer, why) in [
        ("0.0.0.0", "stands for all addresses"),
        ("[::]:80", "stands for all addresses"),
        ("224.0.0.1", "names a group"),
        ("fe80::1", "add % and the interface that leads there"),
    ] {
        let output = crosstie(&["info", "--peer", peer]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{peer}: {errors}");
        assert!(errors.contains("option --peer: ") && errors.contains(why), "{peer}: {errors}");
    }
}

#[test]
fn set_up_of_one_connection_has_no_numbers_of_further_ones() {
    let args = ["perf", "setup", "--connections", "1", "--no-pin", "--device", "loopback0"];
    let text = said(&args);
    assert!(text.contains("first_us") && !text.contains("NaN"), "{text}");
    let json = said(&[&args[..], &["--json"]].concat());
    assert_json(json.trim_end());
    assert!(!json.contains("further") && !json.contains("null"), "{json}");
}

#[test]
fn info_tells_which_ports_answer() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let text = said(&["info", "--peer", &address.to_string()]);
    assert!(text.contains(&format!("port {} answers", address.port())), "{text}");
}

#[test]
fn perf_measures_a_bare_socket_in_our_place() {
    let text = said(&["perf", "socket", "--iterations", "20", "--verify", "--json", "--no-pin"]);
    let measures: Vec<&str> = text.lines().map(|line| member(line, "measure")).collect();
    assert_eq!(measures, ["latency", "rate", "bandwidth", "bandwidth"]);
    for line in text.lines() {
        assert_json(line);
        assert_eq!(member(line, "device"), "socket");
        assert_ne!(member(line, "verified_bytes"), "0");
    }
}

/// It measured the rate with 8 bytes whatever was asked, and all three beside one of them.
#[test]
fn perf_measures_of_a_bare_socket_what_is_asked() {
    let measured = |more: &[&str]| {
        let common = ["--iterations", "20", "--json", "--no-pin"];
        let text = said(&[&["perf"], more, &common].concat());
        let of_socket = text.lines().filter(|line| member(line, "device") == "socket");
        let words = of_socket.map(|line| (member(line, "measure"), member(line, "bytes")));
        words.map(|(measure, bytes)| format!("{measure} {bytes}")).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(measured(&["socket", "--sizes", "64"]), "latency 64, rate 64, bandwidth 64");
    assert_eq!(measured(&["socket", "rate", "--sizes", "16", "--device", "shm0"]), "rate 16");
    assert_eq!(measured(&["latency", "socket", "--device", "tcp0"]), "latency 8");
    // each said that a socket is not plotted
    for (args, part) in [
        (&["--device", "tcp0"][..], "--device: not of `socket` alone, which is no device of ours"),
        (&["--device", "host0"], "--device: not of `socket` alone, which is no device of ours"),
        (&["--connections", "2"], "--connections: not of `socket` alone, which is one connection"),
        (&["--rails", "2"], "--rails: not of `socket` alone, which has no rails"),
        (&["--memory", "shared"], "--memory: not of `socket` alone, which has private memory only"),
        (&["--one-buffer"], "--one-buffer: not of `socket` alone, whose messages have a ring"),
        (&["--svg", "plot.svg"], "--svg: not of `socket` alone, which is not plotted"),
        (&["--sizes", "0,8"], "option --sizes: `socket` has no messages of 0 bytes"),
        (&["--both"], "`socket` has one direction"),
        (&["--pattern", "pair"], "among ranks of a pattern, WHAT is"),
    ] {
        let output = crosstie(&[&["perf", "socket"], args].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(part) && errors.lines().count() == 1, "{args:?}: {errors}");
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &[][..]), "{args:?}");
    }
}

/// Which of two tables was ours was not said where the socket's came first.
#[test]
fn tables_of_a_bare_socket_and_of_ours_stand_under_their_names() {
    let (socket, ours) = ("a bare TCP socket on the loopback", "loopback0, by crosstie");
    let headings = |measures: [&str; 2]| {
        let common = ["--device", "loopback0", "--sizes", "8", "--iterations", "20", "--no-pin"];
        let text = said(&[&["perf"], &measures[..], &common].concat());
        let starts = [socket, ours, "latency: "];
        let of = |line: &str| starts.iter().find(|start| line.starts_with(**start)).copied();
        text.lines().filter_map(of).collect::<Vec<_>>()
    };
    let latency = "latency: ";
    assert_eq!(headings(["socket", "latency"]), [socket, latency, ours, latency]);
    assert_eq!(headings(["latency", "socket"]), [latency, socket, latency]);
}

/// Where the system lets a parent have its children's sockets.
#[test]
fn perf_chaos_kills_rails_and_loses_nothing() {
    let output = crosstie(&["perf", "--chaos", "--rails", "3", "--seconds", "1", "--seed", "9"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let verdict = text.lines().last().unwrap_or_default();
    match output.status.code() {
        Some(0) => assert!(verdict.starts_with("chaos: passed: "), "{text}"),
        Some(77) => assert!(verdict.starts_with("chaos: skipped: "), "{text}"),
        _ => panic!("{text}"),
    }
    for (args, part) in [
        (
            &["perf", "--chaos", "--sizes", "8"][..],
            "'--chaos' cannot be used with '--sizes <LIST>'",
        ),
        (&["perf", "--rails", "2", "--device", "shm0"], "option --rails: of tcp0, or host0"),
    ] {
        let output = crosstie(args);
        assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{args:?}");
        assert_eq!(output.status.code(), Some(2));
    }
}

/// Found by a new user: "the listener is gone", for a mere setting.
#[test]
fn perf_chaos_says_which_setting_contradicts_and_which_have_no_effect() {
    let chaos = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
        command.args(["perf", "--chaos", "--seconds", "0.1"]).envs(variables.iter().copied());
        command.output().unwrap()
    };
    let output = chaos(&[("CROSSTIE_RAILS", "shm")]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("CROSSTIE_RAILS=shm leaves no TCP rail"), "{errors}");
    assert_eq!(output.status.code(), Some(2));
    // what only the two processes find out is theirs to say
    let output = chaos(&[("CROSSTIE_KEY_FILE", "/nowhere/key"), ("CROSSTIE_TCP_RAILS", "1")]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("chaos: without effect here: CROSSTIE_TCP_RAILS; "), "{text}");
    let verdict = text.lines().last().unwrap_or_default();
    assert!(verdict.starts_with("chaos: failed: ") && verdict.contains("open"), "{text}");
}

#[test]
fn perf_over_several_rails_ends_with_a_line_for_each() {
    let perf = |more: &[&str], wish: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
        let args = ["perf", "bandwidth", "--device", "tcp0", "--sizes", "1M", "--no-pin"];
        // as many as all rails have a part of
        command.args(args).args(["--iterations", "64"]).args(more);
        command.env("CROSSTIE_SOCKET_IFNAME", "=lo").env("CROSSTIE_LOG", "warning");
        if let Some(wish) = wish {
            command.env("CROSSTIE_TCP_RAILS", wish);
        }
        let output = command.output().unwrap();
        let [text, errors] =
            [output.stdout, output.stderr].map(|of| String::from_utf8(of).unwrap());
        assert!(output.status.success(), "{text}{errors}");
        (text, errors)
    };
    let (text, _) = perf(&["--rails", "4"], None);
    let rails: Vec<&str> = text.lines().rev().take(4).collect();
    for (number, line) in rails.iter().rev().enumerate() {
        assert!(line.starts_with(&format!("{number} ")) && line.contains(" tcp "), "{text}");
        assert!(line.contains(" up ") && line.contains("127.0.0.1:"), "{text}");
    }
    let (text, _) = perf(&["--rails", "2", "--json"], None);
    let rails: Vec<&str> = text.lines().filter(|l| member(l, "measure") == "rail").collect();
    assert!(
        rails.len() == 2 && rails.iter().all(|line| member(line, "bytes_sent") != "0"),
        "{text}"
    );
    // one process warns of what both have read
    let (text, errors) = perf(&[], Some("4"));
    assert_eq!(errors.matches("CROSSTIE_TCP_RAILS=4 is more than").count(), 1, "{errors}");
    assert!(text.contains("\nrail "), "{text}");
}
