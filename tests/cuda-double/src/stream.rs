//! Streams: queues that threads work off in order. Different streams know nothing of each other.

use crate::codes::{
    Answer, Code, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY, STREAM_CAPTURE_UNSUPPORTED,
};
use crate::context::{self, Context};
use crate::copy::{self, Copy, FAULTS, Gone, Word};
use crate::random::Random;
use crate::ranges;
use crate::settings::{DEVICES_MAX, settings};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Handles of streams are this, plus a step for each; they are not used again.
const FIRST: usize = 0x057e_0000;
const STEP: usize = 0x10;
/// The flag of streams that do not wait for the legacy stream; and of the legacy stream itself.
pub const NON_BLOCKING: u32 = 1;
const IS_LEGACY: u32 = 1 << 31;
/// The legacy stream, and that of the thread: handles of the driver's.
const LEGACY: [usize; 3] = [0, 1, 2];

/// Streams that were ever made.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// No stream begins an operation.
static HELD: AtomicBool = AtomicBool::new(false);
/// All processors of the GPU are taken: copies within it must wait.
static BUSY: [AtomicBool; DEVICES_MAX] = [const { AtomicBool::new(false) }; DEVICES_MAX];
/// A kernel spins on the legacy stream of the GPU: blocking streams wait for it.
static SPINS: [AtomicBool; DEVICES_MAX] = [const { AtomicBool::new(false) }; DEVICES_MAX];
/// What ends these kernels, by GPU.
static SPINNING: Mutex<BTreeMap<usize, Arc<Event>>> = Mutex::new(BTreeMap::new());
/// All streams, also destroyed ones that are not done.
static STREAMS: Mutex<BTreeMap<usize, Arc<Stream>>> = Mutex::new(BTreeMap::new());
/// Legacy streams, by the handle of their context.
static LEGACIES: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// How often a stream looks at a word that it waits for: another process may write it.
const WORD_LOOK: Duration = Duration::from_micros(50);

/// What waits in a stream.
#[derive(Clone)]
pub enum Operation {
    /// Copies without an order among each other.
    Copies(Vec<Copy>),
    Words(Vec<Word>),
    /// Waits until a word has a value.
    AwaitWord(Word),
    /// An event is recorded: a later query of it sees that.
    Event(Arc<Event>),
    /// Waits until an event is recorded.
    Await(Arc<Event>, u64),
    /// Memory whose turn to be freed has come.
    Free(u64),
}

/// An event: how often it was recorded, and how often that was carried out.
#[derive(Default)]
pub struct Event {
    counts: Mutex<(u64, u64)>,
    changed: Condvar,
}

/// What a stream has before it, and how far it is.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Operation>,
    /// Operations that were ever put in.
    posted: u64,
    /// Operations that were carried out, or dropped since the GPU is lost.
    done: u64,
    /// One is carried out just now.
    working: bool,
    held: bool,
    /// Words alone are held: what is before them is carried out.
    words_held: bool,
    /// It was destroyed: its thread ends once it is done.
    closing: bool,
}

/// A stream.
pub struct Stream {
    pub handle: usize,
    pub context: Context,
    pub flags: u32,
    pub priority: i32,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// What is recorded instead of carried out, while it is captured.
    recorded: Mutex<Option<Vec<Node>>>,
}

/// One node of a graph: the driver's number of its kind, and what it does.
#[derive(Clone)]
pub struct Node {
    pub kind: u32,
    pub operations: Vec<Operation>,
}

/// Kinds of nodes.
const COPY: u32 = 1;
const WORDS: u32 = 12;

fn all() -> Vec<Arc<Stream>> {
    STREAMS.lock().expect("no panic while it is locked").values().cloned().collect()
}

