//! What must fail does so at every rank, and leaves nothing behind.

use super::thread::set;
use super::*;

/// Memory without a handle, or of the host, or none, is refused at all ranks, and the group goes
/// on.
#[test]
fn memory_without_a_handle_is_refused_by_all_ranks() {
    if !is_child() {
        let name = "bad_input::memory_without_a_handle_is_refused_by_all_ranks";
        return all_succeed(start(name, 11, 2));
    }
    memory_without_a_handle();
}

pub fn memory_without_a_handle() {
    const GPU: c_int = 2;
    const HOST: c_int = 1;
    let rank = Rank::open();
    let mut ordinary = vec![0u8; 4096];
    let ordinary = ordinary.as_mut_ptr() as u64;
    let good = double_alloc(4096);
    for bad in [(ordinary, 4096, GPU), (good, 4096, HOST), (good, 0, GPU), (0, 4096, GPU)] {
        let (address, bytes, kind) = if rank.device.rank == 0 { bad } else { (good, 4096, GPU) };
        let (mut memory, mut handle) = (null_mut(), null_mut());
        let (coll, data) = (rank.coll, address as Pointer);
        // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
        let rc =
            unsafe { gin_v11::reg_mr_sym(coll, data, bytes, kind, 0, &mut memory, &mut handle) };
        assert_ne!(rc, 0);
        assert!(memory.is_null() && handle.is_null());
    }
    let (_, _, memory) = rank.window(4096);
    rank.close(&[memory]);
}

#[test]
fn signal_out_of_range_is_told_to_all_ranks() {
    if !is_child() {
        let name = "bad_input::signal_out_of_range_is_told_to_all_ranks";
        for (version, ranks) in [(11, 2), (13, 2), (14, 3)] {
            all_succeed(start(name, version, ranks));
        }
        return;
    }
    one_signal_out_of_range();
}

/// One rank adds to a signal that does not exist: its queue fails. All others hear that from their
/// contexts, and their queues go on, and so do the other queues of that rank.
pub fn one_signal_out_of_range() {
    let rank = Rank::open();
    let device = &rank.device;
    let (own, ranks) = (device.rank, device.ranks);
    let mut queues: Vec<_> = (0..ranks).map(|peer| device.queue(peer, false)).collect();
    let (arrived, signal) = device.signal(0);
    assert!(!rank.has_failed());
    if own == 1 {
        let beyond = Address { offset: signal.offset + (1 << 20), ..signal };
        let index = queues[0].post(&device.add(beyond, 1));
        wait_until("an error", || queues[0].poll(index) == Some(Err(0x13)));
    }
    wait_until("the news of a failure", || rank.has_failed());
    for (peer, queue) in queues.iter_mut().enumerate() {
        if (own, peer) != (1, 0) {
            let index = queue.post(&device.add(signal, 1));
            wait_until("another queue", || queue.poll(index) == Some(Ok(())));
        }
    }
    let expected = ranks - usize::from(own == 0);
    wait_until("every signal", || arrived.load(Ordering::Acquire) == expected as u64);
    leave(&rank);
    rank.close(&[]);
}

/// All ranks come here before one goes.
pub fn leave(rank: &Rank) {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let done = |of: usize| folder.join(format!("leaves-{of}"));
    std::fs::write(done(rank.device.rank), "").unwrap();
    (0..rank.device.ranks).for_each(|of| wait_until("the others", || done(of).exists()));
}

/// Changes a handle to one of the next version of its format: the last byte of the first word.
fn next_version(handle: &mut [u8; 128]) {
    handle[7] += 1;
}

#[test]
fn ranks_of_different_versions_do_not_come_together() {
    if !is_child() {
        let name = "bad_input::ranks_of_different_versions_do_not_come_together";
        for (version, ranks) in [(11, 2), (13, 3), (14, 2)] {
            all_succeed(start(name, version, ranks));
        }
        return;
    }
    set("CROSSTIE_CONNECT_TIMEOUT_MS", "6000");
    different_versions();
}

/// A rank of another table of NCCL's, and then one whose handle a later version of the plugin has
/// made.
pub fn different_versions() {
    let (rank, ranks, version) = (number(RANK), number(RANKS), number(VERSION));
    let other = if version == 13 { 14 } else { 13 };
    let of_rank = if rank == 1 { other } else { version };
    for (round, version) in [of_rank, version].into_iter().enumerate() {
        let (init, listener, mut handle) = listen(version);
        if round == 1 && rank == 1 {
            next_version(&mut handle);
        }
        let handles = exchange_in(&format!("round-{round}"), rank, ranks, &handle);
        assert!(connect(listener, handles, rank).is_err());
        // SAFETY: what the plugin has given, once.
        assert_eq!(unsafe { gin_v11::finalize(init) }, 0);
    }
    assert!(!threads().iter().any(|name| name.starts_with("crosstie")), "threads are left");
}

const WHAT: &str = "GIN_WHAT";

/// Where the number of a process stands that has stopped itself.
pub fn number_of_stopped() -> PathBuf {
    PathBuf::from(std::env::var_os(FOLDER).unwrap()).join("stopped")
}

