//! A path of libfabric that goes silent: of what is posted to one peer nothing ends, and nothing
//! arrives. The rail gives that peer up and leaves the others of the same endpoint alone; every
//! message arrives once, byte for byte. Over the strict fabric, which holds a path's ops back and
//! carries them out when it is let go.
#![allow(dead_code)] // of the shared parts

mod host_support;
mod libfabric_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::fabric::{Completion, DownCause, Op, OpId, PeerLife, PostError, Provider};
use crosstie::host::log::{Level, sink_set};
use crosstie::host::{DeviceKind, Options};
use crosstie::provider::libfabric::{Complaint, Config};
use crosstie::transport::LaneView;
use crosstie::transport::rail::LaneState;
use host_support::flow::Flow;
use host_support::pair::{alone, disconnect_both};
use host_support::{Node, Place, Watch, joined, small};
use libfabric_support::{
    Layout, OTHER, PEER, World, fill, is_silent, silence, silence_of_send, strict, strict_config,
    strict_environment,
};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Eight looks of a second.
const SILENCE: Span = Span::millis(8000);
const LOOK: Duration = Duration::from_secs(1);

/// Two rails that are each other's peer twice, each a connection of its own, and the path of the
/// first is silent: something was written there.
fn silent_world(provider: &'static CStr) -> Option<World> {
    let config = strict_config(Layout::One, provider)?;
    let mut world = World::open(&Config { silence_max: SILENCE, ..config }).unwrap();
    world.write_well();
    world.join(OTHER, 0x9000);
    assert!(world.exchanges(OTHER));
    silence(config.library, true);
    let write = world.write(0, 0, 4096);
    assert!(is_silent(config.library) && world.result(0, write).is_none());
    Some(world)
}

/// Looks at peers so often, with what the program above finds out of those that are doubted.
fn looks(world: &mut World, count: u32, polls: bool) -> u32 {
    let mut doubts = 0;
    for _ in 0..count {
        world.pass(LOOK);
        world.poll();
        while let Some((peer, within)) = world.rails[0].doubted() {
            assert!(within <= Span::millis(2000), "{within:?}");
            doubts += 1;
            if polls {
                world.rails[0].peer_polls(peer);
            }
        }
    }
    doubts
}

#[test]
fn peer_of_which_nothing_ends_although_it_polls_is_given_up() {
    let _alone = alone();
    let Some(mut world) = silent_world(c"strict-domain") else { return };
    // both peers are at the other end of the path, and both were sent something
    assert_eq!(looks(&mut world, 8, true), 14, "a doubt of each peer at each look but the first");
    assert_eq!(world.downs(0), 0, "the first look may be right behind the post");
    looks(&mut world, 3, true);
    assert_eq!(world.downs(0), 2);
    let is_end = |seen: &Completion| {
        let timed_out = DownCause::Broken(libc::ETIMEDOUT);
        matches!(seen, Completion::PeerDown { peer: PEER, cause } if *cause == timed_out)
    };
    assert!(world.seen[0].iter().any(is_end), "{:?}", world.seen[0]);
    let report = world.rails[0].error(PEER).expect("a report");
    assert!(report.silent >= SILENCE, "{report}");
    assert!(!world.holds(1, 0, 4096, 0x77));
    silence(strict(Layout::One).unwrap(), false);
}

/// It computes, or is stopped: providers of software end nothing then.
#[test]
fn peer_whose_program_does_not_poll_is_not_given_up() {
    let _alone = alone();
    let Some(mut world) = silent_world(c"strict-domain") else { return };
    // the path is that of both peers, and the other was sent messages
    assert_eq!(looks(&mut world, 50, false), 49 * 2);
    assert_eq!((world.downs(0), world.downs(1)), (0, 0));
    let library = strict(Layout::One).unwrap();
    silence(library, false);
    world.write_well();
}

