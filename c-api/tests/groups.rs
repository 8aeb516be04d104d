//! Groups of ranks through the C functions: what works, and what each kind of bad input is answered
//! by. Ranks are threads of a test, each with an endpoint of its own.

mod common;

use common::*;
use crosstie_c::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// What the ranks of a test give each other.
struct Table {
    state: Mutex<Gathered>,
    changed: Condvar,
    ranks: usize,
}

#[derive(Default)]
struct Gathered {
    round: usize,
    given: Vec<Option<Vec<u8>>>,
    last: Vec<u8>,
}

#[track_caller]
fn each<const COUNT: usize>(results: [c_int; COUNT], expected: xtie_result) {
    for result in results {
        expect(result, expected);
    }
}

/// One rank's end of it: the context of its configuration.
struct Member {
    table: Arc<Table>,
    rank: usize,
    patience: Duration,
}

const LATE: c_int = 110;

unsafe extern "C" fn gather(
    context: *mut c_void,
    mine: *const c_void,
    bytes: usize,
    all: *mut c_void,
) -> c_int {
    // SAFETY: the context of each configuration here.
    let member = unsafe { &*context.cast::<Member>() };
    // SAFETY: so many bytes, by the function's contract.
    let mine = unsafe { std::slice::from_raw_parts(mine.cast::<u8>(), bytes) };
    let table = &member.table;
    let mut state = table.state.lock().unwrap();
    let round = state.round;
    state.given[member.rank] = Some(mine.to_vec());
    if state.given.iter().all(Option::is_some) {
        state.last = state.given.iter_mut().flat_map(|one| one.take().unwrap()).collect();
        state.round += 1;
        table.changed.notify_all();
    }
    while state.round == round {
        let (next, late) = table.changed.wait_timeout(state, member.patience).unwrap();
        state = next;
        if late.timed_out() && state.round == round {
            state.given[member.rank] = None;
            return LATE;
        }
    }
    // SAFETY: room for as many bytes of each rank, by the function's contract.
    unsafe { all.cast::<u8>().copy_from_nonoverlapping(state.last.as_ptr(), state.last.len()) };
    0
}

unsafe extern "C" fn look(_: *mut c_void) -> c_int {
    0
}

fn table(ranks: usize) -> Arc<Table> {
    let given = vec![None; ranks];
    let state = Mutex::new(Gathered { given, ..Gathered::default() });
    Arc::new(Table { state, changed: Condvar::new(), ranks })
}

fn member(table: &Arc<Table>, rank: usize) -> Box<Member> {
    Box::new(Member { table: Arc::clone(table), rank, patience: WATCHDOG })
}

fn group_config(member: &Member) -> xtie_group_config {
    xtie_group_config {
        struct_size: size_of::<xtie_group_config>() as u32,
        rank: member.rank as u32,
        ranks: member.table.ranks as u32,
        windows_max: 2,
        signals_max: 3,
        counters_max: 2,
        barriers_max: 2,
        timeout_ms: 60_000,
        context: std::ptr::from_ref(member).cast_mut().cast(),
        gather: Some(gather),
        look: Some(look),
    }
}

fn endpoint(device: u32, ranks: u32) -> Opened {
    let mut config = config(device);
    config.connections_max = 2 * ranks + 2;
    config.regions_max = 16;
    Opened::new(&config)
}

fn group_bytes(config: &xtie_group_config) -> usize {
    let mut bytes = 0;
    // SAFETY: both are ours.
    expect(unsafe { xtie_group_size(config, &mut bytes) }, XTIE_OK);
    bytes
}

/// One rank of a test: an endpoint and its group.
struct Rank {
    group: *mut xtie_group,
    endpoint: Opened,
    rank: u32,
    _member: Box<Member>,
    _storage: Vec<Line>,
}

impl Rank {
    fn open(device: u32, table: &Arc<Table>, rank: usize) -> Rank {
        let endpoint = endpoint(device, table.ranks as u32);
        let member = member(table, rank);
        let config = group_config(&member);
        let mut storage = storage(group_bytes(&config));
        let (place, bytes) = (storage.as_mut_ptr().cast(), storage.len() * 64);
        let mut group = null_mut();
        // SAFETY: the storage outlives the group, or is leaked with it.
        let opened =
            unsafe { xtie_group_open(endpoint.endpoint, place, bytes, &config, &mut group) };
        assert_eq!(opened, XTIE_OK as c_int, "{}", endpoint.error());
        Rank { group, endpoint, rank: rank as u32, _member: member, _storage: storage }
    }

    #[track_caller]
    fn ok(&self, result: c_int) {
        assert_eq!(result, XTIE_OK as c_int, "{}", self.endpoint.error());
    }

    fn progress(&self) {
        // SAFETY: one thread.
        self.ok(unsafe { xtie_group_progress(self.group) });
    }

    /// A window of zero bytes, allocated; not exchanged.
    fn window(&self, bytes: usize, flags: u32) -> Window {
        let (mut data, mut memory, mut window) = (null_mut(), null_mut(), null_mut());
        // SAFETY: outputs of ours.
        let made = unsafe {
            xtie_window_alloc(self.group, bytes, flags, &mut data, &mut memory, &mut window)
        };
        self.ok(made);
        Window { window, data: data.cast(), memory }
    }

    fn exchanged(&self, bytes: usize, flags: u32) -> Window {
        let window = self.window(bytes, flags);
        // SAFETY: one thread.
        self.ok(unsafe { xtie_window_exchange(self.group, window.window, 0) });
        window
    }

    /// Issues as soon as there is room.
    fn issue(&self, mut call: impl FnMut(&mut u64) -> c_int) -> u64 {
        let (mut ticket, start) = (0, Instant::now());
        loop {
            assert!(start.elapsed() < WATCHDOG);
            let result = call(&mut ticket);
            if result != XTIE_AGAIN as c_int {
                self.ok(result);
                return ticket;
            }
            self.progress();
        }
    }

