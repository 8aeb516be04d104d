//! Requests that are given up at once: those of which no rail knows end, of others it is said that
//! there are some.

use super::*;

#[test]
fn what_no_rail_knows_ends_at_once_and_is_never_read_or_written() {
    for pull in [true, false] {
        let mut block = block();
        let mut pair = Pair::open(&mut block, pull);
        let mut target = [0u8; 1 << 16];
        let mut source = pattern(1 << 16, 5);
        let (to, from) = (pair.register(&mut target), pair.register(&mut source));
        let (first, rest) = (&target[..1 << 15], &target[1 << 15..]);
        // not offered yet
        let receive = pair.endpoint.irecv(A, &[incoming(to, first, 3)]).unwrap();
        assert!(!pair.endpoint.requests_give_up(A));
        assert_eq!(pair.finish(receive).result, Err(RequestError::Closed));
        if !pull {
            // nothing receives it: it is not bound
            let send = pair.endpoint.isend(A, outgoing(from, &source, 3)).unwrap();
            pair.settle();
            assert!(!pair.endpoint.requests_give_up(A));
            assert_eq!(pair.finish(send).result, Err(RequestError::Closed));
            pair.regions.remove(from).unwrap();
        }
        let offered = pair.endpoint.irecv(A, &[incoming(to, rest, 3)]).unwrap();
        pair.settle();
        // who receives by reading is written to by nobody
        assert_eq!(pair.endpoint.requests_give_up(A), !pull);
        assert_eq!(pair.endpoint.test(offered).unwrap().is_some(), pull);
        while pair.endpoint.connection_close(A) == Err(endpoint::ConnectionCloseError::Again) {
            pair.endpoint.progress(Instant(0), BUDGET);
        }
        pair.regions.remove(to).unwrap();
    }
}
