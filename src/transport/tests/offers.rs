//! Offers of groups that are held back, since a packet each is much.
#![forbid(unsafe_code)]

use super::*;
use crate::transport::request::SubmitError;

const GROUP: usize = 4;
const GROUPS: usize = 40;
const BYTES: usize = 8;

/// The sender is ahead: it remembers so many messages that went before their receives, however many
/// groups these are. Time stands still, so that nobody is helped on by a hold that ends.
#[test]
fn groups_are_not_held_back_from_a_sender_that_has_sent_all_it_may() {
    let mut block = block();
    let mut pair = Pair::open(&mut block, false);
    pair.endpoint.caps.syscalls = Syscalls::PerBatch;
    let mut source = pattern(GROUPS * GROUP * BYTES, 1);
    let mut target = vec![0u8; source.len()];
    let (from, to) = (pair.register(&mut source), pair.register(&mut target));
    let (mut sent, mut outstanding) = (0, Vec::new());
    for group in 0..GROUPS {
        while sent < GROUPS * GROUP {
            let message = outgoing(from, &source[sent * BYTES..][..BYTES], (sent % GROUP) as i32);
            match pair.endpoint.isend(A, message) {
                Ok(request) => {
                    outstanding.push(request);
                    sent += 1;
                }
                Err(SubmitError::Again) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        let room =
            |at: usize| incoming(to, &target[(group * GROUP + at) * BYTES..][..BYTES], at as i32);
        let receive = pair.endpoint.irecv(B, &[room(0), room(1), room(2), room(3)]).unwrap();
        let outcome = pair.finish(receive);
        assert_eq!((outcome.result, outcome.lengths[..GROUP].to_vec()), (Ok(()), vec![8; GROUP]));
    }
    assert_eq!(target, source);
}
