//! Processes of other users of the host: who is let in, and what is told to whom. A thread of the
//! test becomes another user, which takes root.

#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;
#[path = "connect_support/users.rs"]
mod users;

use connect_support::*;
use crosstie::connect::key::Key;
use crosstie::connect::*;
use crosstie::wire::hello::*;
use raw::Raw;
use std::sync::Mutex;
use users::{OTHER, as_user, is_root};

/// Everything that bands of this process have said.
static SAID: Mutex<Vec<Note>> = Mutex::new(Vec::new());

fn listen_to_notes(note: Note) {
    SAID.lock().unwrap().push(note);
}

/// What was said of users, by the endpoints of one test.
fn said_of(causes: &[UserCause]) -> Vec<usize> {
    let said = SAID.lock().unwrap();
    let count =
        |cause| said.iter().filter(|n| matches!(n, Note::User(_, c) if *c == cause)).count();
    causes.iter().map(|cause| count(*cause)).collect()
}

fn refused(raw: &Raw) -> RefuseReason {
    let Frame::Refused(refused) = raw.receive() else { panic!("no refusal") };
    raw.closed();
    RefuseReason::from_wire(refused.reason)
}

#[test]
fn another_users_process_is_refused_before_it_gets_anything_and_said_once() {
    if !is_root() {
        return println!("SKIP: only root becomes another user");
    }
    const USER: u32 = OTHER + 1;
    let b = Node::new(&Limits { note: listen_to_notes, ..Limits::default() });
    let (_, handle) = b.band.listen().unwrap();
    let theirs = UserCause::Theirs { user: USER, unknown: false };
    for round in 1..=3 {
        let raw = as_user(USER, || Raw::knock(&handle));
        assert_eq!(refused(&raw), RefuseReason::User);
        assert_eq!(b.band.counters().users_refused, round);
    }
    assert_eq!((b.band.counters().links, said_of(&[theirs])), (0, vec![1]));
    assert!(theirs.to_string().contains("CROSSTIE_ALLOW_UIDS"), "{theirs}");
}

#[test]
fn the_user_that_stands_for_unknown_ones_is_refused_also_where_it_is_our_own() {
    if !is_root() {
        return println!("SKIP: only root becomes another user");
    }
    let overflow = overflow_user();
    let b = as_user(overflow, || Node::new(&Limits::default()));
    let (_, handle) = b.band.listen().unwrap();
    let raw = as_user(overflow, || Raw::knock(&handle));
    assert_eq!(refused(&raw), RefuseReason::User);
}

#[test]
fn nothing_is_said_to_another_users_listener() {
    if !is_root() {
        return println!("SKIP: only root becomes another user");
    }
    const USER: u32 = OTHER + 2;
    let b = Node::new(&Limits::default());
    let (_, handle) = b.band.listen().unwrap();
    drop(b);
    let imposter = as_user(USER, || Raw::listen(handle.endpoint_id));
    let a = Node::new(&Limits::default());
    let pending = a.band.connect_begin(&handle.encode());
    let error = match pending {
        Err(error) => error,
        Ok(pending) => until("refusal", || a.band.connect_poll(pending).err()),
    };
    let cause = UserCause::Theirs { user: USER, unknown: false };
    assert!(matches!(error, ConnectError::User(_, found) if found == cause), "{error}");
    imposter.accept_silent().closed();
}

#[test]
fn a_named_user_and_root_are_let_in_where_each_allows_the_other() {
    if !is_root() {
        return println!("SKIP: only root becomes another user");
    }
    let users = Users::default().with(OTHER).unwrap();
    let b = Node::new(&Limits { users, ..Limits::default() });
    let (listener, handle) = b.band.listen().unwrap();
    as_user(OTHER, || {
        let a = Node::new(&Limits::default());
        pair(&a, &b, listener, &handle.encode());
    });
    assert_eq!(b.band.counters().users_refused, 0);
}

#[test]
fn where_there_is_a_key_the_key_decides() {
    if !is_root() {
        return println!("SKIP: only root becomes another user");
    }
    let key = Some(Key::new(b"the key of these tests").unwrap());
    let limits = Limits { key, ..Limits::default() };
    let b = Node::new(&limits);
    let (listener, handle) = b.band.listen().unwrap();
    as_user(OTHER, || {
        pair(&Node::new(&limits), &b, listener, &handle.encode());
        let without = Node::new(&Limits::default());
        let pending = without.band.connect_begin(&handle.encode());
        // it has no key, so that our user counts for it; root's does
        let error = until("refusal", || without.band.connect_poll(pending.unwrap()).err());
        assert!(matches!(error, ConnectError::Key(..)), "{error}");
    });
}

#[test]
fn another_users_process_with_the_handle_goes_over_tcp_and_both_sides_say_why() {
    if !is_root() {
        return println!("SKIP: only root becomes another user");
    }
    const USER: u32 = OTHER + 3;
    let rails = RAIL_SHM | RAIL_TCP;
    let limits = Limits { rails, note: listen_to_notes, ..Limits::tcp() };
    let b = Node::new(&limits);
    let (listener, handle) = b.band.listen().unwrap();
    as_user(USER, || {
        let mut a = Node::new(&limits);
        let (ours, _) = pair(&a, &b, listener, &handle.encode());
        let params = until("news", || a.established(ours));
        assert_eq!(params.rail, Rail::Tcp);
    });
    let theirs = UserCause::Theirs { user: USER, unknown: false };
    assert_eq!(said_of(&[theirs, UserCause::Ours(USER)]), [1, 1]);
}