/// Makes a stream and starts its thread.
pub fn create(context: Context, flags: u32, priority: i32) -> usize {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let handle = FIRST + number * STEP;
    let (queue, changed) = (Mutex::default(), Condvar::new());
    let recorded = Mutex::new(None);
    let stream = Arc::new(Stream { handle, context, flags, priority, queue, changed, recorded });
    STREAMS.lock().expect("no panic while it is locked").insert(handle, stream.clone());
    let random = Random::new(settings().seed.wrapping_mul(1000) + number as u64);
    let thread = std::thread::Builder::new().name("cuda-double".into());
    thread.spawn(move || stream.work(random)).expect("a thread");
    handle
}

/// The stream of a handle, for a call in `context`. Its GPU is not lost.
pub fn find(handle: usize, context: Context) -> Result<Arc<Stream>, Code> {
    let found = find_any(handle, context)?;
    context::lives(found.context.device)?;
    Ok(found)
}

/// The same, also of a lost GPU.
pub fn find_any(handle: usize, context: Context) -> Result<Arc<Stream>, Code> {
    let handle = if LEGACY.contains(&handle) { legacy(context) } else { handle };
    let found = STREAMS.lock().expect("no panic while it is locked").get(&handle).cloned();
    let found = found.filter(|stream| !stream.lock().closing);
    let was_one = handle >= FIRST && handle < FIRST + NEXT.load(Ordering::Relaxed) * STEP;
    // As driver 580 answers for a stream that was destroyed.
    found.ok_or(if was_one { INVALID_CONTEXT } else { INVALID_HANDLE })
}

/// Whether a handle is that of the legacy stream.
pub fn is_legacy(handle: usize) -> bool {
    handle <= 1
}

fn legacy(context: Context) -> usize {
    let mut legacies = LEGACIES.lock().expect("no panic while it is locked");
    *legacies.entry(context.handle).or_insert_with(|| create(context, IS_LEGACY, 0))
}

/// Handles of the streams that live, in the order in which they were made, without legacy ones.
pub fn handles() -> Vec<usize> {
    let legacies = LEGACIES.lock().expect("no panic while it is locked").clone();
    let live = all().into_iter().filter(|stream| !stream.lock().closing);
    let live = live.map(|stream| stream.handle);
    live.filter(|handle| !legacies.values().any(|legacy| legacy == handle)).collect()
}

/// The GPU of a stream that lives.
pub fn device_of(handle: usize) -> Option<usize> {
    let found = all().into_iter().find(|stream| stream.handle == handle);
    found.filter(|stream| !stream.lock().closing).map(|stream| stream.context.device)
}

/// Waits until all that every stream has now is done.
pub fn drain_all() {
    for stream in all() {
        // An error is the device's, and the next call on it says so.
        let _ = stream.synchronize();
    }
}

/// Waits until all streams of a context are done.
pub fn drain(context: Context) -> Answer {
    let all = all().into_iter().filter(|stream| stream.context == context);
    all.map(|stream| stream.synchronize()).fold(Ok(()), Answer::and)
}

/// Holds one stream, or all of them (0). On return nothing is carried out there.
pub fn hold(handle: usize) -> Answer {
    let streams = chosen(handle)?;
    if handle == 0 {
        HELD.store(true, Ordering::SeqCst);
    }
    for stream in streams {
        let mut queue = stream.lock();
        queue.held |= handle != 0;
        while queue.working {
            queue = stream.changed.wait(queue).expect("no panic while it is locked");
        }
    }
    Ok(())
}

/// Holds the words of one stream, or of all that live (0). What is before them is carried out.
pub fn hold_words(handle: usize) -> Answer {
    for stream in chosen(handle)? {
        stream.lock().words_held = true;
    }
    Ok(())
}

/// Lets one stream go on, or all of them (0).
pub fn release(handle: usize) -> Answer {
    let streams = chosen(handle)?;
    if handle == 0 {
        HELD.store(false, Ordering::SeqCst);
    }
    for stream in streams {
        let mut queue = stream.lock();
        (queue.held, queue.words_held) = (false, false);
        drop(queue);
        stream.changed.notify_all();
    }
    Ok(())
}