    fn wait_signal(&self, window: &Window, id: u32, compare: u32, value: u64) {
        // SAFETY: one thread.
        self.ok(unsafe {
            xtie_window_wait_signal(self.group, window.window, id, compare, value, 0)
        });
    }

    fn barrier(&self, window: &Window) {
        // SAFETY: one thread.
        self.ok(unsafe { xtie_window_barrier(self.group, window.window, 0, 0) });
    }

    fn close(self) {
        // SAFETY: one thread.
        self.ok(unsafe { xtie_group_close(self.group) });
        // SAFETY: the storage stands.
        expect(unsafe { xtie_group_progress(self.group) }, XTIE_ERR_GROUP_CLOSED);
        self.endpoint.close();
    }
}

#[derive(Copy, Clone)]
struct Window {
    window: *mut xtie_window,
    data: *mut u8,
    memory: *mut xtie_memory,
}

impl Window {
    fn transfer(&self, at: usize, bytes: usize, offset: u64, rank: u32) -> xtie_transfer {
        let data = self.data.wrapping_add(at).cast();
        xtie_transfer { data, bytes, memory: self.memory, offset, rank, reserved: 0 }
    }

    fn fill(&self, at: usize, bytes: &[u8]) {
        // SAFETY: inside of the window, in a part that no peer writes now.
        unsafe { self.data.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn bytes(&self, at: usize, count: usize) -> Vec<u8> {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.data.add(at), count) }.to_vec()
    }
}

fn add(id: u32, value: u64) -> xtie_add {
    xtie_add { id, reserved: 0, value }
}

/// Runs the ranks of a test, each in a thread.
fn run(device: u32, ranks: usize, body: impl Fn(&Rank) + Send + Sync) {
    let table = table(ranks);
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let (table, body) = (&table, &body);
            scope.spawn(move || {
                let rank = Rank::open(device, table, rank);
                body(&rank);
                rank.close();
            });
        }
    });
}

#[test]
fn ranks_put_get_signal_and_count() {
    for (device, ranks) in [(HOST, 3), (TCP, 2), (LOOPBACK, 1)] {
        run(device, ranks, |me| works(me, ranks as u32));
    }
}

fn works(me: &Rank, ranks: u32) {
    const PART: usize = 100_000;
    let window = me.exchanged(3 * PART, 0);
    let (group, to) = (me.group, window.window);
    let (next, before) = ((me.rank + 1) % ranks, (me.rank + ranks - 1) % ranks);
    for (round, bytes) in [(1u64, 8), (2, 5000), (3, PART)] {
        let pattern = |rank: u32| vec![rank as u8 + round as u8 * 16; bytes];
        window.fill(0, &pattern(me.rank));
        let put = window.transfer(0, bytes, PART as u64, next);
        // SAFETY: structures of ours, and bytes that are left alone until the ticket has ended.
        let ticket = me.issue(|ticket| unsafe {
            xtie_window_put_signal_counter(group, to, &put, &add(1, 2), &add(0, 5), ticket)
        });
        me.wait_signal(&window, 1, XTIE_COMPARE_GREATER_EQUAL, 2 * round);
        assert_eq!(window.bytes(PART, bytes), pattern(before));
        // SAFETY: one thread.
        me.ok(unsafe { xtie_group_wait_local(group, ticket, 0) });
        // SAFETY: as above.
        me.ok(unsafe { xtie_window_wait_counter(group, to, 0, XTIE_COMPARE_EQUAL, 5 * round, 0) });
        // the next rank has filled what is got now
        me.barrier(&window);
        let get = window.transfer(2 * PART, bytes, 0, next);
        // SAFETY: as of the put.
        let ticket = me.issue(|ticket| unsafe { xtie_window_get(group, to, &get, ticket) });
        let (mut done, start) = (0, Instant::now());
        while done == 0 {
            assert!(start.elapsed() < WATCHDOG);
            // SAFETY: an output of ours.
            me.ok(unsafe { xtie_group_test_local(group, ticket, &mut done) });
        }
        assert_eq!(window.bytes(2 * PART, bytes), pattern(next));
        me.barrier(&window);
    }
    words(me, &window, next, before);
}

/// Rank 0 waits outside of the library: its helper applies what the other rank puts.
#[test]
fn helper_applies_what_comes_while_its_rank_computes() {
    let gate = std::sync::Barrier::new(2);
    run(HOST, 2, |me| {
        let window = me.exchanged(8192, 0);
        let (group, to) = (me.group, window.window);
        if me.rank == 0 {
            // SAFETY: one thread, which calls for this group alone.
            unsafe {
                me.ok(xtie_group_helper_start(group));
                me.ok(xtie_group_helper_start(group));
                gate.wait(); // the other rank has flushed
                let mut word = 0;
                me.ok(xtie_window_read_signal(group, to, 1, &mut word));
                assert_eq!(word, 7);
                me.ok(xtie_group_helper_stop(group));
                me.ok(xtie_group_helper_stop(group));
            }
            assert_eq!(window.bytes(0, 4096), [9; 4096]);
        } else {
            window.fill(4096, &[9; 4096]);
            let put = window.transfer(4096, 4096, 0, 0);
            // SAFETY: structures of ours, and bytes that are left alone until the flush.
            me.issue(|ticket| unsafe {
                xtie_window_put_signal(group, to, &put, &add(1, 7), ticket)
            });
            // SAFETY: one thread.
            me.ok(unsafe { xtie_group_flush(group, 0, 0) });
            gate.wait();
        }
        me.barrier(&window);
    });
}

