//! Two of the shipped machines, their network and their users: what one run of a model consists of.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use crosstie::base::carve::{BLOCK_ALIGN, Carver};
use crosstie::base::ids::ConnectionIndex;
use crosstie::base::slab::Handle;
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{MemoryKind, RailKey, Region, RemoteSpan};
use crosstie::transport::limits::CREDITS;
use crosstie::transport::mutant::Mutant;
use crosstie::transport::rail::LaneState;
use crosstie::transport::{
    Config, ConnectionSetup, DataMrs, Endpoint, Incoming, Limits, Outgoing, RequestId, SubmitError,
};
use crosstie_kit::random::Random;

use crate::memory::{BUFFER_STRIDE, Lent, MAILBOX, Memory};
use crate::net::{Invariant, LANES, Link, Net, Port, Violation};

const CONNECTION: ConnectionIndex = ConnectionIndex(0);
/// Messages up to this long travel in the stream.
pub const EAGER_BYTES: u64 = 64;
/// Long messages of a model have so many bytes: two stripes of 128.
pub const LONG_BYTES: u64 = 256;
const BUFFERS: usize = 4;
const MESSAGES: usize = 8;
const LIMITS: Limits = Limits {
    connections_max: 1,
    requests_max: 32,
    regions_max: BUFFERS as u32 + 1,
    rails_max: LANES as u32,
};
/// Rounds of a fair run after which what has not ended never will.
const ROUNDS_MAX: usize = 60;

/// Most actions that are drawn before that.
const WANDER_MAX: u64 = 48;

/// What the user asks for.
#[derive(Copy, Clone, Debug)]
pub enum Call {
    Send { message: u8, tag: i32, length: u64, buffer: usize },
    Receive(&'static [Room]),
}

/// A receive, and the message that must come into it.
#[derive(Copy, Clone, Debug)]
pub struct Room {
    pub tag: i32,
    pub length: u64,
    pub buffer: usize,
    pub message: u8,
}

/// What a model is about.
#[derive(Debug)]
pub struct Plan {
    pub name: &'static str,
    /// Ops are complete when they are posted, as on a socket; else when they have landed.
    pub local: bool,
    /// By side.
    pub calls: [&'static [Call]; 2],
    /// So many calls are made, and everything has landed, before the model begins.
    pub settled: [usize; 2],
    /// So many more are made when it begins.
    pub made: [usize; 2],
    /// The ends that may fail, as side and lane.
    pub mortal: &'static [(usize, usize)],
    pub kills_max: u32,
    pub rejoins_max: u32,
}

/// What can happen next.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Action {
    /// A side's user makes its next call.
    Submit(u8),
    /// A side makes progress, and its user asks for outcomes.
    Progress(u8),
    /// A side's oldest op on a lane lands.
    Land(u8, u8),
    /// A fence holds.
    Hold(u8, u8),
    /// One end of a lane fails.
    Kill(u8, u8),
    /// One end of a lane is opened again.
    Rejoin(u8, u8),
}

struct Request {
    id: RequestId,
    call: Call,
}

pub struct World {
    plan: &'static Plan,
    net: Rc<RefCell<Net>>,
    endpoints: [Endpoint<'static, Port>; 2],
    regions: [[Handle; BUFFERS + 1]; 2],
    requests: [Vec<Request>; 2],
    made: [usize; 2],
    released: [u8; 2],
    kills: u32,
    /// What was drawn, after the history of the state.
    pub trace: Vec<Action>,
    blocks: [*mut u8; 2],
}

/// The bytes of a message.
const fn byte_of(message: usize, at: usize) -> u8 {
    (message * 37 + at * 11 + 5) as u8
}

const fn eager_bytes() -> [[u8; EAGER_BYTES as usize]; MESSAGES] {
    let mut bytes = [[0; EAGER_BYTES as usize]; MESSAGES];
    let mut at = 0;
    while at < MESSAGES * EAGER_BYTES as usize {
        let (message, byte) = (at / EAGER_BYTES as usize, at % EAGER_BYTES as usize);
        bytes[message][byte] = byte_of(message, byte);
        at += 1;
    }
    bytes
}

/// The machine itself copies short messages: they lie in real memory.
static EAGER: [[u8; EAGER_BYTES as usize]; MESSAGES] = eager_bytes();

fn content(message: u8, length: u64) -> Vec<u8> {
    (0..length as usize).map(|at| byte_of(message.into(), at)).collect()
}

fn block_bytes() -> usize {
    LIMITS.machine_bytes() + LIMITS.regions_bytes()
}

thread_local! {
    static BLOCKS: RefCell<Vec<*mut u8>> = const { RefCell::new(Vec::new()) };
}

fn block_take() -> *mut u8 {
    BLOCKS.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
        let layout = std::alloc::Layout::from_size_align(block_bytes(), BLOCK_ALIGN).unwrap();
        // SAFETY: the layout is not empty.
        unsafe { std::alloc::alloc(layout) }
    })
}

