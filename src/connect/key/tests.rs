//! Proofs against vectors that another implementation has computed, and files that are no keys.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::string::{String, ToString};

const KEY: &[u8] = b"a key of this test";
const NUMBERS: LinkNumbers = LinkNumbers {
    connector: 0x0102030405060708090a0b0c0d0e0f10,
    listener: 0x1112131415161718191a1b1c1d1e1f20,
    connector_id: 0x2122232425262728292a2b2c2d2e2f30,
    listener_id: 0x3132333435363738393a3b3c3d3e3f40,
};
const STEPS: [(Step, &str); 3] = [
    (Step::Hello, "77b5363ffdeae51598cd37cda10a35eb9bacf6ea06b1366db7ffacc224d5347e"),
    (Step::Reply, "9a1c428f7e74be18baad57150ae31203918a3ea341c0d69add931ccdf5694fc7"),
    (Step::Ready, "927ac89d49ecc0ee547f6145e531084d4a167f9d71976b2eee5b0b114fa33c6f"),
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| std::format!("{byte:02x}")).collect()
}

#[test]
fn the_crates_compute_what_rfc_4231_says() {
    let key = Key::new(&[0x0b; 20]).unwrap();
    let mac = key.0.clone().chain_update(b"Hi There").finalize().into_bytes();
    let expected = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
    assert_eq!(hex(&mac), expected);
}

#[test]
fn proofs_are_those_of_the_wire_format() {
    let key = Key::new(KEY).unwrap();
    for (step, expected) in STEPS {
        let proof = link_proof(Some(&key), step, &NUMBERS);
        let bytes = [proof.0.to_le_bytes(), proof.1.to_le_bytes()].concat();
        assert_eq!(hex(&bytes), expected, "{step:?}");
        assert!(link_proves(Some(&key), step, &NUMBERS, proof));
    }
    let first =
        StreamHello { connection: 0x4142434445464748, stream: 3, ask: 9, ..StreamHello::ZERO };
    let later = StreamHello { lane: 5, lane_generation: 0x61626364, ..first };
    for (hello, expected) in
        [(first, "dbe16fc846db0370bfeb0e1788828840"), (later, "3bf5c8c56783ebb25ccf243a62b63bff")]
    {
        let proof = stream_proof(Some(&key), &NUMBERS, &hello);
        assert_eq!(hex(&proof.to_le_bytes()), expected);
        assert!(stream_proves(Some(&key), &NUMBERS, &StreamHello { proof, ..hello }));
    }
}

