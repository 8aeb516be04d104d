//! Rails whose peers have endpoints of their own (`FI_EP_MSG`): how connections begin and end, and
//! that the strict fabric stops a program at each misuse of them.

mod libfabric_support;

use crosstie::fabric::{
    CloseError, Completion, DeregisterError, Domain as _, DownCause, Op, OpId, PostError, Provider,
};
use crosstie::provider::libfabric::sys::abi::{CqEntry, Fid};
use crosstie::provider::libfabric::sys::{
    Cq, Domain, Endpoint, Event, EventQueue, Fabric, GREETING_BYTES, Info, Library, Listener,
    Registration, Vector, numbers as n,
};
use crosstie::provider::libfabric::{Config, Hello, OpenError, PeerOpenError};
use libfabric_support::end::{End, WHICH as PROVIDER, join, pipe};
use libfabric_support::{
    Layout, OTHER, PEER, World, let_library_work, register, skip, strict, strict_config, write_raw,
};
use std::ffi::{CStr, c_void};
use std::mem::{ManuallyDrop, forget};
use std::process::Command;

/// Rounds that are longer than what was on its way takes.
const QUIET: u32 = 64;

/// Tries something over the strict fabric of both layouts, and over libfabric's own providers.
fn each(try_it: impl Fn(&mut World)) {
    for layout in [Layout::One, Layout::Two] {
        for provider in
            [c"strict-msg", c"strict-msg-short", c"strict-msg-bound", c"strict-msg-bound-short"]
        {
            let Some(config) = strict_config(layout, provider) else { continue };
            println!("over {provider:?}, {layout:?}");
            try_it(&mut World::open(&config).unwrap());
        }
    }
    for provider in [c"tcp@msg", c"net@msg"] {
        match World::open(&Config { provider: Some(provider), ..Config::DEFAULT }) {
            Ok(mut world) => {
                println!("over {provider:?}");
                try_it(&mut world);
            }
            Err(_) if provider == c"net@msg" => {} // newer versions have it in `tcp`
            Err(why) => skip(&format!("{provider:?}: {why}")),
        }
    }
}

fn quiet(world: &mut World) {
    for _ in 0..QUIET {
        world.poll();
        let_library_work();
    }
}

/// Both sides' hellos for [`OTHER`], which no side has joined yet.
fn prepared(world: &mut World, token: u32) -> [Hello; 2] {
    let mut token = token;
    world.rails.each_mut().map(|rail| {
        token += 1;
        rail.peer_prepare(OTHER, token).unwrap()
    })
}

/// The side that asks for the connection.
fn asker(hellos: &[Hello; 2]) -> usize {
    usize::from(hellos[1].name() < hellos[0].name())
}

fn down_cause(world: &World, side: usize) -> DownCause {
    let cause = world.seen[side].iter().find_map(|seen| match seen {
        Completion::PeerDown { cause, .. } => Some(*cause),
        _ => None,
    });
    cause.expect("an end that was told")
}

#[test]
fn shared_endpoints_are_taken_where_there_are_such() {
    let config = Config { provider: Some(c"tcp"), ..Config::DEFAULT };
    match World::open(&config) {
        Ok(world) => assert!(!world.rails[0].traits().connected),
        Err(why) => skip(&why.to_string()),
    }
    match World::open(&Config { provider: Some(c"tcp@msg"), ..config }) {
        Ok(world) => {
            assert!(world.rails[0].traits().connected);
            assert_eq!(world.rails[0].provider_name(), c"tcp");
        }
        Err(why) => skip(&why.to_string()),
    }
    // a name that no shared endpoint has
    let Some(config) = strict_config(Layout::One, c"strict-msg") else { return };
    assert!(World::open(&config).unwrap().rails[0].traits().connected);
    let Some(config) = strict_config(Layout::One, c"strict@msg") else { return };
    assert!(matches!(World::open(&config), Err(OpenError::NoOffer)));
}

/// A descriptor of its connections is closed twice, the second time by a thread of its own: by then
/// it was another connection's, which never came up.
#[test]
fn connected_sockets_are_refused_because_they_close_what_others_have_opened() {
    match World::open(&Config { provider: Some(c"sockets@msg"), ..Config::DEFAULT }) {
        Ok(_) => panic!("it was taken"),
        Err(OpenError::Library(why)) => skip(&why.to_string()),
        Err(OpenError::NoOffer) => println!("SKIP: this libfabric has no sockets"),
        Err(why) => assert!(why.to_string().contains("leave other descriptors"), "{why}"),
    }
}