/// Something ends between any two looks but for the last, however long the rest takes.
#[test]
fn peer_of_which_something_ends_is_not_given_up() {
    let _alone = alone();
    let Some(mut world) = silent_world(c"strict-domain") else { return };
    let library = strict(Layout::One).unwrap();
    for _ in 0..5 {
        looks(&mut world, 7, true);
        silence(library, false);
        world.write_well();
        silence(library, true);
        world.write(0, 0, 4096);
    }
    assert_eq!(world.downs(0), 0);
    silence(library, false);
}

/// The library has ended all of them, or takes them without telling of their ends.
#[test]
fn path_on_which_only_messages_were_sent_is_found_silent() {
    let _alone = alone();
    let Some(config) = strict_config(Layout::One, c"strict-domain") else { return };
    let mut world = World::open(&Config { silence_max: SILENCE, ..config }).unwrap();
    world.write_well();
    looks(&mut world, 2, true);
    silence_of_send(config.library);
    world.send(0, 7, 8);
    assert!(is_silent(config.library));
    looks(&mut world, 12, true);
    assert_eq!(world.downs(0), 1);
    assert!(world.rails[0].error(PEER).expect("a report").silent >= SILENCE);
    silence(config.library, false);
}

/// The last messages left after something else had ended, with no look between.
#[test]
fn path_that_goes_silent_under_a_message_behind_a_write_is_found_silent() {
    let _alone = alone();
    let Some(config) = strict_config(Layout::One, c"strict-domain") else { return };
    let mut world = World::open(&Config { silence_max: SILENCE, ..config }).unwrap();
    looks(&mut world, 1, true);
    world.write_well();
    silence_of_send(config.library);
    world.send(0, 7, 8);
    assert!(is_silent(config.library));
    looks(&mut world, 14, true);
    assert_eq!(world.downs(0), 1);
    silence(config.library, false);
}

/// Messages end when the library says so, and one is always under way.
#[test]
fn peer_that_is_sent_one_message_after_another_is_not_given_up() {
    let _alone = alone();
    for provider in [c"strict", c"strict-domain"] {
        let Some(config) = strict_config(Layout::One, provider) else { return };
        let mut world = World::open(&Config { silence_max: SILENCE, ..config }).unwrap();
        world.write_well();
        for _ in 0..30 {
            // longer than what is injected
            world.send(0, 1, 512);
            looks(&mut world, 1, true);
        }
        assert_eq!((world.downs(0), world.downs(1)), (0, 0), "{provider:?}");
    }
}

/// It was asked about at each look for as long as it carried anything.
#[test]
fn peer_of_whose_ops_some_end_is_never_doubted() {
    let _alone = alone();
    for provider in [c"strict", c"strict-domain"] {
        let Some(config) = strict_config(Layout::One, provider) else { return };
        let mut world = World::open(&Config { silence_max: SILENCE, ..config }).unwrap();
        for _ in 0..20 {
            world.write_well();
            world.write(0, 0, 4096);
            world.send(0, 1, 8);
            assert_eq!(looks(&mut world, 1, true), 0, "{provider:?}");
        }
        assert_eq!((world.downs(0), world.downs(1)), (0, 0));
    }
}

/// Where nobody set a time.
#[test]
fn nobody_is_doubted_where_no_time_is_too_long() {
    let _alone = alone();
    let Some(config) = strict_config(Layout::One, c"strict-domain") else { return };
    let mut world = World::open(&config).unwrap();
    world.write_well();
    silence(config.library, true);
    world.write(0, 0, 4096);
    assert_eq!(looks(&mut world, 50, true), 0);
    assert_eq!(world.downs(0), 0);
    silence(config.library, false);
}

/// A write that the library refuses before each look.
fn refused(world: &mut World, looks_count: u32) {
    for _ in 0..looks_count {
        let op = Op { id: OpId(77), peer: PEER, kind: world.write_kind(0, 0, 64) };
        assert_eq!(world.rails[0].post(&op, world.now), Err(PostError::Again));
        looks(world, 1, true);
    }
}

