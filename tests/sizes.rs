//! Sizes do not move unnoticed: the block's formula, its records, the wire, and what
//! `doc/limits.md` says of them. `UPDATE_SNAPSHOTS=1` writes the new numbers.
#![cfg(target_pointer_width = "64")]

mod host_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::units::{Bytes, Span};
use crosstie::host::device::DEVICES;
use crosstie::host::group::GroupOptions;
use crosstie::host::options::{self, RING_BYTES_MIN, SEND_RING_BYTES_MAX, WRITE_RING_BYTES_MAX};
use crosstie::host::{DeviceKind, Endpoint, OpenError, Options};
use crosstie::provider::{libfabric, shm, taken, tcp, verbs};
use crosstie::transport::RECORD_SIZES;
use crosstie::transport::limits::{self, Limits};
use crosstie::window::{Limits as GroupLimits, frames_bytes_each};
use crosstie::wire;
use crosstie::wire::report::REPORT_BYTES_MAX;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const PAIR_BYTES_MAX: usize = 64 << 10;
const UPDATE: &str = "UPDATE_SNAPSHOTS";

fn grid() -> Vec<Options> {
    let mut all = vec![];
    for device in DEVICES {
        for connections_max in [1, 2, 3, 7, 64, 65, 100, 1000] {
            for requests_max in [32, 64, 128, 256] {
                for (regions_max, rails_max) in [(1, 1), (3, 2), (256, 1), (256, 4), (1000, 8)] {
                    let limits = Limits { connections_max, requests_max, regions_max, rails_max };
                    let heap_bytes = Bytes::ZERO;
                    all.push(Options { device, limits, heap_bytes, ..Options::default() });
                }
            }
        }
    }
    all
}

#[test]
fn block_of_the_formula_is_cut_to_the_last_byte_and_one_byte_less_is_refused() {
    for options in grid() {
        let mut block = HeapBlock::new(options.bytes());
        let open = |block: &mut HeapBlock, length| {
            // SAFETY: the block outlives the endpoint, which is closed or was never made.
            unsafe { Endpoint::open(block.start(), length, &options) }
        };
        let short = open(&mut block, options.bytes() - 1);
        assert_eq!(short.err(), Some(OpenError::Storage), "{options:?}");
        // asserts that nothing of the block is left
        open(&mut block, options.bytes()).expect("the formula is enough").close();
    }
}

#[test]
fn block_that_is_not_aligned_is_refused() {
    let options = Options { heap_bytes: Bytes::ZERO, ..Options::default() };
    let mut block = HeapBlock::new(options.bytes() + 64);
    // SAFETY: refused before anything is written; inside the block in any case.
    let opened = unsafe { Endpoint::open(block.start().add(8), options.bytes(), &options) };
    assert_eq!(opened.err(), Some(OpenError::Storage));
}

/// With one rail per connection.
fn of(connections_max: u32) -> Options {
    of_rails(connections_max, 1)
}

fn of_rails(connections_max: u32, rails_max: u32) -> Options {
    let limits = Limits { connections_max, rails_max, ..Limits::default() };
    Options { limits, ..Options::default() }
}

/// Both sides' bytes of one connection more, everything counted.
fn pair_bytes() -> usize {
    2 * (of(1024).bytes() - of(512).bytes()) / 512
}

#[test]
fn state_of_one_connection_pair_is_64_kib_at_most() {
    assert_eq!(of(1024).limits.requests_max, 32);
    assert!(2 * of(1).limits.connection_bytes() <= PAIR_BYTES_MAX);
    assert!(pair_bytes() <= PAIR_BYTES_MAX, "{}", pair_bytes());
}

/// Both sides' bytes of one connection more that may have two rails, as by default.
fn pair_bytes_of_two_rails() -> usize {
    2 * (of_rails(1024, 2).bytes() - of_rails(512, 2).bytes()) / 512
}

/// What of them is queues: as many places as there may be requests, messages that came early, sends
/// to be made again, and news; of both sides. The slots in the mailbox are not among them.
fn pair_queue_bytes_of_two_rails() -> usize {
    let size = |name: &str| records().iter().find(|(known, _)| known == name).unwrap().1;
    let limits = of_rails(1, 2).limits;
    let requests = limits.requests_max as usize;
    let sends = requests * size("SendRecord");
    let receives = requests * (size("GroupRecord") + 8 * size("ReceiveRecord"));
    let early = 24 * size("EarlySend") + 48 * size("HeldMessage");
    // of a thousand connections, the length rounded up to a power of two: 8 each
    let news = 8 * size("BandEvent");
    2 * (sends + receives + early + news + limits.kept_bytes())
}