impl Drop for World {
    fn drop(&mut self) {
        // the endpoints, which have nothing to drop, are not used any more
        BLOCKS.with_borrow_mut(|blocks| blocks.extend(self.blocks));
    }
}

fn endpoint(
    block: *mut u8,
    side: usize,
    net: &Rc<RefCell<Net>>,
    mutant: Option<Mutant>,
) -> (Endpoint<'static, Port>, [Handle; BUFFERS + 1]) {
    // SAFETY: taken from the pool, which gave it to nobody else; never freed.
    let mut carver = unsafe { Carver::new(block, block_bytes()) };
    let table = DataMrs::carve(&mut carver, LIMITS.regions_max, 0).expect("sized");
    let config = Config {
        eager_bytes_max: Bytes(EAGER_BYTES),
        eager_mapped_bytes_max: Bytes(EAGER_BYTES),
        salt: 0x100,
        stripe_bytes_min: Bytes(128),
        loss_span: Span(1),
        fence_span: Span(1),
    };
    let port = Port { net: net.clone(), side };
    let mut endpoint = Endpoint::open(&mut carver, LIMITS, config, table, port).expect("sized");
    endpoint.mutant_set(mutant);
    let regions = std::array::from_fn(|at| {
        let eager = EAGER.as_ptr().expose_provenance() as u64;
        let (address, length) = match at {
            BUFFERS => (eager, size_of_val(&EAGER) as u64),
            _ => (Memory::address(at), BUFFER_STRIDE),
        };
        let region = Region { address, length: Bytes(length), kind: MemoryKind::Host };
        // SAFETY: static memory, or addresses that only the network of the test interprets.
        unsafe { table.insert(region, &[RailKey(at as u64 + 1); 8]) }.expect("sized")
    });
    net.borrow_mut().mailbox_is(side, endpoint.mailboxes().region());
    (endpoint, regions)
}

impl World {
    /// A world in which both lanes are up, and the plan's first calls have been made.
    pub fn new(plan: &'static Plan, mutant: Option<Mutant>) -> World {
        let net = Rc::new(RefCell::new(Net::new(plan.local, Memory::new(BUFFERS))));
        let blocks = [block_take(), block_take()];
        let [(first, a), (second, b)] =
            [0, 1].map(|side| endpoint(blocks[side], side, &net, mutant));
        let mut world = World {
            plan,
            net,
            endpoints: [first, second],
            regions: [a, b],
            requests: Default::default(),
            made: [0; 2],
            released: [0; 2],
            kills: 0,
            trace: Vec::new(),
            blocks,
        };
        for side in 0..2 {
            let setup = ConnectionSetup {
                pull: false,
                mailbox: RemoteSpan { key: RailKey(9), address: MAILBOX },
                eager_bytes_max: Bytes(EAGER_BYTES),
                credits: CREDITS,
                groups_max: LIMITS.requests_max,
                lanes: LANES as u8,
                reserve: 0,
                probed: true,
                reads_runs: true,
                reads_filled: true,
                slots_in_rows: true,
            };
            world.net.borrow_mut().open(side, 0);
            world.endpoints[side].connection_open(CONNECTION, &setup);
            for lane in 1..LANES {
                world.net.borrow_mut().open(side, lane);
                assert!(world.endpoints[side].lane_rejoin(CONNECTION, lane as u8, 1));
            }
        }
        world.settle();
        for side in 0..2 {
            (0..plan.settled[side]).for_each(|_| world.submit(side));
        }
        world.settle();
        for side in 0..2 {
            (0..plan.made[side]).for_each(|_| world.submit(side));
        }
        world
    }

