//! The shared key of `CROSSTIE_KEY_FILE`: who has it proves so by HMAC-SHA256 (RFC 2104, FIPS
//! 180-4) over both sides' random numbers, so that what was recorded proves nothing later. It says
//! who may connect; it hides no bytes.
#![forbid(unsafe_code)]

use crate::base::errno::Errno;
use crate::wire::hello::{DoorHello, StreamHello};
use core::fmt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Shortest key in bytes: what can be guessed is no key.
pub const KEY_BYTES_MIN: usize = 16;
/// Longest key in bytes; a longer file is not meant as one.
pub const KEY_BYTES_MAX: usize = 4096;
/// Bits of a file's mode that let others than its owner read or change it.
const MODE_OTHERS: u32 = 0o066;

/// Why there is no key. Nothing was opened.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum KeyError {
    /// So many bytes are in the file, without the newline at its end.
    Length(u64),
    /// Others than its owner may read or write the file; its mode.
    Mode(u32),
    /// It is no file.
    Kind,
    /// The kernel refused, with its code.
    System(i32),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Length(bytes) => write!(
                f,
                "a key has {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes, the file has {bytes}"
            ),
            KeyError::Mode(mode) => write!(
                f,
                "others than its owner may read or write the file (mode {mode:03o}): chmod 600 it"
            ),
            KeyError::Kind => f.write_str("this is not a file"),
            KeyError::System(code) => {
                write!(f, "the file cannot be read: {}", Errno(*code))
            }
        }
    }
}

/// A key, ready for use. *Cost*: a proof is a few hashed blocks, and allocates nothing.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Which of the three hellos of a link is proved.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Step {
    /// `LinkHello`: before the listener has said its number; keeps strangers from its descriptors.
    Hello,
    /// `LinkReply`.
    Reply,
    /// `LinkReady`.
    Ready,
}

/// What the proofs of one link are over (W8.8).
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct LinkNumbers {
    /// The connector's random number of this link.
    pub connector: u128,
    /// The listener's.
    pub listener: u128,
    /// The connector's endpoint.
    pub connector_id: u128,
    /// The listener's.
    pub listener_id: u128,
}

impl Key {
    /// A key of these bytes.
    ///
    /// *Errors*: [`KeyError::Length`].
    pub fn new(bytes: &[u8]) -> Result<Key, KeyError> {
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&bytes.len()) {
            return Err(KeyError::Length(bytes.len() as u64));
        }
        let mac = Hmac::new_from_slice(bytes).expect("HMAC takes keys of any length");
        Ok(Key(mac))
    }

    /// The code of these parts, one behind the other.
    pub fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = self.0.clone();
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// The key in a file: its bytes, without a newline at the end. Only its owner may be able to
    /// read or write it.
    ///
    /// *Cost*: reads the file. For open; blocks on nothing but a slow file system.
    pub fn read(path: &Path) -> Result<Key, KeyError> {
        let system = |error: io::Error| KeyError::System(error.raw_os_error().unwrap_or(0));
        // a FIFO must not hold us until somebody writes to it
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(system)?;
        let meta = file.metadata().map_err(system)?;
        if !meta.is_file() {
            return Err(KeyError::Kind);
        }
        if meta.mode() & MODE_OTHERS != 0 {
            return Err(KeyError::Mode(meta.mode() & 0o777));
        }
        // room for a newline of two bytes, and for one byte too many
        let mut bytes = std::vec::Vec::with_capacity(KEY_BYTES_MAX + 3);
        file.take(KEY_BYTES_MAX as u64 + 3).read_to_end(&mut bytes).map_err(system)?;
        let key = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let key = key.strip_suffix(b"\r").unwrap_or(key);
        match key.len() {
            length if length > KEY_BYTES_MAX => Err(KeyError::Length(meta.len())),
            _ => Key::new(key),
        }
    }

    fn link(&self, step: Step, numbers: &LinkNumbers) -> Hmac<Sha256> {
        hello_mac(self.0.clone(), step, numbers)
    }

    fn stream(&self, numbers: &LinkNumbers, hello: &StreamHello) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(b"xtie stream\0\0\0\0\0");
        mac.update(&numbers.connector.to_le_bytes());
        mac.update(&numbers.listener.to_le_bytes());
        mac.update(&hello.connection.to_le_bytes());
        mac.update(&hello.stream.to_le_bytes());
        mac.update(&hello.ask.to_le_bytes());
        mac.update(&u32::from(hello.lane).to_le_bytes());
        mac.update(&hello.lane_generation.to_le_bytes());
        mac
    }
}

