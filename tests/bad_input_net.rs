//! Bad input over TCP: each kind names itself, is dropped or ends by its own error, and messages
//! of a standing connection of the same endpoints go on meanwhile.

mod host_support;
mod net_support;

use crosstie::host::ConnectError;
use crosstie::wire::handle::ListenHandle;
use crosstie::wire::hello::{FRAME_BYTES_MAX, FRAME_MAGIC, FrameHeader, FrameKind};
use crosstie::wire::{WIRE_MAJOR, WIRE_MINOR};
use host_support::roles::{self, Process};
use host_support::{Node, Random, Watch};
use net_support::{Recorder, Said, Scene, dial, dropped, readdressed, stranger, tcp};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[test]
fn role() {
    roles::take(&[("connect", role_connect), ("listen", role_listen), ("jumping", role_jumping)]);
}

/// Each pair wants two processors, and the sentences of a process are collected in one place.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A frame with this body.
fn frame(kind: u16, major: u16, length: u16, body: &[u8]) -> Vec<u8> {
    let header = FrameHeader { magic: FRAME_MAGIC, major, minor: WIRE_MINOR, kind, length, sum: 0 };
    [&header.encode(), body].concat()
}

/// A whole handshake of an endpoint that has no link to `b` yet, as it was said.
fn recorded(scene: &mut Scene, connections_max: u32) -> Recorder {
    let recorder = Recorder::before(&scene.handle);
    let mut third = Node::open(&tcp(connections_max));
    let handle = recorder.handle;
    scene.during(|halves| {
        let attempt = third.shared.connect(&handle).unwrap();
        let connection = third.connected(attempt).unwrap();
        let watch = Watch::start();
        while halves.b.accept(halves.listener).unwrap().is_none() {
            watch.look("the connection through the proxy");
        }
        third.disconnect(connection);
    });
    third.close();
    recorder
}

/// The bytes that a real connector says on its link, first.
fn recorded_hello() -> Vec<u8> {
    let mut scene = Scene::new(&tcp(8));
    let recorder = recorded(&mut scene, 4);
    let first = recorder.recorded().remove(0);
    let length = usize::from(u16::from_le_bytes([first[10], first[11]]));
    first[..FrameHeader::SIZE + length].to_vec()
}

// ---------------------------------------------------------------- strangers

#[test]
fn garbage_is_dropped_at_once_and_said_once() {
    let _alone = alone();
    let mut scene = Scene::new(&tcp(8));
    let said = Said::collect();
    scene.during(|halves| {
        let mut random = Random(0x5eed_0301);
        for length in [1usize, 3, 4, 15, 16, 17, 100, 1024, 5000, 100_000] {
            let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            bytes[0] = b'G';
            let answer = if length < 16 {
                let mut stream = dial(&halves.handle);
                stream.write_all(&bytes).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                dropped(stream)
            } else {
                stranger(&halves.handle, &bytes)
            };
            assert!(answer.is_empty(), "{length} bytes of garbage were answered");
        }
        let http = b"GET / HTTP/1.1\r\nHost: crosstie\r\n\r\n";
        assert!(stranger(&halves.handle, http).is_empty());
        halves.joined();
    });
    assert!(scene.nobody_came());
    assert_eq!(said.count("no crosstie peer"), 1, "{:?}", said.all());
}

#[test]
fn hello_that_ends_too_early_is_dropped() {
    let _alone = alone();
    let hello = recorded_hello();
    let mut scene = Scene::hasty(8);
    scene.during(|halves| {
        for length in (0..hello.len()).step_by(7) {
            let mut stream = dial(&halves.handle);
            stream.write_all(&hello[..length]).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            dropped(stream);
        }
        // those that stay and say no more are dropped at the deadline
        let silent: Vec<_> = [0, 1, 15, 16, hello.len() - 1]
            .into_iter()
            .map(|length| {
                let mut stream = dial(&halves.handle);
                stream.write_all(&hello[..length]).unwrap();
                stream
            })
            .collect();
        for stream in silent {
            dropped(stream);
        }
        halves.joined();
    });
    assert!(scene.nobody_came());
}

