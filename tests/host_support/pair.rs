//! Two endpoints of this process with one connection of several rails, over which messages flow.

use super::flow::Flow;
use super::{Memory, Node, Place, Watch, wait_both};
use crosstie::base::slab::Handle;
use crosstie::host::endpoint::Closing;
use crosstie::transport::LaneView;
use crosstie::transport::rail::LaneState;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the environment says of rails is a process's, and each pair wants two processors.
static ALONE: Mutex<()> = Mutex::new(());

pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two endpoints with one connection, which they use.
pub struct Pair {
    pub a: Node,
    pub b: Node,
    pub to_b: Handle,
    pub to_a: Handle,
    _alone: MutexGuard<'static, ()>,
}

/// Closes a connection from both sides.
pub fn disconnect_both((a, to_b): (&mut Node, Handle), (b, to_a): (&mut Node, Handle)) {
    let watch = Watch::start();
    let mut open = [true; 2];
    while open != [false; 2] {
        open[0] = open[0] && a.connection_close(to_b) == Closing::Again;
        open[1] = open[1] && b.connection_close(to_a) == Closing::Again;
        a.progress();
        b.progress();
        watch.look("closing a connection");
    }
}

impl Pair {
    /// Connects two endpoints, and waits until all of so many rails are in use. `alone`: since
    /// before they were opened.
    pub fn of(alone: MutexGuard<'static, ()>, mut a: Node, mut b: Node, rails: u8) -> Pair {
        let (to_b, to_a) = super::joined(&mut a, &mut b);
        let mut pair = Pair::joined(alone, a, b, (to_b, to_a));
        pair.hello();
        assert!(pair.view(0, rails).is_none(), "more than {rails} rails");
        pair.all_up(rails);
        pair
    }

    /// Two endpoints that are connected: what each calls the connection.
    pub fn joined(
        alone: MutexGuard<'static, ()>,
        a: Node,
        b: Node,
        (to_b, to_a): (Handle, Handle),
    ) -> Pair {
        Pair { a, b, to_b, to_a, _alone: alone }
    }

    /// Its endpoints, what each calls the connection, and the turn of whoever has them.
    pub fn into_ends(self) -> ([(Node, Handle); 2], MutexGuard<'static, ()>) {
        ([(self.a, self.to_b), (self.b, self.to_a)], self._alone)
    }

    /// Closes the connection from both sides, and the endpoints. Dropped with messages on their
    /// way, one side waits for the other, which nobody polls.
    pub fn close(mut self) {
        self.disconnect();
        self.a.close();
        self.b.close();
    }

    /// Closes the connection and makes another between the same endpoints.
    pub fn reconnect(&mut self, rails: u8) {
        self.disconnect();
        (self.to_b, self.to_a) = super::joined(&mut self.a, &mut self.b);
        self.hello();
        self.all_up(rails);
    }

    fn disconnect(&mut self) {
        disconnect_both((&mut self.a, self.to_b), (&mut self.b, self.to_a));
    }

    /// A message each way.
    pub fn hello(&mut self) {
        for turn in [false, true] {
            let Pair { a, b, to_b, to_a, .. } = self;
            let (from, to, near, far) =
                if turn { (b, a, *to_a, *to_b) } else { (a, b, *to_b, *to_a) };
            let (out, into) =
                (Memory::new(from, Place::Private, 64), Memory::new(to, Place::Private, 64));
            out.fill(0, 64, 7);
            let receive = to.irecv(far, &[into.incoming(0, 64, 3)]).unwrap();
            let send = from.isend(near, out.outgoing(0, 64, 3)).unwrap();
            assert_eq!(wait_both(to, from, receive).result, Ok(()));
            assert_eq!(wait_both(from, to, send).result, Ok(()));
            into.verify(0, 64, 7);
            out.release(from);
            into.release(to);
        }
    }

    pub fn side(&self, side: usize) -> (&Node, Handle) {
        if side == 0 { (&self.a, self.to_b) } else { (&self.b, self.to_a) }
    }

