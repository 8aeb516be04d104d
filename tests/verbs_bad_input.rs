//! What is wrong with an RDMA device is named, and what a rail asks of a device is what its
//! settings say: over a libibverbs of our own (`tests/verbs_fake`), which has the devices, the
//! limits and the refusals that a host here does not have. Each story runs in a process of its own,
//! which loads that library.

mod verbs_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, Domain, Gather, LINE_BYTES, MemoryDomain, MemoryKind, Op, OpId, OpKind, Posted,
    Provider, Region, Source,
};
use crosstie::provider::verbs::choice::HcaChoice;
use crosstie::provider::verbs::gid::{Gid, GidEntry, GidKind, LinkLayer};
use crosstie::provider::verbs::ports::{Device, NodeType, Port, PortState};
use crosstie::provider::verbs::settings::Settings;
use crosstie::provider::verbs::speed::correct;
use crosstie::provider::verbs::{Config, Limits, Verbs, bytes, dmabuf_refusal};
use crosstie::wire::queue_pair::QueuePairHello;
use std::net::IpAddr;
use std::path::Path;
use verbs_support::fake::{compile, libraries, story_told, tell_in, told_in};
use verbs_support::verbs_pair::devices;
use verbs_support::{LIMITS, NOTHING, PEER, World, config, old_kernel};

/// The story of a device that is so has this in it.
fn tells(story: &str, fake: &str, wanted: &str) {
    let Some([folder, _]) = libraries() else { return };
    let said = told_in(folder, story, fake);
    assert!(said.contains(wanted), "{story} of a device with {fake:?} has no {wanted:?}:\n{said}");
}

/// What the others start, each in a process of its own.
#[test]
fn storyteller() {
    let Some(story) = story_told() else { return };
    match story.as_str() {
        "open" => open(&LIMITS),
        "open on an old kernel" => {
            old_kernel();
            open(&LIMITS);
        }
        "open for many" => open(&Limits { peers_max: 1000, ..LIMITS }),
        "open without files" => {
            devices().expect("the library is there");
            let most =
                (0..).find(|_| std::fs::File::open("/dev/null").map(std::mem::forget).is_err());
            println!("after {most:?} files");
            open(&LIMITS);
        }
        "list" => println!("{:?}", devices()),
        "prepare" => prepare(),
        "join" => join(&|_| {}),
        "join a smaller one" => join(&|hello| hello.mtu_bytes = 1024),
        "join another kind" => join(&|hello| hello.link_layer = 1),
        "join the other family" => join(&|hello| {
            let peer = Gid::from("fd00::2".parse::<IpAddr>().expect("an address"));
            hello.gid = u128::from_le_bytes(peer.0);
        }),
        "join few receives" => join(&|hello| hello.receives = 63),
        "join many receives" => join(&|hello| hello.receives = 65),
        "join other extensions" => join(&|hello| hello.ece_vendor = 7),
        "join again" => join_again(),
        "join fewer extensions" => join(&|hello| hello.ece_options &= 0x30),
        "join after a change" => join_after_a_change(),
        "come up changed" => come_up_changed(),
        "register" => register(),
        "line" => line(0),
        "line by several ways" => line(8192),
        "write short" => write_short(),
        "write" => write(0, false),
        "write two" => write(4096, false),
        "write all two" => write(1, false),
        "write one by one" => write(4096, true),
        "gather" => gather(false),
        "gather one by one" => gather(true),
        "poll" => poll(),
        "ask for the speed" => ask_for_the_speed(),
        _ => panic!("no story is called {story}"),
    }
}

fn open(limits: &Limits) {
    let mut block = HeapBlock::new(bytes(limits));
    match Verbs::open(&mut block.carver(), limits, &config("fake0")) {
        Ok(_) => println!("opened"),
        Err(error) => println!("{error}"),
    }
}