/// Whoever joins first waits for the other, and says `Again` meanwhile.
fn one_side_first(world: &mut World) {
    for first in 0..2 {
        let hellos = prepared(world, 0x4000 * (first as u32 + 1));
        let second = 1 - first;
        world.rails[first].peer_connect(OTHER, &hellos[second]).unwrap();
        let kind = world.write_kind(first, 0, 4096);
        let op = Op { id: OpId(7), peer: OTHER, kind };
        assert_eq!(world.rails[first].post(&op, world.now), Err(PostError::Again));
        quiet(world);
        assert_eq!(world.rails[first].post(&op, world.now), Err(PostError::Again));
        world.rails[second].peer_connect(OTHER, &hellos[first]).unwrap();
        world.fill(first, 0, 4096, 0x61);
        let there = world.post_to(first, OTHER, kind);
        assert!(world.end(first, there) && world.holds(second, 0, 4096, 0x61));
        let back = world.post_to(second, OTHER, world.write_kind(second, 8192, 64));
        assert!(world.end(second, back));
        for side in 0..2 {
            assert_eq!(world.rails[side].peer_close(OTHER), Ok(()));
            world.seen[side].clear();
        }
    }
}

#[test]
fn side_that_joins_first_waits_for_the_other() {
    each(one_side_first);
}

/// A peer that is closed before it was joined, or before the other end has, leaves nothing.
fn never_connected(world: &mut World) {
    for round in 0..8u32 {
        let hellos = prepared(world, 0x1000 * (round + 1));
        for side in 0..2 {
            if round & 1 << side != 0 {
                world.rails[side].peer_connect(OTHER, &hellos[1 - side]).unwrap();
            }
        }
        if round & 4 != 0 {
            quiet(world);
        }
        for side in 0..2 {
            while world.rails[side].peer_close(OTHER) == Err(CloseError::Busy) {
                world.poll();
            }
        }
    }
    world.join(OTHER, 0x0100_0000);
    let id = world.post_to(0, OTHER, world.write_kind(0, 0, 64));
    assert!(world.end(0, id), "the number is of no use any more");
}

#[test]
fn peer_that_never_was_connected_is_closed() {
    each(never_connected);
}

fn stranger(world: &mut World) {
    let hellos = prepared(world, 0x6000);
    let asker = asker(&hellos);
    let strange = world.rails[1 - asker].health().strange;
    let forged = Hello { token: hellos[1 - asker].token ^ 1, ..hellos[1 - asker] };
    world.rails[asker].peer_connect(OTHER, &forged).unwrap();
    world.until("it is turned away", |world| world.downs(asker) == 1);
    assert_eq!(down_cause(world, asker), DownCause::Broken(libc::ECONNREFUSED));
    assert_eq!(world.rails[1 - asker].health().strange, strange + 1);
    let id = world.write(0, 0, 64);
    assert!(world.end(0, id), "a stranger took a peer with it");
    assert_eq!(world.downs(1 - asker), 0);
}

#[test]
fn stranger_is_turned_away_and_peers_go_on() {
    each(stranger);
}

#[test]
fn peer_where_nobody_listens_ends_with_the_code() {
    let config = Config { provider: Some(c"tcp@msg"), ..Config::DEFAULT };
    let mut world = match World::open(&config) {
        Ok(world) => world,
        Err(why) => return skip(&why.to_string()),
    };
    let hellos = prepared(&mut world, 0x6000);
    // an address of internet: family, port, host. Who has the lower one asks
    let mut nobody = hellos[1];
    nobody.name[2..4].copy_from_slice(&u16::MAX.to_be_bytes());
    world.rails[0].peer_connect(OTHER, &nobody).unwrap();
    world.until("it is refused", |world| world.downs(0) == 1);
    assert_eq!(down_cause(&world, 0), DownCause::Broken(libc::ECONNREFUSED));
    let id = world.write(0, 0, 64);
    assert!(world.end(0, id));
}

/// Nobody tells the other end but the connection itself.
fn closing(world: &mut World) {
    let id = world.write(0, 0, 64);
    assert!(world.end(0, id));
    world.join(OTHER, 0x7000);
    assert_eq!(world.rails[0].peer_close(PEER), Ok(()));
    world.until("the end is told", |world| world.downs(1) == 1);
    let id = world.post_to(1, OTHER, world.write_kind(1, 0, 64));
    assert!(world.end(1, id), "the end of one peer took the other with it");
    world.rails[0].reopen().unwrap();
    world.until("the end is told", |world| world.downs(1) == 2);
    assert!(!world.rails[1].health().is_lost());
}

#[test]
fn closed_connection_is_heard_of_at_the_other_end() {
    each(closing);
}

/// Fences side 0, which alone is polled if `alone`, and says what the other then hears.
fn fenced(world: &mut World, alone: bool) -> DownCause {
    let fence = world.fence(0);
    while alone && world.result(0, fence).is_none() {
        world.poll_side(0);
    }
    assert!(world.end(0, fence));
    // both an event and what is in the queue are there for the next poll
    world.pass(std::time::Duration::from_secs(1));
    world.until("the end is told", |world| world.downs(1) == 1);
    down_cause(world, 1)
}

fn left(world: &mut World) {
    let id = world.write(0, 0, 64);
    assert!(world.end(0, id));
    assert_eq!(fenced(world, false), DownCause::Closed);
}