#[test]
fn hello_that_says_too_much_is_dropped() {
    let _alone = alone();
    let hello = recorded_hello();
    let mut scene = Scene::new(&tcp(8));
    scene.during(|halves| {
        let link = FrameKind::LinkHello as u16;
        for length in [FRAME_BYTES_MAX as u16, 2000, u16::MAX] {
            let long = frame(link, WIRE_MAJOR, length, &vec![0; usize::from(length)]);
            stranger(&halves.handle, &long);
        }
        // a kind that does not exist, one that may not come first, and another version
        for kind in [0, 99, FrameKind::Connect as u16, FrameKind::Closed as u16] {
            stranger(&halves.handle, &frame(kind, WIRE_MAJOR, 256, &[0; 256]));
        }
        for major in [0, WIRE_MAJOR + 1, u16::MAX] {
            let mut other = hello.clone();
            other[4..6].copy_from_slice(&major.to_le_bytes());
            stranger(&halves.handle, &other);
        }
        // a good hello, and behind it what is none
        let mut more = hello.clone();
        more.extend_from_slice(&[0xab; 3000]);
        stranger(&halves.handle, &more);
        halves.joined();
    });
    assert!(scene.nobody_came());
}

#[test]
fn damaged_hellos_connect_nobody() {
    let _alone = alone();
    let hello = recorded_hello();
    let mut scene = Scene::hasty(8);
    scene.during(|halves| {
        let mut random = Random(0x5eed_0302);
        let streams: Vec<_> = (0..300)
            .map(|_| {
                let mut damaged = hello.clone();
                for _ in 0..=random.below(3) {
                    let at = random.below(damaged.len() as u64) as usize;
                    damaged[at] ^= 1 << random.below(8);
                }
                let mut stream = dial(&halves.handle);
                let cut = 1 + random.below(damaged.len() as u64 - 1) as usize;
                let _ = stream.write_all(&damaged[..cut]);
                let _ = stream.write_all(&damaged[cut..]);
                stream
            })
            .collect();
        for stream in streams {
            dropped(stream);
        }
        halves.joined();
    });
    assert!(scene.nobody_came());
}

// ---------------------------------------------------------------- handles and replays

#[test]
fn handle_of_another_program_is_named() {
    let _alone = alone();
    let mut scene = Scene::new(&tcp(8));
    let other = Node::open(&tcp(2));
    let (_, theirs) = other.shared.listen().unwrap();
    // an endpoint that lives elsewhere, at our listener's address
    let crossed = readdressed(&theirs, net_support::address(&scene.handle));
    let error = scene.during(|halves| halves.connect(&crossed).unwrap_err());
    assert!(matches!(error, ConnectError::NoListener(_)), "{error:?}: {error}");
    // a program that is none of ours listens there
    let program = TcpListener::bind("127.0.0.1:0").unwrap();
    let strange = readdressed(&theirs, program.local_addr().unwrap());
    let error = scene.during(|halves| {
        let answer = std::thread::spawn(move || {
            let (mut stream, _) = program.accept().unwrap();
            stream.write_all(b"220 mail.example ESMTP, be welcome to it\r\n").unwrap();
            dropped(stream);
        });
        let error = halves.connect(&strange).unwrap_err();
        answer.join().unwrap();
        error
    });
    assert!(matches!(error, ConnectError::OtherProgram(_)), "{error:?}: {error}");
    assert!(error.to_string().contains("another program answers"), "{error}");
    assert!(scene.nobody_came());
}

#[test]
fn handle_of_a_closed_endpoint_is_named() {
    let _alone = alone();
    let mut scene = Scene::new(&tcp(8));
    let old = Node::open(&tcp(2));
    let (_, handle) = old.shared.listen().unwrap();
    old.close();
    let error = scene.during(|halves| halves.connect(&handle).unwrap_err());
    let named = matches!(error, ConnectError::NoListener(_) | ConnectError::Unreachable(..));
    assert!(named, "{error:?}: {error}");
    // somebody else listens there now
    let crossed = readdressed(&handle, net_support::address(&scene.handle));
    let error = scene.during(|halves| halves.connect(&crossed).unwrap_err());
    assert!(matches!(error, ConnectError::NoListener(_)), "{error:?}: {error}");
    // a listener of the same endpoint that was closed
    let decoded = ListenHandle::decode(&scene.handle).unwrap();
    let gone = ListenHandle { listener: decoded.listener ^ 2, ..decoded }.encode();
    let error = scene.during(|halves| halves.connect(&gone).unwrap_err());
    assert!(matches!(error, ConnectError::NoListener(_)), "{error:?}: {error}");
    assert!(scene.nobody_came());
}

