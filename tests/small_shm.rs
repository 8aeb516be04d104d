//! Too little of anything is an error with a name, never a signal, and nothing is lost by it.

mod host_support;

use crosstie::base::units::{Bytes, Span};
use crosstie::connect::NoThread;
use crosstie::host::log::{Level, sink_set};
use crosstie::host::{
    AllocateError, ConnectError, DeviceKind, ListenError, OpenError, Options, RegisterError,
};
use host_support::deny::deny;
use host_support::roles;
use host_support::{Memory, Node, Place, joined, small, wait_both};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

#[test]
fn role() {
    roles::take(&[
        ("open_without_memory", open_without_memory),
        ("connect_without_memory", connect_without_memory),
        ("allocate_without_memory", allocate_without_memory),
        ("little_address_space", little_address_space),
        ("any_address_space", any_address_space),
        ("small_files", small_files),
        ("no_room_for_a_thread", no_room_for_a_thread),
        ("thread_that_is_refused", thread_that_is_refused),
        ("descriptors", no_descriptors),
        ("peer_descriptors", peer_without_descriptors),
        ("open_without_descriptors", open_without_descriptors),
        ("open_host_without_descriptors", open_host_without_descriptors),
        ("wrong_settings", wrong_settings),
        ("listen", listen),
        ("listen_beside_thief", listen_beside_thief),
        ("descriptors_thief", descriptors_thief),
        ("core_dump", core_dump),
        ("locked", locked),
    ]);
}

/// Runs a role to its end. A signal is a failure, and so is a panic.
fn alone(role: &str) {
    let status = roles::start(role, &[]).finished();
    assert!(status.success(), "{role}: {status}");
}

/// Both ends still move long and short messages.
fn works(a: &mut Node, b: &mut Node) {
    let (to_b, to_a) = joined(a, b);
    let from = Memory::new(a, Place::Private, 100_000);
    let into = Memory::new(b, Place::Private, 100_000);
    let shared = Memory::new(a, Place::Shared, 100_000);
    let places = [(&from, 8), (&from, 100_000), (&shared, 100_000)];
    for (from, length) in places {
        from.fill(0, length, 3);
        let receive = b.irecv(to_a, &[into.incoming(0, length, 0)]).unwrap();
        let send = a.isend(to_b, from.outgoing(0, length, 0)).unwrap();
        assert_eq!(wait_both(b, a, receive).result, Ok(()));
        assert_eq!(wait_both(a, b, send).result, Ok(()));
        into.verify(0, length, 3);
    }
    a.disconnect(to_b);
    b.disconnect(to_a);
}

fn open_without_memory() {
    let before = host_support::descriptors();
    assert!(deny(libc::SYS_fallocate, libc::ENOSPC));
    let error = Node::try_open(&small(2)).err();
    assert_eq!(error, Some(OpenError::System(libc::ENOSPC)));
    assert_eq!((host_support::descriptors(), host_support::mappings()), (before, 0));
}

#[test]
fn open_names_the_lack_of_memory() {
    alone("open_without_memory");
}

fn connect_without_memory() {
    let (mut a, b) = (Node::open(&small(2)), Node::open(&small(2)));
    let (_, handle) = b.shared.listen().unwrap();
    assert!(deny(libc::SYS_fallocate, libc::ENOSPC));
    for _ in 0..10 {
        let attempt = a.shared.connect(&handle);
        let error = attempt.and_then(|attempt| a.connected(attempt)).unwrap_err();
        assert_eq!(error, ConnectError::Memory);
    }
}

#[test]
fn connect_names_the_lack_of_memory() {
    alone("connect_without_memory");
}

fn allocate_without_memory() {
    let node = Node::open(&small(2));
    let kept = Memory::new(&node, Place::Private, 4096);
    assert!(deny(libc::SYS_fallocate, libc::ENOSPC));
    for _ in 0..200 {
        let error = node.shared.allocate(Bytes(1 << 20)).unwrap_err();
        assert_eq!(error, RegisterError::Fabric(libc::ENOSPC).into());
    }
    kept.release(&node);
}

#[test]
fn allocate_names_the_lack_of_memory() {
    alone("allocate_without_memory");
}

