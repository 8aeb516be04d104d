//! Ranks whose windows lie in memory of GPUs, over the double of the CUDA driver: each with a
//! stream of its own.
#![allow(dead_code)]

use crate::cuda_support::control;
use crate::cuda_support::driver::*;
use crate::cuda_support::steps::*;
use crate::group_support::{Memory, Rank, Table, limits, pattern, run};
use crate::host_support::{self, Watch, small};
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Span};
use crosstie::collective::Algorithm;
use crosstie::fabric::MemoryKind;
use crosstie::host::Options;
use crosstie::host::gather::Key;
use crosstie::host::gather::error::GatherError;
use crosstie::memory::Variables;

/// One rank, its GPU's memory and its stream.
pub struct Device<'r> {
    pub rank: &'r mut Rank,
    pub window: Handle,
    pub memory: Memory,
    pub stream: usize,
    /// Memory of the same GPU that is no window.
    pub send: u64,
}

/// Bytes of each rank's window.
pub const ROOM: usize = 8 << 20;

pub fn options(ranks: u32) -> Options {
    host_support::set("CROSSTIE_RAILS", "shm");
    small(2 * ranks + 2)
}

/// The options of one of several hosts, which reach each other over TCP.
pub fn options_of_host(host: usize, ranks: u32) -> Options {
    let node = (host + 1).to_string();
    let settings = [("CROSSTIE_NODE_ID", node.as_str()), ("CROSSTIE_SOCKET_IFNAME", "lo")];
    let of_process = Variables::of_process().iter();
    let variables: Variables = of_process
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .filter(|(name, _)| !settings.iter().any(|(it, _)| name == it))
        .chain(settings.map(|(name, value)| (name.into(), value.into())))
        .collect();
    // a test opens few endpoints
    Options { variables: Some(Box::leak(Box::new(variables))), ..small(2 * ranks + 2) }
}

/// Runs a program on ranks that take GPUs in turn.
pub fn run_devices(options: &Options, ranks: u32, program: impl Fn(&mut Device) + Sync) {
    run(options, ranks, |rank| with_device(rank, &program));
}

/// The same on hosts of as many ranks `each`.
pub fn run_hosts(hosts: u32, each: u32, program: impl Fn(&mut Device) + Sync) {
    run_hosts_of(&vec![each; hosts as usize], program);
}

/// The same on hosts whose numbers of ranks are given.
pub fn run_hosts_of(hosts: &[u32], program: impl Fn(&mut Device) + Sync) {
    let host_of: Vec<usize> =
        hosts.iter().enumerate().flat_map(|(host, each)| vec![host; *each as usize]).collect();
    let (ranks, table) = (host_of.len() as u32, Table::new(host_of.len()));
    std::thread::scope(|scope| {
        for (rank, host) in host_of.into_iter().enumerate() {
            let (table, program) = (&table, &program);
            scope.spawn(move || {
                let options = options_of_host(host, ranks);
                let opened = Rank::try_open(&options, table, rank, limits(ranks), timeout());
                let mut rank = opened.expect("a group");
                with_device(&mut rank, program);
                rank.close();
            });
        }
    });
}

fn with_device(rank: &mut Rank, program: &(impl Fn(&mut Device) + Sync)) {
    let (mut device, region) = Device::open(rank);
    program(&mut device);
    let Device { rank, window, memory, stream, send } = device;
    rank.barrier(window, 0).expect("a barrier");
    let _ = rank.group().free(window);
    rank.meet();
    while rank.node.shared.deregister(region).is_err() {
        rank.progress();
    }
    ok(cuStreamDestroy_v2(stream));
    ok(cuMemFree_v2(memory.address()));
    ok(cuMemFree_v2(send));
}

impl<'r> Device<'r> {
    /// A window in memory of the rank's GPU, exchanged, and the region of it.
    pub fn open(rank: &'r mut Rank) -> (Device<'r>, Handle) {
        ok(cuInit(0));
        on(rank.rank as i32 % out(cuDeviceGetCount));
        let (start, send) = (alloc(ROOM), alloc(ROOM));
        let shared = &rank.node.shared;
        // SAFETY: it is freed after it was deregistered.
        let region = unsafe { shared.register(start, Bytes::of(ROOM), MemoryKind::Cuda(0)) };
        let region = region.expect("memory");
        let place = std::ptr::with_exposed_provenance_mut(start as usize);
        let memory = Memory { start: place, region, bytes: ROOM };
        let window = rank.register(memory);
        rank.exchange(window).expect("an exchange");
        (Device { rank, window, memory, stream: stream(), send }, region)
    }

