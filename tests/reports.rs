//! Peers that lie, repeat, skip, or answer for another time, in their reports about rails.

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::{ConnectionIndex, PeerIndex};
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{
    Completion, Domain, DownCause, LocalSpan, MemoryDomain, Op, OpId, OpKind, Provider, RailKey,
    RemoteSpan, Syscalls,
};
use crosstie::transport::limits::{CREDITS, RECEIVES_SPARE};
use crosstie::transport::{
    Config, ConnectionSetup, DataMrs, Endpoint, Incoming, Limits, ReportError, RequestError,
};
use crosstie::wire::head::{
    KIND_FLUSH, KIND_FLUSHED, KIND_PROBE, KIND_PROBED, KIND_REPORT, KIND_REPORT_READ, SendHead,
};
use crosstie::wire::report::{LaneReport, LaneStatus, REPORT_BYTES_MAX, Report, StripesReport};
use crosstie_kit::sim::{Faults, SimConfig, SimFabric, SimPort};

const CONNECTION: ConnectionIndex = ConnectionIndex(0);
const LIMITS: Limits =
    Limits { connections_max: 1, requests_max: 32, regions_max: 4, rails_max: 2 };
const NETWORK: SimConfig = SimConfig {
    ports: 2,
    peers_max: 2,
    recv_slots: CREDITS + RECEIVES_SPARE,
    payload_max: Bytes::kib(1),
    regions_max: 8,
    flights_max: 64,
    pull: false,
    ordered: true,
    immediate: true,
    copies_at_post: true,
    syscalls: Syscalls::None,
    latency: Span(1),
    delay_max: Span(1),
    seed: 1,
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

/// What a peer says: the kind, the number in the head, and how its report differs from an honest
/// one.
type Saying = (u8, i32, fn(&mut Report));

/// Takes sayings in, one after the other, on the first lane; says why one was not believed, and how
/// a receive that was outstanding has ended.
fn said(sayings: &[Saying]) -> (Option<ReportError>, Option<RequestError>) {
    let (error, ended, _) = answered(sayings);
    (error, ended)
}

/// As [`said`], and what the endpoint says.
fn answered(sayings: &[Saying]) -> (Option<ReportError>, Option<RequestError>, Vec<(u8, i32)>) {
    let mut network_block = HeapBlock::new(SimFabric::bytes(NETWORK));
    let fabric = SimFabric::open(NETWORK, &mut network_block.carver()).unwrap();
    fabric.connect_at(0, 1, PeerIndex(0)).unwrap();
    let bytes = LIMITS.machine_bytes() + LIMITS.regions_bytes();
    let mut block = HeapBlock::new(bytes);
    let mut carver = block.carver();
    let regions = DataMrs::carve(&mut carver, LIMITS.regions_max, 0).unwrap();
    let config = Config::default();
    let mut endpoint =
        Endpoint::open(&mut carver, LIMITS, config, regions, fabric.port(0)).unwrap();
    let region = endpoint.mailboxes().region();
    // SAFETY: the block is dropped after the endpoint; no rail is polled from then on.
    let key = unsafe { endpoint.rail().domain().register(region) }.unwrap();
    let setup = ConnectionSetup {
        pull: false,
        mailbox: RemoteSpan { key, address: region.address },
        eager_bytes_max: Bytes(256),
        credits: CREDITS,
        groups_max: LIMITS.requests_max,
        lanes: 2,
        reserve: 0,
        probed: true,
        reads_runs: true,
        reads_filled: true,
        slots_in_rows: true,
    };
    endpoint.connection_open(CONNECTION, &setup);
    let nothing = Incoming { region: Default::default(), address: 0, length: 0, tag: 1 };
    let receive = endpoint.irecv(CONNECTION, &[nothing]).unwrap();
    let mut liar = fabric.port(1);
    let mut now = 1;
    for saying in sayings {
        say(&mut liar, saying, Instant(now));
        for _ in 0..20 {
            now += 1;
            endpoint.progress(Instant(now), Bytes::kib(256));
        }
    }
    let error = endpoint.take_report_error().map(|(_, error)| error);
    let ended = endpoint.test(receive).unwrap().map(|outcome| outcome.result);
    let nothing = Completion::PeerDown { peer: PeerIndex(0), cause: DownCause::Closed };
    let mut events = [nothing; 64];
    let count = liar.poll(&mut events, Bytes::kib(256), Instant(now + 1000));
    let heads = events[..count].iter().filter_map(|event| match event {
        Completion::Received { head, .. } => Some(SendHead::from_bytes(head)),
        _ => None,
    });
    let answers = heads.map(|head| (head.kind, head.tag)).collect();
    (error, ended.and_then(Result::err), answers)
}

fn say(liar: &mut SimPort<'_, '_>, saying: &Saying, now: Instant) {
    let (kind, tag, change) = *saying;
    let mut report = Report { number: 1, epoch: 1, lane_count: 2, ..Report::EMPTY };
    report.credits_through = CREDITS;
    report.lanes[0] = LaneReport { generation: 1, status: LaneStatus::Up };
    change(&mut report);
    let mut bytes = [0; REPORT_BYTES_MAX];
    let length = report.encode(&mut bytes);
    let address = bytes.as_ptr().expose_provenance() as u64;
    let payload = match kind {
        // SAFETY: the bytes stand until the post returns, which copies them (`NETWORK`).
        KIND_REPORT => unsafe { LocalSpan::new(address, Bytes::of(length), RailKey::default()) },
        _ => LocalSpan::EMPTY,
    };
    let head = SendHead {
        kind,
        stripes: 0,
        filled: 0,
        epoch: 1,
        tag,
        send_number: 0,
        eager_number: 0,
        group_base: 0,
        credits_through: CREDITS,
        delivered_through: 0,
    };
    let send = OpKind::Send { head: head.encode(), payload };
    let op = Op { id: OpId(1), peer: PeerIndex(0), kind: send };
    liar.post(&op, now).unwrap();
}

const HONEST: Saying = (KIND_REPORT, 1, |_| {});

#[test]
fn honest_reports_are_believed_and_repetitions_ignored() {
    let next: Saying = (KIND_REPORT, 2, |report| report.number = 2);
    assert_eq!(said(&[HONEST, HONEST, next, HONEST]), (None, None));
    assert_eq!(said(&[(KIND_PROBE, 1, |_| {}), (KIND_REPORT_READ, 0, |_| {})]), (None, None));
}

/// Of the number one byte alone was said again: the answer to one question was that to another.
#[test]
fn question_whether_all_has_come_is_answered_with_the_whole_of_its_number() {
    for number in [7, 300, i32::MIN + 1] {
        let (error, ended, answers) = answered(&[(KIND_FLUSH, number, |_| {})]);
        assert_eq!((error, ended), (None, None));
        assert!(answers.contains(&(KIND_FLUSHED, number)), "{number}: {answers:?}");
    }
}

#[test]
fn each_lie_ends_the_connection_by_its_name() {
    let lies: [(Saying, ReportError); 21] = [
        ((KIND_REPORT, 0, |report| report.number = 0), ReportError::Number),
        ((KIND_REPORT, 0, |report| report.number = 2), ReportError::Number),
        ((KIND_REPORT_READ, 1, |_| {}), ReportError::Number),
        ((KIND_REPORT, 0, |report| report.epoch = 10), ReportError::Epoch),
        ((KIND_REPORT, 0, |report| report.epoch = u32::MAX - 8), ReportError::Epoch),
        ((KIND_REPORT, 0, |report| report.lane_count = 1), ReportError::Lanes),
        ((KIND_REPORT, 0, |report| report.lane_count = 3), ReportError::Lanes),
        ((KIND_REPORT, 0, |report| report.lanes[5].generation = 1), ReportError::Lanes),
        ((KIND_REPORT, 0, |report| report.lane_count = 0), ReportError::Malformed),
        ((KIND_PROBE, 7, |_| {}), ReportError::Generation),
        ((KIND_PROBED, 7, |_| {}), ReportError::Generation),
        ((KIND_REPORT, 0, |report| report.lanes[1].generation = 3), ReportError::Generation),
        ((KIND_REPORT, 0, |report| report.eager_through = 1), ReportError::Through),
        ((KIND_REPORT, 0, |report| report.delivered_through = 1), ReportError::Through),
        ((KIND_REPORT, 0, |report| report.groups_through = 2), ReportError::Through),
        ((KIND_REPORT, 0, |report| report.credits_through = 1 << 30), ReportError::Through),
        ((KIND_REPORT, 0, |report| report.delivered_mask = u64::MAX), ReportError::Through),
        ((KIND_REPORT, 0, |report| report.delivered_mask = 1), ReportError::Through),
        ((KIND_REPORT, 0, |report| report.lanes[0].generation = 0), ReportError::Generation),
        ((KIND_REPORT, 0, |report| report.lanes[0].generation = u32::MAX), ReportError::Generation),
        (
            (KIND_REPORT, 0, |report| {
                report.lanes[1] = LaneReport { generation: u32::MAX, status: LaneStatus::Fenced };
            }),
            ReportError::Generation,
        ),
    ];
    for (at, (lie, name)) in lies.into_iter().enumerate() {
        let (error, ended) = said(&[lie]);
        assert_eq!(error, Some(name), "lie {at}");
        assert_eq!(ended, Some(RequestError::Protocol), "lie {at}");
    }
}

#[test]
fn stripes_of_receives_that_nobody_bound_are_not_looked_at() {
    let entry: Saying = (KIND_REPORT, 1, |report| {
        report.entries[0] = StripesReport { token: 9, arrived: u64::MAX };
        report.entry_count = 1;
    });
    assert_eq!(said(&[entry]), (None, None));
}
