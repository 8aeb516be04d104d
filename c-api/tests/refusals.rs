//! What the peer, the host or the environment refuses, through the C functions: each has a code and
//! a sentence of its own, and a good call after it works. What changes the whole process runs in a
//! process of its own.

mod common;

use common::*;
use crosstie_c::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// [`connect`] for who sleeps while there is nothing to do: the deadline wakes it.
fn connect_asleep(it: &Opened, handle: &xtie_handle) -> c_int {
    let mut attempt: *mut xtie_attempt = null_mut();
    let mut connection: *mut xtie_connection = null_mut();
    let mut fd = -1;
    // SAFETY: an output of ours.
    expect(unsafe { xtie_endpoint_wait_fd(it.endpoint, &mut fd) }, XTIE_OK);
    loop {
        // SAFETY: outputs of ours.
        let result =
            unsafe { xtie_endpoint_connect(it.endpoint, handle, &mut attempt, &mut connection) };
        if result != 0 || !connection.is_null() {
            return result;
        }
        // SAFETY: an endpoint of ours.
        if unsafe { xtie_endpoint_wait_arm(it.endpoint) } == XTIE_OK as c_int {
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry of ours. The time is a watchdog.
            assert_eq!(unsafe { libc::poll(&mut poll, 1, 60_000) }, 1, "nothing woke us");
        }
    }
}

#[track_caller]
fn says(it: &Opened, words: &str) {
    let said = it.error();
    assert!(said.contains(words), "{said:?} does not say {words:?}");
}

// ---- processes ---------------------------------------------------------------------------------

const ROLE: &str = "ROLE_OF_REFUSALS";

fn role(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "roles_of_the_other_tests", "--nocapture"]).env(ROLE, name);
    command
}

/// Runs a role to its end in a process of its own.
#[track_caller]
fn alone(name: &str, environment: &[(&str, &str)]) {
    let said = role(name).envs(environment.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{name}: {text}");
}

/// A process that listens; killed at the end.
struct Peer(Child);

impl Peer {
    fn start(name: &str) -> (Peer, xtie_handle) {
        let mut child = role(name).env_remove(TIMEOUT).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut said = Vec::new();
        while !said.ends_with(MARKER) {
            let mut byte = [0];
            output.read_exact(&mut byte).expect("a handle from the peer");
            said.push(byte[0]);
        }
        let mut handle = xtie_handle { bytes: [0; 128] };
        output.read_exact(&mut handle.bytes).unwrap();
        (Peer(child), handle)
    }

    fn signal(&self, signal: c_int) {
        // SAFETY: a process of ours that nobody has waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
        if signal == libc::SIGSTOP {
            // until every thread of it has stopped
            let mut status = 0;
            // SAFETY: valid for writes.
            unsafe { libc::waitpid(self.0.id() as i32, &mut status, libc::WUNTRACED) };
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const MARKER: &[u8] = b"handle:";
const TIMEOUT: &str = "CROSSTIE_CONNECT_TIMEOUT_MS";

/// Without its variable there is nothing to do.
#[test]
fn roles_of_the_other_tests() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => {}
        Ok("listen") => listens(|| {}),
        Ok("listen_without_descriptors") => listens(|| {
            descriptors_freeze();
        }),
        Ok("listen_without_memory") => listens(address_space_freeze),
        Ok("deadline") => deadline(),
        Ok("descriptors") => descriptors(),
        Ok("unknown") => unknown_variable(),
        Ok("local_sockets") => without_local_sockets(),
        Ok("configuration") => refused_configurations(),
        Ok(name) => panic!("no role {name}"),
    }
}

/// `RestrictAddressFamilies` of a service: no sockets within a host.
fn without_local_sockets() {
    let code = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, equal) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ);
    let mut lines = [
        code(load, 0, 0, 0),
        code(equal | libc::BPF_K, 0, 3, libc::SYS_socket as u32),
        code(load, 0, 0, 16), // the first argument
        code(equal | libc::BPF_K, 0, 1, libc::AF_UNIX as u32),
        code(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32),
        code(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    // SAFETY: the lines live until the calls return; the kernel checks them.
    let filtered = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(filtered, "this system has no filters");
    let it = Opened::new(&config(HOST));
    let (_, handle) = it.listen();
    let connected = connect_asleep(&it, &handle);
    assert_eq!(connected, XTIE_OK as c_int, "{:?}", it.error());
}

#[test]
fn without_local_sockets_peers_of_this_host_are_reached_over_tcp() {
    alone("local_sockets", &[("CROSSTIE_SOCKET_IFNAME", "=lo")]);
}

fn listens(before: impl FnOnce()) {
    let it = Opened::new(&config(HOST));
    let (_, handle) = it.listen();
    let mut out = std::io::stdout();
    before();
    out.write_all(MARKER).unwrap();
    out.write_all(&handle.bytes).unwrap();
    out.flush().unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

/// From now on this process can open no descriptor more. The limit before.
fn descriptors_freeze() -> libc::rlimit {
    let next_free = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one structure, valid for writes.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut old) }, 0);
    descriptors_limit(&libc::rlimit { rlim_cur: next_free, ..old });
    old
}