/// Its end is that of the connection, which says nothing of why: it counted as a failure.
#[test]
fn peer_that_fences_in_good_order_has_not_failed() {
    each(left);
}

/// Before the word is read the library finds out that nobody is there, by what is posted.
#[test]
fn peer_that_left_has_not_failed_although_its_connections_end_shows_first() {
    let config = Config { provider: Some(c"tcp@msg"), ..Config::DEFAULT };
    let mut failed = 0;
    for posts in [0, 1, 2, 8] {
        let mut world = match World::open(&config) {
            Ok(world) => world,
            Err(why) => return skip(&why.to_string()),
        };
        let id = world.write(1, 0, 64);
        assert!(world.end(1, id));
        let fence = world.fence(0);
        while world.result(0, fence).is_none() {
            world.poll_side(0);
        }
        for number in 0..posts {
            let op = Op { id: OpId(number), peer: PEER, kind: world.write_kind(1, 0, 65536) };
            let _ = world.rails[1].post(&op, world.now);
        }
        world.until("the end is told", |world| world.downs(1) == 1);
        assert_eq!(down_cause(&world, 1), DownCause::Closed, "{posts} posts");
        let is_first = |it: &Completion| matches!(it, Completion::Done { result: Err(_), .. });
        let first = world.seen[1]
            .iter()
            .find(|it| is_first(it) || matches!(it, Completion::PeerDown { .. }));
        failed += u32::from(first.is_some_and(is_first));
    }
    println!("it showed first in {failed} of 4 rounds");
}

fn left_alone(world: &mut World) {
    let id = world.write(0, 0, 64);
    assert!(world.end(0, id));
    fenced(world, true);
}

/// There is no room for that word at first.
#[test]
fn peer_that_must_wait_to_say_that_it_leaves_has_not_failed() {
    let Some(config) = strict_config(Layout::One, c"strict-msg-short") else { return };
    // every second post finds none
    for ops in 1..5 {
        let mut world = World::open(&config).unwrap();
        for _ in 0..ops {
            let id = world.write(0, 0, 64);
            assert!(world.end(0, id));
        }
        assert_eq!(fenced(&mut world, false), DownCause::Closed, "after {ops} writes");
    }
}

/// Nobody waits for a peer that takes nothing.
#[test]
fn fence_in_good_order_holds_although_its_peer_does_not_poll() {
    each(left_alone);
}

fn failed(world: &mut World) {
    let id = world.write(0, 0, 64);
    assert!(world.end(0, id));
    world.write(1, 0, 65536);
    world.rails[0].peer_fail(PEER, DownCause::Failed);
    let cause = fenced(world, false);
    assert!(matches!(cause, DownCause::Broken(_)), "{cause:?}");
    // nor is the end of a rail that was opened anew
    world.seen[1].clear();
    world.join(OTHER, 0x7000);
    let id = world.post_to(0, OTHER, world.write_kind(0, 0, 64));
    assert!(world.end(0, id));
    world.post_to(1, OTHER, world.write_kind(1, 0, 65536));
    world.rails[0].reopen().unwrap();
    world.until("the end is told", |world| world.downs(1) == 1);
    assert!(matches!(down_cause(world, 1), DownCause::Broken(_)));
}

#[test]
fn peer_that_fails_never_counts_as_closed() {
    each(failed);
}

/// Both sides close at a time.
fn both_left(world: &mut World) {
    let id = world.write(0, 0, 64);
    assert!(world.end(0, id));
    let fences = [0, 1].map(|side| world.fence(side));
    for (side, fence) in fences.into_iter().enumerate() {
        assert!(world.end(side, fence));
        let is_failure = |it: &Completion| {
            matches!(it, Completion::PeerDown { cause: DownCause::Broken(_), .. })
        };
        assert!(!world.seen[side].iter().any(is_failure), "{:?}", world.seen[side]);
    }
}

#[test]
fn peers_that_leave_each_other_have_not_failed() {
    each(both_left);
}

/// Sockets of this process that have this address as their own.
fn sockets_at(name: &[u8]) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let has = |entry: std::io::Result<std::fs::DirEntry>| {
        let number: libc::c_int = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let mut own = [0u8; 64];
        let mut length = own.len() as libc::socklen_t;
        // SAFETY: room for as many bytes; whatever the descriptor is by now.
        let got = unsafe { libc::getsockname(number, own.as_mut_ptr().cast(), &mut length) };
        (got == 0 && &own[..length as usize] == name).then_some(())
    };
    all.filter_map(has).count()
}