/// Memory that a window lies in stays: a peer's bytes would go to what has its place.
#[test]
fn memory_of_a_window_cannot_be_given_back_before_the_window() {
    run(HOST, 1, |me| {
        let window = me.exchanged(4096, 0);
        let mut bytes = [0u8; 64];
        let own = me.endpoint.register(&mut bytes);
        let mut second = null_mut();
        // SAFETY: memory of ours, which outlives the window.
        unsafe {
            let data = bytes.as_mut_ptr().cast();
            me.ok(xtie_window_register(me.group, data, 64, own, 0, &mut second));
            let endpoint = me.endpoint.endpoint;
            expect(xtie_memory_free(endpoint, window.memory), XTIE_ERR_MEMORY_BUSY);
            expect(xtie_memory_deregister(endpoint, own), XTIE_ERR_MEMORY_BUSY);
            me.ok(xtie_window_free(me.group, second));
            me.ok(xtie_memory_deregister(endpoint, own));
        }
    });
}

/// A ticket that the group has not given is told as such, whatever its numbers.
#[test]
fn tickets_of_nobody_are_refused() {
    run(HOST, 1, |me| {
        let mut done = 0;
        for ticket in [77, 0xdead_beef_cafe, 1 << 48, u64::MAX] {
            // SAFETY: an output of ours.
            let tested = unsafe { xtie_group_test_local(me.group, ticket, &mut done) };
            expect(tested, XTIE_ERR_RANK);
        }
        // SAFETY: as above.
        me.ok(unsafe { xtie_group_test_local(me.group, 0, &mut done) });
        assert_eq!(done, 1);
    });
}

/// A rank whose endpoint has too few connections says so at once, and all the others hear of it.
#[test]
fn group_that_needs_more_connections_is_refused_at_once() {
    let table = table(2);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let table = &table;
            scope.spawn(move || {
                let mut options = config(HOST);
                options.connections_max = if rank == 0 { 16 } else { 3 };
                let endpoint = Opened::new(&options);
                let member = member(table, rank);
                let group = group_config(&member);
                let mut storage = storage(group_bytes(&group));
                let (place, bytes) = (storage.as_mut_ptr().cast(), storage.len() * 64);
                let mut out = null_mut();
                // SAFETY: the storage outlives the call.
                let opened =
                    unsafe { xtie_group_open(endpoint.endpoint, place, bytes, &group, &mut out) };
                let (text, wanted) =
                    (endpoint.error(), ["rank 1", "the group needs 6 connections"]);
                let code = [XTIE_ERR_RANK_FAILED, XTIE_ERR_CONNECTIONS_FULL][rank];
                assert_eq!(opened, code as c_int, "{text}");
                assert!(text.contains(wanted[rank]), "{text}");
                endpoint.close();
            });
        }
    });
}

/// An endpoint without companions has no NIC that counts.
#[test]
fn counters_of_a_nic_are_refused_where_no_nic_can_add() {
    run(HOST, 1, |me| {
        let window = me.exchanged(64, 0);
        // SAFETY: structures of ours.
        unsafe {
            let count = xtie_window_count_by_nic(me.group, window.window, 0, &add(0, 1));
            expect(count, XTIE_ERR_NO_NIC_COUNTER);
            let bad = xtie_window_count_by_nic(me.group, window.window, 0, &add(99, 1));
            expect(bad, XTIE_ERR_ID);
            let rank = xtie_window_count_by_nic(me.group, window.window, 5 << 48, &add(0, 1));
            expect(rank, XTIE_ERR_RANK);
        }
    });
}

/// Signals alone, what one rank has added, fences, flushes, resets, six comparisons.
fn words(me: &Rank, window: &Window, next: u32, before: u32) {
    let (group, to) = (me.group, window.window);
    let put = window.transfer(0, 8, 0, next);
    // SAFETY: structures of ours.
    me.issue(|ticket| unsafe { xtie_window_put(group, to, &put, ticket) });
    // SAFETY: one thread.
    me.ok(unsafe { xtie_group_fence(group, next) });
    // SAFETY: structures of ours.
    me.issue(|ticket| unsafe { xtie_window_signal(group, to, next, &add(0, 1), ticket) });
    // SAFETY: as above.
    me.issue(|ticket| unsafe {
        xtie_window_signal_with_fence(group, to, next, &add(0, 1), ticket)
    });
    // SAFETY: as above.
    me.issue(|ticket| unsafe {
        xtie_window_signal_counter(group, to, next, &add(0, 1), &add(1, 7), ticket)
    });
    // SAFETY: one thread.
    me.ok(unsafe { xtie_group_flush(group, next, 0) });
    // SAFETY: as above.
    me.ok(unsafe { xtie_group_flush(group, XTIE_RANK_ALL, XTIE_NO_TIMEOUT) });
    // SAFETY: as above.
    me.ok(unsafe {
        xtie_window_wait_signal_from(group, to, 0, before, XTIE_COMPARE_GREATER, 2, 0)
    });
    for (compare, value) in [
        (XTIE_COMPARE_EQUAL, 3),
        (XTIE_COMPARE_NOT_EQUAL, 4),
        (XTIE_COMPARE_GREATER, 2),
        (XTIE_COMPARE_GREATER_EQUAL, 3),
        (XTIE_COMPARE_LESS, 4),
        (XTIE_COMPARE_LESS_EQUAL, 3),
    ] {
        me.wait_signal(window, 0, compare, value);
    }
    // SAFETY: as above.
    me.ok(unsafe { xtie_window_wait_counter(group, to, 1, XTIE_COMPARE_EQUAL, 7, 0) });
    let (mut all, mut one, mut counter, mut bytes) = (0, 0, 0, 0);
    // SAFETY: outputs of ours, here and below.
    me.ok(unsafe { xtie_window_read_signal(group, to, 0, &mut all) });
    // SAFETY: as above.
    me.ok(unsafe { xtie_window_read_signal_from(group, to, 0, before, &mut one) });
    // SAFETY: as above.
    me.ok(unsafe { xtie_window_read_counter(group, to, 1, &mut counter) });
    // SAFETY: as above.
    me.ok(unsafe { xtie_window_bytes(group, to, next, &mut bytes) });
    assert_eq!((all, one, counter, bytes), (3, 3, 7, 300_000));
    me.barrier(window);
    // SAFETY: one thread.
    me.ok(unsafe { xtie_window_reset_signal(group, to, 0) });
    // SAFETY: as above.
    me.ok(unsafe { xtie_window_reset_counter(group, to, 1) });
    me.wait_signal(window, 0, XTIE_COMPARE_EQUAL, 0);
    // SAFETY: as above.
    me.ok(unsafe { xtie_window_read_counter(group, to, 1, &mut counter) });
    assert_eq!(counter, 0);
    me.barrier(window);
}