/// The proof that goes with a hello: both halves. Without a key it is zero.
pub fn link_proof(key: Option<&Key>, step: Step, numbers: &LinkNumbers) -> (u128, u128) {
    let Some(key) = key else { return (0, 0) };
    let proof: [u8; 32] = key.link(step, numbers).finalize().into_bytes().into();
    let half = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&proof[at..at + 16]);
        u128::from_le_bytes(bytes)
    };
    (half(0), half(16))
}

/// Whether a hello proves that its writer has our key, or has none either. Takes the same time
/// wherever a wrong proof differs.
pub fn link_proves(
    key: Option<&Key>,
    step: Step,
    numbers: &LinkNumbers,
    proof: (u128, u128),
) -> bool {
    let Some(key) = key else { return proof == (0, 0) };
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&proof.0.to_le_bytes());
    bytes[16..].copy_from_slice(&proof.1.to_le_bytes());
    key.link(step, numbers).verify_slice(&bytes).is_ok()
}

/// What the proof of a link's hello is over.
fn hello_mac(mut mac: Hmac<Sha256>, step: Step, numbers: &LinkNumbers) -> Hmac<Sha256> {
    let label: &[u8; 16] = match step {
        Step::Hello => b"xtie hello\0\0\0\0\0\0",
        Step::Reply => b"xtie listener\0\0\0",
        Step::Ready => b"xtie connector\0\0",
    };
    // not known yet when the first hello is written
    let listener = if step == Step::Hello { 0 } else { numbers.listener };
    mac.update(label);
    mac.update(&numbers.connector.to_le_bytes());
    mac.update(&listener.to_le_bytes());
    mac.update(&numbers.connector_id.to_le_bytes());
    mac.update(&numbers.listener_id.to_le_bytes());
    mac
}

/// A hello's bytes, and behind them what only the two ends of the lost link know. Without a key,
/// under none: the numbers are the secret.
fn resume_mac(
    key: Option<&Key>,
    step: Step,
    numbers: &LinkNumbers,
    lost: &LinkNumbers,
) -> Hmac<Sha256> {
    let mac = match key {
        Some(Key(mac)) => mac.clone(),
        None => Hmac::new_from_slice(&[]).expect("HMAC takes keys of any length"),
    };
    let mut mac = hello_mac(mac, step, numbers);
    mac.update(&lost.connector.to_le_bytes());
    mac.update(&lost.listener.to_le_bytes());
    mac
}

/// Who proves something at a local door.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum DoorStep {
    /// The connector: `Prove`.
    Connector,
    /// The listener: `Proved`.
    Listener,
}

/// What the proofs at a local door are over (W8.15).
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct DoorNumbers {
    /// The connector's random number.
    pub connector: u128,
    /// The listener's.
    pub listener: u128,
    /// The listener's endpoint, which the handle says and nobody else: the secret.
    pub id: u128,
    /// The listener within it.
    pub door: u64,
}

/// A number that names an endpoint in public, and tells nothing of its id.
pub fn public_number(id: u128) -> u128 {
    let digest = Sha256::new().chain_update(b"xtie socket name").chain_update(id.to_le_bytes());
    low_half(&digest.finalize().into())
}

