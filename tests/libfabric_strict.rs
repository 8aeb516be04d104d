//! The strict fabric stops a program at each misuse of libfabric: each is committed once, in a
//! process of its own. So the conformance suite over it proves that the rail commits none.

mod libfabric_support;

use crosstie::provider::libfabric::sys::abi::{CqEntry, CqErrEntry, CqErrRoom};
use crosstie::provider::libfabric::sys::calls::FidEp;
use crosstie::provider::libfabric::sys::{
    Cq, Domain, Endpoint, EventQueue, Fabric, Info, Library, Registration, Vector, numbers as n,
};
use libfabric_support::{Layout, error_write, skip, strict, write_raw};
use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;
use std::process::Command;

const ACCESS: u64 = n::SEND | n::RECV | n::READ | n::WRITE | n::REMOTE_READ | n::REMOTE_WRITE;
const BYTES: usize = 4096;
/// Says in a child which misuse it is for.
const WHICH: &str = "XTIE_STRICT_MISUSE";

/// Two endpoints of a domain, which know each other, with memory of their own. Nothing is closed
/// but by who tries what that does.
struct Fixture {
    library: Library,
    info: ManuallyDrop<Info>,
    fabric: ManuallyDrop<Fabric>,
    domain: ManuallyDrop<Domain>,
    ends: [End; 2],
}

struct End {
    cq: ManuallyDrop<Cq>,
    vector: ManuallyDrop<Vector>,
    endpoint: ManuallyDrop<Endpoint>,
    memory: *mut u8,
    context: *mut c_void,
}

fn leaked(bytes: usize) -> *mut u8 {
    Box::leak(vec![0u64; bytes / 8].into_boxed_slice()).as_mut_ptr().cast()
}

/// Pages that nobody has unmapped yet.
fn mapped(bytes: usize) -> *mut u8 {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}

impl Fixture {
    fn new(layout: Layout, provider: &CStr) -> Fixture {
        let library = Library::load(strict(layout).unwrap()).unwrap();
        let mut hints = library.hints().unwrap();
        hints.set_provider(provider.to_bytes());
        let raw = hints.get_mut();
        raw.caps = n::MSG | n::RMA;
        raw.mode = n::CONTEXT | n::CONTEXT2 | n::RX_CQ_DATA;
        // SAFETY: the library allocates all parts of hints.
        unsafe {
            (*raw.ep_attr).ep_type = n::EP_RDM;
            (*raw.domain_attr).mr_mode = !0;
        }
        let info = library.offers(&hints).unwrap();
        let fabric = Fabric::open(&library, &info).unwrap();
        let domain = Domain::open(&fabric, &info).unwrap();
        let ends = [(); 2].map(|()| {
            let cq = Cq::open(&domain, 4).unwrap();
            let vector = Vector::open(&domain, 4).unwrap();
            let endpoint = Endpoint::open(&domain, &info, &cq, &vector).unwrap();
            End {
                cq: ManuallyDrop::new(cq),
                vector: ManuallyDrop::new(vector),
                endpoint: ManuallyDrop::new(endpoint),
                memory: leaked(BYTES),
                context: leaked(1024).cast(),
            }
        });
        for (from, to) in [(0, 1), (1, 0)] {
            let mut name = [0; 64];
            let length = ends[to].endpoint.name(&mut name).unwrap();
            assert_eq!(ends[from].vector.insert(&name[..length]).unwrap(), 0);
        }
        Fixture {
            library,
            info: ManuallyDrop::new(info),
            fabric: ManuallyDrop::new(fabric),
            domain: ManuallyDrop::new(domain),
            ends,
        }
    }

    fn raw(&self, end: usize) -> *mut FidEp {
        self.ends[end].endpoint.as_ptr()
    }

    fn register(&self, end: usize, key: u64, bound: Option<usize>) -> Registration {
        let range = (self.ends[end].memory as u64, BYTES);
        // SAFETY: leaked memory; endpoints that stay open, or whose end is what is tried.
        unsafe { self.domain.register(range, ACCESS, key, bound.map(|end| self.raw(end))) }.unwrap()
    }

