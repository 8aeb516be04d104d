//! AllGathers over windows in memory of GPUs, over the double of the CUDA driver: by copy engine
//! within a team, by put and signal between teams, on a stream and in a graph.
#![allow(dead_code)] // of the shared parts

mod cuda_support;
mod gather_support;
mod group_support;
mod host_support;
mod namespace_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::slab::Handle;
use crosstie::collective::Algorithm::{self, Direct, Pipeline};
use crosstie::host::Endpoint;
use crosstie::host::gather::Key;
use crosstie::host::gather::error::GatherError;
use crosstie::host::group::{Bootstrap, BootstrapError, Group, GroupOptions, Helper};
use crosstie::window::{Limits, WindowError};
use cuda_support::driver::*;
use cuda_support::steps::*;
use cuda_support::{control, with_double};
use gather_support::{Device, ROOM, kinds, options, run_devices, run_hosts, run_hosts_of};
use group_support::{Member, Rank, Table, limits};
use host_support::roles::{self, Line};
use namespace_support::{Hosts, Start, may};
use std::time::Duration;

/// Counts of the acceptance table, in bytes.
const COUNTS: [usize; 3] = [8192, 1_048_576, 1_048_567];
const ROUNDS: u64 = 5;
/// Kinds of nodes that move data by a copy engine, or none.
const COPY: u32 = 1;
const WORDS: u32 = 12;

/// All counts, in and out of place, with changed data.
fn all_counts(device: &mut Device, algorithm: Algorithm, team_max: u32) {
    let request = device.prepare(device.key(algorithm, team_max)).expect("a request");
    for bytes in COUNTS {
        for in_place in [true, false] {
            for round in 0..ROUNDS {
                let round = round * 2 + u64::from(in_place);
                let from = if in_place { device.own(bytes) } else { device.send };
                device.give(from, bytes, round);
                device.gather(request, from, bytes).expect("an AllGather");
                device.settle();
                device.check(bytes, round);
                device.rank.meet(); // others may still copy from here to there
            }
        }
    }
    let group = device.rank.group();
    group.gather_destroy(request).expect("destroyed once");
    assert_eq!(group.gather_destroy(request), Err(GatherError::Request));
}

#[test]
fn mates_gather_by_copy_engine() {
    with_double("mates_gather_by_copy_engine", &[], || {
        for ranks in [1, 2, 3] {
            run_devices(&options(ranks), ranks, |device| all_counts(device, Direct, 0));
        }
    });
}

#[test]
fn strangers_gather_by_put_and_signal() {
    with_double("strangers_gather_by_put_and_signal", &[], || {
        run_devices(&options(3), 3, |device| all_counts(device, Direct, 1));
        run_devices(&options(3), 3, |device| all_counts(device, Pipeline, 1));
    });
}

#[test]
fn teams_gather_by_both() {
    with_double("teams_gather_by_both", &[], || {
        run_devices(&options(4), 4, |device| all_counts(device, Direct, 2));
        run_devices(&options(4), 4, |device| all_counts(device, Pipeline, 2));
    });
}

/// A graph is recorded once and launched often, and eager calls use the same window.
fn replays(device: &mut Device, algorithm: Algorithm, team_max: u32) {
    let bytes = 70_000;
    let request = device.prepare(device.key(algorithm, team_max)).expect("a request");
    for in_place in [true, false] {
        let from = if in_place { device.own(bytes) } else { device.send };
        let (graph, made) = device.record(|device| {
            device.gather(request, from, bytes).expect("an AllGather");
        });
        let kinds = kinds(graph);
        assert!(kinds.iter().all(|kind| [COPY, WORDS].contains(kind)), "{kinds:?}");
        assert!(kinds.contains(&COPY) || device.rank.ranks == 1 || team_max == 1);
        device.rank.meet();
        control::calls_reset();
        for round in 10..10 + ROUNDS {
            device.give(from, bytes, round);
            ok(cuGraphLaunch(made, device.stream));
            device.settle();
            device.check(bytes, round);
            device.rank.meet();
        }
        device.give(from, bytes, 99);
        device.gather(request, from, bytes).expect("an AllGather");
        device.settle();
        device.check(bytes, 99);
        ok(cuGraphExecDestroy(made));
        ok(cuGraphDestroy(graph));
        device.rank.meet();
    }
    device.rank.group().gather_destroy(request).expect("destroyed");
}

