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
fn leave(rank: &Rank) {
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