/// A rail alone.
fn with_rail(config: &Config, see: impl FnOnce(&mut Verbs)) {
    let mut block = HeapBlock::new(bytes(&LIMITS));
    let mut carver = block.carver();
    see(&mut Verbs::open(&mut carver, &LIMITS, config).unwrap_or_else(|error| panic!("{error}")));
}

fn prepare() {
    with_rail(&config("fake0"), |rail| {
        match rail.peer_prepare(PeerIndex(0), RailGeneration(1), 7) {
            Ok(_) => println!("prepared"),
            Err(error) => println!("{error}"),
        }
    });
}

/// Joins a queue pair to itself, as if its hello had said something else.
fn join(change: &dyn Fn(&mut QueuePairHello)) {
    with_rail(&config("fake0"), |rail| {
        let mut hello = rail.peer_prepare(PeerIndex(0), RailGeneration(1), 7).expect("prepared");
        change(&mut hello);
        assert_eq!(rail.packets(PeerIndex(0)), None, "before the other end has told its own");
        match rail.peer_connect(PeerIndex(0), &hello) {
            Ok(()) => println!("joined, {:?}", rail.packets(PeerIndex(0)).expect("both told")),
            Err(error) => println!("{error}"),
        }
    });
}

/// Joins a queue pair to itself, and another one behind it.
fn join_again() {
    with_rail(&config("fake0"), |rail| {
        let first = rail.peer_prepare(PeerIndex(0), RailGeneration(1), 7).expect("prepared");
        let other = rail.peer_prepare(PeerIndex(1), RailGeneration(1), 7).expect("prepared");
        let refused = rail.peer_connect(PeerIndex(0), &first).expect_err("refused");
        println!("{refused}");
        eprintln!("anew");
        let hello = rail.peer_prepare(PeerIndex(0), RailGeneration(2), 7).expect("prepared");
        assert_eq!((hello.ece_vendor, hello.ece_options), (0, 0));
        rail.peer_connect(PeerIndex(0), &hello).expect("joined");
        // what was offered before stands: the other end counts on it
        eprintln!("the other");
        turn("ece=0x35");
        rail.peer_connect(PeerIndex(1), &other).expect("joined");
    });
}

/// What the device of a story has from now on.
fn turn(fake: &str) {
    // SAFETY: a process of one story; its only other thread waits for this one.
    unsafe { std::env::set_var("FAKE", fake) };
}

/// Joins a queue pair to itself, whose port changes before it is made, and after.
fn join_after_a_change() {
    with_rail(&config("fake0"), |rail| {
        turn("infiniband mtu_code=4 lid=9");
        let hello = rail.peer_prepare(PeerIndex(0), RailGeneration(1), 7).expect("prepared");
        println!("told {} and LID {}", hello.mtu_bytes, hello.lid);
        turn("infiniband mtu_code=3 lid=9");
        rail.peer_connect(PeerIndex(0), &hello).expect("joined");
    });
}

fn come_up_changed() {
    with_rail(&config("fake0"), |rail| {
        turn("event=9 mtu_code=3");
        for millis in [0, 100, 200] {
            let now = Instant(millis * 1_000_000);
            assert_eq!(rail.poll(&mut [NOTHING], Bytes::kib(64), now), 0);
        }
        println!("packets of {} bytes", rail.mtu_bytes());
    });
}

/// A line, of a rail with this threshold for data that takes several ways.
fn line(adaptive: u64) {
    let mut world = World::of(|config| config.adaptive_bytes_min = adaptive).expect("devices");
    let (source, target) = (Source::Line([7; LINE_BYTES]), world.remote(1, 64));
    let kind = OpKind::Write { source, target, immediate: None };
    let posted = world.rails[0].post(&Op { id: OpId(5), peer: PEER, kind }, world.now);
    println!("ordered {}, {posted:?}", world.rails[0].caps(PEER).ordered);
    world.until("a line lands", |world| world.holds(1, 64, LINE_BYTES, 7));
    if posted == Ok(Posted::Pending) {
        println!("it ends well: {}", world.end(0, OpId(5)));
    }
}

