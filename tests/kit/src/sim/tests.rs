use super::*;
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::RailGeneration;
use crosstie::base::units::Span;
use crosstie::fabric::{
    Domain, MemoryKind, OpId, OpKind, PeerLife, Region, RemoteSpan, Source, Syscalls,
};
use std::format;
use std::vec::Vec;

const CONFIG: SimConfig = SimConfig {
    ports: 3,
    peers_max: 2,
    recv_slots: 2,
    payload_max: Bytes(64),
    regions_max: 4,
    flights_max: 32,
    pull: false,
    ordered: false,
    immediate: true,
    copies_at_post: true,
    syscalls: Syscalls::None,
    latency: Span(10),
    delay_max: Span(1000),
    seed: 5,
    faults: Faults {
        delay: 0,
        reorder: 0,
        again: 0,
        error: 0,
        rail_death: 0,
        late_completion: 0,
        ghost: 0,
    },
};
const NOTHING: Completion = Completion::Immediate { peer: PeerIndex(9), immediate: 0 };

/// Two connected ports, two halves of registered memory, and everything they report.
struct Net {
    fabric: &'static SimFabric<'static>,
    ports: [SimPort<'static, 'static>; 2],
    peers: [PeerIndex; 2],
    memory: *mut [u64; 32],
    target: RemoteSpan,
    now: Instant,
}

fn net(config: SimConfig) -> Net {
    let block =
        std::boxed::Box::leak(std::boxed::Box::new(HeapBlock::new(SimFabric::bytes(config))));
    let mut carver = block.carver();
    let fabric = SimFabric::open(config, &mut carver).unwrap();
    assert_eq!(carver.left(), 0);
    let fabric: &'static SimFabric = std::boxed::Box::leak(std::boxed::Box::new(fabric));
    let (a, b) = fabric.connect(0, 1).unwrap();
    let memory = std::boxed::Box::into_raw(std::boxed::Box::new([0u64; 32]));
    let address = memory as u64;
    let region = Region { address, length: Bytes(256), kind: MemoryKind::Host };
    // SAFETY: leaked, so valid for ever.
    let key = unsafe { fabric.domain.register(region) }.unwrap();
    let target = RemoteSpan { key, address };
    let ports = [fabric.port(0), fabric.port(1)];
    Net { fabric, ports, peers: [a, b], memory, target, now: Instant(0) }
}

impl Net {
    fn line(&mut self, id: u64, immediate: Option<u32>) -> Result<Posted, PostError> {
        let source = Source::Line([id as u8; 64]);
        let kind = OpKind::Write { source, target: self.target, immediate };
        self.ports[0].post(&Op { id: OpId(id), peer: self.peers[0], kind }, self.now)
    }

    fn clear(&mut self) {
        // SAFETY: leaked memory that only ops of this net touch, and none runs now.
        unsafe { self.memory.write([0; 32]) };
    }

    fn first(&self) -> u64 {
        // SAFETY: as in `clear`.
        unsafe { self.memory.cast::<u64>().read() }
    }

    fn fence(&mut self, side: usize) {
        let kind = OpKind::Fence { generation: RailGeneration(1) };
        let op = Op { id: OpId(99), peer: self.peers[side], kind };
        while self.ports[side].post(&op, self.now) == Err(PostError::Again) {}
    }

    /// Everything that a side reports until `until`.
    fn drain(&mut self, side: usize, until: u64) -> Vec<Completion> {
        self.now = Instant(until);
        let mut out = [NOTHING; 64];
        let count = self.ports[side].poll(&mut out, Bytes(1 << 20), self.now);
        out[..count].to_vec()
    }
}

#[test]
fn nothing_lands_before_its_latency() {
    let mut net = net(CONFIG);
    net.line(1, Some(1)).unwrap();
    assert!(net.drain(1, 9).is_empty());
    assert_eq!(net.drain(1, 10).len(), 1);
}

