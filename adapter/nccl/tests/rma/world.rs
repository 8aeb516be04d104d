//! Ranks: processes that play hosts, and threads in them.

use super::cuda_support::library_path;
use super::log::logger;
pub use super::log::{said, vanish_when_it_says};
use super::memory::{self, Area, Kind};
use super::table::{ADD, End, Raise, Table};
pub use super::wait::wait_until;
use crosstie::base::hash::fnv1a;
use crosstie_nccl::abi::table::Pointer;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const HOST_NUMBER: &str = "RMA_HOST";
const LAYOUT: &str = "RMA_LAYOUT";
const VERSION: &str = "RMA_VERSION";
const FOLDER: &str = "RMA_FOLDER";
const SOCKETS: &str = "CROSSTIE_SHM_DIR";

/// How ranks are spread, and how they reach each other.
#[derive(Copy, Clone)]
pub struct Layout {
    pub name: &'static str,
    pub hosts: usize,
    /// Ranks of each host, as threads of one process.
    pub each: usize,
    pub variables: &'static [(&'static str, &'static str)],
    /// Whether each process says that it is a host of its own.
    pub apart: bool,
}

const LO: (&str, &str) = ("CROSSTIE_SOCKET_IFNAME", "lo");
/// Threads of one process, over shared memory.
pub const THREADS: Layout = Layout {
    name: "threads",
    hosts: 1,
    each: 3,
    variables: &[LO, ("CROSSTIE_RAILS", "shm")],
    apart: false,
};
/// Processes of one host, over shared memory.
pub const PROCESSES: Layout = Layout {
    name: "processes",
    hosts: 2,
    each: 1,
    variables: &[LO, ("CROSSTIE_RAILS", "shm")],
    apart: false,
};
/// The same over TCP.
pub const TCP: Layout =
    Layout { name: "tcp", variables: &[LO, ("CROSSTIE_RAILS", "tcp")], ..PROCESSES };
/// Three processes, over shared memory and over TCP.
pub const THREE: Layout = Layout { name: "three", hosts: 3, ..PROCESSES };
pub const THREE_TCP: Layout = Layout { name: "three-tcp", hosts: 3, ..TCP };
/// Two hosts of two ranks each, with both.
pub const HOSTS: Layout =
    Layout { name: "hosts", hosts: 2, each: 2, variables: &[LO], apart: true };

/// Two hosts with nothing but RDMA ports between them, in the guest of `tests/vm` with its wires.
pub const VERBS: Layout = Layout {
    name: "verbs",
    hosts: 2,
    each: 1,
    variables: &[
        ("CROSSTIE_RAILS", "verbs"),
        ("CROSSTIE_RAILS_REQUIRED", "verbs"),
        ("NCCL_IB_TIMEOUT", "15"),
    ],
    apart: true,
};

impl Layout {
    pub fn ranks(&self) -> usize {
        self.hosts * self.each
    }
}

pub fn is_child() -> bool {
    std::env::var_os(HOST_NUMBER).is_some()
}

fn number(name: &str) -> usize {
    std::env::var(name).unwrap().parse().unwrap()
}

/// Starts a test of this program anew, as the processes of a layout; `more` has the variables of
/// each host beside the layout's.
pub fn start(test: &str, version: usize, layout: &Layout, more: &[&[(&str, &str)]]) -> Vec<Child> {
    start_by(test, version, layout, more, |_, program| Command::new(program))
}

/// The folder of a test's files, as its parent names it.
pub fn folder_of(test: &str, version: usize, layout: &Layout) -> PathBuf {
    let name = format!("{test}-{version}-{}", layout.name);
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("rma").join(name)
}

/// Where its processes have their sockets, whose paths must be short.
fn sockets_of(folder: &Path) -> PathBuf {
    let number = fnv1a(folder.as_os_str().as_encoded_bytes());
    std::env::temp_dir().join(format!("crosstie-rma-{number:x}"))
}

