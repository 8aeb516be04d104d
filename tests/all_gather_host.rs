//! AllGathers over windows in memory of the host: by put and signal between all ranks.

mod group_support;
mod host_support;

use crosstie::collective::Algorithm::{self, Direct, Pipeline};
use crosstie::host::gather::Key;
use crosstie::host::gather::error::GatherError;
use crosstie::host::{DeviceKind, Options};
use group_support::{Memory, Rank, pattern, run};
use host_support::small;

const COUNTS: [usize; 3] = [8192, 1_048_576, 1_048_567];
const ROOM: usize = 4 << 20;

fn gather(
    rank: &mut Rank,
    request: crosstie::base::slab::Handle,
    send: u64,
    bytes: usize,
) -> Result<(), GatherError> {
    let group = rank.group.as_mut().expect("open");
    // SAFETY: nobody touches the memory meanwhile.
    unsafe { group.gather(&mut rank.node, request, (send, bytes as u64), None, None) }
}

fn fill(memory: Memory, at: usize, bytes: usize, seed: u64) {
    for byte in 0..bytes {
        // SAFETY: inside the memory, which no request uses now.
        unsafe { memory.start.add(at + byte).write_volatile(pattern(seed, byte)) };
    }
}

fn all_counts(rank: &mut Rank, algorithm: Algorithm) {
    let (window, memory) = rank.window(ROOM);
    let other = rank.memory(ROOM);
    let (bytes, algorithm) = (ROOM as u64, Some(algorithm));
    let key = Key { window, offset: 0, bytes, stream: 0, algorithm, team_max: 0 };
    let group = rank.group.as_mut().expect("open");
    let request = group.gather_prepare(&mut rank.node, key, false, None).expect("a request");
    for bytes in COUNTS {
        for round in 0..5 {
            let (own, seed) = (rank.rank as usize * bytes, u64::from(rank.rank) * 100 + round);
            let in_place = round % 2 == 0;
            let (from, at) = if in_place { (memory, own) } else { (other, 0) };
            fill(from, at, bytes, seed);
            gather(rank, request, from.address() + at as u64, bytes).expect("an AllGather");
            for peer in 0..rank.ranks {
                let seed = u64::from(peer) * 100 + round;
                memory.check(peer as usize * bytes, bytes, seed);
            }
            rank.barrier(window, 0).expect("a barrier");
        }
    }
    let wrong = gather(rank, request, other.address(), ROOM + 1);
    assert_eq!(wrong, Err(GatherError::Bytes(ROOM as u64)));
    rank.group().gather_destroy(request).expect("destroyed");
}

#[test]
fn ranks_gather_over_shared_memory() {
    for ranks in [1, 2, 3] {
        let options = Options { device: DeviceKind::SharedMemory, ..small(16) };
        run(&options, ranks, |rank| all_counts(rank, Direct));
        run(&options, ranks, |rank| all_counts(rank, Pipeline));
    }
}

#[test]
fn ranks_gather_over_tcp() {
    let options = Options { device: DeviceKind::Tcp, ..small(16) };
    run(&options, 3, |rank| all_counts(rank, Direct));
    run(&options, 3, |rank| all_counts(rank, Pipeline));
}