    /// What can happen next. Progress is left out where nothing has changed since the last.
    pub fn enabled(&self, out: &mut Vec<Action>) {
        let net = self.net.borrow();
        for side in 0..2u8 {
            let at = usize::from(side);
            if self.next_call(&net, at).is_some() {
                out.push(Action::Submit(side));
            }
            out.push(Action::Progress(side));
            for lane in 0..LANES {
                let end = &net.ends[at][lane];
                let number = lane as u8;
                if net.may_land(at, lane) {
                    out.push(Action::Land(side, number));
                }
                if end.fence.is_some() {
                    out.push(Action::Hold(side, number));
                }
                if self.may_kill(&net, at, lane) {
                    out.push(Action::Kill(side, number));
                }
                if self.may_rejoin(&net, at, lane) {
                    out.push(Action::Rejoin(side, number));
                }
            }
        }
    }

    /// The next call of a side, if its buffers are free.
    fn next_call(&self, net: &Net, side: usize) -> Option<Call> {
        let call = self.plan.calls[side].get(self.made[side]).copied()?;
        let is_free = |buffer| net.memory.is_free(side, buffer);
        let free = match call {
            Call::Send { length, buffer, .. } => length <= EAGER_BYTES || is_free(buffer),
            Call::Receive(rooms) => rooms.iter().all(|room| is_free(room.buffer)),
        };
        free.then_some(call)
    }

    fn may_kill(&self, net: &Net, side: usize, lane: usize) -> bool {
        let other = LANES - 1 - lane;
        let lives = |side: usize| {
            let view = self.endpoints[side].lane_view(CONNECTION, other as u8);
            let up = view.is_some_and(|view| view.state == LaneState::Up);
            up && net.ends[side][other].link == Link::Open
        };
        self.kills < self.plan.kills_max
            && self.plan.mortal.contains(&(side, lane))
            && net.ends[side][lane].link == Link::Open
            && lives(0)
            && lives(1)
    }

    fn may_rejoin(&self, net: &Net, side: usize, lane: usize) -> bool {
        let (own, peer) = (net.ends[side][lane].era, net.ends[1 - side][lane].era);
        self.released[side] >> lane & 1 == 1
            && own <= self.plan.rejoins_max
            && (peer == own || peer == own + 1)
    }

    pub fn act(&mut self, action: Action) {
        match action {
            Action::Submit(side) => self.submit(side.into()),
            Action::Progress(side) => self.progress(side.into()),
            Action::Land(side, lane) => self.net.borrow_mut().land(side.into(), lane.into()),
            Action::Hold(side, lane) => self.net.borrow_mut().fence_hold(side.into(), lane.into()),
            Action::Kill(side, lane) => {
                self.kills += 1;
                self.net.borrow_mut().fail(side.into(), lane.into());
            }
            Action::Rejoin(side, lane) => self.rejoin(side.into(), lane),
        }
    }

    fn accuse(&self, invariant: Invariant, sentence: String) {
        self.net.borrow_mut().accuse(invariant, sentence);
    }

    /// What was found wrong first.
    pub fn wrong(&self) -> Option<Violation> {
        self.net.borrow().wrong.clone()
    }

    fn rejoin(&mut self, side: usize, lane: u8) {
        self.net.borrow_mut().open(side, lane.into());
        self.released[side] &= !(1 << lane);
        let generation = self.net.borrow().ends[side][usize::from(lane)].era;
        if !self.endpoints[side].lane_rejoin(CONNECTION, lane, generation) {
            self.accuse(Invariant::Ends, format!("lane {lane} was down and may not come back"));
        }
    }