/// Both sides' bytes of one queue pair more: its queue of sends, and what waits for the doorbell;
/// and the rest. What the device reads and writes is pinned beside them.
fn queue_pair_bytes() -> [usize; 2] {
    let size = |name: &str| records().iter().find(|(known, _)| known == name).unwrap().1;
    let of = |peers_max| {
        let (regions_max, payload_bytes_max) = (256, 2048);
        verbs::bytes(&verbs::Limits { peers_max, regions_max, payload_bytes_max })
    };
    let all = 2 * (of(1024) - of(512)) / 512;
    let sends = verbs::SENDS as usize * size("verbs send");
    let queues = 2 * (sends + verbs::CHAIN * size("verbs chained send"));
    [queues, all - queues]
}

/// Of a connection with an RDMA port, which takes a second rail: all but the queues, whose bytes
/// `doc/limits.md` has.
#[test]
fn state_of_a_connection_pair_over_a_port_is_64_kib_at_most() {
    let limits = of_rails(1, 2).limits;
    // machine and mailbox, every queue counted but that of sends to be made again
    let machine = 2 * (limits.connection_bytes() - limits.kept_bytes());
    assert!(machine <= PAIR_BYTES_MAX, "{machine}");
    let all = pair_bytes_of_two_rails() + queue_pair_bytes().iter().sum::<usize>();
    let queues = pair_queue_bytes_of_two_rails() + queue_pair_bytes()[0];
    assert!(all - queues <= PAIR_BYTES_MAX, "{all} less {queues}");
    assert!(all > PAIR_BYTES_MAX, "the queues need not be told apart");
}

fn records() -> Vec<(String, usize)> {
    let named = |(name, bytes): &(&str, usize)| ((*name).to_owned(), *bytes);
    let mut all: Vec<_> = RECORD_SIZES.iter().map(named).collect();
    all.extend(options::RECORD_SIZES.iter().map(named));
    all.extend(shm::provider::RECORD_SIZES.iter().map(named));
    all.extend(tcp::RECORD_SIZES.iter().map(named));
    all.extend(verbs::RECORD_SIZES.iter().map(named));
    all.extend(libfabric::RECORD_SIZES.iter().map(named));
    all
}

fn wire_structures() -> Vec<(String, usize)> {
    let sizes: [(&str, usize); 12] = [
        ("wire handle", wire::handle::HANDLE_BYTES),
        ("wire control slot", wire::slot::ControlSlot::SIZE),
        ("wire region cell", wire::cell::CellFirst::SIZE + wire::cell::CellSecond::SIZE),
        ("wire state line", wire::state::StateLine::SIZE),
        ("wire send head", wire::head::SendHead::SIZE),
        ("wire descriptor, at most", wire::descriptor::DESCRIPTOR_BYTES_MAX),
        ("wire frame header", wire::hello::FrameHeader::SIZE),
        ("wire link hello", wire::hello::LinkHello::SIZE),
        ("wire connect hello", wire::hello::ConnectHello::SIZE),
        ("wire refusal", wire::hello::RefusedHello::SIZE),
        ("wire frame, at most", wire::hello::FRAME_BYTES_MAX),
        ("shm line", shm::record::LINE),
    ];
    sizes.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec()
}

#[test]
fn sizes_of_records_and_wire_structures_are_the_snapshot() {
    let mut text = String::new();
    for (name, bytes) in records().into_iter().chain(wire_structures()) {
        writeln!(text, "{bytes:5} {name}").unwrap();
    }
    let path = root().join("tests/snapshots/sizes.txt");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let snapshot = std::fs::read_to_string(&path).expect("a snapshot");
    assert!(text == snapshot, "sizes have moved ({UPDATE}=1 takes them over):\n{text}");
}

