//! Ranks of several hosts, which are processes with hosts' numbers of their own. They reach each
//! other over TCP on the loopback interface.

use super::thread::{report_with, set};
use super::*;
use crosstie::connect::ends_of;
use crosstie::provider::libfabric::Config;
use crosstie::provider::libfabric::survey::survey;

/// Runs a test of this program as ranks that reach each other by the loopback interface.
fn start_apart(test: &str, ranks: usize, variables: &[(&str, &str)]) -> Vec<Child> {
    start_over(
        &driver(),
        test,
        14,
        ranks,
        &[&[("CROSSTIE_SOCKET_IFNAME", "lo")], variables].concat(),
    )
}

/// Has this rank be of one of two hosts: the first half of the ranks is of the first.
fn part() {
    let host = 2 * number(RANK) / number(RANKS);
    set("CROSSTIE_NODE_ID", ["c0de1", "c0de2"][host]);
}

#[test]
fn ranks_of_two_hosts_put_signal_count_read_and_add() {
    if is_child() {
        part();
        return every_rank_to_every_rank();
    }
    let name = "hosts::ranks_of_two_hosts_put_signal_count_read_and_add";
    for ranks in [2, 4] {
        all_succeed(start_apart(name, ranks, &[]));
    }
}

/// Between hosts each rail that `CROSSTIE_RAILS` names is used: here a software provider of
/// libfabric.
#[test]
fn ranks_of_two_hosts_meet_over_libfabric() {
    if is_child() {
        part();
        return every_rank_to_every_rank();
    }
    const OVER: [(&str, &str); 4] = [
        ("CROSSTIE_RAILS", "libfabric"),
        ("CROSSTIE_RAILS_REQUIRED", "libfabric"),
        ("CROSSTIE_OFI_PROVIDER", "tcp;ofi_rxm"),
        ("CROSSTIE_OFI_DOMAINS", "lo"),
    ];
    let config = Config { provider: Some(c"tcp;ofi_rxm"), ..Config::DEFAULT };
    if !survey(&config).is_ok_and(|found| !found.offers.is_empty()) {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no tcp;ofi_rxm");
        return println!("SKIP: no tcp;ofi_rxm of libfabric");
    }
    let name = "hosts::ranks_of_two_hosts_meet_over_libfabric";
    for text in all_said(start_apart(name, 2, &OVER)) {
        assert!(text.contains("over libfabric"), "{text}");
    }
}

/// In the guest of `tests/vm` with its wires, where each host has two ports.
#[test]
fn ranks_of_two_hosts_meet_over_verbs() {
    if is_child() {
        part();
        set("NCCL_IB_HCA", wires::PORTS[number(RANK)]);
        return every_rank_to_every_rank();
    }
    if !wires::are_here() {
        return;
    }
    let over = [("CROSSTIE_RAILS", "verbs"), ("NCCL_IB_TIMEOUT", "15")];
    let name = "hosts::ranks_of_two_hosts_meet_over_verbs";
    for text in all_said(start_apart(name, 2, &over)) {
        assert!(text.contains("over verbs"), "{text}");
    }
}

/// A group keeps no order of puts to one place: the plugin must.
#[test]
fn puts_to_another_host_keep_their_order_where_they_overlap() {
    if !is_child() {
        let name = "hosts::puts_to_another_host_keep_their_order_where_they_overlap";
        return all_succeed(start_apart(name, 2, &[]));
    }
    part();
    copies::overlapping_puts();
}

/// Rank 1 goes; the others do not wait for it, and those of its own host do not either.
#[test]
fn peer_on_another_host_that_ends_is_an_error_completion() {
    let name = "hosts::peer_on_another_host_that_ends_is_an_error_completion";
    if !is_child() {
        return all_but_the_second_succeed(start_apart(name, 2, &[]));
    }
    part();
    peer_that_ends();
}