/// Who was asked closes before it has looked: the library has taken the connection off its
/// listener, or will at the next look, and is told that it is refused. Nobody else closes its
/// socket: endpoints that came and went left one behind in every twentieth life.
fn asked_and_closed(world: &mut World) {
    let mut token = 0x6000;
    for has_looked in [false, true] {
        token += 0x100;
        let hellos = prepared(world, token);
        let asker = asker(&hellos);
        let asked = 1 - asker;
        let name = hellos[asked].name().to_vec();
        world.rails[asker].peer_connect(OTHER, &hellos[asked]).unwrap();
        if has_looked {
            world.pass(std::time::Duration::from_secs(1));
            world.poll_side(asked);
        }
        for _ in 0..QUIET {
            world.poll_side(asker);
            let_library_work();
        }
        world.rails[asked].reopen().unwrap();
        assert_eq!(sockets_at(&name), 0, "a look before: {has_looked}");
        world.until("the asker hears of it", |world| world.downs(asker) > 0);
        world.rails[asker].reopen().unwrap();
        for side in 0..2 {
            for peer in [PEER, OTHER] {
                while world.rails[side].peer_close(peer) == Err(CloseError::Busy) {
                    world.poll();
                }
            }
            world.seen[side].clear();
        }
        world.join(PEER, token + 0x10);
        let id = world.write(0, 0, 64);
        assert!(world.end(0, id));
    }
}

#[test]
fn requests_that_come_before_a_rail_closes_leave_no_socket() {
    each(asked_and_closed);
}

/// What the library never gives back ends with its endpoint, and what it holds is free.
#[test]
fn fence_ends_what_the_library_keeps() {
    for provider in [c"strict-msg-deaf", c"strict-msg-bound-deaf"] {
        if let Some(config) = strict_config(Layout::One, provider) {
            kept(World::open(&config).unwrap());
        }
    }
}

fn kept(mut world: World) {
    let mut ids: Vec<OpId> = (0..4).map(|at| world.write(0, 4096 * at, 4096)).collect();
    let (key, domain) = (world.keys[0], world.rails[0].domain());
    quiet(&mut world);
    assert_eq!(domain.deregister(key), Err(DeregisterError::Busy));
    let fence = world.fence(0);
    assert!(world.end(0, fence));
    ids.retain(|id| !world.end(0, *id));
    assert_eq!(ids.len(), 4, "an op that nobody carried out has no success");
    assert_eq!(domain.deregister(key), Ok(()));
    assert_eq!(world.rails[0].health().orphans, 0);
    assert_eq!(world.rails[0].peer_close(PEER), Ok(()));
}

#[test]
fn queue_that_fails_ends_every_connection_and_they_can_be_made_again() {
    for provider in [c"strict-msg-overrun", c"strict-msg-bound-overrun"] {
        if let Some(config) = strict_config(Layout::One, provider) {
            overrun(World::open(&config).unwrap());
        }
    }
}

fn overrun(mut world: World) {
    while world.downs(0) == 0 {
        let kind = world.write_kind(0, 0, 4096);
        let _ = world.rails[0].post(&Op { id: OpId(1), peer: PEER, kind }, world.now);
        world.poll();
    }
    let fence = world.fence(0);
    assert!(world.end(0, fence));
    world.rails[0].reopen().unwrap();
    world.until("the other end hears of it", |world| world.downs(1) == 1);
    world.rails[1].reopen().unwrap();
    for side in 0..2 {
        while world.rails[side].peer_close(PEER) == Err(CloseError::Busy) {
            world.poll();
        }
    }
    world.join(PEER, 0x9000);
    let id = world.write(0, 0, 64);
    assert!(world.end(0, id));
}

#[test]
fn connected_and_shared_ends_refuse_each_other() {
    let configs = [c"strict-msg", c"strict"].map(|provider| strict_config(Layout::One, provider));
    let [Some(connected), Some(shared)] = configs else { return };
    let mut worlds = [connected, shared].map(|config| World::open(&config).unwrap());
    let hellos = worlds.each_mut().map(|world| world.rails[0].peer_prepare(OTHER, 9).unwrap());
    for (world, hello) in worlds.iter_mut().zip([hellos[1], hellos[0]]) {
        let refused = world.rails[0].peer_connect(OTHER, &hello);
        assert_eq!(refused, Err(PeerOpenError::Format));
    }
}

/// The connection says it, without a word from the side band.
fn killed(provider: &str) {
    let Some((mut child, mut end)) = join(provider) else { return };
    println!("over {provider}");
    let first = end.write(0, 4096, None);
    assert!(end.ends_well(first));
    child.kill().unwrap();
    child.wait().unwrap();
    let is_down = |seen: &Completion| matches!(seen, Completion::PeerDown { .. });
    end.until("the end is told", |end| end.seen.iter().any(is_down));
    assert_eq!(end.rail.peer_close(PEER), Ok(()));
    let key = end.key;
    assert_eq!(end.rail.domain().deregister(key), Ok(()), "a dead peer holds it");
}

#[test]
fn end_of_a_killed_process_is_heard() {
    if std::env::var_os(PROVIDER).is_none() {
        ["tcp@msg", "net@msg"].into_iter().for_each(killed);
    }
}

