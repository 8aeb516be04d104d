//! Bytes that are held back while records go on: no signal and no fence passes them.
#![forbid(unsafe_code)]

use super::bytes::Bytes;
use super::carrier::{BYTES, FRAMES};
use super::world::{Blocks, World};
use crate::sim::lanes::Lanes;
use crate::sim::network;
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::transport::Limits;
use crosstie::window::Put;
use crosstie_kit::sim::{SimConfig, SimFabric};

/// Calls of progress after which everything that can happen has.
const ROUNDS: usize = 400;
/// Apart from its record.
const LONG: usize = 5_000;

/// Two ranks with a window each, on a network without faults.
fn set(pull: bool, act: impl FnOnce(&mut World<'_, '_>)) {
    let config = SimConfig { peers_max: 2, ..network::calm(pull, 1, 1) };
    let mut fabric_block = HeapBlock::new(SimFabric::bytes(config));
    let fabric = SimFabric::open(config, &mut fabric_block.carver()).unwrap();
    for connection in [FRAMES, BYTES] {
        fabric.connect_at(0, 1, PeerIndex(connection.0)).unwrap();
    }
    let limits = Limits { connections_max: 2, ..network::limits(1) };
    let mut blocks = Blocks::new(limits);
    let lanes = Lanes::by_hand(1);
    let mut world = World::open(&fabric, &mut blocks, (pull, limits), lanes, 1).unwrap();
    while world.length(0) < LONG {
        // windows are of random lengths
        (0..2).for_each(|rank| world.window_renew(rank));
        rounds(&mut world);
    }
    act(&mut world);
}

fn rounds(world: &mut World<'_, '_>) {
    for _ in 0..ROUNDS {
        (0..2).for_each(|rank| world.progress(rank).unwrap());
    }
}

impl World<'_, '_> {
    /// Bytes of the other rank's part of the last window.
    fn length(&self, rank: usize) -> usize {
        let Some(handle) = self.sides[rank].windows.last().copied().flatten() else { return 0 };
        self.sides[rank].group.length(handle, 1 - rank as u32).map_or(0, |length| length as usize)
    }

    fn window_renew(&mut self, rank: usize) {
        if let Some(last) = self.sides[rank].windows.len().checked_sub(1) {
            self.window_free(rank, last).unwrap();
        }
        self.window_new(rank).unwrap();
    }

    fn put_long(&mut self, signal: Option<(u16, u64)>) {
        let window = *self.sides[0].windows.last().unwrap();
        let put = Put { window: window.unwrap(), rank: 1, offset: 0, signal, counter: None };
        assert!(self.put(0, &put, Bytes::new(0, 7, LONG), false).unwrap());
    }

    /// A value for signal 0 of the last window at rank 1.
    fn value(&mut self) -> u64 {
        let window = self.oracle.windows.len() - 1;
        self.oracle.signal_take((0, 1), window, 0).unwrap()
    }

    fn signal(&mut self, value: u64, fence: bool) {
        let window = self.oracle.windows.len() - 1;
        let handle = self.sides[0].windows[window].unwrap();
        self.sides[0].group.signal((handle, 1), (0, value), fence, None).unwrap();
        self.oracle.issue((0, 1), window, None, Some((0, value)), fence);
    }

    /// What rank 1 sees of signal 0.
    fn seen(&self) -> u64 {
        let handle = self.sides[1].windows.last().copied().flatten().unwrap();
        self.sides[1].group.signal_read(handle, 0).unwrap()
    }
}

#[test]
fn signal_of_a_put_is_not_seen_before_bytes_that_are_held_back() {
    for pull in [false, true] {
        set(pull, |world| {
            let value = world.value();
            world.sides[0].holds = true;
            world.put_long(Some((0, value)));
            rounds(world);
            assert_eq!(world.seen(), 0, "its bytes have not left");
            world.sides[0].holds = false;
            rounds(world);
            assert_eq!(world.seen(), value);
        });
    }
}

#[test]
fn signal_with_a_fence_waits_for_bytes_that_are_held_back_and_one_without_passes_them() {
    for pull in [false, true] {
        set(pull, |world| {
            let (before, behind) = (world.value(), world.value());
            world.sides[0].holds = true;
            world.put_long(None);
            world.signal(before, false);
            world.signal(behind, true);
            rounds(world);
            assert_eq!(world.seen(), before, "the bytes have not left");
            world.sides[0].holds = false;
            rounds(world);
            assert_eq!(world.seen(), before + behind);
        });
    }
}

#[test]
fn flush_waits_for_bytes_that_are_held_back() {
    set(false, |world| {
        world.sides[0].holds = true;
        world.put_long(None);
        world.sides[0].flushing[1] = true;
        rounds(world);
        assert!(world.sides[0].flushing[1]);
        world.sides[0].holds = false;
        rounds(world);
        assert!(!world.sides[0].flushing[1]);
    });
}