#[test]
fn window_that_its_owner_on_another_host_gave_back_is_an_error() {
    let name = "hosts::window_that_its_owner_on_another_host_gave_back_is_an_error";
    const WHAT: &str = "GIN_WHAT";
    if !is_child() {
        for what in ["add", "write", "value", "read"] {
            all_succeed(start_apart(name, 2, &[(WHAT, what)]));
        }
        return;
    }
    part();
    let what = std::env::var(WHAT).unwrap();
    window_given_back(|own, key, device| {
        let remote = Address { key, offset: 8 };
        match what.as_str() {
            "add" => device.add(remote, 1),
            "write" => Work::Write { remote, local: whole(own, 0, 64) },
            "value" => Work::WriteInline { remote, data: [1; 28], bytes: 28 },
            _ => Work::Read { remote, local: whole(own, 0, 64) },
        }
    });
}

/// A signal that does not exist, or bytes behind a window, fail their queue alone, as on one host.
#[test]
fn signal_out_of_range_of_another_host_is_an_error_completion() {
    if !is_child() {
        let name = "hosts::signal_out_of_range_of_another_host_is_an_error_completion";
        return all_succeed(start_apart(name, 2, &[]));
    }
    part();
    let rank = Rank::open();
    let device = &rank.device;
    let (mut queue, mut own) =
        (device.queue(1 - device.rank, false), device.queue(device.rank, false));
    let (_, signal) = device.signal(0);
    let beyond = Address { offset: signal.offset + (1 << 20), ..signal };
    let index = queue.post(&device.add(beyond, 1));
    wait_until("an error", || queue.poll(index) == Some(Err(0x13)));
    assert!(rank.has_failed());
    let good = own.post(&device.add(signal, 1));
    wait_until("another queue", || own.poll(good) == Some(Ok(())));
    rank.close(&[]);
}

#[test]
fn signal_out_of_range_is_told_to_ranks_of_all_hosts() {
    if !is_child() {
        let name = "hosts::signal_out_of_range_is_told_to_ranks_of_all_hosts";
        return [2, 4].iter().for_each(|ranks| all_succeed(start_apart(name, *ranks, &[])));
    }
    part();
    bad_input::one_signal_out_of_range();
}

#[test]
fn ranks_of_different_versions_on_two_hosts_do_not_come_together() {
    if !is_child() {
        let name = "hosts::ranks_of_different_versions_on_two_hosts_do_not_come_together";
        let short = [("CROSSTIE_CONNECT_TIMEOUT_MS", "6000")];
        return all_succeed(start_apart(name, 4, &short));
    }
    part();
    bad_input::different_versions();
}

/// Registers memory of the double; whether that succeeded.
fn registers(rank: &Rank) -> bool {
    let (mut memory, mut handle) = (null_mut(), null_mut());
    let data = double_alloc(4096) as Pointer;
    // SAFETY: memory of the double, and places for the outputs.
    let rc = unsafe { gin_v11::reg_mr_sym(rank.coll, data, 4096, 2, 0, &mut memory, &mut handle) };
    rc == 0
}

/// One rank never comes to a registration. All others hear of it within the deadline, and so does
/// that one when it comes.
#[test]
fn window_that_one_rank_does_not_register_is_an_error_at_all_ranks() {
    if !is_child() {
        let name = "hosts::window_that_one_rank_does_not_register_is_an_error_at_all_ranks";
        let short = [("CROSSTIE_CONNECT_TIMEOUT_MS", "6000")];
        return all_succeed(start_apart(name, 4, &short));
    }
    part();
    let rank = Rank::open();
    let done =
        |of: usize| PathBuf::from(std::env::var_os(FOLDER).unwrap()).join(format!("done-{of}"));
    let (late, own) = (3, rank.device.rank);
    if own == late {
        (0..late).for_each(|of| wait_until("the others", || done(of).exists()));
    }
    assert!(!registers(&rank));
    std::fs::write(done(own), "").unwrap();
    rank.close(&[]);
}

/// One rank's memory cannot be exported: all ranks hear that at once, and go on.
#[test]
fn memory_without_a_handle_is_refused_by_ranks_of_all_hosts() {
    if !is_child() {
        let name = "hosts::memory_without_a_handle_is_refused_by_ranks_of_all_hosts";
        return all_succeed(start_apart(name, 4, &[]));
    }
    part();
    bad_input::memory_without_a_handle();
}