/// Stops this process.
pub fn stand_still() {
    std::fs::write(number_of_stopped(), std::process::id().to_string()).unwrap();
    // SAFETY: only stops this process.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Runs a test for each collective call of all ranks that rank 1 does not come to, because it has
/// ended or is stopped, all at a time.
pub fn each_call_without_one(start: impl Fn(&[(&str, &str)]) -> Vec<Child>) {
    let calls = ["connect", "register", "context"];
    let whats = calls.iter().flat_map(|call| ["ends", "stops"].map(|how| format!("{call}-{how}")));
    let runs: Vec<_> = whats.map(|what| start(&[(WHAT, &what)])).collect();
    runs.into_iter().for_each(all_but_the_second_succeed);
}

#[test]
fn collective_calls_that_one_rank_does_not_come_to_fail() {
    if !is_child() {
        let name = "bad_input::collective_calls_that_one_rank_does_not_come_to_fail";
        return each_call_without_one(|what| start_over(&driver(), name, 14, 2, what));
    }
    one_does_not_come();
}

/// Rank 1 does not come; the other hears it, and has no more of the driver than before.
pub fn one_does_not_come() {
    set("CROSSTIE_CONNECT_TIMEOUT_MS", "10000");
    let what = std::env::var(WHAT).unwrap();
    let (call, how) = what.split_once('-').unwrap();
    let (rank, ranks, version) = (number(RANK), number(RANKS), number(VERSION));
    let goes = || {
        if how == "stops" {
            stand_still();
        }
        std::process::abort();
    };
    if call == "connect" {
        let (init, listener, handle) = listen(version);
        let handles = exchange(rank, ranks, &handle);
        if rank == 1 {
            goes();
        }
        assert!(connect(listener, handles, rank).is_err());
        // SAFETY: what the plugin has given, once.
        assert_eq!(unsafe { gin_v11::finalize(init) }, 0);
        assert_eq!(taken(), 0);
        assert!(!threads().iter().any(|name| name.starts_with("crosstie")), "threads are left");
    } else {
        let it = Rank::open();
        let memory = with_memory(&it);
        leave(&it);
        if rank == 1 {
            goes();
        }
        let before = taken();
        match call {
            "register" => assert_eq!(it.try_window(memory, 4096), None),
            _ => assert_eq!(try_contexts(it.coll, version), None),
        }
        assert_eq!(taken(), before);
        it.close(&[]);
    }
    if how == "stops" {
        let pid = std::fs::read_to_string(number_of_stopped()).unwrap().parse().unwrap();
        // SAFETY: only sends a signal.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// What this rank has of the driver.
fn taken() -> i64 {
    // SAFETY: the double's function of this name has this type.
    let taken: extern "C" fn() -> i64 = unsafe { std::mem::transmute(double(c"double_taken")) };
    taken()
}

/// Memory of the GPU that was a window once: what a rail has of the driver from then on is there.
fn with_memory(rank: &Rank) -> u64 {
    let memory = double_alloc(4096);
    rank.end(rank.try_window(memory, 4096).expect("a window").0);
    memory
}

/// Has all ranks call something, again and again: at rank 1 the driver refuses the first call, then
/// the second, and so on, until it is asked for no more. `call` gives a name of the round, and
/// undoes what it has made. It fails at all ranks or at none, and nothing is left of it.
fn refuse_each(what: &str, mut call: impl FnMut(&str) -> bool) {
    // SAFETY: the double's function of this name has this type.
    let refuse: extern "C" fn(c_int) -> c_int =
        unsafe { std::mem::transmute(double(c"double_refuse_call")) };
    let (rank, ranks) = (number(RANK), number(RANKS));
    for at in 1.. {
        let (round, before) = (format!("{what}-{at}"), taken());
        refuse(if rank == 1 { at } else { 0 });
        let has_worked = call(&round);
        let was_refused = rank == 1 && refuse(0) == 0;
        let mut said = [0; 128];
        said[..2].copy_from_slice(&[has_worked, was_refused].map(u8::from));
        let all = exchange_in(&format!("{round}-said"), rank, ranks, &said);
        assert!(all.iter().all(|other| other[0] == said[0]), "{round}: {has_worked} here alone");
        assert_eq!(taken(), before, "{round} leaves something behind, has it worked: {has_worked}");
        if all[1][1] == 0 {
            assert!(has_worked && at > 3, "{round}");
            return;
        }
    }
}

#[test]
fn what_a_driver_refuses_one_rank_fails_at_all_and_leaves_nothing() {
    if !is_child() {
        let name = "bad_input::what_a_driver_refuses_one_rank_fails_at_all_and_leaves_nothing";
        return all_succeed(start(name, 14, 2));
    }
    a_driver_that_refuses();
}

pub fn a_driver_that_refuses() {
    let (rank, ranks, version) = (number(RANK), number(RANKS), number(VERSION));
    refuse_each("connect", |round| {
        let (init, listener, handle) = listen(version);
        let coll = connect(listener, exchange_in(round, rank, ranks, &handle), rank);
        // SAFETY: what the plugin has given, once.
        unsafe {
            coll.iter().for_each(|coll| assert_eq!(gin_v11::close_coll(*coll), 0));
            assert_eq!(gin_v11::finalize(init), 0);
        }
        coll.is_ok()
    });
    let rank = Rank::open();
    let memory = with_memory(&rank);
    refuse_each("register", |_| {
        let made = rank.try_window(memory, 4096);
        made.iter().for_each(|(window, _)| rank.end(*window));
        made.is_some()
    });
    refuse_each("context", |_| {
        let made = try_contexts(rank.coll, version);
        // SAFETY: what the plugin has given, once.
        made.iter().for_each(|(it, _)| assert_eq!(unsafe { gin_v11::destroy_context(*it) }, 0));
        made.is_some()
    });
    let (mut queue, (arrived, signal)) =
        (rank.device.queue(1 - rank.device.rank, false), rank.device.signal(0));
    let index = queue.post(&rank.device.add(signal, 1));
    wait_until("a signal", || queue.poll(index) == Some(Ok(())));
    wait_until("the peer's", || arrived.load(Ordering::Acquire) == 1);
    leave(&rank);
    rank.close(&[]);
}
