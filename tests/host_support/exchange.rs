//! What two processes say to each other over a connection, the same program on both sides: every
//! size, alone, in groups and before anybody waits for it, and every byte compared.

use super::{Memory, Node, Place, Random, Watch};
use crosstie::base::slab::Handle;
use crosstie::transport::RequestId;

/// Lengths of messages that go alone.
const LONG: [usize; 5] = [65_536, 65_537, 1 << 20, 3_000_001, (8 << 20) + 5];
/// Lengths of those that go in groups.
const SHORT: [usize; 10] = [0, 1, 8, 24, 25, 4096, 8192, 8193, 65_536, 200_000];
const GROUP_MAX: usize = 8;
/// Room for one message of a group.
const PLACE: usize = 200_000;
const MEMORY: usize = (8 << 20) + 4096;

/// One side of the program.
pub struct Exchange {
    connection: Handle,
    side: u64,
    out: Memory,
    into: Memory,
}

impl Exchange {
    /// `side` is 0 here and 1 there, or the other way round.
    pub fn new(node: &Node, connection: Handle, side: u64, place: Place) -> Exchange {
        let [out, into] = [MEMORY, MEMORY].map(|length| Memory::new(node, place, length));
        Exchange { connection, side, out, into }
    }

    /// Takes the whole program; returns how many messages arrived.
    pub fn run(&self, node: &mut Node, rounds: u64, seed: u64) -> u64 {
        let mut arrived = 0;
        for round in 0..rounds {
            // the same numbers on both sides
            let mut random = Random(seed.wrapping_add(round));
            arrived += match round % 4 {
                3 => self.long(node, round, LONG[random.below(LONG.len() as u64) as usize]),
                _ => self.group(node, round, &mut random),
            };
        }
        arrived
    }

    fn number(&self, round: u64, at: usize, mine: bool) -> u64 {
        let side = if mine { self.side } else { 1 - self.side };
        (round * GROUP_MAX as u64 + at as u64) * 2 + side
    }

    /// A long message each way at once.
    fn long(&self, node: &mut Node, round: u64, length: usize) -> u64 {
        self.out.fill(0, length, self.number(round, 0, true));
        let room = self.into.incoming(0, MEMORY, 7);
        let receive = node.irecv(self.connection, &[room]).unwrap();
        let send = node.isend(self.connection, self.out.outgoing(0, length, 7)).unwrap();
        let outcome = node.wait(receive);
        assert_eq!((outcome.result, outcome.lengths[0]), (Ok(()), length as u64));
        self.into.verify(0, length, self.number(round, 0, false));
        assert_eq!(node.wait(send).result, Ok(()));
        1
    }

    /// A group each way; in every second round the messages go before their receives are posted.
    fn group(&self, node: &mut Node, round: u64, random: &mut Random) -> u64 {
        let count = 1 + random.below(GROUP_MAX as u64) as usize;
        let sizes: Vec<usize> =
            (0..count).map(|_| SHORT[random.below(SHORT.len() as u64) as usize]).collect();
        let turn = random.below(count as u64) as usize;
        let early = round % 2 == self.side;
        let mut receive = None;
        if !early {
            receive = Some(self.receive(node, count));
        }
        let sends: Vec<RequestId> = (0..count)
            .map(|at| (at + turn) % count)
            .map(|at| {
                self.out.fill(at * PLACE, sizes[at], self.number(round, at, true));
                let message = self.out.outgoing(at * PLACE, sizes[at], at as i32);
                node.isend(self.connection, message).unwrap()
            })
            .collect();
        if early {
            for _ in 0..random.below(2000) {
                node.progress();
            }
        }
        let receive = receive.unwrap_or_else(|| self.receive(node, count));
        let outcome = node.wait(receive);
        assert_eq!((outcome.result, usize::from(outcome.count)), (Ok(()), count));
        for (at, size) in sizes.iter().enumerate() {
            assert_eq!(outcome.lengths[at], *size as u64);
            self.into.verify(at * PLACE, *size, self.number(round, at, false));
        }
        for send in sends {
            assert_eq!(node.wait(send).result, Ok(()));
        }
        count as u64
    }

    fn receive(&self, node: &mut Node, count: usize) -> RequestId {
        let rooms: Vec<_> =
            (0..count).map(|at| self.into.incoming(at * PLACE, PLACE, at as i32)).collect();
        let watch = Watch::start();
        loop {
            match node.irecv(self.connection, &rooms) {
                Ok(request) => return request,
                Err(crosstie::transport::SubmitError::Again) => watch.look("a free record"),
                Err(error) => panic!("{error:?}"),
            }
            node.progress();
        }
    }

    pub fn release(self, node: &Node) {
        self.out.release(node);
        self.into.release(node);
    }
}