/// The sockets of this process to other hosts, but for that of the set-up: descriptor and own port,
/// the oldest first.
fn sockets() -> Vec<(i32, u16)> {
    let first = std::fs::read(PathBuf::from(std::env::var_os(FOLDER).unwrap()).join("0")).unwrap();
    // behind the family of the first address
    let set_up = u16::from_le_bytes([first[49], first[50]]);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let far = |fd: i32| {
        let [own, _] = ends_of(fd)?;
        (own.is_ipv4() && own.port() != set_up).then_some((fd, own.port()))
    };
    let mut all: Vec<_> = numbers.filter_map(far).collect();
    all.sort_unstable();
    all
}

/// Two connections have a second rail.
const SECOND: usize = 2;

/// Own ports of the second rails that have come into use: this process has dialled them.
fn second_rails() -> Vec<u16> {
    let port = |line: String| {
        let is_up = line.contains(", is in use") || line.contains(", carries bytes again");
        let of_second = line.contains(" rail 1 to ") && is_up;
        let (own, _) = line.split_once(" over tcp, ")?.1.split_once(" to ")?;
        of_second.then(|| own.rsplit_once(':')?.1.parse().ok()).flatten()
    };
    log::lines().into_iter().filter_map(port).collect()
}

/// Ends the second rails, whenever both are there, until `is_over`.
fn cut(cuts: &AtomicU64, is_over: &AtomicU64) {
    let mut cut_last = Vec::new();
    while is_over.load(Ordering::Relaxed) == 0 {
        let (ports, mut second) = (second_rails(), sockets());
        second.retain(|(_, port)| ports.contains(port));
        if second.len() == SECOND && !second.iter().any(|socket| cut_last.contains(socket)) {
            for (fd, _) in &second {
                // SAFETY: no pointers, and one of this program's sockets, if not closed by now.
                unsafe { libc::shutdown(*fd, libc::SHUT_RDWR) };
            }
            cuts.fetch_add(1, Ordering::Relaxed);
            cut_last = second;
        }
        std::thread::yield_now();
    }
}

/// The second rail is cut again and again, while both ranks put and signal: every byte comes,
/// each before its signal, and each signal is counted once.
#[test]
fn rail_that_is_cut_again_and_again_loses_and_doubles_nothing() {
    if !is_child() {
        let name = "hosts::rail_that_is_cut_again_and_again_loses_and_doubles_nothing";
        return all_succeed(start_apart(name, 2, &[("CROSSTIE_TCP_RAILS", "2")]));
    }
    part();
    let rank = Rank::open();
    let (own, peer) = (rank.device.rank, 1 - rank.device.rank);
    let (window, key, memory) = rank.window(2 * (PART + 8));
    let queue = rank.device.queue(peer, false);
    let mut talk = Talk { device: &rank.device, key, window, queue };
    let (cuts, is_over) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        if own == 0 {
            scope.spawn(|| cut(&cuts, &is_over));
        }
        let goes_on = || cuts.load(Ordering::Relaxed) < CUTS;
        let mut round = 1;
        while talk.round(round, own == 0 && goes_on()) {
            round += 1;
        }
        is_over.store(1, Ordering::Relaxed);
    });
    assert!(!rank.has_failed());
    rank.close(&[memory]);
}

/// So often is a rail cut.
const CUTS: u64 = 6;

/// Rounds of two ranks: each puts bytes of any length, and a word behind them, and signals.
struct Talk<'a> {
    device: &'a Device,
    key: u32,
    window: u64,
    queue: FakeQueue<'static>,
}