    /// Posts a write of 64 bytes from end 0 to end 1.
    fn write(&self, descriptor: *mut c_void, key: u64, address: u64) {
        let end = &self.ends[0];
        let memory = end.memory.cast();
        let named = (key, address);
        // SAFETY: leaked memory; a wrong use of it stops the program.
        unsafe { write_raw(&end.endpoint, memory, descriptor, end.context, named) }.unwrap();
    }

    fn receive(&self, end: usize, registration: Registration, context: *mut c_void) {
        let end = &self.ends[end];
        let range = (end.memory as u64, 64);
        // SAFETY: leaked memory.
        unsafe { end.endpoint.port().receive(range, registration.descriptor(), context) }.unwrap();
    }

    fn poll(&self, end: usize) -> usize {
        self.ends[end].cq.read(&mut [CqEntry::NOTHING; 4]).unwrap_or(0)
    }

    fn far(&self) -> u64 {
        self.ends[1].memory as u64
    }
}

/// A use without a fault goes through, so that what stops the others is their fault.
fn right_use(mut at: Fixture) {
    let (near, far) = (at.register(0, 0, Some(0)), at.register(1, 0, Some(1)));
    at.write(near.descriptor(), far.key(), at.far());
    assert_eq!((at.poll(1), at.poll(0)), (0, 1));
    near.close().unwrap();
    far.close().unwrap();
    for end in &mut at.ends {
        // SAFETY: each is dropped once, in this order.
        unsafe {
            ManuallyDrop::drop(&mut end.endpoint);
            ManuallyDrop::drop(&mut end.cq);
            ManuallyDrop::drop(&mut end.vector);
        }
    }
    // SAFETY: as above.
    unsafe {
        ManuallyDrop::drop(&mut at.domain);
        ManuallyDrop::drop(&mut at.fabric);
        ManuallyDrop::drop(&mut at.info);
    }
    println!("went through");
}