fn chosen(handle: usize) -> Result<Vec<Arc<Stream>>, Code> {
    let streams = all();
    match handle {
        0 => Ok(streams),
        _ => {
            streams.into_iter().find(|s| s.handle == handle).map(|s| vec![s]).ok_or(INVALID_HANDLE)
        }
    }
}

/// Says whether all processors of a GPU are taken.
pub fn set_busy(device: usize, busy: bool) {
    BUSY[device].store(busy, Ordering::SeqCst);
    wake_all();
}

/// Starts a kernel on the legacy stream of a context, which spins; or ends it.
pub fn spin(context: Context, spins: bool) -> Answer {
    let mut spinning = SPINNING.lock().expect("no panic while it is locked");
    if let Some(event) = spinning.remove(&context.device) {
        event.recorded();
    }
    SPINS[context.device].store(spins, Ordering::SeqCst);
    if spins {
        let event = Arc::new(Event::default());
        event.post();
        find(0, context)?.post(Operation::Await(event.clone(), 1));
        spinning.insert(context.device, event);
    }
    wake_all();
    Ok(())
}

/// Lets every stream look again whether it may go on.
pub fn wake_all() {
    for stream in all() {
        let _queue = stream.lock();
        stream.changed.notify_all();
    }
}

impl Stream {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no panic while it is locked")
    }

    /// Begins to record, or says that it does already.
    pub fn capture_begin(&self) -> Answer {
        let mut recorded = self.recorded.lock().expect("no panic while it is locked");
        if recorded.is_some() || self.flags & IS_LEGACY != 0 {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        *recorded = Some(Vec::new());
        Ok(())
    }

    /// Ends it; what was recorded.
    pub fn capture_end(&self) -> Option<Vec<Node>> {
        self.recorded.lock().expect("no panic while it is locked").take()
    }

    /// Whether it records.
    pub fn is_capturing(&self) -> bool {
        self.recorded.lock().expect("no panic while it is locked").is_some()
    }

    /// Puts operations of one call behind all that the stream has, or records them as one node.
    pub fn call(&self, operations: Vec<Operation>) -> Answer {
        let mut recorded = self.recorded.lock().expect("no panic while it is locked");
        if let Some(nodes) = &mut *recorded {
            let kind = match operations.first() {
                Some(Operation::Copies(copies)) if copies.len() == 1 => COPY,
                Some(Operation::Words(_) | Operation::AwaitWord(_)) => WORDS,
                // batches of copies among them
                Some(_) => return Err(STREAM_CAPTURE_UNSUPPORTED),
                None => return Ok(()),
            };
            nodes.push(Node { kind, operations });
            return Ok(());
        }
        drop(recorded);
        operations.into_iter().for_each(|operation| self.post(operation));
        Ok(())
    }

    /// Puts an operation behind all that the stream has. Waits while the queue is full, as a
    /// driver does.
    pub fn post(&self, operation: Operation) {
        let mut queue = self.lock();
        while queue.waiting.len() >= settings().queue_max {
            queue = self.changed.wait(queue).expect("no panic while it is locked");
        }
        queue.posted += 1;
        queue.waiting.push_back(operation);
        self.changed.notify_all();
    }

    /// Whether all is done.
    pub fn query(&self) -> Answer {
        let queue = self.lock();
        context::lives(self.context.device)?;
        if queue.done == queue.posted { Ok(()) } else { Err(NOT_READY) }
    }

    /// Waits until all that it has now is done.
    pub fn synchronize(&self) -> Answer {
        let mut queue = self.lock();
        let posted = queue.posted;
        while queue.done < posted {
            queue = self.changed.wait(queue).expect("no panic while it is locked");
        }
        context::lives(self.context.device)
    }

    /// Ends it once it is done.
    pub fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }

    /// Whether the first operation may begin.
    fn may_go(&self, queue: &Queue) -> bool {
        let Some(first) = queue.waiting.front() else { return false };
        let device = self.context.device;
        if context::is_lost(device) {
            return true;
        }
        let is_blocking = self.flags & (NON_BLOCKING | IS_LEGACY) == 0;
        if is_blocking && SPINS[device].load(Ordering::SeqCst) {
            return false;
        }
        let needs_processors = match first {
            Operation::Copies(copies) => copies.iter().any(Copy::needs_processors),
            Operation::Words(_) if queue.words_held => return false,
            // memory that is gone is found by `carry`
            Operation::AwaitWord(word) => {
                if matches!(word.is_equal(), Ok(false)) {
                    return false;
                }
                false
            }
            Operation::Words(_) | Operation::Event(_) | Operation::Free(_) => false,
            Operation::Await(event, count) if !event.is_recorded(*count) => return false,
            Operation::Await(_, _) => false,
        };
        let is_busy = needs_processors && BUSY[device].load(Ordering::SeqCst);
        !queue.held && !HELD.load(Ordering::SeqCst) && !is_busy
    }

    /// The next operation; `None`: the stream was destroyed and is done.
    fn next(&self) -> Option<Operation> {
        let mut queue = self.lock();
        loop {
            if self.may_go(&queue) {
                queue.working = true;
                self.changed.notify_all();
                return queue.waiting.pop_front();
            }
            if queue.closing && queue.waiting.is_empty() {
                return None;
            }
            if let Some(Operation::AwaitWord(_)) = queue.waiting.front() {
                let waited = self.changed.wait_timeout(queue, WORD_LOOK);
                queue = waited.expect("no panic while it is locked").0;
                continue;
            }
            queue = self.changed.wait(queue).expect("no panic while it is locked");
        }
    }

    /// What its thread does.
    fn work(&self, mut random: Random) {
        while let Some(operation) = self.next() {
            let is_event = matches!(operation, Operation::Event(_));
            let is_lost = context::is_lost(self.context.device);
            let carried = if is_lost && !is_event { Ok(()) } else { carry(operation, &mut random) };
            if carried.is_err() {
                FAULTS.fetch_add(1, Ordering::SeqCst);
                context::lose(self.context.device);
                eprintln!("cuda-double: an operation of a stream found its memory gone");
            }
            let mut queue = self.lock();
            queue.working = false;
            queue.done += 1;
            drop(queue);
            self.changed.notify_all();
            if is_event || carried.is_err() {
                wake_all();
            }
        }
        STREAMS.lock().expect("no panic while it is locked").remove(&self.handle);
    }
}