#[test]
fn graphs_replay_with_changed_data() {
    with_double("graphs_replay_with_changed_data", &[], || {
        run_devices(&options(2), 2, |device| replays(device, Direct, 0));
        run_devices(&options(2), 2, |device| replays(device, Direct, 1));
        run_devices(&options(4), 4, |device| replays(device, Pipeline, 2));
        for call in ["cuMemHostRegister_v2", "cuMemMap", "cuIpcOpenMemHandle_v2", "cuMemAlloc_v2"] {
            assert_eq!(control::calls(call), 0, "{call} in a replay");
        }
    });
}

#[test]
fn replays_follow_each_other_without_a_wait() {
    let slow = [("CUDA_DOUBLE_DELAY_NS", "20000")];
    with_double("replays_follow_each_other_without_a_wait", &slow, || {
        for (ranks, team_max, algorithm) in [(3, 0, Direct), (4, 2, Pipeline)] {
            run_devices(&options(ranks), ranks, |device| {
                many_launches(device, algorithm, team_max)
            });
        }
    });
}

fn many_launches(device: &mut Device, algorithm: Algorithm, team_max: u32) {
    let bytes = 8192;
    let request = device.prepare(device.key(algorithm, team_max)).expect("a request");
    let from = device.own(bytes);
    device.give(from, bytes, 1);
    let (graph, made) = device.record(|device| {
        device.gather(request, from, bytes).expect("an AllGather");
    });
    for _ in 0..20 {
        ok(cuGraphLaunch(made, device.stream));
    }
    device.settle();
    device.check(bytes, 1);
    device.rank.meet();
    ok(cuGraphExecDestroy(made));
    ok(cuGraphDestroy(graph));
}

#[test]
fn one_key_is_one_request() {
    with_double("one_key_is_one_request", &[], || {
        run_devices(&options(2), 2, |device| {
            let key = device.key(Direct, 0);
            let first = device.prepare(key).expect("a request");
            assert_eq!(device.prepare(key), Ok(first));
            assert_eq!(device.rank.group().gather_count(), 1);
            let other = Key { algorithm: Some(Pipeline), ..key };
            let second = device.prepare(other).expect("a request");
            let part = Key { bytes: 4096, ..key };
            let third = device.prepare(part).expect("a request");
            assert_eq!(device.rank.group().gather_count(), 3);
            let stream = stream();
            let fourth = device.prepare(Key { stream: stream as u64, ..key }).expect("a request");
            let own = device.own(4096);
            assert_eq!(device.gather(fourth, own, 4096), Err(GatherError::Stream));
            assert_eq!(device.gather(third, own, 4096), Err(GatherError::Bytes(4096)));
            for request in [third, first, second, fourth, first] {
                device.rank.group().gather_destroy(request).expect("destroyed");
            }
            assert_eq!(device.rank.group().gather_count(), 0);
            assert_eq!(device.gather(first, own, 4096), Err(GatherError::Request));
            ok(cuStreamDestroy_v2(stream));
        });
    });
}

