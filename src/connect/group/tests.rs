use super::*;
use crate::connect::interfaces::{address_list, local_addresses};
use crate::connect::os::user;
use crate::connect::trust::Users;
use crate::wire::hello::AddressList;
use std::thread::{scope, spawn};

const PATIENCE: Duration = Duration::from_secs(60);

fn keyed(byte: u8) -> Trust {
    Trust::new(Some(Key::new(&[byte; 32]).unwrap()), Users::default())
}

fn plain() -> Trust {
    Trust::new(None, Users::default())
}

/// A rank of the host `place`, which other hosts reach by the loopback interface.
fn listener(trust: Trust, place: u64) -> Listener {
    let loopback = address_list(&local_addresses("lo").unwrap());
    Listener::new(trust, place, &loopback).unwrap()
}

/// What becomes of a rank 1 of two that has `trust`, on the host `place`.
fn joins(trust: Trust, place: u64, first: &[u8; HANDLE_BYTES]) -> Result<Group, GroupError> {
    let listener = listener(trust, place);
    Group::form(&listener, &[*first, *listener.handle()], 1, PATIENCE)
}

/// Rank 0 of two, whose other rank is one of the host `place`.
fn hub(listener: &Listener, place: u64) -> Result<Group, GroupError> {
    let other = self::listener(plain(), place);
    Group::form(listener, &[*listener.handle(), *other.handle()], 0, PATIENCE)
}

/// The host of the hub, and another one.
const PLACES: [u64; 2] = [7, 8];

#[test]
fn ranks_without_the_same_key_are_refused_and_change_nothing() {
    let keys = [(keyed(1), keyed(2)), (keyed(1), plain()), (plain(), keyed(1))];
    for (place, (ours, theirs)) in
        PLACES.iter().flat_map(|place| keys.iter().map(move |it| (*place, it)))
    {
        let listener = listener(ours.clone(), PLACES[0]);
        let first = *listener.handle();
        scope(|scope| {
            let hub = scope.spawn(|| hub(&listener, place));
            let refused = joins(theirs.clone(), place, &first);
            assert!(matches!(refused, Err(GroupError::Refused(0))), "{refused:?}");
            let rank = scope.spawn(|| {
                let mut group = joins(ours.clone(), place, &first)?;
                group.gather(b"here", &[])
            });
            let parts = hub.join().unwrap().unwrap().gather(b"there", &[]).unwrap();
            let bytes = [&parts[0].bytes[..], &parts[1].bytes[..]];
            assert_eq!(bytes, [&b"there"[..], &b"here"[..]]);
            assert_eq!(rank.join().unwrap().unwrap().len(), 2);
        });
    }
}

#[test]
fn rank_of_a_user_that_is_not_admitted_is_refused_and_without_a_key_alone() {
    // the number of unknown users is never let in, whoever has it
    let strict = |mut trust: Trust| {
        trust.overflow = user();
        trust
    };
    let strict_one = listener(strict(plain()), 7);
    let first = *strict_one.handle();
    // ends with the test's process, if the stranger was not counted
    spawn(move || hub(&strict_one, 7));
    assert!(matches!(joins(plain(), 7, &first), Err(GroupError::Refused(0))));

    let keyed_one = listener(strict(keyed(1)), 7);
    let first = *keyed_one.handle();
    let hub = spawn(move || hub(&keyed_one, 7));
    joins(keyed(1), 7, &first).unwrap();
    hub.join().unwrap().unwrap();
}

/// All ranks of `places` as threads of this process: what each of them makes of its group.
fn play<R: Send>(
    places: &[u64],
    program: impl Fn(Result<Group, GroupError>) -> R + Sync,
) -> Vec<R> {
    let listeners: Vec<_> = places.iter().map(|place| listener(plain(), *place)).collect();
    let handles: Vec<_> = listeners.iter().map(|listener| *listener.handle()).collect();
    scope(|scope| {
        let rank = |(rank, listener)| {
            let (handles, program) = (&handles, &program);
            scope.spawn(move || program(Group::form(listener, handles, rank, PATIENCE)))
        };
        let threads: Vec<_> = listeners.iter().enumerate().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn records_go_to_all_ranks_and_descriptors_to_those_of_the_host() {
    for places in [&[1, 2, 1, 2][..], &[1, 1, 2, 2, 2], &[1, 2, 3], &[4, 4]] {
        play(places, |group| {
            let mut group = group.unwrap();
            let own = group.rank();
            for round in 0..3 {
                let file = std::fs::File::open("/dev/null").unwrap();
                let parts = group.gather(&[own as u8, round], &[file.as_fd()]).unwrap();
                for (rank, part) in parts.iter().enumerate() {
                    assert_eq!(part.bytes, [rank as u8, round]);
                    assert_eq!(part.descriptors.len(), usize::from(places[rank] == places[own]));
                    assert_eq!(group.members().contains(&rank), places[rank] == places[own]);
                }
            }
        });
    }
}

/// One rank leaves; no other waits for it until its patience ends, whichever star it was of.
#[test]
fn rank_that_leaves_is_an_error_at_all_others() {
    for leaver in 0..4 {
        play(&[1, 2, 1, 2], |group| {
            let mut group = group.unwrap();
            group.gather(&[], &[]).unwrap();
            if group.rank() != leaver {
                let gone = group.gather(&[], &[]);
                assert!(gone.is_err());
                assert!(group.gather(&[], &[]).is_err());
            }
        });
    }
}

#[test]
fn handle_of_another_version_or_without_an_address_is_an_error_of_its_own() {
    let here = listener(plain(), 1);
    let silent = Listener::new(plain(), 2, &AddressList::EMPTY).unwrap();
    let told = Group::form(&here, &[*silent.handle(), *here.handle()], 1, PATIENCE);
    assert!(matches!(told, Err(GroupError::NoAddress(0))), "{told:?}");
    let mut older = *listener(plain(), 2).handle();
    older[7] = 1;
    let told = Group::form(&here, &[*here.handle(), older], 0, PATIENCE);
    assert!(matches!(told, Err(GroupError::Handle(1))), "{told:?}");
}