#[test]
fn bad_operations_are_refused_and_change_nothing() {
    run(HOST, 2, |me| {
        let fresh = me.window(4096, 0);
        let other = 1 - me.rank;
        let mut ticket = 77;
        let put = fresh.transfer(0, 8, 0, other);
        let (group, to) = (me.group, fresh.window);
        // SAFETY: structures of ours, here and below.
        expect(unsafe { xtie_window_put(group, to, &put, &mut ticket) }, XTIE_ERR_NOT_EXCHANGED);
        // SAFETY: as above.
        let signaled = unsafe { xtie_window_signal(group, to, other, &add(0, 1), &mut ticket) };
        expect(signaled, XTIE_ERR_NOT_EXCHANGED);
        // SAFETY: as above.
        me.ok(unsafe { xtie_window_exchange(group, to, 0) });
        // SAFETY: as above.
        expect(unsafe { xtie_window_exchange(group, to, 0) }, XTIE_ERR_EXCHANGED);
        let part = fresh.transfer(0, 64, 0, other);
        for (transfer, expected) in [
            (xtie_transfer { offset: 4033, ..part }, XTIE_ERR_WINDOW_RANGE),
            (xtie_transfer { offset: u64::MAX, ..part }, XTIE_ERR_WINDOW_RANGE),
            (xtie_transfer { offset: u64::MAX - 63, ..part }, XTIE_ERR_WINDOW_RANGE),
            (xtie_transfer { bytes: usize::MAX, offset: 1, ..part }, XTIE_ERR_WINDOW_RANGE),
            (xtie_transfer { rank: 2, ..part }, XTIE_ERR_RANK),
            (xtie_transfer { rank: u32::MAX, ..part }, XTIE_ERR_RANK),
            (xtie_transfer { memory: null_mut(), ..part }, XTIE_ERR_MEMORY),
            (xtie_transfer { data: null_mut(), ..part }, XTIE_ERR_RANGE),
            (xtie_transfer { reserved: 1, ..part }, XTIE_ERR_RESERVED),
        ] {
            // SAFETY: as above.
            expect(unsafe { xtie_window_put(group, to, &transfer, &mut ticket) }, expected);
            // SAFETY: as above.
            expect(unsafe { xtie_window_get(group, to, &transfer, &mut ticket) }, expected);
        }
        bad_words(me, &fresh);
        assert_eq!(ticket, 77);
        me.barrier(&fresh);
        assert_eq!(fresh.bytes(0, 4096), vec![0; 4096]);
        me.wait_signal(&fresh, 0, XTIE_COMPARE_EQUAL, 0);
    });
}

/// Numbers of words, ranks and comparisons that are not there, and pointers that are NULL.
fn bad_words(me: &Rank, window: &Window) {
    let (group, to, other) = (me.group, window.window, 1 - me.rank);
    let put = window.transfer(0, 8, 0, other);
    let (mut ticket, mut value, equal) = (0, 0, XTIE_COMPARE_EQUAL);
    let signal = add(0, 1);
    for id in [3, 4096, 65536, u32::MAX] {
        // SAFETY: structures of ours, here and below.
        let results = unsafe {
            [
                xtie_window_put_signal(group, to, &put, &add(id, 1), &mut ticket),
                xtie_window_put_signal_counter(group, to, &put, &signal, &add(id, 1), &mut ticket),
                xtie_window_signal(group, to, other, &add(id, 1), &mut ticket),
                xtie_window_signal_with_fence(group, to, other, &add(id, 1), &mut ticket),
                xtie_window_signal_counter(group, to, other, &signal, &add(id, 1), &mut ticket),
                xtie_window_wait_signal(group, to, id, equal, 0, 0),
                xtie_window_wait_signal_from(group, to, id, other, equal, 0, 0),
                xtie_window_wait_counter(group, to, id, equal, 0, 0),
                xtie_window_read_signal(group, to, id, &mut value),
                xtie_window_read_signal_from(group, to, id, other, &mut value),
                xtie_window_read_counter(group, to, id, &mut value),
                xtie_window_reset_signal(group, to, id),
                xtie_window_reset_counter(group, to, id),
                xtie_window_barrier(group, to, id, 0),
            ]
        };
        each(results, XTIE_ERR_ID);
    }
    // SAFETY: as above.
    let of_ranks = unsafe {
        [
            xtie_window_signal(group, to, 2, &signal, &mut ticket),
            xtie_window_wait_signal_from(group, to, 0, 2, equal, 0, 0),
            xtie_window_read_signal_from(group, to, 0, 2, &mut value),
            xtie_window_bytes(group, to, 2, &mut value),
            xtie_group_flush(group, 2, 0),
            xtie_group_fence(group, u32::MAX),
            xtie_group_wait_local(group, u64::MAX, 0),
        ]
    };
    each(of_ranks, XTIE_ERR_RANK);
    for compare in [0, 7, u32::MAX] {
        // SAFETY: as above.
        let results = unsafe {
            [
                xtie_window_wait_signal(group, to, 0, compare, 0, 0),
                xtie_window_wait_counter(group, to, 0, compare, 0, 0),
            ]
        };
        each(results, XTIE_ERR_COMPARISON);
    }
    null_structures(me, window);
}