/// Nothing is under way, so that nothing was owed, and messages stood still for ever.
#[test]
fn peer_to_which_every_post_is_refused_is_given_up_where_that_is_asked_for() {
    let _alone = alone();
    let Some(config) = strict_config(Layout::One, c"strict-fills") else { return };
    let mut world = World::open(&Config { silence_max: SILENCE, ..config }).unwrap();
    world.write_well();
    looks(&mut world, 2, true);
    fill(config.library, true);
    refused(&mut world, 7);
    assert_eq!(world.downs(0), 0);
    refused(&mut world, 2);
    looks(&mut world, 1, true);
    assert_eq!(world.downs(0), 1);
    assert!(world.rails[0].error(PEER).expect("a report").silent >= SILENCE);
    assert_eq!(world.rails[0].complaint(), None, "its end says it");
    fill(config.library, false);
}

/// Where nobody is to be given up, and not before its program has polled.
#[test]
fn peer_to_which_every_post_is_refused_is_told_of_once() {
    let _alone = alone();
    let Some(config) = strict_config(Layout::One, c"strict-fills") else { return };
    let mut world = World::open(&config).unwrap();
    world.write_well();
    fill(config.library, true);
    for told in [true, false] {
        refused(&mut world, 12);
        let complaint = world.rails[0].complaint();
        let is_it =
            matches!(complaint, Some((PEER, Complaint::Refused(silent))) if silent >= SILENCE);
        assert_eq!(is_it, told, "{complaint:?}");
    }
    assert_eq!(world.downs(0), 0);
    fill(config.library, false);
    world.write_well();
}

const SILENCE_OF_ENDPOINTS: Duration = Duration::from_millis(160);

// Whole endpoints: one in the middle, with a peer on either side.

/// One end of a connection, and what flows there.
struct End {
    node: usize,
    connection: Handle,
    flow: Flow,
}

/// Endpoints of one process: the first is connected to all others.
struct Star {
    nodes: Vec<Node>,
    ends: Vec<[End; 2]>,
}

impl Star {
    fn open(library: &CStr, provider: &str, others: usize) -> Star {
        Star::open_for(library, provider, others, SILENCE_OF_ENDPOINTS)
    }

    fn open_for(library: &CStr, provider: &str, others: usize, silence: Duration) -> Star {
        let mut options = Options { device: DeviceKind::Host, ..small(2) };
        options.limits.rails_max = 2;
        for (name, value) in strict_environment(library, provider) {
            host_support::set(name, value);
        }
        host_support::set("CROSSTIE_OFI_SILENCE_MS", silence.as_millis().to_string());
        let mut nodes: Vec<Node> = (0..=others).map(|_| Node::open(&options)).collect();
        let ends = (1..=others).map(|other| {
            let [a, b] = nodes.get_disjoint_mut([0, other]).unwrap();
            let (to_b, to_a) = joined(a, b);
            [(0, &*a, to_b), (other, &*b, to_a)].map(|(node, its, connection)| {
                let flow = Flow::new(its, connection, Place::Private);
                End { node, connection, flow }
            })
        });
        let ends = ends.collect();
        Star { nodes, ends }
    }

    fn view(&self, pair: usize, side: usize) -> LaneView {
        let end = &self.ends[pair][side];
        self.nodes[end.node].lane_view(end.connection, 1).expect("a rail of libfabric")
    }

    fn all(&self) -> Range<usize> {
        0..self.ends.len()
    }

    fn received(&self, pair: usize) -> u64 {
        self.ends[pair].iter().map(|end| end.flow.received).min().unwrap()
    }