#[test]
fn immediates_overtake_each_other_only_without_order() {
    let faults = Faults { reorder: CERTAIN, ..Faults::default() };
    for ordered in [true, false] {
        let mut net = net(SimConfig { faults, ordered, recv_slots: 16, ..CONFIG });
        for id in 0..16 {
            net.line(id, Some(id as u32)).unwrap();
        }
        let words = net.drain(1, 100_000).into_iter().map(|completion| match completion {
            Completion::Immediate { immediate, .. } => immediate,
            other => panic!("{other:?}"),
        });
        assert_eq!(words.is_sorted(), ordered);
    }
}

#[test]
fn immediate_without_a_free_receive_is_a_violation_and_kills_the_connection() {
    let mut net = net(CONFIG);
    for id in 0..3 {
        net.line(id, Some(7)).unwrap();
    }
    let at_target = net.drain(1, 100);
    assert_eq!(net.fabric.counts().violations, 1);
    assert!(matches!(
        at_target.last(),
        Some(Completion::PeerDown { cause: DownCause::Failed, .. })
    ));
    let own = net.drain(0, 100);
    assert_eq!(own.len(), 4, "{own:?}");
}

#[test]
fn polled_immediates_give_their_receives_back() {
    let mut net = net(CONFIG);
    for id in 0..20 {
        net.line(id, Some(7)).unwrap();
        assert_eq!(net.drain(1, 100 * (id + 1)).len(), 1);
        net.drain(0, 100 * (id + 1));
    }
    assert_eq!(net.fabric.counts().violations, 0);
}

#[test]
fn ghost_lands_after_its_error_unless_fenced() {
    let faults = Faults { ghost: CERTAIN, ..Faults::default() };
    for fenced in [false, true] {
        let mut net = net(SimConfig { faults, ..CONFIG });
        net.line(0xee, None).unwrap();
        net.fabric.sever(0, net.peers[0], net.now);
        let errors = net.drain(0, 0);
        assert!(matches!(errors[0], Completion::Done { id: OpId(0xee), result: Err(_), .. }));
        if fenced {
            // the target fences; the ghost may land until that is answered
            net.fence(1);
            let answers = net.drain(1, 10);
            assert!(matches!(answers.last(), Some(Completion::Fenced { .. })), "{answers:?}");
        }
        net.clear();
        net.drain(0, 100_000);
        assert_eq!(net.first() == 0, fenced);
        assert_eq!(net.fabric.counts().ghosts, 1);
    }
}

#[test]
fn drawn_error_is_reported_whether_or_not_it_took_effect() {
    let faults = Faults { error: CERTAIN, ..Faults::default() };
    let mut net = net(SimConfig { faults, ..CONFIG });
    let mut landed = 0;
    for id in 1..=16 {
        net.clear();
        net.line(id, None).unwrap();
        let ended = net.drain(0, 100 * id);
        assert!(matches!(ended[0], Completion::Done { result: Err(_), .. }));
        landed += usize::from(net.first() != 0);
    }
    assert!((1..16).contains(&landed));
}

#[test]
fn same_seed_gives_the_same_history() {
    let faults = Faults {
        delay: CERTAIN / 2,
        reorder: CERTAIN / 2,
        again: CERTAIN / 4,
        error: CERTAIN / 8,
        rail_death: 0,
        late_completion: CERTAIN / 2,
        ghost: 0,
    };
    let history = |seed| {
        let mut net = net(SimConfig { faults, seed, ..CONFIG });
        let mut text = std::string::String::new();
        for id in 0..50 {
            text += &format!("{:?}", net.line(id, None));
            text += &format!("{:?}", net.drain(0, id * 100));
        }
        text + &format!("{}", net.fabric.counts())
    };
    assert_eq!(history(3), history(3));
    assert_ne!(history(3), history(4));
}

#[test]
fn a_port_has_several_connections() {
    let net = net(CONFIG);
    assert_eq!(net.fabric.connect(0, 1), Ok((PeerIndex(1), PeerIndex(1))));
    assert_eq!(net.fabric.connect(2, 1), Err(ConnectError::Full));
    assert_eq!(net.fabric.connect(2, 2), Err(ConnectError::Range));
}