/// A block that is registered stays so while its rail's connections come and go.
fn come_and_go(world: &mut World) {
    let start = world.blocks[0];
    let key = register(&world.rails[0], start, 4096).unwrap();
    for round in 1..20 {
        let id = world.write(0, 0, 4096);
        assert!(world.end(0, id));
        for side in 0..2 {
            let fence = world.fence(side);
            assert!(world.end(side, fence));
            while world.rails[side].peer_close(PEER) == Err(CloseError::Busy) {
                world.poll();
            }
        }
        world.join(PEER, 0x1_0000 * round);
    }
    assert_eq!(world.rails[0].domain().deregister(key), Ok(()));
}

#[test]
fn regions_outlive_connections() {
    each(come_and_go);
}

/// In the guest of tests/vm: all of it over queue pairs of soft-RoCE.
#[test]
fn verbs_connections_begin_and_end_as_others_do() {
    if std::env::var_os("XTIE_VM").is_none() {
        return println!("SKIP: RDMA devices are in the guest of tests/vm alone");
    }
    let config = Config { provider: Some(c"verbs@msg"), ..Config::DEFAULT };
    let ways = [one_side_first, never_connected, stranger, closing, come_and_go];
    let ends = [left, left_alone, both_left, failed];
    for scenario in ways.into_iter().chain(ends) {
        scenario(&mut World::open(&config).unwrap());
    }
    killed("verbs@msg");
}

// ---------------------------------------------------------------- misuses

/// Says in a child which misuse it is for.
const WHICH: &str = "XTIE_CONNECTED_MISUSE";

/// One who listens and one who asks, by hand. Nothing is closed but by who tries what that does.
struct Fixture {
    library: Library,
    info: ManuallyDrop<Info>,
    fabric: ManuallyDrop<Fabric>,
    domain: ManuallyDrop<Domain>,
    cq: ManuallyDrop<Cq>,
    events: ManuallyDrop<EventQueue>,
    listener: ManuallyDrop<Listener>,
    name: Vec<u8>,
}

const GREETING: [u8; GREETING_BYTES] = [7; GREETING_BYTES];

impl Fixture {
    fn new(provider: &CStr) -> Fixture {
        let library = Library::load(strict(Layout::One).unwrap()).unwrap();
        let all = Fixture::offers(&library, provider);
        // SAFETY: a list of two, the first of which shares receives.
        let info = unsafe { library.copy(all.get().next) }.unwrap();
        let fabric = Fabric::open(&library, &info).unwrap();
        let domain = Domain::open(&fabric, &info).unwrap();
        let cq = Cq::open(&domain, 4).unwrap();
        let events = EventQueue::open(&library, &fabric, 4).unwrap();
        let listener = Listener::open(&fabric, &info, &events).unwrap();
        let mut name = [0; 64];
        let length = listener.name(&mut name).unwrap();
        Fixture {
            library,
            info: ManuallyDrop::new(info),
            fabric: ManuallyDrop::new(fabric),
            domain: ManuallyDrop::new(domain),
            cq: ManuallyDrop::new(cq),
            events: ManuallyDrop::new(events),
            listener: ManuallyDrop::new(listener),
            name: name[..length].to_vec(),
        }
    }

    fn offers(library: &Library, provider: &CStr) -> Info {
        let mut hints = library.hints().unwrap();
        hints.set_provider(provider.to_bytes());
        let raw = hints.get_mut();
        raw.caps = n::MSG | n::RMA;
        raw.mode = n::CONTEXT | n::CONTEXT2 | n::RX_CQ_DATA;
        // SAFETY: the library allocates all parts of hints.
        unsafe {
            (*raw.ep_attr).ep_type = n::EP_MSG;
            (*raw.domain_attr).mr_mode = !0;
        }
        library.offers(&hints).unwrap()
    }

    /// An endpoint that will ask.
    fn asking(&mut self) -> Endpoint {
        let Fixture { domain, info, cq, events, name, .. } = self;
        Endpoint::open_for(domain, info, cq, events, Some(name)).unwrap()
    }

    /// One that asks, and its request.
    fn asked(&mut self) -> (Endpoint, Info) {
        let endpoint = self.asking();
        endpoint.connect(&self.name, &GREETING).unwrap();
        let Some(Event::Request(request, GREETING)) = self.events.read().unwrap() else {
            panic!("a request")
        };
        (endpoint, request)
    }

    /// Two that are connected with each other.
    fn connected(&mut self) -> Vec<Endpoint> {
        let (asking, mut request) = self.asked();
        let granting = self.granting(&mut request);
        granting.accept().unwrap();
        forget(request);
        for _ in 0..2 {
            assert!(matches!(self.events.read().unwrap(), Some(Event::Connected(_))));
        }
        vec![asking, granting]
    }

    /// Posts a write of 64 bytes to the block of another end, which is as long as ours.
    fn write(&self, from: &Endpoint, near: &Bound, named: (u64, u64)) {
        let descriptor = near.registration.descriptor();
        let memory = near.memory as *mut c_void;
        // SAFETY: leaked memory; a wrong use of it stops the program.
        let _ = unsafe { write_raw(from, memory, descriptor, near.context, named) };
    }