#[test]
fn another_key_another_step_or_other_numbers_prove_nothing() {
    let (key, other) = (Key::new(KEY).unwrap(), Key::new(b"a key of another test").unwrap());
    let ready = link_proof(Some(&key), Step::Ready, &NUMBERS);
    let hello = StreamHello { connection: 1, stream: 2, ask: 3, ..StreamHello::ZERO };
    let stream = stream_proof(Some(&key), &NUMBERS, &hello);
    let proves = |key: Option<&Key>, numbers: &LinkNumbers, hello: &StreamHello, proof| {
        stream_proves(key, numbers, &StreamHello { proof, ..*hello })
    };
    assert!(proves(Some(&key), &NUMBERS, &hello, stream));
    assert!(!link_proves(Some(&other), Step::Ready, &NUMBERS, ready));
    assert!(!link_proves(Some(&key), Step::Reply, &NUMBERS, ready));
    assert!(!link_proves(Some(&key), Step::Ready, &NUMBERS, (ready.1, ready.0)));
    assert!(!link_proves(Some(&key), Step::Ready, &NUMBERS, (0, 0)));
    // one side alone has a key
    assert!(!link_proves(None, Step::Ready, &NUMBERS, ready));
    assert!(link_proves(None, Step::Ready, &NUMBERS, (0, 0)));
    assert!(!proves(Some(&key), &NUMBERS, &hello, NUMBERS.listener));
    assert!(!proves(None, &NUMBERS, &hello, stream));
    assert!(proves(None, &NUMBERS, &hello, NUMBERS.listener));
    // before a number was said, zero is not it
    assert!(!proves(None, &LinkNumbers::default(), &hello, 0));
    let others = [
        StreamHello { stream: 3, ..hello },
        StreamHello { lane: 1, ..hello },
        StreamHello { lane_generation: 1, ..hello },
        StreamHello { connection: 2, ..hello },
        StreamHello { ask: 4, ..hello },
    ];
    assert!(others.iter().all(|other| !proves(Some(&key), &NUMBERS, other, stream)));
    // what was recorded on one link is worth nothing on the next
    let fresh = LinkNumbers { listener: 7, ..NUMBERS };
    assert!(!link_proves(Some(&key), Step::Ready, &fresh, ready));
    assert!(!proves(Some(&key), &fresh, &hello, stream));
    assert!(!proves(None, &fresh, &hello, NUMBERS.listener));
    // every bit counts
    for bit in 0..128 {
        assert!(!link_proves(Some(&key), Step::Ready, &NUMBERS, (ready.0 ^ 1 << bit, ready.1)));
        assert!(!link_proves(Some(&key), Step::Ready, &NUMBERS, (ready.0, ready.1 ^ 1 << bit)));
        assert!(!proves(Some(&key), &NUMBERS, &hello, stream ^ 1 << bit));
    }
}

fn file(name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    let path = std::env::temp_dir().join(std::format!("xtie-key-{}-{name}", std::process::id()));
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn read(name: &str, bytes: &[u8], mode: u32) -> Result<Key, KeyError> {
    let path = file(name, bytes, mode);
    let key = Key::read(&path);
    fs::remove_file(path).unwrap();
    key
}

#[test]
fn the_newline_at_a_files_end_is_no_part_of_the_key() {
    let proof = |key: &Key| link_proof(Some(key), Step::Reply, &NUMBERS);
    let expected = proof(&Key::new(KEY).unwrap());
    for end in ["", "\n", "\r\n"] {
        let key = read("newline", &[KEY, end.as_bytes()].concat(), 0o600).unwrap();
        assert_eq!(proof(&key), expected, "{end:?}");
    }
    let two = read("newline", &[KEY, b"\n\n"].concat(), 0o400).unwrap();
    assert_ne!(proof(&two), expected);
    assert_eq!(std::format!("{two:?}"), "Key");
}

#[test]
fn files_that_are_no_keys_are_named() {
    let error = |bytes: &[u8], mode| read("bad", bytes, mode).unwrap_err();
    assert_eq!(error(&[7; 15], 0o600), KeyError::Length(15));
    assert_eq!(error(b"", 0o600), KeyError::Length(0));
    assert!(read("long", &[7; 4096], 0o600).is_ok());
    assert!(read("long", &[&[7; 4096][..], b"\n"].concat(), 0o600).is_ok());
    assert_eq!(error(&[7; 4097], 0o600), KeyError::Length(4097));
    assert_eq!(error(&[7; 100_000], 0o600), KeyError::Length(100_000));
    for mode in [0o640, 0o604, 0o620, 0o602, 0o666] {
        assert_eq!(error(&[7; 32], mode), KeyError::Mode(mode));
    }
    let text = KeyError::Mode(0o644).to_string();
    assert!(text.contains("mode 644") && text.contains("chmod 600"), "{text}");
    let absent = Key::read(Path::new("/nonexistent/key")).unwrap_err();
    assert_eq!(absent, KeyError::System(libc::ENOENT));
    assert!(absent.to_string().starts_with("the file cannot be read: "), "{absent}");
    assert_eq!(Key::read(Path::new("/")).unwrap_err(), KeyError::Kind);
    assert_eq!(Key::read(Path::new("/dev/null")).unwrap_err(), KeyError::Kind);
}