fn limit(which: libc::__rlimit_resource_t, to: u64) {
    let limit = libc::rlimit { rlim_cur: to, rlim_max: to };
    // SAFETY: one structure, valid for reads.
    assert_eq!(unsafe { libc::setrlimit(which, &limit) }, 0);
}

fn address_space_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    pages * 4096
}

/// The reserve of address space shrinks; when even that is too much, the error says so.
fn little_address_space() {
    limit(libc::RLIMIT_AS, address_space_bytes() + (440 << 20));
    let options = Options { heap_bytes: Bytes(64 << 30), ..small(2) };
    let mut a = Node::open(&options);
    a.shared.allocate(Bytes(4096)).unwrap();
    assert_eq!(a.shared.allocate(Bytes(32 << 30)).unwrap_err(), AllocateError::HeapFull);
    // what is left does for one without a heap, which cannot map the heap of the other: they were
    // not connected
    sink_set(Some((keep, 0)));
    let mut b = Node::open(&Options { heap_bytes: Bytes::ZERO, ..small(2) });
    works(&mut a, &mut b);
    sink_set(None);
    let said = SAID.lock().unwrap();
    let of_heap = "has no room for the heap of a peer";
    let named = said.iter().filter(|it| it.contains(of_heap) && it.contains("heap_bytes"));
    assert_eq!(named.count(), 1, "{said:?}");
}

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(_: usize, _: Level, text: &str) {
    SAID.lock().unwrap().push(text.to_string());
}

#[test]
fn little_address_space_shrinks_the_heap_and_leaves_shared_memory() {
    alone("little_address_space");
}

/// Opens with more and more room beside what this process has.
fn any_address_space() {
    host_support::set("CROSSTIE_SOCKET_IFNAME", "=lo");
    for device in [DeviceKind::Host, DeviceKind::SharedMemory] {
        let options = Options { device, heap_bytes: Bytes(64 << 30), ..small(2) };
        let mut enough = None;
        // by quarters of a MiB where an endpoint hardly opens, by four MiB beyond
        for room in (12..80).chain((80..1280).step_by(16)) {
            let most = address_space_bytes() + (room << 18);
            let all = libc::RLIM_INFINITY;
            // SAFETY: structures that are valid for reads; who may raise it again is its own user.
            let limited = |to| unsafe {
                let limit = libc::rlimit { rlim_cur: to, rlim_max: all };
                assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
            };
            limited(most);
            let node = Node::try_open(&options);
            let allocated = node.as_ref().map(|node| node.shared.allocate(Bytes(4096)).is_ok());
            let said = allocated.map_err(|error| error.to_string());
            limited(all);
            match (said, enough) {
                (Ok(allocated), _) => {
                    assert!(allocated, "{device:?}, {room} quarters");
                    enough = enough.or(Some(room));
                }
                (Err(text), None) => {
                    assert!(text.contains("ulimit -v"), "{device:?}, {room} quarters: {text}");
                }
                (Err(text), Some(enough)) => {
                    panic!("{device:?} opens with {enough} quarters, and not with {room}: {text}");
                }
            }
        }
        assert!(enough.is_some(), "{device:?} never opens");
    }
}

/// The heap took what the rest needs, at some sizes between others with which an endpoint opened.
#[test]
fn what_opens_in_little_address_space_opens_in_more() {
    // so that allocations count, too, which end the process where they fail
    let environment = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "65536")];
    let status = roles::start("any_address_space", &environment).finished();
    assert!(status.success(), "{status}");
}

/// The kernel says the same as of too many threads.
fn no_room_for_a_thread() {
    let most = address_space_bytes() + (512 << 10);
    limit(libc::RLIMIT_AS, most);
    let error = thread::Builder::new().spawn(|| {}).unwrap_err();
    assert_eq!(NoThread::of(&error), NoThread::AddressSpace(most));
}

#[test]
fn address_space_that_is_too_small_for_a_thread_is_no_limit_of_threads() {
    alone("no_room_for_a_thread");
}