    /// Makes the next call; it is made again later where the machine has no room.
    fn submit(&mut self, side: usize) {
        let Some(call) = self.next_call(&self.net.borrow(), side) else { return };
        let result = match call {
            Call::Send { message, tag, length, buffer } => {
                self.send(side, message, tag, length, buffer)
            }
            Call::Receive(rooms) => self.receive(side, rooms),
        };
        match result {
            Ok(id) => {
                self.made[side] += 1;
                self.requests[side].push(Request { id, call });
            }
            Err(SubmitError::Again) => {}
            Err(error) => self.accuse(Invariant::Ends, format!("a call was refused: {error:?}")),
        }
    }

    fn send(
        &mut self,
        side: usize,
        message: u8,
        tag: i32,
        length: u64,
        buffer: usize,
    ) -> Result<RequestId, SubmitError> {
        let short = length <= EAGER_BYTES;
        let (region, address) = match short {
            true => (BUFFERS, EAGER[usize::from(message)].as_ptr() as u64),
            false => (buffer, Memory::address(buffer)),
        };
        if !short {
            self.lend(side, buffer, Lent::Source, content(message, length));
        }
        let message = Outgoing { region: self.regions[side][region], address, length, tag };
        let result = self.endpoints[side].isend(CONNECTION, message);
        if result.is_err() && !short {
            self.net.borrow_mut().memory.take_back(side, buffer);
        }
        result
    }

    fn receive(&mut self, side: usize, rooms: &[Room]) -> Result<RequestId, SubmitError> {
        let incoming = |room: &Room| Incoming {
            region: self.regions[side][room.buffer],
            address: Memory::address(room.buffer),
            length: room.length,
            tag: room.tag,
        };
        let buffers: Vec<Incoming> = rooms.iter().map(incoming).collect();
        for room in rooms {
            self.lend(side, room.buffer, Lent::Target, vec![0; room.length as usize]);
        }
        let result = self.endpoints[side].irecv(CONNECTION, &buffers);
        if result.is_err() {
            rooms.iter().for_each(|room| {
                self.net.borrow_mut().memory.take_back(side, room.buffer);
            });
        }
        result
    }

    fn lend(&self, side: usize, buffer: usize, lent: Lent, bytes: Vec<u8>) {
        self.net.borrow_mut().memory.lend(side, buffer, lent, bytes);
    }

    fn progress(&mut self, side: usize) {
        self.endpoints[side].progress(Instant(0), Bytes::kib(256));
        while let Some((_, lane)) = self.endpoints[side].next_lane_down() {
            self.released[side] |= 1 << lane;
        }
        for request in std::mem::take(&mut self.requests[side]) {
            let outcome = match self.endpoints[side].test(request.id) {
                Ok(Some(outcome)) => outcome,
                Ok(None) => {
                    self.requests[side].push(request);
                    continue;
                }
                Err(error) => {
                    return self.accuse(Invariant::Ends, format!("a request is {error:?}"));
                }
            };
            if outcome.result.is_err() {
                return self.accuse(Invariant::Ends, format!("{:?}: {outcome:?}", request.call));
            }
            self.ended(side, &request.call, &outcome.lengths);
        }
    }

    /// A request has ended: its memory is the user's again.
    fn ended(&self, side: usize, call: &Call, lengths: &[u64]) {
        let mut net = self.net.borrow_mut();
        match *call {
            Call::Send { length, .. } if length <= EAGER_BYTES => {}
            Call::Send { buffer, .. } => drop(net.memory.take_back(side, buffer)),
            Call::Receive(rooms) => {
                for (room, length) in rooms.iter().zip(lengths) {
                    let held = net.memory.take_back(side, room.buffer);
                    let wanted = content(room.message, *length);
                    if net.is_aimed_at(side, Memory::address(room.buffer), room.length) {
                        let sentence = format!("{room:?} ended, and a write to it can still land");
                        net.accuse(Invariant::Complete, sentence);
                    }
                    if held[..*length as usize] != wanted {
                        let sentence = format!("{room:?} ended with other bytes");
                        net.accuse(Invariant::Complete, sentence);
                    }
                }
            }
        }
    }

