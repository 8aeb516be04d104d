//! The thread that makes progress for a group while its user does not.

mod group_support;
mod host_support;

use crosstie::host::group::Helper;
use crosstie::host::{DeviceKind, Options};
use crosstie::window::{Comparison, Put};
use group_support::run;
use host_support::small;

/// Rank 0 waits for rank 1 outside of the library: nothing but its helper can apply what comes.
fn computes(options: &Options) {
    run(options, 2, |rank| {
        let (window, memory) = rank.window(1 << 20);
        let source = rank.memory(1 << 20);
        source.fill(7);
        if rank.rank == 0 {
            let (endpoint, group): (*mut _, *mut _) = (&mut *rank.node, rank.group());
            // SAFETY: both stay in `rank`, which is not touched before the helper has stopped but
            // for what `enter` allows.
            let helper = unsafe { Helper::start(endpoint, group) }.expect("a thread");
            rank.meet(); // the other has flushed
            {
                let _turn = helper.enter();
                assert_eq!(rank.group().view().signal_read(window, 0), Ok(200));
            }
            helper.stop();
            memory.check(0, 1 << 20, 7);
        } else {
            for bytes in [8, 1 << 20] {
                let put = Put { window, rank: 0, offset: 0, signal: Some((0, 100)), counter: None };
                rank.put(&put, source, 0, bytes).expect("a put");
                rank.flush().expect("the owner's helper applies it");
            }
            rank.meet();
        }
        rank.barrier(window, 0).expect("a barrier");
        let sum = if rank.rank == 0 { 200 } else { 0 };
        rank.wait_signal((window, 0, None), Comparison::Equal, sum, None).expect("a signal");
    });
}

#[test]
fn the_helper_applies_what_comes_over_shared_memory() {
    computes(&Options { device: DeviceKind::SharedMemory, ..small(16) });
}

#[test]
fn the_helper_applies_what_comes_over_tcp() {
    computes(&Options { device: DeviceKind::Tcp, ..small(16) });
}
