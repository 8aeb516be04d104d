//! `crosstie perf`, from outside: what it prints and when, and that it ends. Times are never
//! compared with anything; a watchdog ends what hangs.

#[path = "../../tests/common/port.rs"]
mod port;

use port::Port;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// Seconds after which a program hangs.
const WATCHDOG: &str = "600";
/// Far more rounds than a test has time for.
const FOR_EVER: &str = "1000000000";

/// `crosstie perf` under a watchdog.
fn perf(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", WATCHDOG, env!("CARGO_BIN_EXE_crosstie"), "perf"]).args(args);
    command
}

/// Standard output of a run that must succeed.
fn said(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// The value of a member of a JSON line.
fn member<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, rest) = line.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{line}"));
    rest.split([',', '}']).next().unwrap()
}

/// All rows came when the last was measured. Here the last never is.
#[test]
fn each_row_is_printed_when_it_is_measured() {
    let endless = ["latency", "--sizes", "8,64M", "--iterations", "100000"];
    let mut command = perf(&[&endless[..], &["--device", "loopback0"]].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let is_row = |line: &String| line.split_whitespace().nth(1) == Some("8");
    let row = { lines }.find(is_row);
    // which is passed on to the program
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    child.wait().unwrap();
    assert!(row.is_some());
}

/// A row over a slow rail went on for minutes. Here no window would ever end.
#[test]
fn window_is_cut_short_when_its_time_is_over() {
    let timed = ["--iterations", FOR_EVER, "--seconds", "0.05", "--json", "--no-pin"];
    for args in [
        &["latency", "bandwidth", "--device", "loopback0", "--sizes", "0,8,64K"][..],
        &["pair", "--device", "loopback0", "--sizes", "1M"],
        &["latency", "bandwidth", "--device", "shm0", "--sizes", "0,8,64K", "--connections", "3"],
        &["bandwidth", "--both", "--group", "3", "--sizes", "1,20K", "--outstanding", "5"],
        &["latency", "bandwidth", "--device", "tcp0", "--sizes", "8,64K", "--one-buffer"],
    ] {
        let output = perf(&[args, &timed].concat()).env("CROSSTIE_SOCKET_IFNAME", "=lo").output();
        let text = said(&output.unwrap());
        assert!(!text.is_empty() && !text.contains("null"), "{args:?}: {text}");
    }
    // what was cut short has whole messages all the same
    let args = ["bandwidth", "latency", "--verify-inside", "--sizes", "100,20K"];
    let text = said(&perf(&[&args[..], &timed].concat()).output().unwrap());
    assert!(text.lines().all(|line| member(line, "verified_bytes") != "0"), "{text}");
}

#[test]
fn one_sided_operations_stand_beside_messages() {
    let args = ["put", "get", "signal", "counter", "--sizes", "8,100K", "--seconds", "0.02"];
    for (device, memory) in [("shm0", "shared"), ("shm0", "private"), ("tcp0", "private")] {
        let more = ["--device", device, "--memory", memory, "--verify", "--json", "--no-pin"];
        let output =
            perf(&[&args[..], &more].concat()).env("CROSSTIE_SOCKET_IFNAME", "=lo").output();
        let text = said(&output.unwrap());
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("\"memory\"")).collect();
        let of = |measure| rows.iter().filter(move |row| row.contains(measure)).copied();
        for (measure, bytes, value) in [
            ("\"put\"", &["8", "102400"][..], "one_way_us"),
            ("\"get\"", &["8", "102400"], "get_us"),
            ("\"signal\"", &["0"], "one_way_us"),
            ("\"counter\"", &["8", "102400"], "counter_ns"),
        ] {
            assert!(
                of(measure).map(|row| member(row, "bytes")).eq(bytes.iter().copied()),
                "{text}"
            );
            for row in of(measure) {
                let ratio = if value == "counter_ns" { "ratio" } else { "rate_ratio" };
                assert!(member(row, value) != "null" && member(row, ratio) != "null", "{row}");
                let is_checked = member(row, "verified_bytes") != "0";
                assert_eq!(is_checked, measure != "\"signal\"", "{row}");
            }
        }
    }
}

#[test]
fn one_sided_operations_say_what_they_have_not() {
    for (args, wanted) in [
        (&["put", "--device", "loopback0"][..], "--device: not with put"),
        (&["get", "--both"], "--both: not with put"),
        (&["signal", "--connections", "2"], "--connections: not with put"),
        (&["counter", "--group", "2"], "--group: not with put"),
        (&["put", "--verify-inside"], "--verify-inside: not with put"),
        (&["put", "--pattern", "ring"], "WHAT is latency, bandwidth or rate"),
    ] {
        let output = perf(args).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(wanted) && output.stdout.is_empty(), "{args:?}: {errors}");
    }
}

/// Each of several processes warned of the same settings.
#[test]
fn each_warning_is_said_once_whatever_the_number_of_processes() {
    let short = ["latency", "--sizes", "8", "--iterations", "10", "--no-pin"];
    for args in [
        &short[..],
        &[&short[..], &["--processes", "3", "--pattern", "ring"]].concat(),
        &["--chaos", "--seconds", "0.2"],
    ] {
        let mut command = perf(args);
        command.env("CROSSTIE_EGER_BYTES", "1").env("CROSSTIE_LOG", "warning");
        let errors = String::from_utf8(command.output().unwrap().stderr).unwrap();
        let told = errors.lines().filter(|line| line.contains("CROSSTIE_EGER_BYTES"));
        assert_eq!(told.count(), 1, "{args:?}: {errors}");
    }
}