    pub fn key(&self, algorithm: Algorithm, team_max: u32) -> Key {
        let (window, stream) = (self.window, self.stream as u64);
        let bytes = ROOM as u64;
        Key { window, offset: 0, bytes, stream, algorithm: Some(algorithm), team_max }
    }

    pub fn prepare(&mut self, key: Key) -> Result<Handle, GatherError> {
        let group = self.rank.group.as_mut().expect("open");
        group.gather_prepare(&mut self.rank.node, key, false, None)
    }

    pub fn gather(&mut self, request: Handle, send: u64, bytes: usize) -> Result<(), GatherError> {
        let stream = Some(self.stream as u64);
        let group = self.rank.group.as_mut().expect("open");
        // SAFETY: the test leaves the memory alone until the stream is done.
        unsafe { group.gather(&mut self.rank.node, request, (send, bytes as u64), stream, None) }
    }

    /// Where this rank's chunk lies.
    pub fn own(&self, bytes: usize) -> u64 {
        self.memory.address() + self.rank.rank as u64 * bytes as u64
    }

    /// Writes this rank's chunk of a round.
    pub fn give(&self, at: u64, bytes: usize, round: u64) {
        control::write(at, &chunk(self.rank.rank, bytes, round));
    }

    /// Progress until the stream is done.
    pub fn settle(&mut self) {
        let watch = Watch::start();
        while cuStreamQuery(self.stream) == NOT_READY {
            self.rank.progress();
            watch.look("a stream that ends");
        }
        ok(cuStreamQuery(self.stream));
    }

    /// In place, by the call of other libraries.
    pub fn all_gather(&mut self, bytes: usize) {
        let (own, start) = (self.own(bytes), self.memory.address());
        let (window, stream) = (self.window, Some(self.stream as u64));
        let group = self.rank.group.as_mut().expect("open");
        let (target, sent) = ((window, start), (own, bytes as u64));
        // SAFETY: the test leaves the memory alone until the stream is done.
        let ended = unsafe { group.all_gather(&mut self.rank.node, target, sent, stream) };
        ended.expect("an AllGather");
    }

    /// Checks every byte of all chunks.
    pub fn check(&self, bytes: usize, round: u64) {
        self.check_at(0, bytes, round);
    }

    /// The same for chunks from an offset on.
    pub fn check_at(&self, offset: u64, bytes: usize, round: u64) {
        for rank in 0..self.rank.ranks {
            let at = self.memory.address() + offset + u64::from(rank) * bytes as u64;
            let came = control::read(at, bytes);
            assert!(came == chunk(rank, bytes, round), "chunk {rank} of {bytes}, round {round}");
        }
    }

    /// Records what `work` puts on the stream; the graph, and one to launch.
    pub fn record(&mut self, work: impl FnOnce(&mut Self)) -> (usize, usize) {
        const RELAXED: u32 = 2;
        ok(cuStreamBeginCapture_v2(self.stream, RELAXED));
        work(self);
        let graph = out(|graph| cuStreamEndCapture(self.stream, graph));
        (graph, out(|made| cuGraphInstantiateWithFlags(made, graph, 0)))
    }
}

/// What a rank gives in a round.
pub fn chunk(rank: u32, bytes: usize, round: u64) -> Vec<u8> {
    (0..bytes).map(|at| pattern(u64::from(rank) * 1000 + round, at)).collect()
}

/// How often a kind of node is in a graph, by the driver's number of the kind.
pub fn kinds(graph: usize) -> Vec<u32> {
    let count = out(|count| cuGraphGetNodes(graph, std::ptr::null_mut(), count));
    let (mut nodes, mut room) = (vec![0; count], count);
    ok(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut room));
    nodes.iter().map(|node| out(|kind| cuGraphNodeGetType(*node, kind))).collect()
}

/// The group's timeout.
pub fn timeout() -> Span {
    Span::millis(30_000)
}