#[test]
fn wrong_arguments_have_names_and_change_nothing() {
    with_double("wrong_arguments_have_names_and_change_nothing", &[], || {
        run_devices(&options(2), 2, |device| {
            let key = device.key(Direct, 0);
            let beyond = Key { offset: 1, ..key };
            let range = GatherError::Window(WindowError::Range(ROOM as u64));
            assert_eq!(device.prepare(beyond), Err(range));
            let overflows = Key { offset: u64::MAX, bytes: 2, ..key };
            assert_eq!(device.prepare(overflows), Err(range));
            let strange = Key { window: Default::default(), ..key };
            let unknown = device.prepare(strange);
            assert_eq!(unknown, Err(GatherError::Window(WindowError::Window)));
            let uneven = Key { bytes: 4096 + u64::from(device.rank.rank), ..key };
            let other = 1 - device.rank.rank;
            assert_eq!(device.prepare(uneven), Err(GatherError::Mismatch(other)));
            let request = device.prepare(key).expect("a request");
            let own = device.own(4096);
            for bytes in [ROOM / 2 + 1, usize::MAX, usize::MAX / 2 + 1] {
                let all = GatherError::Bytes(ROOM as u64);
                assert_eq!(device.gather(request, own, bytes), Err(all));
            }
            assert_eq!(device.gather(request, own + 1, 4096), Err(GatherError::Overlap));
            assert_eq!(device.gather(request, own, 0), Ok(()));
            device.give(own, 4096, 3);
            device.gather(request, own, 4096).expect("as if nothing had been");
            device.settle();
            device.check(4096, 3);
        });
    });
}

/// What windows and groups do not allow.
#[test]
fn windows_that_are_not_ready_and_too_many_requests_are_refused_by_name() {
    let test = "windows_that_are_not_ready_and_too_many_requests_are_refused_by_name";
    with_double(test, &[], || {
        run_devices(&options(2), 2, |device| {
            let key = device.key(Direct, 0);
            let bytes = device.memory.bytes as u64;
            let not_exchanged = device.rank.register(device.memory);
            let refused = device.prepare(Key { window: not_exchanged, ..key });
            assert_eq!(refused, Err(GatherError::Window(WindowError::NotExchanged)));
            device.rank.group().free(not_exchanged).expect("a free");
            let read_only = device.rank.try_register(device.memory, bytes, true).expect("a window");
            device.rank.exchange(read_only).expect("an exchange");
            let refused = device.prepare(Key { window: read_only, ..key });
            assert_eq!(refused, Err(GatherError::Window(WindowError::ReadOnly)));
            device.rank.meet();
            device.rank.group().free(read_only).expect("a free");
            let all: Vec<_> = (0..64)
                .map(|at| device.prepare(Key { bytes: 4096 + at, ..key }).expect("a request"))
                .collect();
            assert_eq!(device.prepare(key), Err(GatherError::Full));
            device.rank.group().gather_destroy(all[7]).expect("destroyed");
            let again = device.prepare(key).expect("a request");
            let own = device.own(4096);
            device.give(own, 4096, 5);
            device.gather(again, own, 4096).expect("an AllGather");
            device.settle();
            device.check(4096, 5);
        });
    });
}

/// A pipeline passes chunks from host to host, each by a rank of its own.
#[test]
fn pipeline_of_hosts_with_unequal_ranks_is_refused_at_all() {
    with_double("pipeline_of_hosts_with_unequal_ranks_is_refused_at_all", &[], || {
        run_hosts_of(&[2, 1], |device| {
            assert_eq!(device.prepare(device.key(Pipeline, 0)), Err(GatherError::Teams));
            all_counts(device, Direct, 0);
        });
    });
}

#[test]
fn requests_of_a_window_that_was_freed_are_of_no_use() {
    with_double("requests_of_a_window_that_was_freed_are_of_no_use", &[], || {
        run_devices(&options(2), 2, |device| {
            let request = device.prepare(device.key(Direct, 0)).expect("a request");
            device.rank.meet();
            let window = device.window;
            device.rank.group().free(window).expect("a free");
            let own = device.own(4096);
            assert_eq!(device.gather(request, own, 4096), Err(GatherError::Request));
            device.rank.group().gather_destroy(request).expect("destroyed");
            let (window, _) = device.rank.window(4096);
            device.window = window;
        });
    });
}

