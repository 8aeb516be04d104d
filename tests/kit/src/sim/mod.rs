//! A simulated network inside one thread, with seeded faults: each run with a seed is the same.
//!
//! [`SimFabric`] is the network, [`SimPort`] one endpoint's rail into it. Ops become *flights*.
//! Each lands at a time that is drawn from the seed, and `poll` of any port lands those that are
//! due. The caller sets the time. Memory is real memory of this process.
//!
//! - **Faults** of a network each have a probability of their own ([`Faults`]).
//! - **Violations**: a message or an immediate without a free receive slot breaks the credits. It
//!   is counted ([`SimCounts::violations`]), and ends the connection, like a receiver-not-ready
//!   error.
//! - **Speed**: a connection carries any number of bytes at once, unless it has a speed
//!   ([`SimFabric::speed_set`]). Then ops leave one after another, and land after the latency.
//! - **Ghosts**: after a death nothing of a connection touches memory, unless [`Faults::ghost`] is
//!   set. Then a write may land long after its error was reported, as on a real rail. A fence, a
//!   close or the end of the registration stops it.

mod config;
mod flight;
mod landing;
mod state;
#[cfg(test)]
mod tests;

pub use config::{Breach, CERTAIN, Faults, PORTS_MAX, SimConfig, SimCounts};

use core::cell::RefCell;
use crosstie::base::carve::{BlockTooSmall, Carver};
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, LocalSpan, MemoryDomain, Op, PeerLife,
    PostError, Posted, Provider, RecvSlot,
};
use crosstie::provider::host_domain::HostDomain;
use crosstie::provider::touch;
use state::State;

/// Longest write or read.
pub const TRANSFER_MAX: Bytes = Bytes(1 << 40);

/// Why two ports could not be connected. Nothing was changed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum ConnectError {
    /// A port has no free peer.
    Full,
    /// There is no such port, or both are the same.
    Range,
}

/// The network. See the [module](self).
#[derive(Debug)]
pub struct SimFabric<'m> {
    state: RefCell<State<'m>>,
    domain: HostDomain<'m>,
    config: SimConfig,
}

impl<'m> SimFabric<'m> {
    /// What [`SimFabric::open`] cuts from its block.
    pub const fn bytes(config: SimConfig) -> usize {
        state::bytes(config) + HostDomain::bytes(config.regions_max)
    }

    /// A network without connections. *Panics* when there are more ports than [`PORTS_MAX`].
    pub fn open(
        config: SimConfig,
        carver: &mut Carver<'m>,
    ) -> Result<SimFabric<'m>, BlockTooSmall> {
        let domain = HostDomain::carve(carver, config.regions_max)?;
        let state = RefCell::new(State::carve(config, domain, carver)?);
        Ok(SimFabric { state, domain, config })
    }

    /// Joins two ports once more; says how each of them calls the other.
    pub fn connect(&self, a: u32, b: u32) -> Result<(PeerIndex, PeerIndex), ConnectError> {
        if a == b || a.max(b) >= self.config.ports {
            return Err(ConnectError::Range);
        }
        self.state.borrow_mut().connect(a, b).ok_or(ConnectError::Full)
    }

    /// Joins the ends of two ports that are called `peer` there, and that are free.
    pub fn connect_at(&self, a: u32, b: u32, peer: PeerIndex) -> Result<(), ConnectError> {
        if a == b || a.max(b) >= self.config.ports {
            return Err(ConnectError::Range);
        }
        self.state.borrow_mut().connect_at(a, b, peer).ok_or(ConnectError::Full)
    }

    /// One endpoint's rail. *Panics* when there is no such port.
    pub fn port(&self, port: u32) -> SimPort<'_, 'm> {
        assert!(port < self.config.ports);
        SimPort { fabric: self, port }
    }

    /// What has happened so far.
    pub fn counts(&self) -> SimCounts {
        self.state.borrow().counts
    }

    /// Changes the faults from now on.
    pub fn faults_set(&self, faults: Faults) {
        self.state.borrow_mut().config.faults = faults;
    }

    /// Breaks the contract from now on, or keeps it again.
    pub fn breach_set(&self, breach: Breach) {
        self.state.borrow_mut().breach = breach;
    }

    /// How many bytes per second the ends called `peer` of two ports carry from now on, each its
    /// way; 0: any number at once. What waits there leaves as fast too, and connections that are
    /// made there later have that speed.
    ///
    /// *Panics* when there is no such peer.
    pub fn speed_set(&self, a: u32, b: u32, peer: PeerIndex, speed: u64, now: Instant) {
        let mut state = self.state.borrow_mut();
        for port in [a, b] {
            let end = state.end(port, peer).expect("no such peer");
            state.speed_set(end, speed, now);
        }
    }

    /// When the next op under way lands or completes, if nothing happens before.
    pub fn next_due(&self) -> Option<Instant> {
        self.state.borrow().next_time()
    }

    /// Kills a connection under both of its ends.
    pub fn sever(&self, port: u32, peer: PeerIndex, now: Instant) {
        self.state.borrow_mut().peer_fail(port, peer, DownCause::Died, now);
    }
}

/// One endpoint's rail into a [`SimFabric`].
#[derive(Copy, Clone, Debug)]
pub struct SimPort<'f, 'm> {
    fabric: &'f SimFabric<'m>,
    port: u32,
}

impl<'m> MemoryDomain for SimPort<'_, 'm> {
    type Domain = HostDomain<'m>;

    fn domain(&self) -> HostDomain<'m> {
        self.fabric.domain
    }
}

impl<'m> Provider for SimPort<'_, 'm> {
    fn caps(&self, _peer: PeerIndex) -> Caps {
        let config = &self.fabric.config;
        Caps {
            send_payload_max: config.payload_max,
            recv_slots: config.recv_slots,
            transfer_max: TRANSFER_MAX,
            pull: config.pull,
            immediate: config.immediate,
            ordered: config.ordered,
            copies_at_post: config.copies_at_post,
            atomic_bytes: 8,
            // a message lands whole
            copy_granule: Bytes(config.payload_max.0.max(64)),
            fence: FenceKind::Local,
            bad_key_breaks: false,
            syscalls: config.syscalls,
        }
    }

    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        self.fabric.state.borrow_mut().post(self.port, op, now)
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let mut state = self.fabric.state.borrow_mut();
        state.run(budget.0, now);
        let mut count = 0;
        while count < out.len() {
            let Some(completion) = state.report(self.port) else { break };
            out[count] = completion;
            count += 1;
        }
        count
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        let state = self.fabric.state.borrow();
        let from = state.payload(self.port, peer, slot, offset, to.length().0);
        // SAFETY: the span's maker vouches for it; a payload is inside our block, not under it.
        unsafe { touch::copy_out(from, to.address()) };
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        let state = self.fabric.state.borrow();
        to.copy_from_slice(state.payload(self.port, peer, slot, 0, to.len() as u64));
    }

    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        self.fabric.state.borrow_mut().slot_release(self.port, peer, slot);
    }
}

impl<'m> PeerLife for SimPort<'_, 'm> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        self.fabric.state.borrow_mut().peer_fail(self.port, peer, cause, Instant(0));
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.fabric.state.borrow_mut().peer_close(self.port, peer, false)
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.fabric.state.borrow_mut().peer_close(self.port, peer, true)
    }
}