/// A misuse: how it is called, the provider that it is of, and what the strict fabric says.
type Misuse = (&'static str, &'static CStr, fn(Fixture), &'static str);

const MISUSES: &[Misuse] = &[
    (
        "bound elsewhere",
        c"strict",
        |at| {
            let (near, far) = (at.register(0, 0, Some(1)), at.register(1, 0, Some(1)));
            at.write(near.descriptor(), far.key(), at.far());
        },
        "a registration used on an endpoint that it is not bound to",
    ),
    (
        "key of another endpoint",
        c"strict",
        |at| {
            let (near, far) = (at.register(0, 0, Some(0)), at.register(1, 0, Some(0)));
            at.write(near.descriptor(), far.key(), at.far());
            at.poll(1);
        },
        "a key used on an endpoint that its registration is not bound to",
    ),
    (
        "of memory that has gone",
        c"strict-domain",
        |mut at| {
            at.ends[0].memory = mapped(BYTES);
            // SAFETY: a mapping of this one's own.
            unsafe { libc::munmap(at.ends[0].memory.cast(), BYTES) };
            at.register(0, 1, None);
        },
        "a registration of memory that is not mapped",
    ),
    (
        "not bound at all",
        c"strict",
        |at| {
            let (near, far) = (at.register(0, 0, None), at.register(1, 0, Some(1)));
            at.write(near.descriptor(), far.key(), at.far());
        },
        "a registration used on an endpoint that it is not bound to",
    ),
    (
        "not enabled",
        c"strict",
        |at| {
            let near = at.register(0, 0, None);
            bind_only(near, at.raw(0));
            at.write(near.descriptor(), 0, at.far());
        },
        "a registration used that was not enabled",
    ),
    (
        "no descriptor",
        c"strict",
        |at| {
            let far = at.register(1, 0, Some(1));
            at.write(std::ptr::null_mut(), far.key(), at.far());
        },
        "a descriptor that is none",
    ),
    (
        "descriptor of other memory",
        c"strict",
        |mut at| {
            let near = at.register(0, 0, Some(0));
            at.ends[0].memory = leaked(BYTES);
            at.write(near.descriptor(), 0, at.far());
        },
        "a descriptor of other memory",
    ),
    (
        "descriptor of what was closed",
        c"strict",
        |at| {
            let near = at.register(0, 0, Some(0));
            let descriptor = near.descriptor();
            near.close().unwrap();
            at.write(descriptor, 0, at.far());
        },
        "a descriptor of a registration that was closed",
    ),
    (
        "endpoint before its registrations",
        c"strict",
        |mut at| {
            at.register(0, 0, Some(0));
            // SAFETY: dropped once.
            unsafe { ManuallyDrop::drop(&mut at.ends[0].endpoint) };
        },
        "an endpoint closed before its registrations",
    ),
    (
        "queue before its endpoint",
        c"strict",
        |mut at| {
            // SAFETY: dropped once.
            unsafe { ManuallyDrop::drop(&mut at.ends[0].cq) };
        },
        "a completion queue closed before its endpoint",
    ),
    (
        "event queue before its endpoint",
        c"strict",
        |at| {
            let events = EventQueue::open(&at.fabric, 4).unwrap();
            let (End { cq, vector, .. }, mut joined) = (&at.ends[0], Some(events));
            let joins = (&**cq, &**vector);
            let endpoint =
                Endpoint::open_watched(&at.domain, &at.info, joins, &mut joined, false).unwrap();
            drop(joined.expect("it can be joined"));
            drop(endpoint);
        },
        "an event queue closed before its endpoints",
    ),
    (
        "network before its event queue",
        c"strict",
        |at| {
            let other = Fabric::open(&at.library, &at.info).unwrap();
            let events = EventQueue::open(&other, 4).unwrap();
            drop(other);
            drop(events);
        },
        "a network closed before its event queues",
    ),
    (
        "domain before its objects",
        c"strict",
        |mut at| {
            // SAFETY: dropped once.
            unsafe { ManuallyDrop::drop(&mut at.domain) };
        },
        "a domain closed before what was made of it",
    ),
    (
        "network before its domain",
        c"strict",
        |mut at| {
            // SAFETY: dropped once.
            unsafe { ManuallyDrop::drop(&mut at.fabric) };
        },
        "a network closed before its domains",
    ),
    (
        "key twice",
        c"strict-domain",
        |at| {
            at.register(0, 7, None);
            at.register(1, 7, None);
        },
        "a key used twice",
    ),
    (
        "key once more",
        c"strict-domain",
        |at| {
            at.register(0, 7, None).close().unwrap();
            at.register(1, 7, None);
        },
        "a key used twice",
    ),
    (
        "key of nothing",
        c"strict",
        |at| {
            let near = at.register(0, 0, Some(0));
            at.write(near.descriptor(), 77, at.far());
            at.poll(1);
        },
        "a key that names no registration",
    ),
    (
        "outside of a region",
        c"strict",
        |at| {
            let (near, far) = (at.register(0, 0, Some(0)), at.register(1, 0, Some(1)));
            at.write(near.descriptor(), far.key(), at.far() + BYTES as u64 - 63);
            at.poll(1);
        },
        "a key used for other memory",
    ),
    (
        "op after close",
        c"strict",
        |mut at| {
            let near = at.register(0, 0, Some(1));
            // SAFETY: dropped once; the strict fabric keeps what was closed, to know it.
            unsafe { ManuallyDrop::drop(&mut at.ends[0].endpoint) };
            at.write(near.descriptor(), 0, at.far());
        },
        "an op posted to a closed endpoint",
    ),
    (
        "completion without room",
        c"strict",
        |at| {
            let (near, far) = (at.register(0, 0, Some(0)), at.register(1, 0, Some(1)));
            for op in 0..5 {
                // SAFETY: contexts side by side in leaked memory.
                let context = unsafe { at.ends[0].context.byte_add(op * 64) };
                at.receive(0, near, context);
            }
            for _ in 0..5 {
                let end = &at.ends[1];
                // SAFETY: leaked memory.
                unsafe { end.endpoint.port().inject(end.memory as u64, 8, 0) }.unwrap();
            }
            let _ = far;
            at.ends[0].cq.read(&mut []).unwrap_or(0);
        },
        "a completion without room: it is lost",
    ),
    (
        "context twice",
        c"strict",
        |at| {
            let near = at.register(0, 0, Some(0));
            at.receive(0, near, at.ends[0].context);
            at.receive(0, near, at.ends[0].context);
        },
        "a context used by two ops at a time",
    ),
    (
        "context written to",
        c"strict",
        |at| {
            let (near, far) = (at.register(0, 0, Some(0)), at.register(1, 0, Some(1)));
            at.write(near.descriptor(), far.key(), at.far());
            // SAFETY: leaked memory.
            unsafe { at.ends[0].context.cast::<u64>().write(1) };
            at.poll(1);
        },
        "a context written to while its op was in flight",
    ),
    (
        "two threads at a queue",
        c"strict-completion",
        at_once,
        "two threads at one completion queue",
    ),
    ("two threads in a domain", c"strict-one", at_once, "two threads in one domain"),
    (
        "registration twice closed",
        c"strict",
        |at| {
            let near = at.register(0, 0, Some(0));
            near.close().unwrap();
            near.close().unwrap();
        },
        "a registration closed twice",
    ),
];

/// Misuses of a library of 2.x by who knows the structures of 1.17.
const MISUSES_OF_TWO: &[Misuse] = &[
    (
        "field of 2.x",
        c"strict",
        |mut at| {
            // SAFETY: an offer of the library's, which has something behind what 1.17 has.
            unsafe { (*at.info.get_mut().domain_attr.cast::<[u64; APPENDED + 1]>())[APPENDED] = 0 };
            let _ = Domain::open(&at.fabric, &at.info);
        },
        "a field of libfabric 2 written by a caller of 1.17",
    ),
    (
        "older getinfo",
        c"strict",
        |_| call_older(c"fi_getinfo", c"FABRIC_1.3"),
        "a function of an older library's, which takes shorter structures",
    ),
    (
        "older dupinfo",
        c"strict",
        |_| call_older(c"fi_dupinfo", c"FABRIC_1.3"),
        "a function of an older library's, which takes shorter structures",
    ),
    (
        "older freeinfo",
        c"strict",
        |_| call_older(c"fi_freeinfo", c"FABRIC_1.3"),
        "a function of an older library's, which takes shorter structures",
    ),
    (
        "older fabric",
        c"strict",
        |_| call_older(c"fi_fabric", c"FABRIC_1.0"),
        "a function of an older library's, which takes shorter structures",
    ),
];

/// Words of 64 bits that `fi_domain_attr` of 1.17 has.
const APPENDED: usize = 24;

/// Calls what a program gets that was linked with an older library.
fn call_older(name: &CStr, version: &CStr) {
    let file = strict(Layout::Two).unwrap();
    // SAFETY: a library that stays, and names that end with a zero.
    let symbol = unsafe {
        let handle = libc::dlopen(file.as_ptr(), libc::RTLD_NOW);
        libc::dlvsym(handle, name.as_ptr(), version.as_ptr())
    };
    assert!(!symbol.is_null(), "{name:?} of {version:?}");
    // SAFETY: each stops the program, whatever it is given.
    let call: extern "C" fn() = unsafe { std::mem::transmute(symbol) };
    call();
}

/// Binds memory to an endpoint in one thread, and polls its queue in another, without turns.
fn at_once(at: Fixture) {
    let (range, domain) = ((at.ends[0].memory as u64, BYTES), at.domain.as_raw());
    let endpoint = at.raw(0) as u64;
    std::thread::spawn(move || {
        // SAFETY: it is never closed.
        let domain = unsafe { Domain::from_raw(domain) };
        loop {
            // SAFETY: leaked memory, and an endpoint that is never closed.
            let made = unsafe { domain.register(range, ACCESS, 0, Some(endpoint as *mut FidEp)) };
            made.unwrap().close().unwrap();
        }
    });
    loop {
        at.poll(0);
    }
}

/// Binds and does not enable.
fn bind_only(registration: Registration, endpoint: *mut FidEp) {
    use crosstie::provider::libfabric::sys::abi::Fid;
    let fid = registration.into_raw() as *mut Fid;
    // SAFETY: an open registration and an open endpoint.
    let code = unsafe { (*(*fid).ops).bind.unwrap()(fid, endpoint.cast(), 0) };
    assert_eq!(code, 0);
}

/// Runs in children alone.
#[test]
fn child() {
    let Ok(which) = std::env::var(WHICH) else { return };
    if which == "right" {
        return right_use(Fixture::new(Layout::One, c"strict"));
    }
    if which == "right of two" {
        return right_use(Fixture::new(Layout::Two, c"strict"));
    }
    let of = |(layout, list): (Layout, &'static [Misuse])| {
        list.iter().find(|misuse| misuse.0 == which).map(|misuse| (layout, misuse))
    };
    let lists = [(Layout::One, MISUSES), (Layout::Two, MISUSES_OF_TWO)];
    let (layout, (_, provider, commit, _)) =
        lists.into_iter().find_map(of).expect("a misuse of the lists");
    commit(Fixture::new(layout, provider));
    println!("went through");
}

/// Whether a child with that misuse ended by itself, and what it said.
fn run_child(which: &str) -> (bool, String) {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(WHICH, which)
        .output()
        .unwrap();
    let said = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn each_misuse_is_stopped_with_the_word_for_it() {
    if strict(Layout::One).is_none() {
        return skip("the strict fabric cannot be built");
    }
    for which in ["right", "right of two"] {
        let (passed, said) = run_child(which);
        assert!(passed && said.contains("went through"), "a right use was stopped: {said}");
    }
    for (which, _, _, word) in MISUSES.iter().chain(MISUSES_OF_TWO) {
        let (passed, said) = run_child(which);
        assert!(!passed, "{which}: not stopped: {said}");
        assert!(!said.contains("went through"), "{which}: stopped too late: {said}");
        assert!(said.contains(&format!("STRICT: {word}\n")), "{which}: {said}");
    }
}

/// A caller of 1.17 that writes behind what it knows is found out.
#[test]
fn library_of_two_is_read_as_far_as_it_is_known() {
    let Some(file) = strict(Layout::Two) else { return };
    let library = Library::load(file).unwrap();
    assert_eq!(library.version(), n::version(2, 6));
    let hints = library.hints().unwrap();
    assert!(library.offers(&hints).is_err(), "empty hints want no reliable datagrams");
}

/// One of 2.x writes a field more of a failure than 1.17 has.
#[test]
fn failure_of_a_library_of_two_has_room() {
    const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;
    #[repr(C)]
    struct Place {
        room: CqErrRoom,
        beside: [u64; 4],
    }
    #[repr(C)]
    struct Short {
        entry: CqErrEntry,
        beside: [u64; 4],
    }
    let Some(file) = strict(Layout::Two) else { return };
    let mut place = Place { room: CqErrRoom::NOTHING, beside: [UNTOUCHED; 4] };
    error_write(file, (&raw mut place.room).cast());
    assert_eq!(place.room.entry.err, libc::EIO);
    assert_eq!(place.beside, [UNTOUCHED; 4], "written to what is not the failure's");
    // who has no room for it finds it in what is not the failure's
    let mut short = Short { entry: place.room.entry, beside: [UNTOUCHED; 4] };
    error_write(file, (&raw mut short).cast());
    assert_ne!(short.beside[0], UNTOUCHED);
    assert_eq!(short.beside[1..], [UNTOUCHED; 3]);
}