#[test]
fn every_accepted_op_ends_once_whatever_goes_wrong() {
    let faults = Faults {
        delay: CERTAIN / 2,
        reorder: CERTAIN / 2,
        again: CERTAIN / 8,
        error: CERTAIN / 16,
        rail_death: CERTAIN / 64,
        late_completion: CERTAIN / 4,
        ghost: CERTAIN / 2,
    };
    let mut deaths = 0;
    for seed in 0..64 {
        let mut net = net(SimConfig { faults, seed, ..CONFIG });
        let mut open = std::collections::BTreeSet::new();
        let mut ended = Vec::new();
        for id in 1..=100 {
            if let Ok(Posted::Pending) = net.line(id, None) {
                open.insert(id);
            }
            ended.extend(net.drain(0, id * 50));
        }
        net.fence(0);
        ended.extend(net.drain(0, 1_000_000));
        for completion in ended {
            if let Completion::Done { id, .. } = completion {
                assert!(open.remove(&id.0), "seed {seed}: {id:?} ended twice");
            }
        }
        assert!(open.is_empty(), "seed {seed}: {open:?} never ended");
        assert_eq!(net.ports[0].peer_close(net.peers[0]), Ok(()), "seed {seed}");
        deaths += net.fabric.counts().deaths;
    }
    assert!(deaths > 10);
}

/// Bytes per second at which a line of 64 bytes takes 64 ns.
const LINE_PER_64_NS: u64 = 1_000_000_000;

#[test]
fn lines_leave_one_after_another_at_the_speed_of_their_lane() {
    let mut net = net(SimConfig { recv_slots: 16, ..CONFIG });
    net.fabric.speed_set(0, 1, PeerIndex(0), LINE_PER_64_NS, net.now);
    for id in 0..3 {
        net.line(id, Some(id as u32)).unwrap();
    }
    assert_eq!(net.fabric.next_due(), Some(Instant(74)));
    for at in 1..=3 {
        assert!(net.drain(1, 64 * at + 9).is_empty());
        assert_eq!(net.drain(1, 64 * at + 10).len(), 1);
    }
    // an idle lane has saved nothing up
    net.now = Instant(1000);
    net.line(3, Some(3)).unwrap();
    assert!(net.drain(1, 1073).is_empty());
    assert_eq!(net.drain(1, 1074).len(), 1);
}

#[test]
fn lines_that_wait_leave_at_the_speed_that_their_lane_has_then() {
    for ordered in [true, false] {
        let mut net = net(SimConfig { recv_slots: 16, ordered, ..CONFIG });
        net.fabric.speed_set(0, 1, PeerIndex(0), LINE_PER_64_NS, net.now);
        for id in 0..3 {
            net.line(id, Some(id as u32)).unwrap();
        }
        // the first has left; half of the second has not
        assert!(net.drain(1, 73).is_empty());
        assert_eq!(net.drain(1, 96).len(), 1);
        net.fabric.speed_set(0, 1, PeerIndex(0), LINE_PER_64_NS / 2, net.now);
        assert!(net.drain(1, 96 + 64 + 9).is_empty());
        assert_eq!(net.drain(1, 96 + 64 + 10).len(), 1);
        net.fabric.speed_set(0, 1, PeerIndex(0), 0, net.now);
        assert!(net.drain(1, 179).is_empty());
        assert_eq!(net.drain(1, 180).len(), 1);
        // both ways, and for the next connection too
        net.fabric.speed_set(0, 1, PeerIndex(0), LINE_PER_64_NS, net.now);
        net.fence(0);
        net.drain(0, 1000);
        net.drain(1, 1000);
        (0..2).for_each(|side| net.ports[side].peer_close(net.peers[side]).unwrap());
        net.fabric.connect_at(0, 1, PeerIndex(0)).unwrap();
        net.line(4, Some(4)).unwrap();
        assert!(net.drain(1, 1073).is_empty());
        assert_eq!(net.drain(1, 1074).len(), 1);
    }
}