/// As by a container's filter that does not know the call (`clone3`, Linux 5.3).
fn thread_that_is_refused() {
    assert!(deny(libc::SYS_clone3, libc::EPERM));
    assert!(deny(libc::SYS_clone, libc::EPERM));
    let error = Node::try_open(&small(2)).err().expect("an error");
    let wanted = crosstie::connect::OpenError::Thread(NoThread::Refused(libc::EPERM));
    assert_eq!(error, OpenError::Band(wanted));
    let text = error.to_string();
    assert!(text.contains("cannot start a thread") && text.contains("clone3"), "{text}");
}

#[test]
fn thread_that_the_kernel_refuses_is_named_and_not_the_side_band() {
    alone("thread_that_is_refused");
}

/// A limit on the size of files would end the process by a signal if it were met.
fn small_files() {
    limit(libc::RLIMIT_FSIZE, 64 << 20);
    let options = Options { heap_bytes: Bytes(64 << 30), ..small(2) };
    let (mut a, mut b) = (Node::open(&options), Node::open(&options));
    a.shared.allocate(Bytes(4096)).unwrap();
    assert_eq!(a.shared.allocate(Bytes(1 << 30)).unwrap_err(), AllocateError::HeapFull);
    works(&mut a, &mut b);
}

#[test]
fn limit_on_files_shrinks_the_heap_and_kills_nobody() {
    alone("small_files");
}

/// From now on this process can open no descriptor more. Says the limit.
fn descriptors_freeze() -> u64 {
    let next_free = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one structure, valid for writes.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut old) };
    let new = libc::rlimit { rlim_cur: next_free, ..old };
    // SAFETY: one structure, valid for reads.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &new) }, 0);
    next_free
}

fn descriptors_give_back() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one structure, valid for writes, then for reads.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

fn no_descriptors() {
    let (mut a, mut b) = (Node::open(&small(2)), Node::open(&small(2)));
    let (listener, handle) = b.shared.listen().unwrap();
    // with no room at all, and with room for a part of what a link needs
    for room in 0..4 {
        let held: Vec<_> = (0..room).map(|_| File::open("/dev/null").unwrap()).collect();
        let limit = descriptors_freeze();
        drop(held);
        let attempt = a.shared.connect(&handle);
        let error = attempt.and_then(|attempt| a.connected(attempt)).unwrap_err();
        let named = match error {
            ConnectError::Descriptors(told) => told == limit,
            // both ends are this process
            ConnectError::PeerDescriptors(_) => room > 0,
            _ => false,
        };
        assert!(named, "with {room}: {error}");
        if room == 0 {
            let refused = a.shared.listen().map(|_| ());
            assert_eq!(refused, Err(ListenError::Descriptors(limit)));
        }
        descriptors_give_back();
    }
    b.shared.listener_close(listener).unwrap();
    works(&mut a, &mut b);
}

#[test]
fn limit_of_descriptors_is_named_with_its_number_and_nothing_is_lost() {
    alone("descriptors");
}

fn peer_without_descriptors() {
    let mut peer = roles::start("listen", &[]);
    let handle = peer.line.hear::<128>();
    let mut node = Node::open(&small(2));
    let attempt = node.shared.connect(&handle).unwrap();
    let error = node.connected(attempt).unwrap_err();
    assert!(matches!(error, ConnectError::PeerDescriptors(_)), "{error}");
}

/// A thread of the program takes whatever descriptor comes free, so that the endpoint's own, with
/// which it turns peers away, is gone now and then.
fn listen_beside_thief() {
    let mut line = roles::line();
    let node = Node::open(&small(2));
    let (listener, handle) = node.shared.listen().unwrap();
    line.say(&handle);
    let dialled = |line: &mut roles::Line| {
        while !line.is_ready() {
            assert_eq!(node.shared.accept(listener), Ok(None));
            std::thread::yield_now();
        }
        line.hear::<1>()[0]
    };
    descriptors_freeze();
    let mut stolen = 0;
    while stolen < THEFTS {
        let done = AtomicBool::new(false);
        let (loot, said) = thread::scope(|scope| {
            let thief = scope.spawn(|| steal(&done));
            line.say(&[0]);
            let said = dialled(&mut line);
            done.store(true, Relaxed);
            (thief.join().unwrap(), said)
        });
        assert!(said == TOLD || loot.is_some(), "turned away, and not told so");
        stolen += u32::from(loot.is_some());
        if let Some(loot) = loot {
            let spare = loot.as_raw_fd();
            drop(loot);
            let watch = host_support::Watch::start();
            // SAFETY: a question about a number.
            while unsafe { libc::fcntl(spare, libc::F_GETFD) } < 0 {
                watch.look("an endpoint's spare descriptor");
            }
        }
        line.say(&[u8::from(stolen == THEFTS)]);
        assert_eq!(dialled(&mut line), TOLD);
    }
}