fn low_half(bytes: &[u8; 32]) -> u128 {
    bytes[..16].iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn high_half(bytes: &[u8; 32]) -> u128 {
    bytes[16..].iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn door_mac(mut mac: Hmac<Sha256>, step: DoorStep, numbers: &DoorNumbers) -> Hmac<Sha256> {
    mac.update(match step {
        DoorStep::Connector => b"xtie door asks\0\0",
        DoorStep::Listener => b"xtie door opens\0",
    });
    mac.update(&numbers.connector.to_le_bytes());
    mac.update(&numbers.listener.to_le_bytes());
    mac.update(&numbers.id.to_le_bytes());
    mac.update(&numbers.door.to_le_bytes());
    mac
}

fn handle_mac(step: DoorStep, numbers: &DoorNumbers) -> Hmac<Sha256> {
    let mac = Hmac::new_from_slice(&numbers.id.to_le_bytes()).expect("HMAC takes any key");
    door_mac(mac, step, numbers)
}

/// What proves at a local door that we hold the handle, and have the key if there is one.
pub fn door_hello(key: Option<&Key>, step: DoorStep, numbers: &DoorNumbers) -> DoorHello {
    let proof: [u8; 32] = handle_mac(step, numbers).finalize().into_bytes().into();
    let of_key: [u8; 32] = match key {
        Some(Key(mac)) => door_mac(mac.clone(), step, numbers).finalize().into_bytes().into(),
        None => [0; 32],
    };
    DoorHello {
        door: numbers.door,
        proof_low: low_half(&proof),
        proof_high: high_half(&proof),
        key_low: low_half(&of_key),
        key_high: high_half(&of_key),
        ..DoorHello::ZERO
    }
}

/// Whether a hello proves that its writer holds the handle. Takes the same time wherever a wrong
/// proof differs.
pub fn door_proves(step: DoorStep, numbers: &DoorNumbers, hello: &DoorHello) -> bool {
    let mut proof = [0; 32];
    proof[..16].copy_from_slice(&hello.proof_low.to_le_bytes());
    proof[16..].copy_from_slice(&hello.proof_high.to_le_bytes());
    handle_mac(step, numbers).verify_slice(&proof).is_ok()
}

/// Whether it proves that its writer has our key, or has none either.
pub fn door_key_proves(
    key: Option<&Key>,
    step: DoorStep,
    numbers: &DoorNumbers,
    hello: &DoorHello,
) -> bool {
    let Some(Key(mac)) = key else { return (hello.key_low, hello.key_high) == (0, 0) };
    let mut proof = [0; 32];
    proof[..16].copy_from_slice(&hello.key_low.to_le_bytes());
    proof[16..].copy_from_slice(&hello.key_high.to_le_bytes());
    door_mac(mac.clone(), step, numbers).verify_slice(&proof).is_ok()
}

/// What a hello says of the lost link that it takes over (W8.11).
pub fn resume_proof(
    key: Option<&Key>,
    step: Step,
    numbers: &LinkNumbers,
    lost: &LinkNumbers,
) -> u128 {
    let proof: [u8; 32] = resume_mac(key, step, numbers, lost).finalize().into_bytes().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&proof[..16]);
    u128::from_le_bytes(bytes)
}

/// Whether a hello takes that lost link over.
pub fn resume_proves(
    key: Option<&Key>,
    step: Step,
    numbers: &LinkNumbers,
    lost: &LinkNumbers,
    proof: u128,
) -> bool {
    // a link of minor version 0 has no numbers
    lost.connector != 0
        && lost.listener != 0
        && resume_mac(key, step, numbers, lost).verify_truncated_left(&proof.to_le_bytes()).is_ok()
}

/// The proof that goes with a `StreamHello`: without a key it is the listener's number, which only
/// the two ends of the link know. What the hello says as its proof does not count.
pub fn stream_proof(key: Option<&Key>, numbers: &LinkNumbers, hello: &StreamHello) -> u128 {
    let Some(key) = key else { return numbers.listener };
    let proof: [u8; 32] = key.stream(numbers, hello).finalize().into_bytes().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&proof[..16]);
    u128::from_le_bytes(bytes)
}

/// Whether a `StreamHello` belongs to the link.
pub fn stream_proves(key: Option<&Key>, numbers: &LinkNumbers, hello: &StreamHello) -> bool {
    match key {
        // one number has no parts that could be guessed one by one
        None => numbers.listener != 0 && hello.proof == numbers.listener,
        Some(key) => {
            let mac = key.stream(numbers, hello);
            mac.verify_truncated_left(&hello.proof.to_le_bytes()).is_ok()
        }
    }
}

#[cfg(test)]
mod tests;