    /// Lets messages flow in these connections until something is so.
    fn flow_until(&mut self, pairs: Range<usize>, what: &str, over: impl Fn(&Star) -> bool) {
        let watch = Watch::start();
        while !over(self) {
            for pair in pairs.clone() {
                for end in &mut self.ends[pair] {
                    end.flow.step(&mut self.nodes[end.node]);
                    assert!(!end.flow.failed(), "{:?}", end.flow.errors);
                }
            }
            watch.look(what);
        }
    }

    /// So many more in one connection.
    fn flow(&mut self, pair: usize, more: u64) {
        let goal = self.received(pair) + more;
        self.flow_until(self.all(), "messages", |star| star.received(pair) >= goal);
    }

    fn is_up(&self, pair: usize) -> bool {
        [0, 1].iter().all(|side| self.view(pair, *side).state == LaneState::Up)
    }

    /// Messages of both connections go over libfabric, and the path of the first goes silent.
    fn go_silent(&mut self, library: &CStr) {
        // takes the connections into use
        self.flow_until(self.all(), "messages", |star| {
            star.all().all(|pair| star.received(pair) > 1)
        });
        self.flow_until(self.all(), "both rails, and bytes on them", |star| {
            star.all().all(|pair| star.is_up(pair) && star.view(pair, 0).stats.bytes > 1 << 22)
        });
        // what had come of the second is taken in, so that nothing is written there
        for _ in 0..100 {
            self.nodes[0].progress();
        }
        let watch = Watch::start();
        while !is_silent(library) {
            // the first peer is elsewhere, so that the write is one to it
            silence(library, true);
            let End { node, flow, .. } = &mut self.ends[0][0];
            (0..16).for_each(|_| flow.step(&mut self.nodes[*node]));
            if !is_silent(library) {
                silence(library, false);
                self.ends[0][1].flow.step(&mut self.nodes[1]);
            }
            watch.look("a write to the first peer");
        }
    }

    fn failures(&self, pair: usize) -> [u64; 2] {
        [0, 1].map(|side| self.view(pair, side).stats.failures)
    }

    fn close(self) {
        let Star { mut nodes, ends } = self;
        for [near, far] in ends {
            let [a, b] = nodes.get_disjoint_mut([near.node, far.node]).unwrap();
            disconnect_both((a, near.connection), (b, far.connection));
        }
        nodes.into_iter().for_each(Node::close);
    }
}

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(_: usize, _: Level, text: &str) {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_string());
}

/// The lines that say of a rail of libfabric that it is silent, with its NIC, and for how long.
fn lines_of(nic: &str) -> Vec<String> {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let is_it = |text: &&String| {
        text.contains("rail 1 to ")
            && text.contains(&format!("over libfabric, {nic}, was lost: silent, nothing"))
            && text.contains(" ms, although the peer's program polls; 1 other rail goes on")
    };
    assert!(said.iter().any(|text| is_it(&text)), "{said:?}");
    said.iter().filter(is_it).cloned().collect()
}

/// On an endpoint that peers share, what is under way can be fenced by its end alone: it is moved
/// when the path is let go, late bytes and all, and the endpoint is nobody's loss.
#[test]
fn shared_endpoint_gives_up_the_silent_peer_alone_and_stays() {
    let _alone = alone();
    let Some(library) = strict(Layout::One) else { return };
    sink_set(Some((keep, 0)));
    let mut star = Star::open(library, "strict", 2);
    star.go_silent(library);
    let beside = star.view(1, 0);
    star.flow_until(star.all(), "the rail to be given up", |star| {
        star.failures(0).iter().any(|failures| *failures > 0)
    });
    star.flow(1, 16);
    silence(library, false);
    star.flow(0, 32);
    let after = star.view(1, 0);
    assert_eq!((after.generation, star.failures(1)), (beside.generation, [0, 0]));
    assert!(after.stats.bytes > beside.stats.bytes, "the other connection's rail carries");
    star.close();
    sink_set(None);
    let lines = lines_of("strict strict0");
    println!("{lines:?}");
}