fn carry(operation: Operation, random: &mut Random) -> Result<(), Gone> {
    let delay_ns = settings().delay_ns;
    match operation {
        Operation::Copies(copies) => copy::copies(&copies, random, delay_ns),
        Operation::Words(words) => copy::words(&words),
        Operation::AwaitWord(word) => word.is_equal().map(|_| ()),
        Operation::Event(event) => {
            event.recorded();
            Ok(())
        }
        Operation::Await(_, _) => Ok(()),
        Operation::Free(start) => {
            ranges::free(start);
            Ok(())
        }
    }
}

impl Event {
    /// Takes note that a stream will record it.
    pub fn post(&self) {
        self.counts.lock().expect("no panic while it is locked").0 += 1;
    }

    fn recorded(&self) {
        self.counts.lock().expect("no panic while it is locked").1 += 1;
        self.changed.notify_all();
    }

    /// Waits until all that was posted is recorded.
    pub fn wait(&self) {
        let mut counts = self.counts.lock().expect("no panic while it is locked");
        let posted = counts.0;
        while counts.1 < posted {
            counts = self.changed.wait(counts).expect("no panic while it is locked");
        }
    }

    /// How often it was posted.
    pub fn posted(&self) -> u64 {
        self.counts.lock().expect("no panic while it is locked").0
    }

    /// Whether it was recorded that often.
    pub fn is_recorded(&self, count: u64) -> bool {
        self.counts.lock().expect("no panic while it is locked").1 >= count
    }
}

/// Codes of a query of an event of a GPU.
pub fn query(event: &Event, device: usize) -> Answer {
    context::lives(device)?;
    if event.is_recorded(event.posted()) { Ok(()) } else { Err(NOT_READY) }
}