/// Short writes out of memory of the host's, and out of a dma-buf.
fn write_short() {
    let mut world = World::new().expect("devices");
    eprintln!("of the host");
    let write = world.write(0, 0, 64);
    assert!(world.end(0, write));
    let (address, length) = (world.blocks[0] as u64, Bytes(4096));
    let region = Region { address, length, kind: MemoryKind::Host };
    world.keys[0] = world.rails[0].domain().register_dmabuf(region, 0, 0).expect("a dma-buf");
    eprintln!("of a dma-buf");
    let write = world.write(0, 0, 64);
    assert!(world.end(0, write));
}

fn register() {
    let memory = Box::leak(Box::new(HeapBlock::new(4096))).start() as u64;
    let region = Region { address: memory, length: Bytes(4096), kind: MemoryKind::Host };
    with_rail(&config("fake0"), |rail| {
        let domain = rail.domain();
        eprintln!("control");
        // SAFETY: leaked memory.
        unsafe { domain.register(region) }.expect("host memory");
        eprintln!("payload");
        // SAFETY: as above.
        unsafe { domain.register_payload(region) }.expect("host memory");
        let refused = domain.register_dmabuf(region, 0, 0).expect_err("no dma-buf");
        println!("{}", dmabuf_refusal(refused));
    });
}

/// Sizes of the parts of a write, far from each other and not in their order.
const PARTS: [usize; 3] = [32, 1, 7000];

fn gather(extended: bool) {
    let mut world = World::of(|config| config.extended_post = extended).expect("devices");
    let parts = [0, 1, 2].map(|n| {
        world.fill(0, (2 - n) * 8192, PARTS[n], n as u8 + 1);
        world.local(0, (2 - n) * 8192, PARTS[n])
    });
    let target = world.remote(1, 4096);
    println!("at most {}", world.rails[0].parts_max(PEER));
    for count in [2, 3] {
        world.fill(1, 4096, 8192, 0);
        let (id, peer, parts) = (OpId(count as u64), PEER, &parts[..count]);
        let gather = Gather { id, peer, parts, target, immediate: Some(5) };
        let posted = world.rails[0].post_gather(&gather, world.now);
        println!("{count} parts: {posted:?}");
        if posted.is_ok() {
            println!("it went well: {}", world.end(0, id));
        }
        let mut at = 4096;
        let whole = (0..count).all(|n| {
            at += PARTS[n];
            world.holds(1, at - PARTS[n], PARTS[n], n as u8 + 1)
        });
        println!("{count} parts lie in their order: {whole}");
    }
}

fn write(adaptive: u64, extended: bool) {
    let mut world = World::of(|config| {
        (config.adaptive_bytes_min, config.extended_post) = (adaptive, extended);
    })
    .expect("devices");
    for length in [4095, 4096] {
        let write = world.write_told(0, 0, length, 5);
        let went_well = world.end(0, write);
        println!("a write of {length} bytes: {went_well}");
        if let Some(report) = world.rails[0].error(PeerIndex(0)) {
            println!("{:?}, {report}", report.kind());
            return;
        }
    }
    world.until("words come", |world| {
        let word = |it: &&Completion| matches!(it, Completion::Immediate { immediate: 5, .. });
        world.seen[1].iter().filter(word).count() == 2
    });
}

fn poll() {
    let mut world = World::new().expect("devices");
    world.until("the peers end", |world| world.downs(0) == 1 && world.downs(1) == 1);
    println!("lost with {}; {:?}", world.rails[0].health().lost_code, world.seen[0]);
    let error = world.rails[0].peer_prepare(PeerIndex(1), RailGeneration(1), 7).map(|_| ());
    println!("{}", error.expect_err("the device is gone"));
}