/// Every number of the tables of `doc/limits.md`, by the name in the first column.
fn documented() -> Vec<(String, usize)> {
    let default = Options::default();
    let limits = default.limits;
    let mut all = records();
    all.extend(
        [
            ("REQUESTS_MAX", limits::REQUESTS_MAX as usize),
            ("GROUPS_OFFERED_MAX", limits::GROUPS_OFFERED_MAX as usize),
            ("REQUESTS_MIN", limits::REQUESTS_MIN as usize),
            ("CONNECTIONS_MAX", limits::CONNECTIONS_MAX as usize),
            ("REGIONS_MAX", limits::REGIONS_MAX as usize),
            ("CREDITS", limits::CREDITS as usize),
            ("CREDITS_FOR_STARTS", limits::CREDITS_FOR_STARTS as usize),
            ("UNDELIVERED_MAX", limits::UNDELIVERED_MAX as usize),
            ("EARLY_MAX", limits::EARLY_MAX as usize),
            ("EARLY_LONG_MAX", limits::EARLY_LONG_MAX as usize),
            ("CELLS", limits::CELLS),
            ("POLL_BATCH", limits::POLL_BATCH),
            ("GROUP_MAX", wire::GROUP_MAX),
            ("RAILS_MAX", wire::RAILS_MAX),
            ("STRIPES_MAX", wire::STRIPES_MAX as usize),
            ("RING_BYTES_MIN", RING_BYTES_MIN as usize),
            ("SEND_RING_BYTES_MAX", SEND_RING_BYTES_MAX as usize),
            ("WRITE_RING_BYTES_MAX", WRITE_RING_BYTES_MAX as usize),
            ("connections_max", limits.connections_max as usize),
            ("requests_max", limits.requests_max as usize),
            ("regions_max", limits.regions_max as usize),
            ("eager_bytes_max", default.eager_bytes_max.as_usize()),
            ("send_ring_bytes", default.send_ring_bytes as usize),
            ("write_ring_bytes", default.write_ring_bytes as usize),
            ("heap_bytes", default.heap_bytes.as_usize()),
            ("mailbox", limits.mailbox_bytes()),
            ("one side of a connection", limits.connection_bytes()),
            ("both sides of a connection, everything counted", pair_bytes()),
            ("connection pair, in info", 2 * (limits.connection_bytes() - limits.kept_bytes())),
            (
                "state of a connection pair of 2 rails",
                pair_bytes_of_two_rails() - pair_queue_bytes_of_two_rails(),
            ),
            ("request queues of a connection pair of 2 rails", pair_queue_bytes_of_two_rails()),
            ("state of a queue pair, both sides", queue_pair_bytes()[1]),
            ("work queues of a queue pair, both sides", queue_pair_bytes()[0]),
            ("1 connection", of(1).bytes()),
            ("64 connections", of(64).bytes()),
            ("1000 connections", of(1000).bytes()),
            ("64 connections of 2 rails", of_rails(64, 2).bytes()),
            ("64 connections of 8 rails", of_rails(64, 8).bytes()),
            ("rails_max", limits.rails_max as usize),
            ("RECEIVES_SPARE", limits::RECEIVES_SPARE as usize),
            ("STREAM_KEPT", limits::STREAM_KEPT as usize),
            ("KEPT_BYTES", limits::KEPT_BYTES as usize),
            ("rings of 1 connection", rings_bytes(&default)),
            ("rings of 64 connections", 64 * rings_bytes(&default)),
            ("rings of 1000 connections", 1000 * rings_bytes(&default)),
            ("rings of 1000 connections, shortest", 1000 * rings_bytes(&shortest())),
            ("10000 connections", of(10_000).bytes()),
            ("reserve of 1 connection over TCP", tcp::peer_reserve_bytes(1)),
            ("reserve of 10000 connections over TCP", 10_000 * tcp::peer_reserve_bytes(1)),
            ("reserve of 1 connection that pushes", taken::PEER_RESERVE_BYTES),
            ("pinned for 1 peer over verbs", verbs::peer_reserve_bytes(verbs::PAYLOAD_BYTES_MAX)),
            (
                "reserved for 1 peer over libfabric",
                libfabric::peer_reserve_bytes(libfabric::PAYLOAD_BYTES_MAX),
            ),
        ]
        .map(|(name, number)| (name.to_owned(), number)),
    );
    all
}

fn shortest() -> Options {
    let (send_ring_bytes, write_ring_bytes) = (RING_BYTES_MIN, RING_BYTES_MIN);
    Options { send_ring_bytes, write_ring_bytes, ..Options::default() }
}