fn null_structures(me: &Rank, window: &Window) {
    let (group, to, other) = (me.group, window.window, 1 - me.rank);
    let put = window.transfer(0, 8, 0, other);
    let (mut ticket, signal, counter) = (0, add(0, 1), add(0, 1));
    let (none, no_add) = (std::ptr::null(), std::ptr::null());
    // SAFETY: as above.
    let of_nulls = unsafe {
        [
            xtie_window_put(group, to, none, &mut ticket),
            xtie_window_get(group, to, none, &mut ticket),
            xtie_window_get(group, to, &put, null_mut()),
            xtie_window_put_signal(group, to, &put, no_add, &mut ticket),
            xtie_window_put_signal_counter(group, to, &put, &signal, no_add, &mut ticket),
            xtie_window_put_signal_counter(group, to, &put, no_add, &counter, &mut ticket),
            xtie_window_signal(group, to, other, no_add, &mut ticket),
            xtie_window_read_signal(group, to, 0, null_mut()),
            xtie_window_bytes(group, to, other, null_mut()),
            xtie_group_test_local(group, 0, null_mut()),
            xtie_group_progress(null_mut()),
            xtie_group_close(null_mut()),
            xtie_group_abort(null_mut()),
        ]
    };
    each(of_nulls, XTIE_ERR_NULL);
    let reserved = xtie_add { reserved: 1, ..signal };
    // SAFETY: as above.
    let results = unsafe {
        [
            xtie_window_put_signal(group, to, &put, &reserved, &mut ticket),
            xtie_window_signal_counter(group, to, other, &signal, &reserved, &mut ticket),
        ]
    };
    each(results, XTIE_ERR_RESERVED);
}

/// Ranks gather into a window, and each wrong call has its name.
#[test]
fn all_gathers_are_carried_out_and_checked() {
    const BYTES: usize = 4096;
    run(HOST, 2, |me| {
        let (group, window) = (me.group, me.exchanged(4 * BYTES, 0));
        let size = size_of::<xtie_all_gather_config>() as u32;
        // SAFETY: numbers and a pointer, for which zero is a value.
        let zero: xtie_all_gather_config = unsafe { std::mem::zeroed() };
        let whole = xtie_all_gather_config { struct_size: size, bytes: 2 * BYTES as u64, ..zero };
        let mut made = null_mut();
        let mut init = |config: xtie_all_gather_config| {
            // SAFETY: structures of ours, here and below.
            unsafe { xtie_all_gather_init(group, window.window, &config, &mut made) }
        };
        let algorithm = xtie_all_gather_config { algorithm: 3, ..whole };
        expect(init(algorithm), XTIE_ERR_ALGORITHM);
        expect(init(xtie_all_gather_config { struct_size: 5, ..whole }), XTIE_ERR_STRUCT_SIZE);
        let beyond = xtie_all_gather_config { offset: 3 * BYTES as u64, ..whole };
        expect(init(beyond), XTIE_ERR_WINDOW_RANGE);
        let other = 64 * u64::from(me.rank);
        let uneven = xtie_all_gather_config { offset: other, ..whole };
        expect(init(uneven), XTIE_ERR_GROUP_MISMATCH);
        me.ok(init(whole));
        let own = window.data.wrapping_add(me.rank as usize * BYTES).cast();
        let exec = |bytes, stream: usize| {
            let stream = std::ptr::without_provenance_mut(stream);
            // SAFETY: as above.
            unsafe { xtie_all_gather_exec(group, made, own, bytes, stream) }
        };
        expect(exec(2 * BYTES, 0), XTIE_ERR_WINDOW_RANGE);
        expect(exec(BYTES, 64), XTIE_ERR_ALL_GATHER);
        window.fill(me.rank as usize * BYTES, &[7 + me.rank as u8; BYTES]);
        me.barrier(&window);
        me.ok(exec(BYTES, 0));
        let came = [vec![7; BYTES], vec![8; BYTES]].concat();
        assert_eq!(window.bytes(0, 2 * BYTES), came);
        let to = window.data.wrapping_add(2 * BYTES).cast();
        let both = |send, receive| {
            // SAFETY: as above.
            unsafe {
                xtie_window_all_gather(group, window.window, send, receive, BYTES, null_mut())
            }
        };
        me.ok(both(own.cast_const(), to));
        assert_eq!(window.bytes(2 * BYTES, 2 * BYTES), came);
        expect(both(std::ptr::null(), to), XTIE_ERR_NULL);
        // SAFETY: as above.
        me.ok(unsafe { xtie_all_gather_check(group, made) });
        // SAFETY: as above.
        me.ok(unsafe { xtie_all_gather_destroy(group, made) });
        // SAFETY: as above.
        expect(unsafe { xtie_all_gather_destroy(group, made) }, XTIE_ERR_ALL_GATHER);
        expect(exec(BYTES, 0), XTIE_ERR_ALL_GATHER);
        me.barrier(&window);
    });
}