/// Of two ports that work, as sysfs shows them, one of which is chosen.
fn ask_for_the_speed() {
    let gid = |last| Gid::from(IpAddr::from([10, 0, 0, last]));
    let port = |number| Port {
        number,
        state: PortState::Active,
        physical: "LinkUp".into(),
        layer: LinkLayer::Ethernet,
        speed_mbit_s: 400_000,
        gids: vec![GidEntry { index: 1, gid: gid(1), kind: GidKind::RoceV2, interface: None }],
        mtu_bytes: 0,
        pkeys: 1,
    };
    let mut devices = [Device {
        name: "fake0".into(),
        node: NodeType::ChannelAdapter,
        guid: String::new(),
        pci: None,
        physical: None,
        numa: None,
        file: None,
        ports: vec![port(1), port(2)],
    }];
    let hca = HcaChoice::parse("fake0:1").expect("a choice");
    correct(&mut devices, &Settings { hca, ..Settings::default() });
    println!("speeds {:?}", devices[0].ports.iter().map(|it| it.speed_mbit_s).collect::<Vec<_>>());
}

#[test]
fn device_that_is_not_there_or_not_for_us_is_named() {
    tells("open", "", "opened");
    tells("open", "no_device", "libibverbs shows no device of that name: is its file");
    tells("list", "no_device", "no RDMA device on this host");
    tells("open", "closed_device", "the device cannot be opened: errno 13");
}

/// libibverbs says "errno 38, this kernel does not have it".
#[test]
fn device_that_cannot_be_opened_for_want_of_files_is_told_so() {
    tells("open without files", "", "the device cannot be opened: errno 24, this process has too");
}

#[test]
fn port_that_is_down_or_has_no_gid_is_named() {
    tells("open", "port_down", "the port of the RDMA device is not active");
    tells("open", "no_gid", "the GID at that index is empty");
}

#[test]
fn too_few_completions_are_named_with_both_numbers() {
    tells("open for many", "", "completion queue of 194000 entries, the device has 100000");
    tells("open", "cqes=100", "completion queue of 388 entries, the device has 100");
}

#[test]
fn limit_of_locked_memory_is_named() {
    let wanted = "buffers cannot be registered: errno 12, no memory (is the limit of locked memory \
                  too low? `ulimit -l`)";
    tells("prepare", "locked_memory", wanted);
}

#[test]
fn queue_pair_that_the_device_has_not_is_named() {
    tells("prepare", "no_pairs", "the device gives no queue pair: errno 12");
}

#[test]
fn gid_that_has_become_another_node_s_is_seen_before_a_queue_pair_is_made() {
    tells("prepare", "", "prepared");
    tells("prepare", "gid_moves", "the device or its GID has gone");
}

#[test]
fn packets_are_as_long_as_the_smaller_end_takes() {
    tells("join", "", "ready to receive, mtu code 5");
    tells("join a smaller one", "", "ready to receive, mtu code 3");
    tells("join a smaller one", "", "Packets { ours_bytes: 4096, theirs_bytes: 1024 }");
    tells("join", "mtu_code=3", "Packets { ours_bytes: 1024, theirs_bytes: 1024 }");
}

#[test]
fn receive_that_is_missing_is_waited_for_only_by_who_asks_for_it() {
    tells("join", "", "timer 1\nrnr_retry 0");
}

#[test]
fn end_of_another_kind_or_that_nobody_finds_is_named() {
    tells("join another kind", "", "one end is on InfiniBand and the other on Ethernet");
    let wanted = "the queue pair refuses the path to the peer: errno 110";
    tells("join", "no_neighbour", wanted);
}

/// The kernel says "errno 22", and nothing of addresses.
#[test]
fn end_whose_gid_is_of_the_other_family_is_named_with_both() {
    let wanted = "the GID of this side's port, 10.0.0.1, is of IPv4, and the peer's, fd00::2, of \
                  IPv6: RoCE v2 packets are of one family";
    tells("join the other family", "", wanted);
    // a GID of InfiniBand is no address, and whether one of version 1 counts, the kernel knows
    tells("join the other family", "infiniband", "joined");
    tells("join the other family", "gid_version_1", "joined");
}