#[test]
fn recorded_handshake_said_again_connects_nobody() {
    let _alone = alone();
    let mut scene = Scene::hasty(16);
    let recorder = recorded(&mut scene, 4);
    let recorded = recorder.recorded();
    assert!(recorded.len() >= 2 && recorded.iter().all(|bytes| bytes.len() > 16), "{recorded:?}");
    // each socket alone, then all of them at once, as they were dialled
    scene.during(|halves| {
        for bytes in &recorded {
            stranger(&halves.handle, bytes);
        }
        let again: Vec<_> = recorded
            .iter()
            .map(|bytes| {
                let mut stream = dial(&halves.handle);
                let _ = stream.write_all(bytes);
                stream
            })
            .collect();
        again.into_iter().for_each(|stream| drop(dropped(stream)));
    });
    assert!(scene.nobody_came());
    scene.during(|halves| halves.joined());
}

// ---------------------------------------------------------------- keys, clocks, descriptors

/// Opens an endpoint, says its handle, and answers until the test is over.
fn role_listen() {
    let mut line = roles::line();
    let mut node = Node::open(&tcp(4));
    let (listener, handle) = node.shared.listen().unwrap();
    if let Ok(limit) = std::env::var("TEST_DESCRIPTORS") {
        limit_descriptors(limit.parse().unwrap());
    }
    line.say(&handle);
    while !line.is_ready() {
        if let Ok(Some(connection)) = node.shared.accept(listener) {
            node.disconnect(connection);
        }
        node.progress();
        std::thread::yield_now();
    }
}

/// Hears a handle, and says how connecting to it ended.
fn role_connect() {
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let mut node = Node::open(&tcp(4));
    if let Ok(limit) = std::env::var("TEST_DESCRIPTORS") {
        limit_descriptors(limit.parse().unwrap());
    }
    let connected = match node.shared.connect(&handle) {
        Ok(attempt) => node.connected(attempt),
        Err(error) => Err(error),
    };
    line.say_text(&match connected {
        Ok(_) => "connected".to_owned(),
        Err(error) => format!("{error:?}: {error}"),
    });
    line.hear_number();
}

/// Lets this process open no more than `spare` descriptors besides those that it holds.
fn limit_descriptors(spare: usize) {
    let limits = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: one structure, which lives until the call returns.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limits) }, 0);
    let mut held = vec![];
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    held.truncate(held.len() - spare);
    std::mem::forget(held);
}

/// How a process ends that connects to the handle with this environment.
fn connecting(handle: &[u8; 128], environment: &[(&str, &str)]) -> String {
    let mut process = roles::start("connect", environment);
    process.line.say(handle);
    let text = process.line.hear_text();
    process.line.say_number(0);
    assert!(process.finished().success());
    text
}

