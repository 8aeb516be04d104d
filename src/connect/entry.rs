//! How the two ends of a local socket prove that they hold one handle, before either gives the
//! other anything (W8.15). The connector proves first, to the listener's fresh number, and then the
//! listener to the connector's; where there is a key, both prove that they have it, too.
#![forbid(unsafe_code)]

use super::channel::Channel;
use super::connection::NONE;
use super::control::Control;
use super::error::{ConnectError, KeyCause};
use super::key::{self, DoorNumbers, DoorStep};
use super::memory::LinkMemory;
use super::note::Note;
use super::os;
use super::peer::Peer;
use crate::fabric::completion::DownCause;
use crate::wire::DecodeError;
use crate::wire::hello::{DoorHello, FRAME_BYTES_WRITTEN, Frame, LOCAL_VERSION, RefuseReason};
use std::io;

/// How far a connector is at a local door.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Entry {
    /// What it waits for.
    pub waits: Waits,
    /// The listener whose number it proves to hold.
    pub listener: u64,
    /// Its random number, and the listener's.
    ours: u128,
    theirs: u128,
}

/// What a connector at a local door waits for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Waits {
    /// Nothing of this: it is let in, or no local door.
    Nothing,
    /// The listener's number.
    Challenge,
    /// The listener's proof.
    Proof,
}

impl Entry {
    /// At no door.
    pub const NONE: Entry = Entry { waits: Waits::Nothing, listener: 0, ours: 0, theirs: 0 };
}

/// How far a caller at a door of ours is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Caller {
    /// It has said nothing.
    Silent,
    /// It has said its number, and got ours.
    Challenged { theirs: u128, ours: u128 },
    /// What it says next is a hello. Over the network nothing comes before that.
    LetIn,
}

/// What follows a caller's frame.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Then {
    /// It is a hello.
    Welcome,
    /// Another frame is awaited.
    Wait,
    /// The caller was told no.
    Gone,
}

impl<M: LinkMemory> Control<M> {
    /// Asks at a local door; nothing is said but a random number.
    pub fn knock(&mut self, index: u32) -> io::Result<()> {
        let ours = os::random()?;
        self.watch_socket(index)?;
        let entry = &mut self.links[index as usize].entry;
        (entry.waits, entry.ours) = (Waits::Challenge, ours);
        let knock = DoorHello { version: LOCAL_VERSION, nonce: ours, ..DoorHello::ZERO };
        self.door_say(index, &Frame::Knock(knock))
    }