fn descriptors_limit(limit: &libc::rlimit) {
    // SAFETY: one structure, valid for reads.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
}

/// From now on this process can map nothing more.
fn address_space_freeze() {
    let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    // SAFETY: one structure, valid for reads.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

// ---- peers -------------------------------------------------------------------------------------

#[test]
fn full_peer_is_named_and_takes_a_connection_once_it_has_room() {
    let mut small = config(HOST);
    small.connections_max = 1;
    let (it, full) = (Opened::new(&config(HOST)), Opened::new(&small));
    let (listener, handle) = full.listen();
    let (result, first) = connect(&it, &handle);
    expect(result, XTIE_OK);
    expect(connect(&it, &handle).0, XTIE_ERR_PEER_FULL);
    says(&it, &std::process::id().to_string());
    let mut accepted: *mut xtie_connection = null_mut();
    while accepted.is_null() {
        // SAFETY: outputs of ours.
        expect(unsafe { xtie_listener_accept(full.endpoint, listener, &mut accepted) }, XTIE_OK);
    }
    it.close_connection(first);
    full.close_connection(accepted);
    let start = Instant::now();
    while connect(&it, &handle).0 == XTIE_ERR_PEER_FULL as c_int {
        assert!(start.elapsed() < WATCHDOG);
    }
    it.works_alone();
    it.close();
    full.close();
}

/// The request of a connection whose place another has by now told of that one's peer.
#[test]
fn request_of_a_closed_connection_does_not_name_the_peer_of_the_next() {
    let mut small = config(HOST);
    small.connections_max = 1;
    let it = Opened::new(&small);
    let [first, second] = [(); 2].map(|()| Peer::start("listen"));
    let (result, connection) = connect(&it, &first.1);
    expect(result, XTIE_OK);
    let mut bytes = [0u8; 8];
    let memory = it.register(&mut bytes);
    let (result, request) = it.receive(connection, &[room(&mut bytes, memory)]);
    expect(result, XTIE_OK);
    it.close_connection(connection);
    // it never looks at its end, which would keep the place
    drop(first);
    let start = Instant::now();
    let (mut result, mut connection) = connect(&it, &second.1);
    while result == XTIE_ERR_CONNECTIONS_FULL as c_int {
        assert!(start.elapsed() < WATCHDOG);
        (result, connection) = connect(&it, &second.1);
    }
    expect(result, XTIE_OK);
    let mut done = 0;
    // SAFETY: an output of ours.
    let result = unsafe { xtie_request_test(it.endpoint, request, &mut done, null_mut()) };
    expect(result, XTIE_ERR_CONNECTION_CLOSED);
    let other = second.0.0.id().to_string();
    assert!(!it.error().contains(&other), "{} names {other}", it.error());
    it.close_connection(connection);
    it.close();
}

#[test]
fn peer_without_descriptors_is_named() {
    refused_by("listen_without_descriptors", XTIE_ERR_PEER_DESCRIPTORS);
}

#[test]
fn peer_without_memory_is_named() {
    if over_tcp() {
        println!("left out: a connection over TCP takes no memory of the listener's");
        return;
    }
    refused_by("listen_without_memory", XTIE_ERR_PEER_MEMORY);
}

/// Whether this run is one of the rung `tcp`.
fn over_tcp() -> bool {
    std::env::var("CROSSTIE_RAILS").is_ok_and(|rails| rails == "tcp")
}

fn refused_by(name: &str, expected: xtie_result) {
    let it = Opened::new(&config(HOST));
    let (peer, handle) = Peer::start(name);
    expect(connect(&it, &handle).0, expected);
    if !over_tcp() {
        // over TCP it turns the caller away before it has said who it is
        says(&it, &peer.0.id().to_string());
    }
    let (_good, handle) = Peer::start("listen");
    expect(connect(&it, &handle).0, XTIE_OK);
    it.close();
}

#[test]
fn peer_that_does_not_answer_is_named_when_the_time_is_over() {
    alone("deadline", &[(TIMEOUT, "300")]);
}

fn deadline() {
    let it = Opened::new(&config(HOST));
    let (peer, handle) = Peer::start("listen");
    peer.signal(libc::SIGSTOP);
    let start = Instant::now();
    expect(connect(&it, &handle).0, XTIE_ERR_DEADLINE);
    // between hosts a sixteenth is kept back, so that the cause is named before the caller gives up
    let least_ms = if over_tcp() { 300 * 15 / 16 } else { 300 };
    let taken = start.elapsed();
    assert!(taken >= Duration::from_millis(least_ms), "before its time: {taken:?}");
    says(&it, "answer");
    expect(connect_asleep(&it, &handle), XTIE_ERR_DEADLINE);
    peer.signal(libc::SIGCONT);
    while connect(&it, &handle).0 == XTIE_ERR_DEADLINE as c_int {
        assert!(start.elapsed() < WATCHDOG);
    }
    it.works_alone();
    it.close();
}

// ---- this host ---------------------------------------------------------------------------------

#[test]
fn lack_of_descriptors_is_named_with_the_limit() {
    alone("descriptors", &[]);
}

fn descriptors() {
    let it = Opened::new(&config(HOST));
    let other = Opened::new(&config(HOST));
    let (_, handle) = other.listen();
    let config = config(HOST);
    let mut place = storage(size(&config));
    let (start, bytes) = (place.as_mut_ptr().cast::<c_void>(), place.len() * 64);
    let old = descriptors_freeze();
    let mut none = xtie_handle { bytes: [0; 128] };
    let mut none_too: *mut xtie_listener = null_mut();
    // SAFETY: outputs of ours.
    let listened = unsafe { xtie_endpoint_listen(it.endpoint, &mut none, &mut none_too) };
    let said = it.error();
    let connected = connect(&it, &handle).0;
    let said_too = it.error();
    let mut opened: *mut xtie_endpoint = null_mut();
    // SAFETY: the storage is as large as asked for.
    let open = unsafe { xtie_endpoint_open(start, bytes, &config, &mut opened) };
    descriptors_limit(&old);
    expect(listened, XTIE_ERR_DESCRIPTORS);
    expect(connected, XTIE_ERR_DESCRIPTORS);
    expect(open, XTIE_ERR_DESCRIPTORS);
    assert!(none_too.is_null() && opened.is_null());
    for said in [said, said_too] {
        assert!(said.contains("ulimit -n"), "{said}");
    }
    expect(connect(&it, &handle).0, XTIE_OK);
    it.works_alone();
    it.close();
    other.close();
}

#[test]
fn memory_of_another_endpoint_is_refused() {
    let (it, other) = (Opened::new(&config(LOOPBACK)), Opened::new(&config(LOOPBACK)));
    let pair = it.join(&it);
    let (mut ours, mut theirs) = ([0u8; 64], [0u8; 64]);
    let foreign = other.register(&mut theirs);
    // a number that this endpoint has not given
    expect(it.send(pair.0, &theirs, foreign).0, XTIE_ERR_MEMORY);
    expect(it.receive(pair.1, &[room(&mut theirs, foreign)]).0, XTIE_ERR_MEMORY);
    // SAFETY: refused.
    expect(unsafe { xtie_memory_deregister(it.endpoint, foreign) }, XTIE_ERR_MEMORY);
    // nor when this endpoint has memory in the same place of its table
    let own = it.register(&mut ours);
    assert_ne!(own, foreign);
    expect(it.send(pair.0, &theirs, foreign).0, XTIE_ERR_MEMORY);
    expect(it.send(pair.0, &theirs, own).0, XTIE_ERR_RANGE);
    expect(it.receive(pair.1, &[room(&mut theirs, own)]).0, XTIE_ERR_RANGE);
    it.works(pair);
    it.close();
    other.close();
}

#[test]
fn heap_that_is_absent_or_used_up_is_told() {
    let alloc = |it: &Opened, bytes| {
        let (mut data, mut memory): (*mut c_void, _) = (null_mut(), null_mut());
        // SAFETY: outputs of ours.
        let result = unsafe { xtie_memory_alloc(it.endpoint, bytes, &mut data, &mut memory) };
        assert_eq!(data.is_null(), result != 0, "an output of a failed call");
        (result, memory)
    };
    let mut bare = config(HOST);
    bare.flags = XTIE_ENDPOINT_NO_HEAP;
    let it = Opened::new(&bare);
    expect(alloc(&it, 4096).0, XTIE_ERR_MEMORY_KIND);
    it.close();
    let mut little = config(HOST);
    little.heap_bytes = 1 << 20;
    let it = Opened::new(&little);
    expect(alloc(&it, 0).0, XTIE_ERR_REGISTER_RANGE);
    expect(alloc(&it, 1 << 30).0, XTIE_ERR_REGIONS_FULL);
    says(&it, "the endpoint's heap (heap_bytes, CROSSTIE_HEAP_BYTES) has no gap of that length");
    let (result, memory) = alloc(&it, 4096);
    expect(result, XTIE_OK);
    // SAFETY: no request uses it.
    expect(unsafe { xtie_memory_free(it.endpoint, memory) }, XTIE_OK);
    // SAFETY: refused.
    expect(unsafe { xtie_memory_free(it.endpoint, memory) }, XTIE_ERR_MEMORY);
    it.close();
    // less than the library's own part of it, which was EINVAL at open
    let mut least = config(HOST);
    (least.heap_bytes, least.regions_max) = (1, 256);
    let it = Opened::new(&least);
    expect(alloc(&it, 1000).0, XTIE_OK);
    expect(alloc(&it, 1000).0, XTIE_ERR_REGIONS_FULL);
    it.close();
}

#[test]
fn full_connection_gives_no_request_and_no_error() {
    let it = Opened::new(&config(LOOPBACK));
    let pair = it.join(&it);
    let mut bytes = [0u8; 8];
    let memory = it.register(&mut bytes);
    let mut held = Vec::new();
    let last = loop {
        let (result, request) = it.receive(pair.1, &[room(&mut bytes, memory)]);
        expect(result, XTIE_OK);
        if request.is_null() {
            break request;
        }
        held.push(request);
    };
    assert!(last.is_null());
    assert_eq!(held.len(), 32, "requests_max");
    for request in held {
        let (result, send) = it.send(pair.0, &bytes, memory);
        expect(result, XTIE_OK);
        expect(it.finish(request, &it).0, XTIE_OK);
        expect(it.finish(send, &it).0, XTIE_OK);
    }
    it.works(pair);
    it.close();
}

// ---- environment -------------------------------------------------------------------------------

static SAID: Mutex<Vec<(u32, String)>> = Mutex::new(Vec::new());

extern "C" fn said(userdata: *mut c_void, level: u32, text: *const c_char) {
    assert_eq!(userdata.addr(), 7);
    // SAFETY: a text that is valid during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap();
    SAID.lock().unwrap().push((level, text.to_string()));
}

#[test]
fn unknown_variables_are_reported_with_the_nearest_name() {
    alone("unknown", &[("CROSSTIE_EGER_BYTE", "1")]);
}

#[test]
fn each_refusal_of_a_configuration_says_what_was_wrong_and_what_is_needed() {
    alone("configuration", &[]);
}

/// What is said while an endpoint is refused.
fn refused(config: &xtie_endpoint_config, place: usize, bytes: usize) -> (c_int, String) {
    SAID.lock().unwrap().clear();
    let mut room = storage(bytes + 64);
    let mut endpoint = null_mut();
    // SAFETY: a line further at most, and the room has one more.
    let start = unsafe { room.as_mut_ptr().cast::<u8>().add(place) };
    // SAFETY: room of that many bytes, and a configuration of ours.
    let result = unsafe { xtie_endpoint_open(start.cast(), bytes, config, &mut endpoint) };
    assert!(endpoint.is_null());
    let said = SAID.lock().unwrap();
    assert!(said.len() == 1 && said[0].0 == XTIE_LOG_ERROR, "{said:?}");
    (result, said[0].1.clone())
}

fn refused_configurations() {
    // SAFETY: the function may be called from any thread, with any userdata.
    let result = unsafe { xtie_log_set(std::ptr::without_provenance_mut(7), Some(said)) };
    expect(result, XTIE_OK);
    let good = config(HOST);
    let bytes = size(&good);
    let ours = format!("struct_size is 12, this version's is {}", good.struct_size);
    let needed = format!("storage has 128 bytes, {bytes} are needed");
    for (changed, place, length, result, words) in [
        (xtie_endpoint_config { struct_size: 12, ..good }, 0, bytes, XTIE_ERR_STRUCT_SIZE, &*ours),
        (xtie_endpoint_config { reserved: 5, ..good }, 0, bytes, XTIE_ERR_STRUCT, "reserved is 5"),
        (xtie_endpoint_config { flags: 0x80, ..good }, 0, bytes, XTIE_ERR_FLAGS, "flags is 0x80"),
        (
            xtie_endpoint_config { device: 9, ..good },
            0,
            bytes,
            XTIE_ERR_DEVICE,
            "device is 9: it must be from 0 to 3",
        ),
        (good, 8, bytes, XTIE_ERR_STORAGE_ALIGN, "no multiple of XTIE_STORAGE_ALIGN, 64"),
        (good, 0, 128, XTIE_ERR_STORAGE_SIZE, &needed),
        (
            xtie_endpoint_config { connections_max: 65537, ..good },
            0,
            bytes,
            XTIE_ERR_CONNECTIONS_MAX,
            "connections_max is 65537: it must be from 1 to 65536",
        ),
        (
            xtie_endpoint_config { requests_max: 33, ..good },
            0,
            bytes,
            XTIE_ERR_REQUESTS_MAX,
            "requests_max is 33: it must be 32, 64, 128 or 256",
        ),
        (
            xtie_endpoint_config { regions_max: 65535, ..good },
            0,
            bytes,
            XTIE_ERR_REGIONS_MAX,
            "regions_max is 65535: it must be from 1 to 65534",
        ),
        (
            xtie_endpoint_config { rails_max: 3, ..good },
            0,
            bytes,
            XTIE_ERR_RAILS_MAX,
            "rails_max is 3: it must be 1, 2, 4 or 8",
        ),
        (
            xtie_endpoint_config { send_ring_bytes: 5000, ..good },
            0,
            bytes,
            XTIE_ERR_RINGS,
            "send_ring_bytes is 5000: it must be a power of two",
        ),
    ] {
        let (code, text) = refused(&changed, place, length);
        expect(code, result);
        assert!(text.contains(words), "{text}");
    }
}

fn unknown_variable() {
    // SAFETY: the function may be called from any thread, with any userdata.
    let result = unsafe { xtie_log_set(std::ptr::without_provenance_mut(7), Some(said)) };
    expect(result, XTIE_OK);
    let it = Opened::new(&config(LOOPBACK));
    it.works(it.join(&it));
    it.close();
    let said = SAID.lock().unwrap();
    let warned = |words: [&str; 2]| {
        let mut all = said.iter().filter(|(level, _)| *level == XTIE_LOG_WARNING);
        all.any(|(_, text)| words.iter().all(|word| text.contains(word)))
    };
    assert!(warned(["CROSSTIE_EGER_BYTE", "nearest is CROSSTIE_EAGER_BYTES"]), "{said:?}");
}