/// The same, by the command that runs a program as a host of a number.
pub fn start_by(
    test: &str,
    version: usize,
    layout: &Layout,
    more: &[&[(&str, &str)]],
    command: impl Fn(usize, &Path) -> Command,
) -> Vec<Child> {
    let program = std::env::current_exe().unwrap();
    let folder = folder_of(test, version, layout);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let sockets = sockets_of(&folder);
    let _ = std::fs::remove_dir_all(&sockets);
    std::fs::create_dir(&sockets).unwrap();
    let child = |host: usize| {
        let apart = layout.apart.then(|| ("CROSSTIE_NODE_ID", (host + 71).to_string()));
        command(host, &program)
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env("LD_LIBRARY_PATH", library_path())
            .env("CROSSTIE_GIN", "proxy")
            .env(HOST_NUMBER, host.to_string())
            .env(LAYOUT, format!("{} {}", layout.hosts, layout.each))
            .env(VERSION, version.to_string())
            .env(FOLDER, &folder)
            .env(SOCKETS, &sockets)
            // how much is mapped says what is left
            .envs([("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "131072")])
            .envs(layout.variables.iter().copied())
            .envs(apart)
            .envs(more.get(host).into_iter().flat_map(|more| more.iter().copied()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..layout.hosts).map(child).collect();
    let mut all = SOCKETS_OF.lock().unwrap();
    all.extend(children.iter().map(|child| (child.id(), sockets.clone())));
    children
}

/// Where each process has its sockets.
static SOCKETS_OF: Mutex<BTreeMap<u32, PathBuf>> = Mutex::new(BTreeMap::new());

pub fn all_succeed(what: &str, children: Vec<Child>) {
    let all = SOCKETS_OF.lock().unwrap().clone();
    let sockets: Vec<_> = children.iter().filter_map(|child| all.get(&child.id())).collect();
    for (host, child) in children.into_iter().enumerate() {
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        assert!(status.success(), "{what}, host {host}: {status}\n{text}");
        assert!(text.contains("1 passed"), "{what} is no test\n{text}");
        let times = text.lines().filter(|line| line.ends_with(" us"));
        times.for_each(|line| println!("{what}, host {host}: {line}"));
    }
    for folder in sockets {
        let _ = std::fs::remove_dir_all(folder); // another of the same has removed it
    }
}

/// Plays a story on all ranks, with each table and layout.
pub fn play(test: &str, versions: &[usize], layouts: &[Layout], story: fn(&mut Rank)) {
    if is_child() {
        return each_rank(|place| {
            let mut rank = Rank::open(place).expect("the ranks come together");
            story(&mut rank);
            rank.close();
        });
    }
    for version in versions {
        for layout in layouts {
            let what = format!("{test} with v{version}, {}", layout.name);
            let start_at = Instant::now();
            all_succeed(&what, start(test, *version, layout, &[]));
            println!("{what}: {} ms", start_at.elapsed().as_millis());
        }
    }
}

/// Plays a story at whose end the communicator has failed, and is closed.
pub fn play_to_the_end(test: &str, rounds: &[(usize, Layout)], story: fn(&mut Rank)) {
    if is_child() {
        return leaves_nothing(true, |place| {
            story(&mut Rank::open(place).expect("the ranks come together"));
        });
    }
    for (version, layout) in rounds {
        let what = format!("{test} with v{version}, {}", layout.name);
        all_succeed(&what, start(test, *version, layout, &[]));
    }
}

/// What this process holds.
#[derive(Debug)]
struct Held {
    /// Kinds of descriptors, and how many there are.
    descriptors: BTreeMap<String, usize>,
    /// Bytes, but for those of areas.
    mapped: usize,
}

/// More than the test itself maps in a story beside its areas.
const MAPPED_MORE: usize = 4 << 20;

impl Held {
    fn now() -> Held {
        let mut descriptors = BTreeMap::new();
        for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
            // the folder itself is gone
            let Ok(path) = std::fs::read_link(entry.path()) else { continue };
            let kind = path.to_string_lossy().split(':').next().unwrap().to_string();
            *descriptors.entry(kind).or_default() += 1;
        }
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = pages.split(' ').next().unwrap().parse().unwrap();
        Held { descriptors, mapped: pages * 4096 - memory::of_host() }
    }
}

/// Ranks connect, put and close; then they do what must fail, after which the process holds what it
/// held before. `all_stay`: no rank vanishes, so that no socket is left either.
pub fn leaves_nothing(all_stay: bool, story: impl Fn(Place) + Sync) {
    let is_quiet = || wait_until("the end of the plugin's threads", || threads().is_empty());
    each_rank(|place| {
        let rank = Rank::open(place).expect("the ranks come together");
        let area = Area::new(Kind::Host, 4096, place.rank);
        let name = rank.register(area.at(), area.number());
        rank.wait(rank.signal((place.rank + 1) % place.ranks, ((0, name), 1, ADD)));
        wait_until("a signal", || area.word(0) == 1);
        rank.close();
    });
    is_quiet();
    let before = Held::now();
    TURN.fetch_add(1, Ordering::Relaxed);
    each_rank(story);
    is_quiet();
    let after = Held::now();
    assert_eq!(after.descriptors, before.descriptors, "descriptors");
    assert!(after.mapped < before.mapped + MAPPED_MORE, "{before:?}, then {after:?}");
    let sockets = PathBuf::from(std::env::var_os(SOCKETS).unwrap());
    if all_stay {
        wait_until("the end of all sockets", || sockets.read_dir().unwrap().next().is_none());
    }
}

/// How often the ranks have come together before.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// Threads of the plugin that stand.
pub fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(name).map(|name| name.trim().to_string());
    names.filter(|name| name.starts_with("crosstie")).collect()
}

/// Where a rank is.
#[derive(Copy, Clone, Debug)]
pub struct Place {
    pub host: usize,
    pub rank: usize,
    pub ranks: usize,
}

/// Runs what each rank of this process does, in a thread of its own.
pub fn each_rank(story: impl Fn(Place) + Sync) {
    let layout = std::env::var(LAYOUT).unwrap();
    let (hosts, each) = layout.split_once(' ').unwrap();
    let (hosts, each): (usize, usize) = (hosts.parse().unwrap(), each.parse().unwrap());
    let host = number(HOST_NUMBER);
    std::thread::scope(|scope| {
        for at in 0..each {
            let place = Place { host, rank: host * each + at, ranks: hosts * each };
            let story = &story;
            scope.spawn(move || story(place));
        }
    });
}

/// Gives bytes to all ranks, and takes theirs; of a round that has a name.
pub fn gather(place: Place, round: &str, mine: &[u8]) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let turn = TURN.load(Ordering::Relaxed); // threads start after it
    let file = |rank: usize| folder.join(format!("{turn}-{round}-{rank}"));
    let part = folder.join(format!("{turn}-{round}-{}-part", place.rank));
    std::fs::write(&part, mine).unwrap();
    std::fs::rename(part, file(place.rank)).unwrap();
    let of = |rank: usize| {
        wait_until("another rank's bytes", || {
            let there = file(rank).exists();
            if !there {
                std::thread::sleep(Duration::from_millis(1));
            }
            there
        });
        std::fs::read(file(rank)).unwrap()
    };
    (0..place.ranks).map(of).collect()
}

/// A rank as NCCL is one.
pub struct Rank {
    pub table: Table,
    pub place: Place,
    pub init: Pointer,
    pub coll: Pointer,
    pub context: Pointer,
    rounds: usize,
}

pub const CONTEXTS: c_int = 2;

/// Listens, and gathers the handles of all.
pub fn acquainted(place: Place) -> (Table, Pointer, Pointer, Vec<[u8; 128]>) {
    acquainted_by(Table::of(number(VERSION)), place)
}

/// The same by another table than that of the test.
pub fn acquainted_by(table: Table, place: Place) -> (Table, Pointer, Pointer, Vec<[u8; 128]>) {
    // NCCL opens the plugin twice for a communicator
    let first = table.init(logger()).expect("init");
    assert!(table.devices() > 0, "no devices");
    assert_eq!(table.properties(0), (2, 1), "a proxy's device, of one receive");
    let init = table.init(logger()).expect("init");
    assert_eq!(table.finalize(first), 0);
    let mut handle = [0; 128];
    let listener = table.listen(init, &mut handle).expect("a listener");
    assert!(!listener.is_null());
    let handles = gather(place, "handle", &handle);
    let handles = handles.into_iter().map(|handle| handle.try_into().unwrap()).collect();
    (table, init, listener, handles)
}

impl Rank {
    /// Connects as NCCL does.
    pub fn open(place: Place) -> Result<Rank, c_int> {
        let (table, init, listener, mut handles) = acquainted(place);
        let connected = table.connect(&mut handles, place.rank, listener);
        assert_eq!(table.close_listen(listener), 0);
        let coll = connected.inspect_err(|_| assert_eq!(table.finalize(init), 0))?;
        let context = table.contexts(coll, CONTEXTS)?;
        Ok(Rank { table, place, init, coll, context, rounds: 0 })
    }

    pub fn own(&self) -> usize {
        self.place.rank
    }

    pub fn ranks(&self) -> usize {
        self.place.ranks
    }

    /// All ranks come here.
    pub fn meet(&mut self) {
        self.rounds += 1;
        gather(self.place, &format!("round-{}", self.rounds), &[]);
    }

    pub fn register(&self, at: (u64, usize), kind: c_int) -> Pointer {
        let memory = self.table.register(self.coll, at, kind).expect("a registration");
        assert!(!memory.is_null() && (memory as u64) < 1 << 63);
        memory
    }

    pub fn put(&self, number: c_int, ends: (End, usize, End), rank: usize) -> Pointer {
        self.put_signal(number, ends, rank, None)
    }

    pub fn put_signal(
        &self,
        number: c_int,
        ends: (End, usize, End),
        rank: usize,
        raise: Option<Raise>,
    ) -> Pointer {
        let number = if self.table.has_gets() { number } else { 0 };
        let by = (self.coll, self.context, number);
        let request = self.table.put(by, ends, rank as u32, raise).expect("a put");
        assert!(!request.is_null(), "a put has a request");
        request
    }

    /// A signal and nothing else.
    pub fn signal(&self, rank: usize, raise: Raise) -> Pointer {
        let nothing = (0, null_mut());
        self.put_signal(0, (nothing, 0, nothing), rank, Some(raise))
    }

    /// Waits for a request by tests alone.
    pub fn wait(&self, request: Pointer) {
        wait_until("the end of a request", || self.table.test(self.coll, request).expect("a test"));
    }

    pub fn close(mut self) {
        self.meet();
        assert!(!self.table.has_failed(self.context));
        self.end(&[]);
    }

    /// Ends in NCCL's order.
    pub fn end(&mut self, memories: &[Pointer]) {
        let table = self.table;
        assert_eq!(table.destroy(self.context), 0);
        for memory in memories {
            assert_eq!(table.deregister(self.coll, *memory), 0);
        }
        assert_eq!(table.close(self.coll), 0);
        assert_eq!(table.finalize(self.init), 0);
    }
}