/// Messages beyond them would have ended the queue pair one day.
#[test]
fn end_with_fewer_receives_than_are_counted_on_is_refused() {
    tells("join few receives", "", "the peer keeps 63 receives posted, but 64 are needed");
    tells("join many receives", "", "joined");
}

#[test]
fn library_that_is_too_old_or_none_is_named() {
    let Some([_, old]) = libraries() else { return };
    let text = told_in(old, "register", "");
    assert!(text.contains("libibverbs is too old to register dma-bufs"), "{text}");
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("verbs_fake_none");
    std::fs::create_dir_all(&empty).unwrap();
    std::fs::write(empty.join("libibverbs.so.1"), [0; 4096]).unwrap();
    let text = told_in(&empty, "open", "");
    assert!(
        text.contains("libibverbs.so.1 cannot be loaded (") && text.contains("invalid ELF header"),
        "{text}"
    );
    let ancient = compile("ancient", "old.map", &["-DOLD", "-Dibv_open_device=ibv_other"]);
    let text = told_in(&ancient, "open", "");
    assert!(text.contains("libibverbs.so.1 is too old, it has no ibv_open_device"), "{text}");
}

#[test]
fn device_that_is_removed_ends_its_peers_and_takes_no_more() {
    tells("poll", "removed", "lost with 19");
    tells("poll", "removed", "Broken(19)");
    tells("poll", "removed", "the device or its GID has gone");
    tells("poll", "broken_queue", "lost with 5");
}

#[test]
fn speed_of_a_port_is_that_which_the_library_says() {
    tells("ask for the speed", "speed=2000", "speeds [200000, 400000]");
    for nothing in ["", "speed=0", "closed_device", "no_device"] {
        tells("ask for the speed", nothing, "speeds [400000, 400000]");
    }
    let Some([new, old]) = libraries() else { return };
    let said = told_in(new, "ask for the speed", "speed=1");
    assert!(!said.contains("port 2"), "a port that is left out was asked: {said}");
    let said = told_in(old, "ask for the speed", "speed=2000");
    assert!(said.contains("speeds [400000, 400000]"), "{said}");
}

/// Children of a process that has queue pairs must not get pages of its registrations copied.
#[test]
fn library_is_told_of_children_before_a_device_is_opened() {
    tells("open on an old kernel", "", "children are thought of\nthe device is opened\n");
    tells("open on an old kernel", "no_children", "opened");
    // the library would take pages from children that this one copies
    let Some([new, _]) = libraries() else { return };
    assert!(!told_in(new, "open", "").contains("children"));
    let Some([_, old]) = libraries() else { return };
    assert!(told_in(old, "open", "").contains("opened"));
}

#[test]
fn port_that_wants_global_routes_gets_them() {
    tells("join", "infiniband lid=7", "to LID 7, global 0");
    tells("join", "infiniband lid=7 wants_grh", "to LID 7, global 1");
    tells("join", "lid=7", "to LID 7, global 1");
}

/// A peer is told what the port has when its queue pair is made, and both ends use that.
#[test]
fn port_is_read_again_for_each_queue_pair_and_when_it_comes_up() {
    let wanted = "told 2048 and LID 9\n";
    tells("join after a change", "infiniband lid=7", wanted);
    tells("join after a change", "infiniband lid=7", "ready to receive, mtu code 4\nto LID 9,");
    tells("come up changed", "", "packets of 1024 bytes");
}

#[test]
fn adds_are_asked_for_only_where_the_device_has_them() {
    tells("register", "", "control\nregister, access 0xf\npayload");
    tells("register", "no_atomics", "control\nregister, access 0x7\npayload");
    tells("join", "", "queue pair, access 0xf\n");
    tells("join", "no_atomics", "queue pair, access 0x7\n");
}