#[derive(Copy, Clone, Eq, PartialEq)]
enum Part {
    Request,
    Window,
    Group,
    Graph,
}

/// A rank whose parts end in an order, after a launch.
fn ends_in(rank: &mut Rank, order: [Part; 4]) {
    let (mut device, region) = Device::open(rank);
    let request = device.prepare(device.key(Direct, 0)).expect("a request");
    let own = device.own(8192);
    let (graph, made) = device.record(|device| {
        device.gather(request, own, 8192).expect("an AllGather");
    });
    device.give(own, 8192, 1);
    ok(cuGraphLaunch(made, device.stream));
    device.settle();
    device.check(8192, 1);
    device.rank.meet();
    let Device { rank, window, memory, stream, send } = device;
    for part in order {
        match (part, &mut rank.group) {
            (Part::Graph, _) => {
                ok(cuGraphExecDestroy(made));
                ok(cuGraphDestroy(graph));
            }
            (Part::Group, open) => {
                assert!(open.take().expect("open").close(&mut rank.node));
            }
            (Part::Request, Some(group)) => group.gather_destroy(request).expect("destroyed"),
            (Part::Window, Some(group)) => group.free(window).expect("a free"),
            (Part::Request | Part::Window, None) => {} // ended with the group
        }
    }
    while rank.node.shared.deregister(region).is_err() {
        rank.node.progress();
    }
    ok(cuStreamDestroy_v2(stream));
    ok(cuMemFree_v2(memory.address()));
    ok(cuMemFree_v2(send));
}

#[test]
fn requests_windows_groups_and_graphs_end_in_any_order() {
    with_double("requests_windows_groups_and_graphs_end_in_any_order", &[], || {
        let all = [Part::Request, Part::Window, Part::Group, Part::Graph];
        for number in 0..256 {
            let order = [0, 2, 4, 6].map(|shift| all[number >> shift & 3]);
            if all.iter().all(|part| order.contains(part)) {
                group_support::run(&options(2), 2, |rank| ends_in(rank, order));
            }
        }
    });
}

#[test]
fn hosts_gather_over_tcp() {
    with_double("hosts_gather_over_tcp", &[], || {
        run_hosts(2, 1, |device| all_counts(device, Direct, 0));
        run_hosts(2, 2, |device| all_counts(device, Pipeline, 0));
        run_hosts(2, 2, |device| replays(device, Direct, 0));
    });
}

#[test]
fn one_call_prepares_once_and_records_while_the_stream_is_captured() {
    with_double("one_call_prepares_once_and_records_while_the_stream_is_captured", &[], || {
        run_devices(&options(2), 2, |device| {
            let bytes = 8192;
            let (graph, made) = device.record(|device| device.all_gather(bytes));
            assert_eq!(device.rank.group().gather_count(), 1);
            for round in 0..ROUNDS {
                device.give(device.own(bytes), bytes, round);
                ok(cuGraphLaunch(made, device.stream));
                device.settle();
                device.check(bytes, round);
                device.rank.meet();
                device.give(device.own(bytes), bytes, round + 50);
                device.all_gather(bytes);
                device.settle();
                device.check(bytes, round + 50);
                device.rank.meet();
            }
            assert_eq!(device.rank.group().gather_count(), 1);
            device.all_gather(2 * bytes);
            assert_eq!(device.rank.group().gather_count(), 2);
            device.settle();
            device.rank.meet();
            ok(cuGraphExecDestroy(made));
            ok(cuGraphDestroy(graph));
        });
    });
}

/// A group beside the rank's own, over the same endpoint, with a window of each buffer.
struct More {
    group: Group,
    windows: Vec<Handle>,
    requests: Vec<Handle>,
    stream: usize,
    _block: HeapBlock,
}