    /// The endpoint of a request.
    fn granting(&mut self, request: &mut Info) -> Endpoint {
        Endpoint::open_for(&self.domain, request, &self.cq, &self.events, None).unwrap()
    }
}

/// A use without a fault goes through.
fn right_use(mut at: Fixture) {
    let (asking, mut request) = at.asked();
    let granting = at.granting(&mut request);
    granting.accept().unwrap();
    for endpoint in [&asking, &granting] {
        let event = at.events.read().unwrap();
        assert!(matches!(event, Some(Event::Connected(of)) if of == endpoint.as_ptr()));
    }
    let (refused, second) = at.asked();
    at.listener.reject(second);
    let event = at.events.read().unwrap();
    assert!(matches!(event, Some(Event::Failed(of, ..)) if of == refused.as_ptr()));
    asking.shutdown();
    let event = at.events.read().unwrap();
    assert!(matches!(event, Some(Event::Shutdown(of)) if of == granting.as_ptr()));
    drop((asking, granting, refused, request));
    // SAFETY: each is dropped once, in this order.
    unsafe {
        ManuallyDrop::drop(&mut at.listener);
        ManuallyDrop::drop(&mut at.cq);
        ManuallyDrop::drop(&mut at.events);
        ManuallyDrop::drop(&mut at.domain);
        ManuallyDrop::drop(&mut at.fabric);
        ManuallyDrop::drop(&mut at.info);
    }
    println!("went through");
}

/// Providers of the strict fabric: without registrations of an endpoint's own, and with them.
const MSG: &CStr = c"strict-msg";
const BOUND: &CStr = c"strict-msg-bound";

