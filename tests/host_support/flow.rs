//! Messages that flow both ways, every byte of them compared, until something ends them.

use super::roles::Line;
use super::{Memory, Node, Place, Watch};
use crosstie::base::slab::Handle;
use crosstie::transport::{RequestError, RequestId, SubmitError};

/// Messages that may stand in each direction.
pub const DEPTH: usize = 4;
const SIZES: [usize; 8] = [0, 8, 24, 1000, 8192, 8193, 100_000, 1 << 20];
const SIZE_MAX: usize = 1 << 20;

/// Messages of mixed sizes, both ways, for as long as the peer lives.
pub struct Flow {
    pub connection: Handle,
    pub out: Vec<Memory>,
    into: Vec<Memory>,
    sends: [Option<RequestId>; DEPTH],
    receives: [Option<RequestId>; DEPTH],
    sent: u64,
    posted: u64,
    pub received: u64,
    pub refused: Option<SubmitError>,
    pub errors: Vec<RequestError>,
}

impl Flow {
    /// In a process with a role: connects to where the test says that it listens, and tells it.
    pub fn with_parent(node: &mut Node, line: &mut Line) -> Flow {
        let handle = line.hear::<128>();
        let attempt = node.shared.connect(&handle).unwrap();
        let connection = node.connected(attempt).unwrap();
        line.say_number(1);
        Flow::new(node, connection, Place::Private)
    }

    /// After the death of its peer: goes on until every request has ended, each for that reason.
    pub fn end_with_peer(&mut self, node: &mut Node) {
        let watch = Watch::start();
        while !self.failed() || self.outstanding() > 0 {
            self.step(node);
            watch.look("requests of a peer that was killed");
        }
        let died = |error: &RequestError| *error == RequestError::PeerDied;
        assert!(self.errors.iter().all(died), "{:?}", self.errors);
    }

    pub fn new(node: &Node, connection: Handle, place: Place) -> Flow {
        let memory = || (0..DEPTH).map(|_| Memory::new(node, place, SIZE_MAX)).collect();
        Flow {
            connection,
            out: memory(),
            into: memory(),
            sends: [None; DEPTH],
            receives: [None; DEPTH],
            sent: 0,
            posted: 0,
            received: 0,
            refused: None,
            errors: vec![],
        }
    }

    pub fn failed(&self) -> bool {
        self.refused.is_some() || !self.errors.is_empty()
    }

    pub fn outstanding(&self) -> usize {
        self.sends.iter().chain(&self.receives).flatten().count()
    }

    /// Posts what can be posted, tests what is due.
    pub fn step(&mut self, node: &mut Node) {
        if !self.failed() {
            self.post(node);
        }
        self.test(node);
    }

    fn post(&mut self, node: &mut Node) {
        for at in 0..DEPTH {
            if self.receives[at].is_none() && self.posted as usize % DEPTH == at {
                let room = self.into[at].incoming(0, SIZE_MAX, 0);
                match node.irecv(self.connection, &[room]) {
                    Ok(request) => {
                        self.receives[at] = Some(request);
                        self.posted += 1;
                    }
                    Err(SubmitError::Again) => {} // a later step asks again
                    Err(error) => self.refused = Some(error),
                }
            }
            if self.sends[at].is_none() && self.sent as usize % DEPTH == at {
                let size = SIZES[self.sent as usize % SIZES.len()];
                self.out[at].fill(0, size, self.sent);
                match node.isend(self.connection, self.out[at].outgoing(0, size, 0)) {
                    Ok(request) => {
                        self.sends[at] = Some(request);
                        self.sent += 1;
                    }
                    Err(SubmitError::Again) => {} // a later step asks again
                    Err(error) => self.refused = Some(error),
                }
            }
        }
    }

    fn test(&mut self, node: &mut Node) {
        node.progress();
        // they end in their order, so the oldest is asked first
        while let Some(request) = self.receives[self.received as usize % DEPTH]
            && let Some(outcome) = node.test(request).expect("a live request")
        {
            let at = self.received as usize % DEPTH;
            self.receives[at] = None;
            match outcome.result {
                Ok(()) => {
                    let size = SIZES[self.received as usize % SIZES.len()];
                    assert_eq!(outcome.lengths[0], size as u64);
                    self.into[at].verify(0, size, self.received);
                    self.received += 1;
                }
                Err(error) => self.errors.push(error),
            }
        }
        if self.failed() {
            self.receives_after_failure(node);
        }
        for at in 0..DEPTH {
            if let Some(request) = self.sends[at]
                && let Some(outcome) = node.test(request).expect("a live request")
            {
                self.sends[at] = None;
                if let Err(error) = outcome.result {
                    self.errors.push(error);
                }
            }
        }
    }

    fn receives_after_failure(&mut self, node: &mut Node) {
        for at in 0..DEPTH {
            if let Some(request) = self.receives[at]
                && let Some(outcome) = node.test(request).expect("a live request")
            {
                self.receives[at] = None;
                self.errors.extend(outcome.result.err());
            }
        }
    }

    pub fn release(self, node: &Node) {
        for memory in self.out.into_iter().chain(self.into) {
            memory.release(node);
        }
    }
}