impl More {
    fn open(device: &mut Device, stream: usize, buffers: &[(Handle, u64)]) -> More {
        let limits = Limits { windows_max: 4, ..limits(device.rank.ranks) };
        let timeout = gather_support::timeout();
        let options = GroupOptions { limits, rank: device.rank.rank, timeout };
        let mut block = HeapBlock::new(options.bytes());
        let place = (block.start(), block.length());
        let Rank { node, member, .. } = &mut *device.rank;
        // SAFETY: the block goes after the group.
        let opened = unsafe { Group::open(node, place, &options, member) };
        let mut group = opened.expect("a group");
        let (mut windows, mut requests) = (Vec::new(), Vec::new());
        for (region, start) in buffers {
            // SAFETY: the buffers are freed after all groups.
            let made = unsafe { group.register(node, (*region, *start, PART as u64), false) };
            let window = made.expect("a window");
            group.exchange(node, window, None).expect("an exchange");
            let (bytes, algorithm) = (PART as u64, Some(Direct));
            let stream = stream as u64;
            let key = Key { window, offset: 0, bytes, stream, algorithm, team_max: 0 };
            requests.push(group.gather_prepare(node, key, false, None).expect("a request"));
            windows.push(window);
        }
        More { group, windows, requests, stream, _block: block }
    }

    /// Puts an AllGather of one buffer on the stream, in place.
    fn gather(&mut self, device: &mut Device, at: usize, own: u64) {
        let (sent, stream) = ((own, CHUNK as u64), Some(self.stream as u64));
        let (node, request) = (&mut device.rank.node, self.requests[at]);
        // SAFETY: the test leaves the memory alone until the stream is done.
        let put = unsafe { self.group.gather(node, request, sent, stream, None) };
        put.expect("an AllGather");
    }

    fn close(self, device: &mut Device) {
        let More { group, _block, .. } = self;
        device.rank.meet();
        assert!(group.close(&mut device.rank.node), "a connection stays");
    }
}

/// Bytes of a buffer of the tests below, and of a chunk.
const PART: usize = 1 << 20;
const CHUNK: usize = 8192;

/// All groups gather into all buffers, one behind the other without a wait.
fn gather_by_all(device: &mut Device, groups: &mut [More], buffers: &[(Handle, u64)], round: u64) {
    for (at, (_, start)) in buffers.iter().enumerate() {
        let own = start + u64::from(device.rank.rank) * CHUNK as u64;
        device.give(own, CHUNK, round + at as u64);
        for more in groups.iter_mut() {
            more.gather(device, at, own);
        }
    }
    device.settle();
    for (at, (_, start)) in buffers.iter().enumerate() {
        let offset = start - device.memory.address();
        device.check_at(offset, CHUNK, round + at as u64);
    }
    device.rank.meet();
}

#[test]
fn twenty_groups_share_three_buffers() {
    with_double("twenty_groups_share_three_buffers", &[], || {
        let options = host_support::small(6 * 21);
        run_devices(&options, 2, |device| {
            let (region, start) = (device.memory.region, device.memory.address());
            let buffers = [0, 1, 2].map(|at| (region, start + (at * PART) as u64));
            let mut groups: Vec<More> =
                (0..20).map(|_| More::open(device, device.stream, &buffers)).collect();
            gather_by_all(device, &mut groups, &buffers, 1);
            // a request, a window and a group go, in any order; the others stay
            for (at, more) in groups.drain(..10).enumerate() {
                let mut more = more;
                if at % 2 == 0 {
                    let More { group, windows, requests, .. } = &mut more;
                    group.gather_destroy(requests[0]).expect("destroyed");
                    group.free(windows[1]).expect("freed");
                    group.gather_destroy(requests[1]).expect("destroyed after its window");
                }
                more.close(device);
            }
            gather_by_all(device, &mut groups, &buffers, 11);
            for more in groups {
                more.close(device);
            }
        });
        assert_eq!(control::live("graphs"), 0);
    });
}

/// Connections of a group of three.
const NEEDED: u32 = 8;