impl Talk<'_> {
    /// The upper half of the window is sent from. Whether rank 0 has said that there is another
    /// round.
    fn round(&mut self, round: u64, goes_on: bool) -> bool {
        let lengths = [1, 4096, 70_000, PART];
        let (own, peer) = (self.device.rank, 1 - self.device.rank);
        let length = |of: usize| lengths[(round as usize + of) % lengths.len()];
        let half = PART + 8;
        for at in 0..length(own) {
            // SAFETY: a byte of the own window that nobody else touches now.
            unsafe { ((self.window + (half + at) as u64) as *mut u8).write(byte(round, own, at)) };
        }
        let (arrived, signal) = self.device.signal(0);
        let remote = Address { key: self.key, offset: 0 };
        let mut data = [0; 28];
        data[..8].copy_from_slice(&(round << 1 | u64::from(goes_on)).to_le_bytes());
        let word = Address { key: self.key, offset: PART as u64 };
        self.queue.write(&Work::Write { remote, local: whole(self.key, half, length(own)) }, 0);
        self.queue.write(&Work::WriteInline { remote: word, data, bytes: 8 }, 0);
        let last = self.queue.post(&self.device.add(signal, 1));
        wait_until("a signal", || arrived.load(Ordering::Acquire) >= round);
        assert_eq!(arrived.load(Ordering::Acquire), round, "a signal was counted twice");
        let wrong = (0..length(peer))
            .find(|at| read::<u8>(self.window + *at as u64) != byte(round, peer, *at));
        assert_eq!(wrong, None, "round {round}");
        let told: u64 = read(self.window + PART as u64);
        assert_eq!(told >> 1, round);
        wait_until("completions", || self.queue.poll(last) == Some(Ok(())));
        self.meet(round);
        (own == 0 && goes_on) || (own == 1 && told & 1 == 1)
    }

    /// Both have read what has come.
    fn meet(&mut self, round: u64) {
        let (met, signal) = self.device.signal(1);
        let last = self.queue.post(&self.device.add(signal, 1));
        wait_until("the peer's look", || met.load(Ordering::Acquire) >= round);
        wait_until("a flush", || self.queue.poll(last) == Some(Ok(())));
    }
}

fn byte(round: u64, from: usize, at: usize) -> u8 {
    (round as usize * 13 + from * 7 + at * 31 + at / 255) as u8
}

/// A process that stands still confirms nothing, and the report says that an entry waits for it.
#[test]
fn report_says_that_an_entry_waits_for_another_host() {
    if !is_child() {
        let name = "hosts::report_says_that_an_entry_waits_for_another_host";
        return all_succeed(start_apart(name, 2, &[]));
    }
    part();
    let rank = Rank::open();
    let device = &rank.device;
    let (_, key, memory) = rank.window(4096);
    let (ready, signal) = device.signal(0);
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let mut queue = device.queue(1 - device.rank, false);
    if device.rank == 1 {
        let (part, whole) = (folder.join("pid-part"), folder.join("pid"));
        std::fs::write(&part, std::process::id().to_string()).unwrap();
        std::fs::rename(part, whole).unwrap();
        wait_until("the end", || ready.load(Ordering::Acquire) == 1);
        return rank.close(&[memory]);
    }
    wait_until("a process", || folder.join("pid").exists());
    let peer: i32 = std::fs::read_to_string(folder.join("pid")).unwrap().parse().unwrap();
    // SAFETY: no pointers; a process of this test.
    let tell = |signal| assert_eq!(unsafe { libc::kill(peer, signal) }, 0);
    tell(libc::SIGSTOP);
    let remote = Address { key, offset: 0 };
    let write = queue.post(&Work::Write { remote, local: whole(key, 64, 64) });
    let text = report_with("the rank runs on another host");
    tell(libc::SIGCONT);
    assert!(text.contains("which has confirmed all but 1 operation"), "{text}");
    wait_until("the write", || queue.poll(write) == Some(Ok(())));
    let last = queue.post(&device.add(signal, 1));
    wait_until("the add", || queue.poll(last) == Some(Ok(())));
    rank.close(&[memory]);
}

/// Rounds of [`put_with_a_signal_to_another_host_is_measured`].
const ROUNDS: u64 = 2_000;