#[test]
fn read_only_freed_and_missing_parts_are_refused() {
    run(HOST, 2, |me| {
        let (group, other) = (me.group, 1 - me.rank);
        let read_only = me.exchanged(4096, XTIE_WINDOW_READ_ONLY);
        read_only.fill(0, &[7; 64]);
        me.barrier(&read_only);
        let mut ticket = 0;
        let put = read_only.transfer(0, 64, 64, other);
        // SAFETY: structures of ours, here and below.
        let refused = unsafe { xtie_window_put(group, read_only.window, &put, &mut ticket) };
        expect(refused, XTIE_ERR_READ_ONLY);
        let get = read_only.transfer(1024, 64, 0, other);
        // SAFETY: as above.
        let ticket =
            me.issue(|ticket| unsafe { xtie_window_get(group, read_only.window, &get, ticket) });
        // SAFETY: as above.
        me.ok(unsafe { xtie_group_wait_local(group, ticket, 0) });
        assert_eq!(read_only.bytes(1024, 64), [7; 64]);
        me.barrier(&read_only);

        // rank 1 frees its part of a second window, and rank 0 writes to it afterwards
        let second = me.exchanged(4096, 0);
        if me.rank == 1 {
            free(me, &second);
        }
        me.barrier(&read_only);
        if me.rank == 0 {
            let put = second.transfer(0, 64, 0, 1);
            // SAFETY: as above.
            me.issue(|ticket| unsafe { xtie_window_put(group, second.window, &put, ticket) });
            // SAFETY: as above.
            expect(unsafe { xtie_group_flush(group, 1, 0) }, XTIE_ERR_WINDOW_FREED);
            // SAFETY: as above; what was refused was told.
            me.ok(unsafe { xtie_group_flush(group, 1, 0) });
        } else {
            stale(me, &second);
        }
        me.barrier(&read_only);
    });
}

/// Puts, signals and gets to a part that stays and to one that was freed, in turn: each ticket says
/// how its own was taken, and no signal of one that was refused grows.
#[test]
fn each_ticket_tells_whether_its_own_operation_was_refused() {
    const EACH: u64 = 40;
    run(HOST, 2, |me| {
        let group = me.group;
        let (stays, goes) = (me.exchanged(8192, 0), me.exchanged(8192, 0));
        stays.fill(0, &[7; 4096]);
        if me.rank == 1 {
            free(me, &goes);
        }
        me.barrier(&stays);
        if me.rank == 0 {
            let mut tickets = Vec::new();
            for at in 0..EACH {
                let put = |to: &Window, signal: Option<u32>| {
                    let bytes = if at % 2 == 0 { 8 } else { 4000 };
                    let transfer = stays.transfer(0, bytes, 4096, 1);
                    // SAFETY: structures of ours.
                    me.issue(|ticket| unsafe {
                        match signal {
                            None => xtie_window_put(group, to.window, &transfer, ticket),
                            Some(id) => xtie_window_put_signal(
                                group,
                                to.window,
                                &transfer,
                                &add(id, 1),
                                ticket,
                            ),
                        }
                    })
                };
                tickets.push((put(&goes, Some(0)), XTIE_ERR_WINDOW_FREED));
                tickets.push((put(&stays, None), XTIE_OK));
                tickets.push((put(&goes, None), XTIE_ERR_WINDOW_FREED));
                tickets.push((put(&stays, Some(0)), XTIE_OK));
                // SAFETY: as above.
                let signal = me.issue(|ticket| unsafe {
                    xtie_window_signal(group, goes.window, 1, &add(0, 1), ticket)
                });
                tickets.push((signal, XTIE_ERR_WINDOW_FREED));
            }
            // SAFETY: as above.
            expect(unsafe { xtie_group_flush(group, 1, 0) }, XTIE_ERR_WINDOW_FREED);
            for (at, (ticket, expected)) in tickets.into_iter().enumerate() {
                let mut done = 0;
                // SAFETY: as above.
                let tested = unsafe { xtie_group_test_local(group, ticket, &mut done) };
                assert_eq!(tested, expected as c_int, "operation {at}");
                assert_eq!(done == 1, expected == XTIE_OK, "operation {at}");
                // SAFETY: as above.
                expect(unsafe { xtie_group_wait_local(group, ticket, 0) }, expected);
            }
            // SAFETY: as above.
            me.ok(unsafe { xtie_group_flush(group, 1, 0) });
        }
        me.barrier(&stays);
        if me.rank == 1 {
            let mut sum = 0;
            // SAFETY: as above.
            me.ok(unsafe { xtie_window_read_signal(group, stays.window, 0, &mut sum) });
            assert_eq!(sum, EACH);
        }
        me.barrier(&stays);
    });
}

fn free(me: &Rank, window: &Window) {
    // SAFETY: one thread.
    let mut result = unsafe { xtie_window_free(me.group, window.window) };
    while result == XTIE_AGAIN as c_int {
        me.progress();
        // SAFETY: as above.
        result = unsafe { xtie_window_free(me.group, window.window) };
    }
    me.ok(result);
}

/// A window of this rank that was freed.
fn stale(me: &Rank, window: &Window) {
    let (group, gone, mut value) = (me.group, window.window, 0);
    let put = window.transfer(0, 8, 0, 0);
    for gone in [gone, null_mut()] {
        // SAFETY: structures of ours, and no window.
        let results = unsafe {
            [
                xtie_window_free(group, gone),
                xtie_window_exchange(group, gone, 0),
                xtie_window_put(group, gone, &put, &mut value),
                xtie_window_get(group, gone, &put, &mut value),
                xtie_window_signal(group, gone, 0, &add(0, 1), &mut value),
                xtie_window_wait_signal(group, gone, 0, XTIE_COMPARE_EQUAL, 0, 0),
                xtie_window_read_counter(group, gone, 0, &mut value),
                xtie_window_barrier(group, gone, 0, 0),
                xtie_window_bytes(group, gone, 0, &mut value),
            ]
        };
        each(results, XTIE_ERR_WINDOW);
    }
}