/// There is no room for the connections of a second communicator that a first one keeps.
#[test]
fn four_communicators_follow_each_other() {
    with_double("four_communicators_follow_each_other", &[], || {
        run_devices(&host_support::small(2 * NEEDED), 3, |device| {
            let (region, start) = (device.memory.region, device.memory.address());
            let own = start + u64::from(device.rank.rank) * CHUNK as u64;
            for round in (0..40).step_by(10) {
                let buffers = [(region, start)];
                let mut groups = [More::open(device, device.stream, &buffers)];
                gather_by_all(device, &mut groups, &buffers, round);
                let (graph, made) = device.record(|device| groups[0].gather(device, 0, own));
                for replay in 1..4 {
                    device.rank.meet();
                    device.give(own, CHUNK, round + replay);
                    ok(cuGraphLaunch(made, device.stream));
                    device.settle();
                    device.check(CHUNK, round + replay);
                }
                ok(cuGraphExecDestroy(made));
                ok(cuGraphDestroy(graph));
                let [mut more] = groups;
                more.group.gather_destroy(more.requests[0]).expect("destroyed");
                more.group.free(more.windows[0]).expect("freed");
                more.close(device);
                device.rank.meet();
            }
        });
        assert_eq!(control::live("graphs"), 0);
    });
}

/// Each has a buffer and a stream of its own, and each rank asks them in another order.
fn gather_interleaved(device: &mut Device, groups: &mut [(u64, More)], round: u64) {
    let (count, rank) = (groups.len(), device.rank.rank as usize);
    for turn in 0..count {
        let at = (turn + rank + round as usize) % count;
        let (start, more) = &mut groups[at];
        let own = *start + rank as u64 * CHUNK as u64;
        device.give(own, CHUNK, 10 * round + at as u64);
        more.gather(device, 0, own);
    }
    for (at, (start, more)) in groups.iter().enumerate() {
        let stream = std::mem::replace(&mut device.stream, more.stream);
        device.settle();
        device.stream = stream;
        let offset = *start - device.memory.address();
        device.check_at(offset, CHUNK, 10 * round + at as u64);
    }
    device.rank.meet();
}

#[test]
fn four_communicators_gather_at_the_same_time() {
    with_double("four_communicators_gather_at_the_same_time", &[], || {
        run_devices(&host_support::small(6 * 5), 2, |device| {
            let (region, start) = (device.memory.region, device.memory.address());
            let open = |at| {
                let start = start + at * PART as u64;
                (start, More::open(device, stream(), &[(region, start)]))
            };
            let mut groups: Vec<(u64, More)> = (0..4).map(open).collect();
            for round in 0..2 * ROUNDS {
                gather_interleaved(device, &mut groups, round);
                // two go in the middle, the first opened and the last; two stay
                if round == ROUNDS {
                    for at in [3, 0] {
                        let (_, more) = groups.remove(at);
                        let stream = more.stream;
                        more.close(device);
                        ok(cuStreamDestroy_v2(stream));
                    }
                }
            }
            for (_, more) in groups {
                let stream = more.stream;
                more.close(device);
                ok(cuStreamDestroy_v2(stream));
            }
        });
    });
}

#[test]
fn the_helper_thread_serves_launches_between_hosts() {
    with_double("the_helper_thread_serves_launches_between_hosts", &[], || {
        run_hosts(2, 1, |device| {
            let bytes = 70_000;
            let request = device.prepare(device.key(Direct, 0)).expect("a request");
            let from = device.own(bytes);
            let (graph, made) = device.record(|device| {
                device.gather(request, from, bytes).expect("an AllGather");
            });
            let group: *mut Group = device.rank.group();
            let endpoint: *mut Endpoint = &mut *device.rank.node;
            // SAFETY: both stay in the rank, which is not touched before the helper has stopped.
            let helper = unsafe { Helper::start(endpoint, group) }.expect("a thread");
            for round in 0..ROUNDS {
                device.give(from, bytes, round);
                ok(cuGraphLaunch(made, device.stream));
                ok(cuStreamSynchronize(device.stream));
                device.check(bytes, round);
                device.rank.meet(); // not a call of the group
            }
            helper.stop();
            ok(cuGraphExecDestroy(made));
            ok(cuGraphDestroy(graph));
        });
    });
}