    fn door_say(&self, index: u32, frame: &Frame) -> io::Result<()> {
        match &self.links[index as usize].socket {
            Some(socket) => say(socket, frame),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// What the proofs of a link that we open are over.
    fn door_numbers(&self, index: u32) -> DoorNumbers {
        let link = &self.links[index as usize];
        let Entry { ours, theirs, listener, .. } = link.entry;
        DoorNumbers { connector: ours, listener: theirs, id: link.peer.endpoint_id, door: listener }
    }

    /// The listener has said its number: we prove that we hold its handle.
    pub fn challenged(&mut self, index: u32, hello: &DoorHello) {
        if hello.version != LOCAL_VERSION {
            self.local_version(index);
            return;
        }
        let entry = &mut self.links[index as usize].entry;
        (entry.waits, entry.theirs) = (Waits::Proof, hello.nonce);
        let numbers = self.door_numbers(index);
        let key = self.config.trust.key.as_ref();
        let proof = key::door_hello(key, DoorStep::Connector, &numbers);
        // the reader notices an end
        let _ = self.door_say(index, &Frame::Prove(proof));
    }

    /// The listener has proved that it made the handle: it gets our hello, and our memory.
    pub fn door_opened(&mut self, index: u32, hello: &DoorHello) {
        let numbers = self.door_numbers(index);
        let peer = self.links[index as usize].named();
        let key = self.config.trust.key.as_ref();
        let error = if !key::door_proves(DoorStep::Listener, &numbers, hello) {
            ConnectError::OtherProgram(peer)
        } else if !key::door_key_proves(key, DoorStep::Listener, &numbers, hello) {
            ConnectError::Key(peer, self.key_cause((hello.key_low, hello.key_high)))
        } else {
            self.links[index as usize].entry.waits = Waits::Nothing;
            match self.say_hello(index) {
                Ok(()) => return,
                Err(error) => {
                    let error = self.dial_error(index, &error);
                    return self.turned_away(index, error);
                }
            }
        };
        self.link_down(index, DownCause::Failed, error);
    }

    /// The other side speaks another version of this.
    pub fn local_version(&mut self, index: u32) {
        let peer = self.links[index as usize].named();
        self.turned_away(index, ConnectError::LocalVersion(peer));
    }

    /// The listener whose number we have proved is not there: attempts at others go on.
    pub fn door_closed(&mut self, index: u32) {
        let wrong = self.links[index as usize].entry.listener;
        let error = ConnectError::NoListener(self.links[index as usize].named());
        self.each_joined(index, |control, at| {
            if control.connections[at as usize].listener == wrong {
                control.fail(at, error);
            }
        });
        match self.links[index as usize].first {
            NONE => self.link_down(index, DownCause::Failed, error),
            other => {
                self.links[index as usize].entry.listener =
                    self.connections[other as usize].listener;
                self.link_unplug(index);
                self.dial_now(index);
            }
        }
    }

    /// A frame of a caller at one of our doors.
    pub fn door_asked(&mut self, channel: &Channel, caller: &mut Caller, frame: &[u8]) -> Then {
        if *caller == Caller::LetIn {
            return Then::Welcome;
        }
        match (Frame::decode(frame), *caller) {
            (Ok(Frame::Knock(hello)), Caller::Silent) if hello.version == LOCAL_VERSION => {
                let Ok(ours) = os::random() else {
                    channel.refuse(0, RefuseReason::Memory);
                    return Then::Gone;
                };
                *caller = Caller::Challenged { theirs: hello.nonce, ours };
                let challenge =
                    DoorHello { version: LOCAL_VERSION, nonce: ours, ..DoorHello::ZERO };
                self.door_answer(channel, &Frame::Challenge(challenge))
            }
            // a hello comes first in an older version
            (Ok(Frame::Knock(_) | Frame::LinkHello(_)), Caller::Silent) => {
                channel.refuse(0, RefuseReason::Version);
                self.version_refused(channel);
                Then::Gone
            }
            (Ok(Frame::Prove(hello)), Caller::Challenged { theirs, ours }) => {
                let numbers = DoorNumbers {
                    connector: theirs,
                    listener: ours,
                    id: self.endpoint_id,
                    door: hello.door,
                };
                self.door_proved(channel, caller, &hello, &numbers)
            }
            (Err(DecodeError::Version(_)), _) => {
                channel.refuse(0, RefuseReason::Version);
                Then::Gone
            }
            (Ok(_) | Err(_), _) => {
                self.stranger(channel.remote());
                Then::Gone
            }
        }
    }

    /// Lets a caller in that holds the handle, and the key if there is one.
    fn door_proved(
        &mut self,
        channel: &Channel,
        caller: &mut Caller,
        hello: &DoorHello,
        numbers: &DoorNumbers,
    ) -> Then {
        let key = self.config.trust.key.as_ref();
        if !key::door_proves(DoorStep::Connector, numbers, hello) {
            channel.refuse(0, RefuseReason::NoListener);
            self.stranger(channel.remote());
            return Then::Gone;
        }
        if !key::door_key_proves(key, DoorStep::Connector, numbers, hello) {
            channel.refuse(0, RefuseReason::Key);
            self.key_refused(
                self.caller_peer(channel),
                self.key_cause((hello.key_low, hello.key_high)),
            );
            return Then::Gone;
        }
        if !self.is_listener(hello.door) {
            channel.refuse(0, RefuseReason::NoListener);
            return Then::Gone;
        }
        *caller = Caller::LetIn;
        let proof = key::door_hello(key, DoorStep::Listener, numbers);
        self.door_answer(channel, &Frame::Proved(proof))
    }

    fn door_answer(&mut self, channel: &Channel, frame: &Frame) -> Then {
        match say(channel, frame) {
            Ok(()) => Then::Wait,
            Err(_) => Then::Gone,
        }
    }

    /// Who calls, as far as the kernel says.
    fn caller_peer(&self, channel: &Channel) -> Peer {
        let pid = channel.pid().max(0) as u32;
        Peer { pid, node_id: self.node_id, ..Peer::default() }
    }

    /// Counts a peer with a wrong key, and tells of the first.
    pub fn key_refused(&mut self, peer: Peer, cause: KeyCause) {
        self.counters.keys_refused += 1;
        if self.counters.keys_refused == 1 {
            (self.config.note)(Note::Key(peer, cause));
        }
    }

    /// Counts a peer of another version of this, and tells of the first.
    fn version_refused(&mut self, channel: &Channel) {
        self.counters.local_versions_refused += 1;
        if self.counters.local_versions_refused == 1 {
            (self.config.note)(Note::LocalVersion(self.caller_peer(channel)));
        }
    }
}

fn say(channel: &Channel, frame: &Frame) -> io::Result<()> {
    let mut bytes = [0; FRAME_BYTES_WRITTEN];
    let length = frame.encode(&mut bytes);
    channel.send(&bytes[..length]).map(|_| ())
}