#[test]
fn windows_of_any_size_and_memory_are_refused_or_made_as_the_header_says() {
    run(HOST, 2, |me| {
        let (group, mut window) = (me.group, null_mut());
        let mut bytes = vec![0u8; 4096];
        let memory = me.endpoint.register(&mut bytes);
        let data = bytes.as_mut_ptr().cast();
        for (data, length, memory, flags, expected) in [
            (data, 4097, memory, 0, XTIE_ERR_RANGE),
            (data, 8, null_mut(), 0, XTIE_ERR_MEMORY),
            (null_mut(), 8, memory, 0, XTIE_ERR_RANGE),
            (data, 8, memory, 2, XTIE_ERR_FLAGS),
        ] {
            // SAFETY: memory that the library refuses.
            let made =
                unsafe { xtie_window_register(group, data, length, memory, flags, &mut window) };
            expect(made, expected);
        }
        // SAFETY: as above.
        let made = unsafe { xtie_window_register(group, data, 8, memory, 0, null_mut()) };
        expect(made, XTIE_ERR_NULL);
        assert!(window.is_null());

        // sizes of their own: one rank has none
        let length = 4096 * me.rank as usize;
        let (data, memory) = if me.rank == 0 { (null_mut(), null_mut()) } else { (data, memory) };
        // SAFETY: the bytes outlive the group.
        me.ok(unsafe { xtie_window_register(group, data, length, memory, 0, &mut window) });
        // SAFETY: one thread.
        me.ok(unsafe { xtie_window_exchange(group, window, 0) });
        for rank in 0..2 {
            let mut bytes = 1;
            // SAFETY: an output of ours.
            me.ok(unsafe { xtie_window_bytes(group, window, rank, &mut bytes) });
            assert_eq!(bytes, 4096 * u64::from(rank));
        }
        let other = me.window(64, 0);
        let (mut data, mut third) = (null_mut(), null_mut());
        // SAFETY: outputs of ours.
        let made = unsafe { xtie_window_alloc(group, 64, 0, &mut data, null_mut(), &mut third) };
        expect(made, XTIE_ERR_WINDOWS_FULL);
        free(me, &other);
        // SAFETY: one thread.
        me.ok(unsafe { xtie_window_barrier(group, window, 1, 0) });
        // the registered memory outlives the group
        std::mem::forget(bytes);
    });
}

#[test]
fn waits_end_in_time_or_by_an_abort_and_the_group_goes_on() {
    run(HOST, 2, |me| {
        let window = me.exchanged(64, 0);
        let (group, to) = (me.group, window.window);
        let never = XTIE_COMPARE_GREATER;
        // SAFETY: one thread, here and below.
        let waited = unsafe { xtie_window_wait_signal(group, to, 0, never, 5, 20) };
        expect(waited, XTIE_ERR_TIMEOUT);
        // SAFETY: as above.
        expect(unsafe { xtie_window_wait_counter(group, to, 0, never, 5, 1) }, XTIE_ERR_TIMEOUT);
        let group_address = group.expose_provenance();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let group = std::ptr::with_exposed_provenance_mut(group_address);
                // SAFETY: any thread; the group stays open.
                expect(unsafe { xtie_group_abort(group) }, XTIE_OK);
            });
            // SAFETY: as above.
            let waited =
                unsafe { xtie_window_wait_signal(group, to, 0, never, 5, XTIE_NO_TIMEOUT) };
            expect(waited, XTIE_ERR_ABORTED);
        });
        // SAFETY: as above.
        expect(unsafe { xtie_window_barrier(group, to, 0, 0) }, XTIE_ERR_ABORTED);
        // SAFETY: as above.
        me.ok(unsafe { xtie_group_abort_clear(group) });
        me.barrier(&window);
        // rank 1 comes to the exchange after rank 0's has run out of time
        let late = me.window(64, 0);
        if me.rank == 0 {
            // SAFETY: as above.
            let exchanged = unsafe { xtie_window_exchange(group, late.window, 20) };
            expect(exchanged, XTIE_ERR_TIMEOUT);
            let text = me.endpoint.error();
            assert!(text.contains("rank 1"), "{text}");
        }
        me.barrier(&window);
        // SAFETY: as above.
        me.ok(unsafe { xtie_window_exchange(group, late.window, 0) });
        me.barrier(&late);
    });
}

#[test]
fn bad_configurations_are_refused_with_their_codes() {
    let table = table(1);
    let member = member(&table, 0);
    let whole = group_config(&member);
    let opened = endpoint(LOOPBACK, 1);
    let mut place = storage(group_bytes(&whole) + 64);
    let (start, bytes) = (place.as_mut_ptr().cast::<c_void>(), place.len() * 64 - 64);
    let mut group = null_mut();
    let size = whole.struct_size;
    for (config, expected) in [
        (xtie_group_config { struct_size: 0, ..whole }, XTIE_ERR_STRUCT_SIZE),
        (xtie_group_config { struct_size: size - 8, ..whole }, XTIE_ERR_STRUCT_SIZE),
        (xtie_group_config { struct_size: 5000, ..whole }, XTIE_ERR_STRUCT_SIZE),
        (xtie_group_config { rank: 1, ..whole }, XTIE_ERR_RANK),
        (xtie_group_config { ranks: 0, ..whole }, XTIE_ERR_GROUP_LIMITS),
        (xtie_group_config { ranks: 4097, ..whole }, XTIE_ERR_GROUP_LIMITS),
        (xtie_group_config { windows_max: 0, ..whole }, XTIE_ERR_GROUP_LIMITS),
        (xtie_group_config { windows_max: 1025, ..whole }, XTIE_ERR_GROUP_LIMITS),
        (xtie_group_config { signals_max: 4097, ..whole }, XTIE_ERR_GROUP_LIMITS),
        (xtie_group_config { counters_max: 4097, ..whole }, XTIE_ERR_GROUP_LIMITS),
        (xtie_group_config { barriers_max: u32::MAX, ..whole }, XTIE_ERR_GROUP_LIMITS),
    ] {
        let mut said = 0;
        // SAFETY: structures of ours, here and below.
        expect(unsafe { xtie_group_size(&config, &mut said) }, expected);
        assert_eq!(said, 0);
        let result =
            // SAFETY: as above.
            unsafe { xtie_group_open(opened.endpoint, start, bytes, &config, &mut group) };
        expect(result, expected);
    }
    let no_gather = xtie_group_config { gather: None, ..whole };
    let odd = start.wrapping_byte_add(8);
    // SAFETY: as above; refused before the storage is touched.
    let results = unsafe {
        let open = |config: &xtie_group_config, start, bytes, group: *mut *mut xtie_group| {
            xtie_group_open(opened.endpoint, start, bytes, config, group)
        };
        [
            (open(&no_gather, start, bytes, &mut group), XTIE_ERR_NULL),
            (open(&whole, null_mut(), bytes, &mut group), XTIE_ERR_NULL),
            (open(&whole, start, bytes, null_mut()), XTIE_ERR_NULL),
            (open(&whole, odd, bytes, &mut group), XTIE_ERR_STORAGE_ALIGN),
            (open(&whole, start, group_bytes(&whole) - 64, &mut group), XTIE_ERR_STORAGE_SIZE),
            (xtie_group_size(std::ptr::null(), &mut 0), XTIE_ERR_NULL),
            (xtie_group_size(&whole, null_mut()), XTIE_ERR_NULL),
            // storage that never was a group, and no pointer to one
            (xtie_group_progress(start.cast()), XTIE_ERR_NO_GROUP),
            (xtie_group_close(odd.cast()), XTIE_ERR_NO_GROUP),
        ]
    };
    for (result, expected) in results {
        expect(result, expected);
    }
    assert!(group.is_null());
    opened.close();
}