#[test]
fn device_that_refuses_adds_is_asked_once_more_without() {
    for errno in [22, 95] {
        let fake = format!("refuses_adds={errno}");
        let wanted = "control\nregister, access 0xf\nregister, access 0x7\npayload\n";
        tells("register", &fake, wanted);
        let wanted = "queue pair, access 0xf\nqueue pair, access 0x7\nready to receive";
        tells("join", &fake, wanted);
    }
    let Some([new, _]) = libraries() else { return };
    let done = tell_in(new, "register", "refuses_adds=12");
    assert!(!done.status.success(), "no memory is no refusal of adds");
}

/// Of two lines for one place the older would hide the newer for ever, if it landed last.
#[test]
fn line_ends_with_its_completion_where_packets_take_several_ways() {
    tells("line", "say_posts", "ordered true, Ok(Done)\n");
    tells("line by several ways", "", "ordered false, Ok(Pending)\nit ends well: true");
    let Some([new, _]) = libraries() else { return };
    let said = told_in(new, "line", "say_posts");
    assert!(said.contains("post 0 of 64 bytes\n"), "a line costs no completion: {said}");
}

/// The processor may not read a dma-buf, and of several parts some drivers copy the first alone.
#[test]
fn only_one_part_of_host_memory_goes_inside_of_a_request() {
    let short = "post 0 of 64 bytes, signalled";
    let wanted = format!("of the host\n{short}, inline\n");
    tells("write short", "say_posts say_inline dmabufs", &wanted);
    let wanted = format!("of a dma-buf\n{short}\n");
    tells("write short", "say_posts say_inline dmabufs", &wanted);
    for story in ["gather", "gather one by one"] {
        tells(story, "say_posts say_inline", "post 1 of 33 bytes, signalled\n");
    }
}

#[test]
fn dma_buf_is_refused_with_a_sentence() {
    tells("register", "", "the RDMA device or its driver cannot register dma-bufs");
    tells("register", "dmabuf_errno=9", "the descriptor is no dma-buf");
}

#[test]
fn control_memory_is_never_registered_with_relaxed_ordering() {
    // 0x100000 is IBV_ACCESS_RELAXED_ORDERING; the first registration is that of nobody's peer
    tells("register", "", "control\nregister, access 0xf\npayload\nregister, access 0x10000f\n");
    // a dma-buf is payload
    tells("write short", "dmabufs", "of the host\nregister, access 0x10000f\nof a dma-buf");
    // receives and staging of a peer
    tells("prepare", "", "register, access 0x1\n");
}

#[test]
fn extensions_that_both_ends_have_are_set_before_the_pair_receives() {
    let both = "extensions 0x35 of 0x2c9\nready to receive";
    tells("join", "ece=0x35", both);
    tells("join fewer extensions", "ece=0x35", "extensions 0x30 of 0x2c9\nready to receive");
    let wanted = "the queue pair refuses the extensions (CROSSTIE_IB_ECE_ENABLE=0): errno 22";
    tells("join", "ece=0x35 ece_refused", wanted);
    let Some([new, old]) = libraries() else { return };
    for (folder, story, fake) in
        [(new, "join", ""), (new, "join other extensions", "ece=1"), (old, "join", "ece=1")]
    {
        let said = told_in(folder, story, fake);
        assert!(said.contains("joined") && !said.contains("extensions"), "{fake}: {said}");
    }
}

/// The end that refused them did without, and the other one may have not; or it refused them for
/// ever.
#[test]
fn extensions_that_are_refused_or_a_queue_pair_with_them_are_offered_no_more() {
    let Some([new, _]) = libraries() else { return };
    for (fake, refused) in [
        ("ece_useless", "the queue pair refuses the path to the peer: errno 22"),
        ("ece_refused", "the queue pair refuses the extensions (CROSSTIE_IB_ECE_ENABLE=0)"),
    ] {
        let said = told_in(new, "join again", &format!("ece=0x35 {fake}"));
        assert!(said.contains(refused), "{said}");
        let (_, anew) = said.split_once("anew\n").expect("another one");
        let (anew, other) = anew.split_once("the other\n").expect("a third one");
        assert!(!anew.contains("extensions"), "{anew}");
        assert!(other.contains("extensions 0x35 of 0x2c9\nready to receive"), "{other}");
    }
}