fn key_file(name: &str, bytes: &[u8]) -> PathBuf {
    use std::os::unix::fs::OpenOptionsExt;
    let path = std::env::temp_dir().join(format!("xtie-{}-{name}.key", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
    file.unwrap().write_all(bytes).unwrap();
    path
}

#[test]
fn wrong_key_is_named_on_either_side_and_the_right_one_connects() {
    let _alone = alone();
    let files = [key_file("one", &[7; 32]), key_file("two", &[8; 32])];
    let [one, two] = [0, 1].map(|at: usize| files[at].to_str().unwrap());
    let mut scene = Scene::new(&tcp(8));
    let open = scene.handle;
    scene.during(|_| {
        let mut locked = roles::start("listen", &[("CROSSTIE_KEY_FILE", one)]);
        let handle = locked.line.hear::<128>();
        for environment in [&[][..], &[("CROSSTIE_KEY_FILE", two)]] {
            let text = connecting(&handle, environment);
            assert!(text.starts_with("Key("), "{environment:?}: {text}");
            assert!(text.contains("CROSSTIE_KEY_FILE"), "{text}");
        }
        // a peer with a key does not talk to one without
        let text = connecting(&open, &[("CROSSTIE_KEY_FILE", one)]);
        assert!(text.starts_with("Key("), "{text}");
        assert_eq!(connecting(&handle, &[("CROSSTIE_KEY_FILE", one)]), "connected");
        locked.line.say_number(0);
        assert!(locked.finished().success());
    });
    assert!(scene.nobody_came());
    files.into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
}

#[test]
fn descriptors_that_are_used_up_are_named_with_their_limit() {
    let _alone = alone();
    let mut scene = Scene::new(&tcp(8));
    let handle = scene.handle;
    scene.during(|halves| {
        let text = connecting(&handle, &[("TEST_DESCRIPTORS", "0")]);
        assert!(text.starts_with("Descriptors("), "{text}");
        assert!(text.contains("ulimit -n"), "{text}");
        // the listener has none left for its side of a connection
        for spare in ["0", "1"] {
            let mut poor = roles::start("listen", &[("TEST_DESCRIPTORS", spare)]);
            let error = halves.connect(&poor.line.hear::<128>()).unwrap_err();
            let named = matches!(error, ConnectError::PeerDescriptors(_));
            assert!(named, "{spare} to spare: {error:?}: {error}");
            poor.line.say_number(0);
            assert!(poor.finished().success());
        }
    });
}

#[test]
fn silent_strangers_shut_nobody_out_when_descriptors_are_short() {
    let _alone = alone();
    let mut poor = roles::start("listen", &[("TEST_DESCRIPTORS", "8")]);
    let handle = poor.line.hear::<128>();
    let strangers: Vec<_> = (0..64).map(|_| net_support::dial(&handle)).collect();
    for _ in 0..3 {
        assert_eq!(connecting(&handle, &[]), "connected");
    }
    drop(strangers);
    poor.line.say_number(0);
    assert!(poor.finished().success());
}

/// The library at whose wall clock every look is years from the last one.
fn jumping_clock() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interpose/clock_jump.c");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clock_jump.so");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let built = Command::new(&cc)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&out, &source])
        .status();
    match built {
        Ok(status) => assert!(status.success(), "{cc}: {status}"),
        Err(error) => {
            eprintln!("SKIP clock_jump: {cc}: {error}");
            return None;
        }
    }
    Some(out)
}

#[test]
fn wall_clock_that_jumps_by_years_disturbs_nothing() {
    let _alone = alone();
    let Some(library) = jumping_clock() else { return };
    let preload = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("CROSSTIE_PEER_TIMEOUT_MS", "1000"),
        ("TEST_MILLISECONDS", "2500"),
    ];
    let mut process: Process = roles::start("jumping", &preload);
    assert_eq!(process.line.hear_number(), 1, "the clock did jump");
    let messages = process.line.hear_number();
    assert!(messages > 100, "{messages} messages");
    assert!(process.finished().success());
}

/// Under a clock that jumps: messages, for longer than a peer may be silent; then says how many.
fn role_jumping() {
    use std::time::{Duration, Instant, SystemTime};
    let mut line = roles::line();
    let wall: Vec<_> = (0..12).map(|_| SystemTime::now()).collect();
    let jumped = wall.windows(2).any(|pair| pair[1] < pair[0]);
    line.say_number(u64::from(jumped));
    let lasting: u64 = std::env::var("TEST_MILLISECONDS").unwrap().parse().unwrap();
    let (start, mut messages) = (Instant::now(), 0);
    let mut scene = Scene::new(&tcp(8));
    while start.elapsed() < Duration::from_millis(lasting) {
        scene.works(messages);
        messages += 4;
        if messages % 400 == 0 {
            scene.during(|halves| {
                let error = halves.connect(&[7; 128]).unwrap_err();
                assert_eq!(error, ConnectError::HandleForeign);
            });
        }
    }
    scene.during(|halves| halves.joined());
    line.say_number(messages);
}