/// Takes a descriptor when there is one, unless it is `done` before.
fn steal(done: &AtomicBool) -> Option<File> {
    let attempts = std::iter::repeat_with(|| File::open("/dev/null").ok());
    attempts.take_while(|_| !done.load(Relaxed)).flatten().next()
}

/// How often it must have been robbed.
const THEFTS: u32 = 6;
const TOLD: u8 = 1;

fn descriptors_thief() {
    let mut peer = roles::start("listen_beside_thief", &[]);
    let handle = peer.line.hear::<128>();
    let deadline = Span::millis(200);
    let mut node = Node::open(&Options { handshake_deadline: deadline, ..small(2) });
    let mut last = 0;
    while last == 0 {
        [last] = peer.line.hear::<1>();
        let attempt = node.shared.connect(&handle).unwrap();
        let error = node.connected(attempt).unwrap_err();
        match error {
            ConnectError::PeerDescriptors(_) => peer.line.say(&[TOLD]),
            ConnectError::Deadline(_) => peer.line.say(&[0]),
            _ => panic!("{error}"),
        }
    }
    assert!(peer.finished().success());
}

/// One of a descriptor that another thread took was never opened again: from then on peers were
/// kept waiting for their deadline where there was no descriptor for them.
#[test]
fn spare_descriptor_that_was_taken_is_opened_again() {
    alone("descriptors_thief");
}

fn listen() {
    let mut line = roles::line();
    let node = Node::open(&small(2));
    let (listener, handle) = node.shared.listen().unwrap();
    descriptors_freeze();
    line.say(&handle);
    while !line.is_ready() {
        assert_eq!(node.shared.accept(listener), Ok(None));
        std::thread::yield_now();
    }
}

#[test]
fn peer_at_its_limit_of_descriptors_is_named() {
    alone("peer_descriptors");
}

fn open_without_descriptors() {
    without_descriptors(&small(2));
}

/// With room for all but the file of the host's number, that file was blamed: `mount /proc`.
fn open_host_without_descriptors() {
    host_support::set("CROSSTIE_SOCKET_IFNAME", "=lo");
    without_descriptors(&Options { device: DeviceKind::Host, ..small(2) });
}

/// Opens with room for no descriptor, for one, and so on until there is enough.
fn without_descriptors(options: &Options) {
    let before = host_support::descriptors();
    for room in 0..16 {
        let held: Vec<_> = (0..room).map(|_| File::open("/dev/null").unwrap()).collect();
        let limit = descriptors_freeze();
        drop(held);
        let error = Node::try_open(options).err();
        descriptors_give_back();
        match error {
            Some(OpenError::System(libc::EMFILE)) => {}
            Some(OpenError::Band(crosstie::connect::OpenError::Descriptors(told))) => {
                assert_eq!(told, limit);
            }
            // enough for all that an endpoint opens
            None => assert!(room >= 4, "{room}"),
            Some(other) => panic!("with {room}: {other}"),
        }
        assert_eq!((host_support::descriptors(), host_support::mappings()), (before, 0));
    }
}

#[test]
fn open_names_the_limit_of_descriptors_and_leaves_nothing() {
    alone("open_without_descriptors");
}

#[test]
fn open_that_cannot_read_the_number_of_its_host_names_the_limit_of_descriptors() {
    alone("open_host_without_descriptors");
}