    pub fn view(&self, side: usize, lane: u8) -> Option<LaneView> {
        let (node, connection) = self.side(side);
        node.lane_view(connection, lane)
    }

    pub fn views(&self, lane: u8) -> [LaneView; 2] {
        [0, 1].map(|side| self.view(side, lane).expect("a rail"))
    }

    pub fn is_up(&self, lane: u8) -> bool {
        self.views(lane).iter().all(|view| view.state == LaneState::Up)
    }

    pub fn progress(&mut self) {
        self.a.progress();
        self.b.progress();
    }

    pub fn all_up(&mut self, rails: u8) {
        let watch = Watch::start();
        while !(0..rails).all(|lane| self.is_up(lane)) {
            self.progress();
            watch.look("all rails");
        }
    }

    pub fn flows(&self, place: Place) -> [Flow; 2] {
        [0, 1].map(|side| {
            let (node, connection) = self.side(side);
            Flow::new(node, connection, place)
        })
    }

    pub fn step(&mut self, flows: &mut [Flow; 2]) {
        flows[0].step(&mut self.a);
        flows[1].step(&mut self.b);
        let errors = [&flows[0], &flows[1]].map(|flow| (flow.refused, flow.errors.clone()));
        assert!(!flows.iter().any(Flow::failed), "{errors:?}");
    }

    /// Lets messages flow until each side has received so many more.
    pub fn flow(&mut self, flows: &mut [Flow; 2], more: u64) {
        let goal = [0, 1].map(|side: usize| flows[side].received + more);
        self.flow_until(flows, "messages", |_, flows| {
            flows[0].received >= goal[0] && flows[1].received >= goal[1]
        });
    }

    pub fn flow_until(
        &mut self,
        flows: &mut [Flow; 2],
        what: &str,
        over: impl Fn(&Pair, &[Flow; 2]) -> bool,
    ) {
        let watch = Watch::start();
        while !over(self, flows) {
            self.step(flows);
            watch.look(what);
        }
    }

    pub fn bytes(&self, lane: u8) -> [u64; 2] {
        self.views(lane).map(|view| view.stats.bytes)
    }
}

/// Where lane 0 is the reserve, or a lane comes back.
impl Pair {
    /// Lets messages flow until control has left the reserve on both sides.
    pub fn settle(&mut self, flows: &mut [Flow; 2]) {
        self.flow_until(flows, "control to leave the reserve", |pair, _| {
            pair.views(0).iter().all(|view| !view.control && view.state == LaneState::Up)
        });
        self.flow(flows, 8);
    }

    /// Lets messages flow until a rail is in use again, as a later use of it, and has carried bytes
    /// both ways.
    pub fn flow_until_back(&mut self, flows: &mut [Flow; 2], lane: u8, generation: u32) {
        self.flow_until(flows, "the rail to come back", |pair, _| {
            pair.is_up(lane) && pair.views(lane).iter().all(|view| view.generation > generation)
        });
        let before = self.bytes(lane);
        self.flow_until(flows, "the rail to carry bytes again", |pair, _| {
            let now = pair.bytes(lane);
            now[0] > before[0] && now[1] > before[1]
        });
    }

    /// Lets messages flow, nearly all of whose bytes lane 1 has to carry, and control with them.
    pub fn carries(&mut self, flows: &mut [Flow; 2], what: &str) {
        let before = [self.bytes(0), self.bytes(1)];
        self.flow(flows, 64);
        let after = [self.bytes(0), self.bytes(1)];
        for side in [0, 1] {
            let [reserve, rail] = [0, 1].map(|lane: usize| after[lane][side] - before[lane][side]);
            println!("side {side}: {rail} bytes over {what}, {reserve} over TCP");
            assert!(rail > 8 * reserve, "{rail} bytes over {what}, {reserve} over TCP");
            let view = self.view(side, 1).unwrap();
            assert!(view.control && view.stats.failures == 0);
            assert_eq!(self.view(side, 0).unwrap().stats.failures, 0, "the reserve has not failed");
        }
    }
}