/// A rank that does not come: the others' streams are let go at the deadline.
#[test]
fn a_rank_that_does_not_come_is_told_and_the_stream_goes_on() {
    with_double("a_rank_that_does_not_come_is_told_and_the_stream_goes_on", &[], || {
        run_devices(&options(2), 2, |device| {
            let key = device.key(Direct, 0);
            let patience = Some(crosstie::base::units::Span::millis(500));
            let request = {
                let group = device.rank.group.as_mut().expect("open");
                group.gather_prepare(&mut device.rank.node, key, false, patience)
            };
            let request = request.expect("a request");
            if device.rank.rank == 0 {
                let own = device.own(8192);
                let (graph, made) = device.record(|device| {
                    device.gather(request, own, 8192).expect("an AllGather");
                });
                ok(cuGraphLaunch(made, device.stream));
                device.settle();
                assert_eq!(device.rank.group().gather_check(Some(request)), Err(GatherError::Late));
                assert_eq!(device.gather(request, own, 8192), Err(GatherError::Late));
                ok(cuGraphLaunch(made, device.stream));
                device.settle(); // also later launches
                ok(cuGraphExecDestroy(made));
                ok(cuGraphDestroy(graph));
            }
            device.rank.meet();
            if device.rank.rank == 1 {
                // what it would get is of any of the other's launches
                let own = device.own(8192);
                let late = device.gather(request, own, 8192);
                assert_eq!(late, Err(GatherError::Elsewhere(0)));
                let checked = device.rank.group().gather_check(Some(request));
                assert_eq!(checked, Err(GatherError::Elsewhere(0)));
            }
            device.rank.meet();
        });
    });
}

/// Two processes meet by their socket.
struct Wire<'l>(&'l mut Line, usize);

impl Bootstrap for Wire<'_> {
    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), BootstrapError> {
        const BYTES: usize = 160;
        self.0.say(mine);
        let theirs = self.0.try_hear::<BYTES>().map_err(|_| BootstrapError(1))?;
        let (first, second) = all.split_at_mut(BYTES);
        let (own, other) = if self.1 == 0 { (first, second) } else { (second, first) };
        own.copy_from_slice(mine);
        other.copy_from_slice(&theirs);
        Ok(())
    }

    fn look(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }
}

/// One of two processes: it launches a graph again and again, as long as the other lets it.
fn member_of_two(line: &mut Line, rank: usize, mut each: impl FnMut(&mut Line, u64)) -> u64 {
    const BYTES: usize = 8192;
    let patience = Duration::from_secs(600);
    let member = Member { table: Table::new(1), rank, patience };
    let limits = limits(2);
    let mut wire = Wire(line, rank);
    let opened = Rank::open_by(&options(2), member, &mut wire, limits, gather_support::timeout());
    let mut rank = opened.expect("a group");
    let (mut device, _) = Device::open(&mut rank);
    let request = device.prepare(device.key(Direct, 0)).expect("a request");
    let own = device.own(BYTES);
    let (_, made) = device.record(|device| {
        device.gather(request, own, BYTES).expect("an AllGather");
    });
    for round in 1.. {
        each(line, round);
        device.give(own, BYTES, round);
        ok(cuGraphLaunch(made, device.stream));
        device.settle();
        match device.rank.group().gather_check(Some(request)) {
            Ok(()) => device.check(BYTES, round),
            Err(GatherError::Failed(1, _)) => {
                let late = device.gather(request, own, BYTES);
                assert!(matches!(late, Err(GatherError::Failed(1, _))), "{late:?}");
                ok(cuGraphLaunch(made, device.stream));
                device.settle(); // also later launches
                return round;
            }
            other => panic!("{other:?}"),
        }
    }
    0
}