#[test]
fn rank_that_never_comes_ends_the_opening_in_time() {
    let table = table(2);
    let mut alone = member(&table, 0);
    alone.patience = Duration::from_millis(50);
    let config = group_config(&alone);
    let opened = endpoint(HOST, 2);
    let mut place = storage(group_bytes(&config));
    let (start, bytes) = (place.as_mut_ptr().cast(), place.len() * 64);
    let mut group = null_mut();
    // SAFETY: structures of ours, here and below.
    let result = unsafe { xtie_group_open(opened.endpoint, start, bytes, &config, &mut group) };
    expect(result, XTIE_ERR_BOOTSTRAP);
    let text = opened.error();
    assert!(group.is_null() && text.contains(&LATE.to_string()), "{text}");

    // one that gathers, and does not connect
    unsafe extern "C" fn lies(
        _: *mut c_void,
        mine: *const c_void,
        bytes: usize,
        all: *mut c_void,
    ) -> c_int {
        for rank in 0..2 {
            // SAFETY: room for two, by the function's contract.
            let to = unsafe { all.byte_add(rank * bytes).cast::<u8>() };
            // SAFETY: as above.
            unsafe { to.copy_from_nonoverlapping(mine.cast(), bytes) };
        }
        0
    }
    let config = xtie_group_config { gather: Some(lies), timeout_ms: 50, ..config };
    // SAFETY: as above.
    let result = unsafe { xtie_group_open(opened.endpoint, start, bytes, &config, &mut group) };
    expect(result, XTIE_ERR_GROUP_MISMATCH);
    opened.close();
}

/// Opens a group that cannot be: its error, and the sentence.
fn refused(member: &Member, config: &xtie_group_config) -> (c_int, String) {
    let opened = endpoint(HOST, member.table.ranks as u32);
    let mut place = storage(group_bytes(config));
    let (start, bytes) = (place.as_mut_ptr().cast(), place.len() * 64);
    let mut group = null_mut();
    // SAFETY: structures of ours.
    let result = unsafe { xtie_group_open(opened.endpoint, start, bytes, config, &mut group) };
    let text = opened.error();
    assert!(group.is_null());
    opened.close();
    (result, text)
}

#[test]
fn ranks_that_say_the_same_number_do_not_meet() {
    let table = table(2);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let table = &table;
            scope.spawn(move || {
                let member = member(table, rank);
                let mut config = group_config(&member);
                config.rank = 0;
                let (result, text) = refused(&member, &config);
                expect(result, XTIE_ERR_GROUP_MISMATCH);
                assert!(text.contains("rank 1"), "{text}");
            });
        }
    });
}

#[test]
fn exchange_ends_when_a_rank_has_closed() {
    let table = table(2);
    std::thread::scope(|scope| {
        let its = &table;
        scope.spawn(move || Rank::open(HOST, its, 1).close());
        let me = Rank::open(HOST, &table, 0);
        let window = me.window(64, 0);
        // SAFETY: one thread, here and below.
        let ended = unsafe { xtie_window_exchange(me.group, window.window, 0) };
        expect(ended, XTIE_ERR_PEER_CLOSED);
        let text = me.endpoint.error();
        assert!(text.contains("rank 1"), "{text}");
        // SAFETY: as above.
        let free = unsafe { xtie_window_free(me.group, window.window) };
        expect(free, XTIE_OK);
        me.close();
    });
}

#[test]
fn group_whose_endpoint_is_closed_is_refused_and_can_be_closed() {
    let table = table(1);
    let Rank { group, endpoint, _member, _storage, .. } = Rank::open(LOOPBACK, &table, 0);
    // SAFETY: one thread, here and below; both storages stand.
    expect(unsafe { xtie_endpoint_close(endpoint.endpoint) }, XTIE_OK);
    // SAFETY: as above.
    expect(unsafe { xtie_group_progress(group) }, XTIE_ERR_CLOSED);
    // SAFETY: as above.
    expect(unsafe { xtie_group_abort(group) }, XTIE_ERR_CLOSED);
    // SAFETY: as above.
    expect(unsafe { xtie_group_close(group) }, XTIE_OK);
    // SAFETY: as above.
    expect(unsafe { xtie_group_close(group) }, XTIE_ERR_GROUP_CLOSED);
    std::mem::forget(endpoint);
}