    /// A number that stands for everything that decides what can happen from here.
    pub fn digest(&self) -> u64 {
        let mut out = DefaultHasher::new();
        for endpoint in &self.endpoints {
            endpoint.digest(&mut out);
        }
        self.net.borrow().digest(&mut out);
        (self.made, self.released, self.kills).hash(&mut out);
        for request in self.requests.iter().flatten() {
            request.id.0.hash(&mut out);
        }
        out.finish()
    }

    fn is_done(&self) -> bool {
        let made = (0..2).all(|side| self.made[side] == self.plan.calls[side].len());
        made && self.requests.iter().all(Vec::is_empty)
    }

    /// Whether every call has ended, and nothing is under way.
    pub fn is_over(&self) -> bool {
        self.is_done() && self.net.borrow().is_quiet()
    }

    /// Lets everything happen that can, until nothing is under way; nothing more fails.
    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let before = self.digest();
            self.round();
            if self.wrong().is_some() || (self.net.borrow().is_quiet() && before == self.digest()) {
                return;
            }
        }
    }

    fn round(&mut self) {
        for side in 0..2 {
            for lane in 0..LANES {
                while self.net.borrow().may_land(side, lane) {
                    self.net.borrow_mut().land(side, lane);
                }
            }
        }
        for side in 0..2 {
            for lane in 0..LANES {
                self.net.borrow_mut().fence_hold(side, lane);
                let may = self.may_rejoin(&self.net.borrow(), side, lane);
                if may {
                    self.rejoin(side, lane as u8);
                }
            }
            self.progress(side);
        }
    }

    /// (c): whatever happens for a while, if nothing more fails then, everything ends, and nothing
    /// stays under way.
    pub fn finish(&mut self) {
        let mut random = Random::new(self.digest());
        let count = random.below(WANDER_MAX);
        self.wander(&mut random, count);
        self.settle_all();
    }

    /// Makes the calls that are left, and lets everything end.
    pub fn settle_all(&mut self) {
        let calls = self.plan.calls[0].len() + self.plan.calls[1].len();
        for _ in 0..ROUNDS_MAX + calls {
            for side in 0..2 {
                self.submit(side);
            }
            self.round();
            if self.wrong().is_some() || self.is_over() {
                return;
            }
        }
        let sentence = format!("not everything ended\n{}", self.text());
        self.accuse(Invariant::Ends, sentence);
    }

    /// Some actions, drawn from the state: half of the states on a lane's way to failure are deeper
    /// than a search of all orders comes.
    pub fn wander(&mut self, random: &mut Random, count: u64) {
        let mut enabled = Vec::new();
        for _ in 0..count {
            if self.wrong().is_some() {
                return;
            }
            enabled.clear();
            self.enabled(&mut enabled);
            let action = enabled[random.below(enabled.len() as u64) as usize];
            let before = self.digest();
            self.act(action);
            if self.digest() != before {
                self.trace.push(action);
            }
        }
    }

    /// Where everything stands, for people.
    fn text(&self) -> String {
        let mut lines = vec![format!("made {:?}", self.made)];
        let net = self.net.borrow();
        for side in 0..2 {
            for lane in 0..LANES {
                let view = self.endpoints[side].lane_view(CONNECTION, lane as u8);
                let view = view.map(|view| (view.state, view.generation, view.control));
                lines.push(format!("{side}, lane {lane}: {view:?} {:?}", net.ends[side][lane]));
            }
            let open = self.requests[side].iter().map(|request| request.call);
            lines.push(format!("{side}: {:?}", open.collect::<Vec<_>>()));
            lines.push(format!("{side}: {:?}", self.endpoints[side].stats()));
        }
        lines.push(net.text());
        lines.join("\n")
    }
}