/// Threads and memory that could not be had ended programs by panics, and by aborts.
#[test]
fn program_without_address_space_says_so_in_one_line() {
    let program = env!("CARGO_BIN_EXE_crosstie");
    for kib in [8, 10, 14, 20, 30, 45, 50, 60, 80, 120, 150, 160, 250, 400].map(|mib| mib * 1000) {
        for args in [
            "perf latency --sizes 8 --iterations 10 --no-pin",
            "info",
            "report 1",
            "sim --schedules 3 --seed 1 --threads 4",
        ] {
            let line = format!("ulimit -v {kib}; exec timeout {WATCHDOG} {program} {args}");
            let mut command = Command::new("sh");
            command.args(["-c", &line]).env("CROSSTIE_LOG", "error");
            let output = command.output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            let what = format!("{args}, {kib} KiB: {}: {errors}", output.status);
            match output.status.code() {
                // 127: not even the C library was loaded
                Some(0 | 127) => {}
                Some(1 | 2) | None if is_of_the_runtime(kib, &errors) => {}
                Some(1 | 2) => assert_eq!(errors.lines().count(), 1, "{what}"),
                _ => panic!("{what}"),
            }
        }
    }
}

/// Whether a program, or one thread of it, ended in what runs before and around ours: the loader,
/// which says nothing and needs some ten megabytes; the C library; or Rust's start of a thread.
/// Each does so within a few pages of the limit that it needs, and which limits these are changes
/// with each build.
fn is_of_the_runtime(kib: u32, errors: &str) -> bool {
    let of_loader = kib <= 10_000 && errors.is_empty();
    let words = ["Fatal glibc error: ", "failed to allocate an alternative stack: "];
    of_loader || words.iter().any(|word| errors.contains(word))
}

/// A server that listens, and the rest of what it says.
fn server(variables: &[(&str, &str)]) -> (Child, BufReader<ChildStdout>, String) {
    let mut command = perf(&["--listen", "0", "--no-pin"]);
    command.envs(variables.iter().copied()).stderr(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut text = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    text.read_line(&mut line).unwrap();
    let port = line.strip_prefix("listening on port ").and_then(|rest| rest.split(' ').next());
    let port = port.unwrap_or_else(|| panic!("{line}")).to_owned();
    (child, text, port)
}

/// There was none; two hosts wanted a launcher, or four variables.
#[test]
fn client_measures_with_a_server_and_both_verify_their_bytes() {
    for device in ["host0", "tcp0"] {
        let variables = [("CROSSTIE_SOCKET_IFNAME", "=lo")];
        let (mut child, text, port) = server(&variables);
        // strangers are nobody's clients
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap());
        let mut stranger =
            TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let args = ["localhost", &port, "latency", "bandwidth", "setup", "--sizes", "8,100K"];
        let more = ["--seconds", "0.02", "--json", "--no-pin", "--device", device];
        let mut command = perf(&[&args[..], &more].concat());
        // rank variables are of no concern
        command.envs(variables).env("RANK", "1").env("WORLD_SIZE", "2");
        let rows = said(&command.output().unwrap());
        for measure in ["latency", "bandwidth", "setup"] {
            let of = |line: &&str| member(line, "measure").contains(measure);
            assert!(rows.lines().any(|line| of(&line)), "{measure}: {rows}");
        }
        for row in rows.lines().filter(|line| line.contains("verified_bytes")) {
            assert_ne!(member(row, "verified_bytes"), "0", "{row}");
        }
        let rest: Vec<String> = text.lines().map_while(Result::ok).collect();
        assert!(child.wait().unwrap().success(), "{rest:?}");
        let last = rest.last().unwrap();
        assert!(last.contains(" has ended; ") && !last.contains("; 0 bytes"), "{last}");
        assert!(last.ends_with(" bytes verified here, none wrong"), "{last}");
    }
}

#[test]
fn client_says_why_there_is_no_server() {
    let held = Port::held(Ipv4Addr::LOCALHOST);
    let port = held.number().to_string();
    let nobody = held.listen();
    let another = std::thread::spawn(move || {
        let (mut stream, _) = nobody.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.6 and more\r\n").unwrap();
    });
    let is_refused = |args: &[&str], wanted: &str| {
        let output = perf(args).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(wanted) && errors.lines().count() == 1, "{args:?}: {errors}");
        assert!(output.stdout.is_empty(), "{args:?}");
    };
    is_refused(&["127.0.0.1", &port], "another program, or version, has this port");
    another.join().unwrap();
    let start = format!("start `crosstie perf --listen {port}` there first");
    is_refused(&["127.0.0.1", &port], &start);
    is_refused(&["no-such-host.invalid"], "is neither a host (");
    is_refused(&["127.0.0.1", "70000"], "`70000` is not a port");
    is_refused(&["127.0.0.1", "--pattern", "ring"], "--pattern: not together with");
    is_refused(&["127.0.0.1", "socket"], "`socket` measures within a host");
    is_refused(&["127.0.0.1", "--device", "loopback0"], "--device: loopback0");
    let output = perf(&["--listen", "--chaos"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true));
    assert!(errors.contains("'--listen' cannot be used with '--chaos'"), "{errors}");
}

/// What only the server finds out is the client's to say, too.
#[test]
fn client_says_what_its_server_fails_by() {
    let (mut child, _text, port) = server(&[("CROSSTIE_RAILS", "tcp")]);
    let output = perf(&["127.0.0.1", &port, "latency", "--device", "shm0"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("the server: open: ") && errors.lines().count() == 1, "{errors}");
    assert_eq!((output.status.code(), child.wait().unwrap().code()), (Some(2), Some(2)));
}