/// What the rings of a connection take in both arenas: whole pages.
fn rings_bytes(options: &Options) -> usize {
    2 * shm::rings_bytes(options.send_ring_bytes, options.write_ring_bytes).next_multiple_of(4096)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// The name in the first column and the number in the second; none in headings.
fn row(line: &str) -> Option<(&str, usize)> {
    let mut cells = line.strip_prefix('|')?.split('|');
    let name = cells.next()?.trim().trim_matches('`');
    let number = cells.next()?.trim().replace(',', "");
    Some((name, number.parse().ok()?))
}

fn with_commas(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[test]
fn numbers_of_the_documentation_are_those_of_the_code() {
    let path = root().join("doc/limits.md");
    let mut text = std::fs::read_to_string(&path).unwrap();
    let known = documented();
    if std::env::var_os(UPDATE).is_some() {
        let mut out = String::new();
        for line in text.lines() {
            match row(line).and_then(|(name, _)| known.iter().find(|(known, _)| known == name)) {
                Some((_, number)) => {
                    let cells: Vec<&str> = line.splitn(4, '|').collect();
                    writeln!(out, "|{}| {} |{}", cells[1], with_commas(*number), cells[3]).unwrap();
                }
                None => writeln!(out, "{line}").unwrap(),
            }
        }
        std::fs::write(&path, &out).unwrap();
        text = out;
    }
    let rows: Vec<_> = text.lines().filter_map(row).collect();
    for (name, number) in &known {
        let said: Vec<usize> =
            rows.iter().filter(|(said, _)| said == name).map(|(_, said)| *said).collect();
        assert_eq!(said, [*number], "`{name}` in {}", path.display());
    }
    for (name, _) in rows {
        assert!(known.iter().any(|(known, _)| known == name), "the code knows no `{name}`");
    }
}

fn group_bytes(ranks: u32, windows_max: u32, [signals, counters, barriers]: [u32; 3]) -> usize {
    let limits = GroupLimits {
        ranks,
        windows_max,
        signals_max: signals,
        counters_max: counters,
        barriers_max: barriers,
    };
    GroupOptions { limits, rank: 0, timeout: Span::millis(1) }.bytes()
}

/// The formula of `doc/one-sided.md`, with the numbers that it has there. Lines of the block are
/// whole where all counts are multiples of 8.
#[test]
fn state_of_a_group_is_what_its_page_says() {
    let of = |ranks, windows_max| group_bytes(ranks, windows_max, [0; 3]);
    let share = (of(16, 16) - of(16, 8) - (of(8, 16) - of(8, 8))) / 64;
    let window = (of(8, 16) - of(8, 8)) / 8 - 8 * share;
    let frames = frames_bytes_each();
    let pair = (of(16, 8) - of(8, 8)) / 8 - 8 * share - frames;
    let page = std::fs::read_to_string(root().join("doc/one-sided.md")).unwrap();
    for said in [
        format!("ranks × {} ", with_commas(frames)),
        format!("+ ranks × {} ", with_commas(pair)),
        format!("+ windows_max × ({window} + {share} × ranks) "),
    ] {
        assert!(page.contains(&said), "doc/one-sided.md lacks: {said}");
    }
    for (ranks, windows) in [(8, 8), (8, 64), (64, 8), (64, 64)] {
        for ids in [[0, 0, 0], [8, 0, 0], [0, 8, 0], [0, 0, 8], [8, 16, 64]] {
            let [signals, counters, barriers] = ids.map(|count| count as usize);
            let (r, w) = (ranks as usize, windows as usize);
            let words = r * (signals + barriers) + counters + barriers;
            let expected = r * (frames + pair) + w * (window + share * r) + w * 8 * words;
            assert_eq!(group_bytes(ranks, windows, ids), expected, "{ranks} {windows} {ids:?}");
        }
    }
}

const fn lines(bytes: usize) -> usize {
    bytes.div_ceil(64) * 64
}

/// The formula as `doc/limits.md` writes it down, for shared memory.
#[test]
fn formula_of_the_documentation_is_what_open_asks_for() {
    let size = |name: &str| records().iter().find(|(known, _)| known == name).unwrap().1;
    for options in grid().into_iter().filter(|o| o.device == DeviceKind::SharedMemory) {
        let Limits { connections_max, requests_max, regions_max, .. } = options.limits;
        let (c, r, m) = (connections_max as usize, requests_max as usize, regions_max as usize);
        let machine = lines(c * size("Connection"))
            + lines(c * r * size("SendRecord"))
            + lines(c * r * size("GroupRecord"))
            + lines(c * r * 8 * size("ReceiveRecord"))
            + lines(c * 24 * size("EarlySend"))
            + lines(c * 48 * size("HeldMessage"))
            + lines(c * r.div_ceil(64) * 8)
            + c * (64 + 8 * 128 + r.min(64) * 8 * 64)
            + lines(c * size("Lane"))
            + 4 * lines(8 * c.div_ceil(64))
            + lines(REPORT_BYTES_MAX);
        let regions =
            64 + lines(4 * m) + lines(m * size("RegionSlot")) + lines(m * size("region keys"));
        let events = (2 * c).next_power_of_two();
        let band = 64
            + 2 * lines(4 * c)
            + size("Indices")
            + lines(events * size("BandEvent"))
            + lines(c * size("Known"))
            + lines(size("Shared"));
        let ops = c.next_power_of_two().max(16);
        let rail = lines(c * size("shm peer"))
            + lines(4 * c)
            + lines(c * 8 * (SEND_RING_BYTES_MAX as usize / 64).div_ceil(64))
            + lines(ops * size("shm op"))
            + lines((m + 2) * size("RegionSlot"))
            + lines(4 * (m + 2))
            + 64
            + lines(c);
        assert_eq!(machine + regions + band + rail, options.bytes(), "{options:?}");
    }
}