/// With `XTIE_MEASURE=1`: how long a put of 8 B with a signal takes until the other rank sees the
/// signal, half of there and back.
#[test]
fn put_with_a_signal_to_another_host_is_measured() {
    if !is_child() {
        if std::env::var("XTIE_MEASURE").as_deref() != Ok("1") {
            return eprintln!("SKIP: measures with XTIE_MEASURE=1");
        }
        let name = "hosts::put_with_a_signal_to_another_host_is_measured";
        return print!("{}", all_said(start_apart(name, 2, &[])).concat());
    }
    part();
    let rank = Rank::open();
    let (_, key, memory) = rank.window(4096);
    let mut queue = rank.device.queue(1 - rank.device.rank, false);
    let (arrived, signal) = rank.device.signal(0);
    let remote = Address { key, offset: 0 };
    let mut times = Vec::new();
    for round in 1..=ROUNDS {
        let start = std::time::Instant::now();
        for turn in 0..2 {
            if turn == rank.device.rank {
                wait_until("room in a queue", || queue.has_room());
                queue.write(&Work::Write { remote, local: whole(key, 64, 8) }, 0);
                queue.post(&rank.device.add(signal, 1));
            } else {
                wait_until("a signal", || arrived.load(Ordering::Acquire) >= round);
            }
        }
        times.push(start.elapsed().as_nanos() as f64 / 2000.0);
    }
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times[part * times.len() / 100];
    if rank.device.rank == 0 {
        println!("put of 8 B with a signal: {:.1} us, {:.1} to {:.1}", at(50), at(10), at(90));
    }
    assert!(!rank.has_failed());
    rank.close(&[memory]);
}

#[test]
fn what_a_driver_refuses_one_host_fails_at_all_and_leaves_nothing() {
    if !is_child() {
        let name = "hosts::what_a_driver_refuses_one_host_fails_at_all_and_leaves_nothing";
        return all_succeed(start_apart(name, 2, &[]));
    }
    part();
    bad_input::a_driver_that_refuses();
}

#[test]
fn collective_calls_that_one_host_does_not_come_to_fail() {
    if !is_child() {
        let name = "hosts::collective_calls_that_one_host_does_not_come_to_fail";
        return bad_input::each_call_without_one(|what| start_apart(name, 2, what));
    }
    part();
    bad_input::one_does_not_come();
}

/// Lets a process that is stopped go on.
struct Stopped(i32);

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: only sends a signal.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

/// What goes to it waits, also behind what it has not taken; what goes to others does not.
#[test]
fn rank_that_stands_still_holds_up_no_other() {
    if !is_child() {
        let name = "hosts::rank_that_stands_still_holds_up_no_other";
        return all_succeed(start_apart(name, 4, &[]));
    }
    part();
    let rank = Rank::open();
    let (_, key, memory) = rank.window(4096);
    match rank.device.rank {
        0 => {
            let mut pid = None;
            wait_until("its number", || {
                let text = std::fs::read_to_string(bad_input::number_of_stopped());
                pid = text.ok().and_then(|text| text.parse().ok());
                pid.is_some()
            });
            let stopped = Stopped(pid.unwrap());
            let stat = format!("/proc/{}/stat", stopped.0);
            let is_stopped = || std::fs::read_to_string(&stat).unwrap().contains(") T ");
            wait_until("its stop", is_stopped);
            let [mut still, mut other] = [3, 2].map(|peer| rank.device.queue(peer, false));
            let remote = Address { key, offset: 0 };
            let put = Work::Write { remote, local: whole(key, 64, 64) };
            let puts = [still.post(&put), still.post(&put)];
            for _ in 0..20 {
                let put = other.post(&put);
                wait_until("a put to another rank", || other.poll(put) == Some(Ok(())));
            }
            assert_eq!(still.poll(puts[1]), None);
            drop(stopped);
            wait_until("the puts to it", || still.poll(puts[1]) == Some(Ok(())));
        }
        3 => bad_input::stand_still(),
        _ => {}
    }
    bad_input::leave(&rank);
    rank.close(&[memory]);
}