/// Where nobody else is reached, the shared endpoint is opened anew in place of the word that the
/// peer cannot say: the path is never let go.
#[test]
fn shared_endpoint_that_reaches_nobody_else_is_opened_anew_and_costs_no_message() {
    let _alone = alone();
    let Some(library) = strict(Layout::One) else { return };
    let mut star = Star::open(library, "strict", 1);
    star.go_silent(library);
    let before = star.view(0, 0);
    star.flow(0, 32);
    star.flow_until(star.all(), "the rail to come back", |star| {
        star.is_up(0) && star.view(0, 0).generation > before.generation
    });
    star.flow(0, 32);
    silence(library, false);
    star.close();
}

/// Over a shared endpoint, where nobody said how long is too long: messages stand, and the log says
/// why. They went on in silence, or stood for ever.
#[test]
fn rail_whose_library_says_again_for_ever_is_told_of_by_name() {
    let _alone = alone();
    let Some(library) = strict(Layout::One) else { return };
    sink_set(Some((keep, 0)));
    let mut star = Star::open_for(library, "strict-fills", 1, Duration::ZERO);
    star.flow_until(star.all(), "messages", |star| star.received(0) > 1);
    star.flow_until(star.all(), "bytes on the rail", |star| {
        star.is_up(0) && star.view(0, 0).stats.bytes > 1 << 22
    });
    fill(library, true);
    let is_it = |text: &String| {
        text.contains("rail 1 to ")
            && text.contains("over libfabric, strict-fills strict0, takes nothing: for ")
    };
    star.flow_until(star.all(), "the line", |_| {
        SAID.lock().unwrap_or_else(PoisonError::into_inner).iter().any(is_it)
    });
    fill(library, false);
    star.flow(0, 32);
    assert_eq!(star.failures(0), [0, 0], "nobody was given up");
    star.close();
    sink_set(None);
}

/// What its side band says for a program that does not call us is no sign that it polls.
#[test]
fn rail_to_a_peer_that_is_elsewhere_is_not_given_up() {
    let _alone = alone();
    let Some(library) = strict(Layout::One) else { return };
    let mut star = Star::open(library, "strict", 1);
    star.go_silent(library);
    let since = Instant::now();
    let before = star.failures(0);
    while since.elapsed() < 10 * SILENCE_OF_ENDPOINTS {
        star.nodes[0].progress();
    }
    assert_eq!(star.failures(0), before);
    star.flow_until(star.all(), "the rail to be given up", |star| star.failures(0)[0] > before[0]);
    star.flow(0, 32);
    silence(library, false);
    star.close();
}

/// Whoever was not heard may live: what it has posted comes when the path is there again, so that
/// the fence of it does not hold before it has said its word. It held after 200 ms, as that of a
/// process which is dead, and the write came into memory that had been given back.
#[test]
fn fence_of_a_peer_that_was_not_heard_waits_for_its_word() {
    const PAST: Duration = Duration::from_secs(30);
    const ROUNDS: u32 = 1000;
    let _alone = alone();
    for provider in [c"strict", c"strict-domain"] {
        let Some(mut world) = silent_world(provider) else { return };
        let config = strict_config(Layout::One, provider).expect("opened above");
        let write = world.write(0, 4096, 64);
        world.rails[1].peer_fail(PEER, DownCause::Unheard);
        let fence = world.fence(1);
        for _ in 0..ROUNDS {
            world.poll();
        }
        world.pass(PAST);
        for _ in 0..ROUNDS {
            world.poll();
        }
        assert!(world.result(1, fence).is_none(), "{provider:?}: it may still write");
        silence(config.library, false);
        assert!(world.end(1, fence), "{provider:?}: its word has come");
        assert!(world.result(0, write).is_some(), "{provider:?}: nothing of it is under way");
        assert!(world.exchanges(OTHER), "{provider:?}: the other peer is left alone");
    }
}