/// A misuse, over what, and what the strict fabric says.
type Misuse = (&'static str, &'static CStr, fn(Fixture), &'static str);

const MISUSES: &[Misuse] = &[
    (
        "op before the connection stands",
        MSG,
        |mut at| {
            let (asking, mut request) = at.asked();
            let granting = at.granting(&mut request);
            granting.accept().unwrap();
            // SAFETY: bytes of a constant.
            let _ = unsafe { asking.port().inject(GREETING.as_ptr() as u64, 8, 0) };
        },
        "an op posted to an endpoint that is not connected",
    ),
    (
        "receive on a closed endpoint",
        MSG,
        |mut at| {
            let endpoint = at.asking();
            let port = endpoint.port();
            drop(endpoint);
            let (range, nothing) = ((GREETING.as_ptr() as u64, 8), std::ptr::null_mut());
            // SAFETY: the strict fabric keeps what was closed, to know it.
            let _ = unsafe { port.receive(range, nothing, nothing) };
        },
        "an op posted to a closed endpoint",
    ),
    (
        "vector of a connected endpoint",
        MSG,
        |at| {
            let vector = Vector::open(&at.domain, 4).unwrap();
            let mut info = ManuallyDrop::into_inner(at.info);
            info.get_mut().dest_addr = at.name.as_ptr().cast_mut().cast();
            let _ = Endpoint::open(&at.domain, &info, &at.cq, &vector);
        },
        "an endpoint joined to what it has no use for",
    ),
    (
        "granted unasked",
        MSG,
        |mut at| {
            let _ = at.asking().accept();
        },
        "a connection granted that nobody asked for",
    ),
    (
        "asked for twice",
        MSG,
        |mut at| {
            let (asking, _request) = at.asked();
            let _ = asking.connect(&at.name, &GREETING);
        },
        "a connection asked for twice, or of an endpoint that cannot",
    ),
    (
        "answered twice",
        MSG,
        |mut at| {
            let (_asking, mut request) = at.asked();
            let _granting = at.granting(&mut request);
            at.listener.reject(request);
        },
        "a request for a connection answered twice",
    ),
    (
        "never answered",
        MSG,
        |mut at| {
            let _asked = at.asked();
            // SAFETY: dropped once.
            unsafe { ManuallyDrop::drop(&mut at.listener) };
        },
        "a request for a connection that was never answered",
    ),
    (
        "never looked at",
        MSG,
        |mut at| {
            let asking = at.asking();
            asking.connect(&at.name, &GREETING).unwrap();
            // SAFETY: dropped once.
            unsafe { ManuallyDrop::drop(&mut at.listener) };
        },
        "a request for a connection that was never looked at",
    ),
    (
        "event queue before its endpoints",
        MSG,
        |mut at| {
            // SAFETY: dropped once.
            unsafe { ManuallyDrop::drop(&mut at.events) };
        },
        "an event queue closed before its endpoints",
    ),
    (
        "network before its event queue",
        MSG,
        |at| {
            let other = Fabric::open(&at.library, &at.info).unwrap();
            let events = EventQueue::open(&at.library, &other, 4).unwrap();
            drop(other);
            drop(events);
        },
        "a network closed before its event queues and listeners",
    ),
    (
        "request's offer never freed",
        MSG,
        |mut at| {
            let other = Fabric::open(&at.library, &at.info).unwrap();
            let events = EventQueue::open(&at.library, &other, 4).unwrap();
            let listener = Listener::open(&other, &at.info, &events).unwrap();
            let mut name = [0; 64];
            let length = listener.name(&mut name).unwrap();
            let asking = at.asking();
            asking.connect(&name[..length], &GREETING).unwrap();
            let Some(Event::Request(mut request, _)) = events.read().unwrap() else { panic!() };
            let granting = at.granting(&mut request);
            forget(request);
            drop((granting, asking, listener, events));
            drop(other);
        },
        "an offer that came with a request and was never freed",
    ),
    (
        "receives of others",
        MSG,
        |at| {
            let mut info = Fixture::offers(&at.library, c"strict-msg");
            let name = Some(&at.name[..]);
            let _ = Endpoint::open_for(&at.domain, &mut info, &at.cq, &at.events, name);
        },
        "an endpoint without receives of its own",
    ),
    (
        "asks nobody",
        MSG,
        |mut at| {
            let Fixture { domain, info, cq, events, .. } = &mut at;
            let _ = Endpoint::open_for(domain, info, cq, events, None);
        },
        "an endpoint that is to ask for a connection, of nobody",
    ),
    (
        "source bound to another peer",
        BOUND,
        |mut at| {
            let ends = at.connected();
            let [near, far] = [1, 1].map(|end| Bound::to(&at, Some(&ends[end])));
            at.write(&ends[0], &near, far.named());
        },
        "a registration used on an endpoint that it is not bound to",
    ),
    (
        "receive bound to another peer",
        BOUND,
        |mut at| {
            let ends = at.connected();
            let bound = Bound::to(&at, Some(&ends[1]));
            let descriptor = bound.registration.descriptor();
            // SAFETY: leaked memory.
            let _ =
                unsafe { ends[0].port().receive((bound.memory, 64), descriptor, bound.context) };
        },
        "a registration used on an endpoint that it is not bound to",
    ),
    (
        "key of another peer",
        BOUND,
        |mut at| {
            let (ends, others) = (at.connected(), at.connected());
            let near = Bound::to(&at, Some(&ends[0]));
            let far = Bound::to(&at, Some(&others[1]));
            at.write(&ends[0], &near, far.named());
            let _ = at.cq.read(&mut [CqEntry::NOTHING; 4]);
        },
        "a key used on an endpoint that its registration is not bound to",
    ),
    (
        "key of a connection before",
        BOUND,
        |mut at| {
            let before = at.connected();
            let old = Bound::to(&at, Some(&before[1]));
            let named = old.named();
            old.registration.close().unwrap();
            drop(before);
            while at.events.read().unwrap().is_some() {}
            let ends = at.connected();
            let near = Bound::to(&at, Some(&ends[0]));
            at.write(&ends[0], &near, named);
            let _ = at.cq.read(&mut [CqEntry::NOTHING; 4]);
        },
        "a key that names no registration",
    ),
    (
        "bound to nothing",
        BOUND,
        |mut at| {
            let ends = at.connected();
            let near = Bound::to(&at, None);
            at.write(&ends[0], &near, (0, 0));
        },
        "a registration used on an endpoint that it is not bound to",
    ),
    (
        "bound and not enabled",
        BOUND,
        |mut at| {
            let ends = at.connected();
            let near = Bound::to(&at, None);
            bind_only(&near, &ends[0]);
            at.write(&ends[0], &near, (0, 0));
        },
        "a registration used that was not enabled",
    ),
    (
        "key of what was not enabled",
        BOUND,
        |mut at| {
            let ends = at.connected();
            let (near, far) = (Bound::to(&at, Some(&ends[0])), Bound::to(&at, None));
            bind_only(&far, &ends[1]);
            at.write(&ends[0], &near, far.named());
            let _ = at.cq.read(&mut [CqEntry::NOTHING; 4]);
        },
        "a key used of a registration that was not enabled",
    ),
    (
        "bound to two peers",
        BOUND,
        |mut at| {
            let ends = at.connected();
            bind_only(&Bound::to(&at, Some(&ends[0])), &ends[1]);
        },
        "a registration bound twice, or after it was enabled",
    ),
    (
        "source closed",
        BOUND,
        |mut at| {
            let ends = at.connected();
            let near = Bound::to(&at, Some(&ends[0]));
            let closed = near.registration.descriptor();
            near.registration.close().unwrap();
            let context = near.context;
            // SAFETY: leaked memory.
            let _ = unsafe { ends[0].port().send((near.memory, 256), closed, 0, context) };
        },
        "a descriptor of a registration that was closed",
    ),
    (
        "source closed under an op",
        BOUND,
        |mut at| {
            let ends = at.connected();
            let [near, far] = [0, 1].map(|end| Bound::to(&at, Some(&ends[end])));
            at.write(&ends[0], &near, far.named());
            near.registration.close().unwrap();
            let _ = at.cq.read(&mut [CqEntry::NOTHING; 4]);
        },
        "a registration closed while an op used it",
    ),
    (
        "target closed under an op",
        BOUND,
        |mut at| {
            let ends = at.connected();
            let [near, far] = [0, 1].map(|end| Bound::to(&at, Some(&ends[end])));
            at.write(&ends[0], &near, far.named());
            far.registration.close().unwrap();
            let _ = at.cq.read(&mut [CqEntry::NOTHING; 4]);
        },
        "a key that names no registration",
    ),
    (
        "peer's endpoint before its registrations",
        BOUND,
        |mut at| {
            let ends = at.connected();
            Bound::to(&at, Some(&ends[0]));
            drop(ends);
        },
        "an endpoint closed before its registrations",
    ),
    (
        "one key for two peers",
        c"strict-msg-bound-short",
        |mut at| {
            let ends = at.connected();
            for end in &ends {
                Bound::with_key(&at, Some(end), 7);
            }
        },
        "a key used twice",
    ),
    (
        "key of a registration that was closed",
        c"strict-msg-bound-short",
        |mut at| {
            let ends = at.connected();
            for _ in 0..2 {
                Bound::with_key(&at, Some(&ends[0]), 7).registration.close().unwrap();
            }
        },
        "a key used twice",
    ),
];

/// A use of registrations that belong to each endpoint without a fault goes through.
fn right_use_bound(mut at: Fixture) {
    let mut ends = at.connected();
    let [near, far] = [0, 1].map(|end| Bound::to(&at, Some(&ends[end])));
    at.write(&ends[0], &near, far.named());
    while at.cq.read(&mut [CqEntry::NOTHING; 4]).unwrap_or(0) == 0 {}
    for (bound, end) in [near, far].iter().zip(ends.drain(..)) {
        bound.registration.close().unwrap();
        drop(end);
    }
    println!("went through");
}

const RIGHT_BOUND: &str = "right, bound";
const ACCESS: u64 = n::SEND | n::RECV | n::READ | n::WRITE | n::REMOTE_READ | n::REMOTE_WRITE;
const BYTES: usize = 4096;

/// Memory, its registration, and a context for an op.
struct Bound {
    registration: Registration,
    memory: u64,
    context: *mut c_void,
}

impl Bound {
    /// To this endpoint, and enabled.
    fn to(at: &Fixture, endpoint: Option<&Endpoint>) -> Bound {
        Bound::with_key(at, endpoint, 0)
    }

    fn with_key(at: &Fixture, endpoint: Option<&Endpoint>, key: u64) -> Bound {
        let leaked = |bytes| Box::leak(vec![0u64; bytes / 8].into_boxed_slice()).as_mut_ptr();
        let (memory, context) = (leaked(BYTES) as u64, leaked(64).cast());
        let raw = endpoint.map(Endpoint::as_ptr);
        // SAFETY: leaked memory, and an endpoint that stays open, or whose end is what is tried.
        let made = unsafe { at.domain.register((memory, BYTES), ACCESS, key, raw) };
        Bound { registration: made.unwrap(), memory, context }
    }

    /// Key and address.
    fn named(&self) -> (u64, u64) {
        (self.registration.key(), self.memory)
    }
}

/// Binds, and does not enable.
fn bind_only(bound: &Bound, endpoint: &Endpoint) {
    let fid = bound.registration.into_raw() as *mut Fid;
    // SAFETY: an open registration; the endpoint may be what is tried.
    let code = unsafe { (*(*fid).ops).bind.unwrap()(fid, endpoint.as_ptr().cast(), 0) };
    assert_eq!(code, 0);
}

/// Runs in children alone: one of a misuse, or one end of a connection that is killed.
#[test]
fn child() {
    if let Ok(provider) = std::env::var(PROVIDER) {
        let (mut to, mut from) = (pipe(3), std::io::stdin());
        let Some(mut end) = End::open(&provider, 0x5eed_0002, &mut to, &mut from) else { return };
        loop {
            end.poll_politely(); // until it is killed
        }
    }
    let Ok(which) = std::env::var(WHICH) else { return };
    if which == "right" {
        return right_use(Fixture::new(MSG));
    }
    if which == RIGHT_BOUND {
        return right_use_bound(Fixture::new(BOUND));
    }
    let (_, provider, commit, _) =
        MISUSES.iter().find(|misuse| misuse.0 == which).expect("a misuse of the list");
    commit(Fixture::new(provider));
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
    for which in ["right", RIGHT_BOUND] {
        let (passed, said) = run_child(which);
        assert!(passed && said.contains("went through"), "a right use was stopped: {said}");
    }
    for (which, _, _, word) in MISUSES {
        let (passed, said) = run_child(which);
        assert!(!passed, "{which}: not stopped: {said}");
        assert!(!said.contains("went through"), "{which}: stopped too late: {said}");
        assert!(said.contains(&format!("STRICT: {word}\n")), "{which}: {said}");
    }
}