fn wrong_settings() {
    for (name, value) in [
        ("CROSSTIE_SEND_RING_BYTES", "12345"),
        ("CROSSTIE_SEND_RING_BYTES", "18446744073709551615"),
        ("CROSSTIE_WRITE_RING_BYTES", "4294967296"),
        ("CROSSTIE_WRITE_RING_BYTES", "0"),
        ("CROSSTIE_EAGER_BYTES", "1000000000"),
        // it shrank, without a word
        ("CROSSTIE_HEAP_BYTES", "18446744073709551615"),
        ("CROSSTIE_HEAP_BYTES", "140737488355328"),
    ] {
        host_support::set(name, value);
        let error = Node::try_open(&small(1)).err();
        assert_eq!(error, Some(OpenError::Setting(name)), "{value}");
        host_support::unset(name);
    }
    host_support::set("CROSSTIE_HEAP_BYTES", "140737488355327");
    let node = Node::try_open(&small(1));
    assert!(node.is_ok(), "a heap that the address space lacks shrinks: {:?}", node.err());
}

#[test]
fn absurd_rings_and_heaps_are_refused_and_a_large_heap_shrinks() {
    alone("wrong_settings");
}

/// Address, flags and kilobytes of this process's mappings of shared memory of the library's, as
/// the kernel lists them.
fn mapped() -> Vec<(std::ops::Range<usize>, String)> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut found, mut ours) = (Vec::new(), None);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            ours = line.contains("crosstie-").then(|| number(start)..number(end));
        } else if first == "VmFlags:" {
            found.extend(ours.take().map(|range| (range, line.to_string())));
        }
    }
    found
}

/// Whether a core dump leaves out the page at an address.
fn is_hidden(address: usize) -> bool {
    let (_, flags) = mapped().into_iter().find(|(range, _)| range.contains(&address)).unwrap();
    flags.split_whitespace().any(|flag| flag == "dd")
}

/// Of all that is mapped, its own heap and rings and those of its peers, what it has allocated.
fn core_dump() {
    let (mut a, mut b) = (Node::open(&small(2)), Node::open(&small(2)));
    let (to_b, to_a) = joined(&mut a, &mut b);
    let memory = [(); 2].map(|()| Memory::new(&a, Place::Shared, 100_000));
    let starts = memory.each_ref().map(|memory| memory.start as usize);
    assert_eq!(starts.map(is_hidden), [false; 2]);
    memory[0].fill(0, 100_000, 1);
    let shown = |(range, flags): &(std::ops::Range<usize>, String)| {
        let hidden = flags.split_whitespace().any(|flag| flag == "dd");
        if hidden { 0 } else { range.len() }
    };
    let all = mapped();
    assert!(all.len() > 4, "two heaps and rings, each twice: {all:?}");
    assert_eq!(all.iter().map(shown).sum::<usize>(), 2 * 102_400, "{all:?}");
    let [first, second] = memory;
    first.release(&a);
    assert_eq!(starts.map(is_hidden), [true, false]);
    second.verify(0, 0, 0);
    a.disconnect(to_b);
    b.disconnect(to_a);
}

/// A heap of 1 GiB made a core of as much, and allocated it for that.
#[test]
fn core_dumps_have_what_is_allocated_and_nothing_else() {
    if !host_support::over_tcp() {
        alone("core_dump");
    }
}

/// Blocks of 512 bytes that this process's shared files have.
fn blocks() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours = files.filter(|file| {
        std::fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().contains("crosstie-"))
    });
    ours.filter_map(|file| std::fs::metadata(file.path()).ok()).map(|meta| meta.blocks()).sum()
}

/// All of this process's memory is locked, that of later, too.
fn locked() {
    let unlimited = libc::rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    // who may not raise it may not need to (CAP_IPC_LOCK)
    // SAFETY: one structure, valid for reads.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &unlimited) };
    let mut a = Node::open(&small(2));
    // SAFETY: a call without pointers.
    let is_locked = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } == 0;
    if !is_locked {
        return println!("SKIP: this user may not lock all its memory");
    }
    let mut b = Node::open(&small(2));
    works(&mut a, &mut b);
    assert!(blocks() < (64 << 20) / 512, "{} blocks of two heaps of 1 GiB", blocks());
}

/// It took the memory of all heaps at open, and at the first connection once more.
#[test]
fn process_that_locks_its_memory_takes_none_for_what_is_reserved() {
    alone("locked");
}
