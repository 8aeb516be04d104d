//! Faults of groups that a reader has found, each with its test.

mod group_support;
mod host_support;

use crosstie::base::units::Span;
use crosstie::host::group::WaitError;
use crosstie::host::{DeviceKind, Options};
use crosstie::window::group::Flushed;
use crosstie::window::{Comparison, Put, WindowError};
use group_support::run;
use host_support::small;
use std::sync::atomic::{AtomicBool, Ordering};

fn rails() -> [Options; 2] {
    [DeviceKind::SharedMemory, DeviceKind::Tcp].map(|device| Options { device, ..small(16) })
}

/// One rank did not come in time, and the other has freed its window: the exchange fails at both,
/// and the next one pairs the windows that both have then.
#[test]
fn windows_are_exchanged_anew_after_one_was_freed_before_its_exchange_had_ended() {
    for options in rails() {
        run(&options, 2, |rank| {
            let memory = rank.memory(4096);
            for round in 0..3 {
                let window = rank.register(memory);
                if rank.rank == 0 {
                    let (group, node) = (rank.group.as_mut().unwrap(), &mut rank.node);
                    let ended = group.exchange(node, window, Some(Span::millis(1)));
                    assert_eq!(ended, Err(WaitError::Timeout(Some(1))), "round {round}");
                    group.free(window).expect("nothing is under way");
                    group.progress(node);
                    rank.meet();
                } else {
                    rank.meet();
                    let ended = rank.exchange(window);
                    assert_eq!(ended, Err(WaitError::Window(WindowError::Freed)));
                    rank.group().free(window).expect("nothing is under way");
                }
            }
            let window = rank.register(memory);
            rank.exchange(window).expect("both have come");
            let other = 1 - rank.rank;
            rank.signal((window, other), (0, 1), false, None).expect("room");
            rank.wait_signal((window, 0, None), Comparison::Equal, 1, None).expect("a signal");
            rank.barrier(window, 0).expect("a barrier");
        });
    }
}

/// What was issued leaves when its group is closed, long bytes included.
#[test]
fn long_puts_leave_before_a_group_closes() {
    const BYTES: usize = 1 << 20;
    for options in rails() {
        run(&options, 2, |rank| {
            let (window, memory) = rank.window(8 * BYTES);
            if rank.rank == 0 {
                memory.fill(3);
                for at in 0..8 {
                    let (offset, signal) = ((at * BYTES) as u64, Some((0, 1)));
                    let put = Put { window, rank: 1, offset, signal, counter: None };
                    rank.put(&put, memory, at * BYTES, BYTES).expect("room");
                }
                let group = rank.group.take().expect("open");
                assert!(group.close(&mut rank.node));
            } else {
                rank.wait_signal((window, 0, None), Comparison::Equal, 8, None).expect("all came");
                memory.check(0, 8 * BYTES, 3);
            }
        });
    }
}

/// A rank that closes once it has seen the last signal tells its peer that this has taken effect,
/// which has not asked for it so far.
#[test]
fn what_took_effect_before_a_peer_closed_is_known() {
    for options in rails() {
        let has_closed = AtomicBool::new(false);
        run(&options, 2, |rank| {
            let (window, memory) = rank.window(4096);
            if rank.rank == 0 {
                let put = Put { window, rank: 1, offset: 0, signal: Some((0, 1)), counter: None };
                let ticket = rank.put(&put, memory, 0, 8).expect("room");
                while !has_closed.load(Ordering::Relaxed) || rank.group().view().failed().is_none()
                {
                    rank.progress();
                }
                assert_eq!(rank.group().inner().is_applied(ticket), Ok(true));
                assert_eq!(rank.group().inner().flush(1), Ok(Flushed::Done));
                // what comes later is not
                let late = rank.signal((window, 1), (0, 1), false, None);
                assert!(matches!(late, Err(WindowError::Failed(1, _))), "{late:?}");
            } else {
                rank.wait_signal((window, 0, None), Comparison::Equal, 1, None).expect("it came");
                let group = rank.group.take().expect("open");
                assert!(group.close(&mut rank.node));
                has_closed.store(true, Ordering::Relaxed);
            }
        });
    }
}

/// Each get that was refused says so, however many records lie between them.
#[test]
fn every_refused_get_is_told() {
    run(&rails()[0], 2, |rank| {
        let (window, _) = rank.window(4096);
        let (kept, local) = (rank.window(64).0, rank.memory(4096));
        if rank.rank == 1 {
            rank.group().free(window).expect("nothing is under way");
            rank.meet();
        } else {
            rank.meet();
            let mut gets = vec![];
            for _ in 0..3 {
                gets.push(rank.get((window, 1), 0, local, 64).expect("room"));
                for _ in 0..15 {
                    rank.signal((kept, 1), (0, 1), false, None).expect("room");
                }
            }
            for get in gets {
                let freed = Err(WaitError::Window(WindowError::Freed));
                assert_eq!(rank.wait_local(get), freed);
            }
        }
        rank.barrier(kept, 0).expect("a barrier");
    });
}

/// However many signals are refused at a time, none of their counters grows.
#[test]
fn counters_of_many_refused_signals_do_not_grow() {
    run(&rails()[0], 2, |rank| {
        let (window, _) = rank.window(64);
        let kept = rank.window(64).0;
        if rank.rank == 1 {
            rank.group().free(window).expect("nothing is under way");
            rank.meet();
            rank.meet(); // the other has issued all that it has room for
        } else {
            rank.meet();
            let target = (window, 1);
            let (group, node) = (rank.group.as_mut().unwrap(), &mut rank.node);
            let mut refused = 0;
            while group.inner().signal(target, (0, 1), false, None).is_ok() && refused < 200 {
                refused += 1;
            }
            assert!(refused > 64, "{refused} are few");
            group.progress(node);
            while let Err(error) = group.inner().signal(target, (0, 1), false, Some((1, 1))) {
                assert_eq!(error, WindowError::Again);
                group.progress(node);
            }
            rank.meet();
            let flushed = rank.flush();
            assert_eq!(flushed, Err(WaitError::Window(WindowError::Freed)));
            assert_eq!(rank.group().view().counter_read(window, 1), Ok(0));
        }
        rank.barrier(kept, 0).expect("a barrier");
    });
}

/// A rank that has gone ends no wait for what another has done.
#[test]
fn waits_for_counters_outlive_a_rank_that_they_do_not_need() {
    for options in rails() {
        run(&options, 3, |rank| {
            let (window, _) = rank.window(64);
            rank.barrier(window, 0).expect("a barrier");
            if rank.rank == 2 {
                let group = rank.group.take().expect("open");
                assert!(group.close(&mut rank.node));
            }
            rank.meet();
            if rank.rank == 0 {
                while rank.group().view().failure_of(2).is_ok() {
                    rank.progress();
                }
                rank.signal((window, 1), (0, 1), false, Some((1, 1))).expect("room");
                rank.wait_counter((window, 1), Comparison::Equal, 1, None).expect("rank 1 lives");
                rank.meet();
            } else {
                if rank.rank == 1 {
                    let signal = (window, 0, Some(0));
                    rank.wait_signal(signal, Comparison::Equal, 1, None).expect("rank 0 lives");
                }
                rank.meet();
            }
        });
    }
}