fn member() {
    let mut line = roles::line();
    member_of_two(&mut line, 1, |line, _| {
        line.say_number(0);
        line.hear_number();
    });
}

#[test]
fn role() {
    roles::take(&[("member", member), ("apart", apart)]);
}

#[test]
fn a_member_that_is_killed_while_graphs_replay_is_an_error_and_no_hang() {
    with_double("a_member_that_is_killed_while_graphs_replay_is_an_error_and_no_hang", &[], || {
        host_support::set("CROSSTIE_RAILS", "shm");
        let mut process = roles::start("member", &[]);
        let id = process.id();
        let rounds = member_of_two(&mut process.line, 0, |line, round| {
            line.hear_number(); // the other is at the same round
            if round == 4 {
                // SAFETY: takes numbers; a process of this test, which was not collected.
                assert_eq!(unsafe { libc::kill(id as i32, libc::SIGKILL) }, 0);
                return;
            }
            line.say_number(0);
        });
        assert_eq!(rounds, 4);
        drop(process);
    });
}

/// The same where a third process hands on what each says, which hears of it by a number.
struct Handed<'l>(Wire<'l>);

impl Bootstrap for Handed<'_> {
    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), BootstrapError> {
        self.0.0.say_number(1);
        self.0.gather(mine, all)
    }

    fn look(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }
}

/// One of two ranks on networks of their own, at once and by graphs.
fn apart() {
    let mut line = roles::line();
    let rank = line.hear_number() as usize;
    let member = Member { table: Table::new(1), rank, patience: Duration::from_secs(600) };
    let mut wire = Handed(Wire(&mut line, rank));
    let options = host_support::small(6);
    let opened = Rank::open_by(&options, member, &mut wire, limits(2), gather_support::timeout());
    line.say_number(0);
    let mut rank = opened.expect("a group");
    let (mut device, _) = Device::open(&mut rank);
    for algorithm in [Direct, Pipeline] {
        let request = device.prepare(device.key(algorithm, 0)).expect("a request");
        for (bytes, in_place) in COUNTS.into_iter().flat_map(|it| [(it, true), (it, false)]) {
            let from = if in_place { device.own(bytes) } else { device.send };
            let (graph, made) = device.record(|device| {
                device.gather(request, from, bytes).expect("an AllGather");
            });
            for round in 0..ROUNDS {
                device.give(from, bytes, round);
                match round % 2 {
                    0 => ok(cuGraphLaunch(made, device.stream)),
                    _ => device.gather(request, from, bytes).expect("an AllGather"),
                }
                device.settle();
                device.check(bytes, round);
                device.rank.barrier(device.window, 0).expect("a barrier");
            }
            ok(cuGraphExecDestroy(made));
            ok(cuGraphDestroy(graph));
        }
        device.rank.group().gather_destroy(request).expect("destroyed");
    }
    line.say_text("gathered");
}

#[test]
fn network_namespaces_gather_over_tcp() {
    const TEST: &str = "network_namespaces_gather_over_tcp";
    with_double(TEST, &[], || {
        if !may(TEST) {
            return;
        }
        let hosts = Hosts::bridged(2);
        let mut two = [0, 1].map(|at| {
            let node = (at + 1).to_string();
            let environment = [("CROSSTIE_SOCKET_IFNAME", "eth0"), ("CROSSTIE_NODE_ID", &node)];
            hosts.start(at, "apart", Start { environment: &environment, log: None })
        });
        two.iter_mut().zip(0..).for_each(|(process, rank)| process.line.say_number(rank));
        while two.each_mut().map(|process| process.line.hear_number()) == [1, 1] {
            let [first, second] = two.each_mut().map(|process| process.line.hear::<160>());
            two[0].line.say(&second);
            two[1].line.say(&first);
        }
        for process in &mut two {
            assert_eq!(process.line.hear_text(), "gathered");
        }
    });
}