#[test]
fn data_and_word_are_two_requests_from_the_threshold_on() {
    let short = "post 1 of 4095 bytes, signalled\n";
    tells("write", "say_posts", &(short.to_owned() + "post 1 of 4096 bytes, signalled\n"));
    let long = "post 0 of 4096 bytes\npost 1 of 0 bytes, signalled\n";
    tells("write two", "say_posts", &(short.to_owned() + long));
}

/// Where library, driver or queue pair have no such interface, it is posted as before.
#[test]
fn extended_interface_is_used_where_it_is_whole() {
    let Some([new, old]) = libraries() else { return };
    let told = "post 0 of 4096 bytes\npost 1 of 0 bytes, signalled\n";
    let say = |folder, fake: &str| {
        let said = told_in(folder, "write one by one", &format!("say_posts {fake}"));
        assert!(said.contains(told), "{fake}: {said}");
        said
    };
    let said = say(new, "");
    assert!(said.contains("a queue pair that is told of 0x57"), "{said}");
    assert!(said.contains(&format!("doorbell of 2 told one by one\n{told}")), "{said}");
    let without_adds = say(new, "no_atomics");
    assert!(without_adds.contains("a queue pair that is told of 0x17"), "{without_adds}");
    for (folder, fake) in
        [(new, "no_extended"), (new, "plain_context"), (new, "extended_lacks"), (old, "")]
    {
        let said = say(folder, fake);
        assert!(!said.contains("told one by one"), "{fake}: {said}");
    }
    assert!(!told_in(new, "write", "say_posts").contains("one by one"), "nobody asked for it");
}

#[test]
fn parts_of_a_write_are_one_request_in_their_order() {
    for story in ["gather", "gather one by one"] {
        tells(story, "say_posts", "post 1 of 33 bytes, signalled\n");
        tells(story, "say_posts", "post 1 of 7033 bytes, signalled\n");
        for count in [2, 3] {
            tells(story, "", &format!("{count} parts lie in their order: true"));
        }
    }
    tells("gather", "parts=2", "2 parts lie in their order: true\n3 parts: Err(Unsupported)");
}

/// As many parts as a device says may be more than its queue pairs have room for.
#[test]
fn queue_pair_that_takes_no_parts_is_made_without_them() {
    for (fake, made, offered) in [
        ("", "of 4 parts, 220 bytes", "at most 4\n2 parts: Ok"),
        ("send_parts=1", "of 1 parts, 220 bytes", "at most 1\n2 parts: Err(Unsupported)"),
        ("inline_max=100", "of 4 parts, 96 bytes", "at most 4\n2 parts: Ok"),
        ("inline_max=64 send_parts=1", "of 1 parts, 64 bytes", "at most 1\n2 parts: Err"),
        ("inline_max=0", "of 4 parts, 0 bytes", "at most 4\n2 parts: Ok"),
        ("inline_max=0 send_parts=1", "of 1 parts, 0 bytes", "at most 1\n2 parts: Err"),
    ] {
        for story in ["gather", "gather one by one"] {
            tells(story, fake, &format!("a queue pair {made} inline"));
            tells(story, fake, offered);
        }
    }
}

#[test]
fn bad_key_of_data_is_the_error_of_its_op() {
    tells("write", "bad_key", "a write of 4095 bytes: false\nKey, a send from 10.0.0.1");
    let wanted = "post 0 of 4095 bytes\npost 1 of 0 bytes, signalled\n";
    tells("write all two", "bad_key say_posts", wanted);
    tells("write all two", "bad_key", "a write of 4095 bytes: false\nKey, a send from 10.0.0.1");
}
