//! The copying kernel (`src/memory/cuda/copy.ptx`) on a real GPU, also while another kernel holds
//! every multiprocessor, or all but a few threads. Skipped where there is no driver.

#[path = "common/wait.rs"]
mod wait;

use crosstie::memory::SharedMapping;
use crosstie::memory::cuda::{
    DeviceBlock, Entered, Gpu, Kernel, Library, Pinned, Program, Progress, Stream, post_word,
};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;
use wait::wait_until;

/// Looks at a kernel that must not start.
const LOOKS: u32 = 200_000;
/// Bytes of a test's memory; and where its marker stands in pinned memory.
const BYTES: usize = 24 << 20;
const MARKER: usize = BYTES;
const WORDS: usize = BYTES + 4096;
const PINNED: usize = WORDS + (64 << 10);

/// Each block says that it has started, and stays until it is told to end.
const HOLDER: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry holder(.param .u64 p_words)
{
    .reg .pred %p;
    .reg .b32  %r<3>;
    .reg .b64  %w, %x;
    ld.param.u64 %w, [p_words];
    cvta.to.global.u64 %w, %w;
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p, %r0, 0;
    @%p bra END;
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %x, %r1, 4;
    add.u64 %x, %w, %x;
    st.relaxed.sys.global.u32 [%x+4], 1;
AGAIN:
    nanosleep.u32 1000;
    ld.relaxed.sys.global.u32 %r2, [%w];
    setp.eq.u32 %p, %r2, 0;
    @%p bra AGAIN;
END:
    bar.sync 0;
    ret;
}
\0";
const HOLDER_THREADS: u32 = 512;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The first GPU as this thread's.
fn gpu() -> Option<Arc<Gpu>> {
    let library = match Library::load() {
        Ok(library) => library,
        Err(error) => {
            println!("SKIP: {error}");
            return None;
        }
    };
    let mut context = null_mut();
    // SAFETY: valid for a write; the first device.
    let code = unsafe { (library.primary_retain)(&mut context, 0) };
    library.check("cuDevicePrimaryCtxRetain", code).unwrap();
    // SAFETY: a context that is held until the process ends.
    let code = unsafe { (library.context_push)(context) };
    library.check("cuCtxPushCurrent", code).unwrap();
    Some(Arc::new(Gpu::of_thread(library).unwrap()))
}

fn attribute(number: c_int) -> u32 {
    // SAFETY: the driver is loaded, and its function of this name has this type.
    let get: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> u32 = unsafe {
        let handle = dlopen(c"libcuda.so.1".as_ptr(), 2);
        std::mem::transmute(dlsym(handle, c"cuDeviceGetAttribute".as_ptr()))
    };
    let mut value = 0;
    // SAFETY: valid for a write.
    assert_eq!(unsafe { get(&mut value, number, 0) }, 0);
    value as u32
}

/// Blocks of the holder that fill the GPU: threads of a multiprocessor, and multiprocessors.
fn blocks_of_gpu() -> u32 {
    attribute(39) / HOLDER_THREADS * attribute(16)
}

fn pattern(seed: usize, at: usize) -> u8 {
    (seed * 89 + at % 251) as u8
}

/// Memory of the GPU to copy from and to, and pinned memory to look at it.
struct Ground {
    gpu: Arc<Gpu>,
    from: DeviceBlock,
    to: DeviceBlock,
    stream: Stream,
    marks: u64,
    pinned: Pinned,
    mapping: SharedMapping,
}

impl Ground {
    fn new(gpu: Arc<Gpu>) -> Ground {
        let mapping = SharedMapping::create(c"ground", PINNED).unwrap();
        mapping.populate(0, PINNED).unwrap();
        // SAFETY: the mapping stands as long as the registration.
        let pinned = unsafe { Pinned::new(&gpu, mapping.start(), PINNED) }.unwrap();
        let bytes: Vec<u8> = (0..BYTES).map(|at| pattern(1, at)).collect();
        let from = DeviceBlock::of(&gpu, &bytes).unwrap();
        let to = DeviceBlock::of(&gpu, &vec![0; BYTES]).unwrap();
        let stream = Stream::new(&gpu).unwrap();
        Ground { gpu, from, to, stream, marks: 0, pinned, mapping }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, aligned, and only touched as an atomic.
        unsafe { &*self.mapping.start().add(at).cast::<AtomicU32>() }
    }

    fn mark(&mut self, entered: &Entered<'_>, stream: &Stream) {
        self.marks += 1;
        let at = self.pinned.device() + MARKER as u64;
        // SAFETY: a pinned word.
        unsafe { post_word(entered, stream, at, self.marks) }.unwrap();
    }

    fn wait_for_mark(&self) {
        // SAFETY: inside the mapping, aligned, and only touched as an atomic.
        let word = unsafe { &*self.mapping.start().add(MARKER).cast::<AtomicU64>() };
        wait_until("a marker", || word.load(Ordering::Acquire) == self.marks);
    }

    /// What the target holds.
    fn target(&mut self) -> Vec<u8> {
        let gpu = self.gpu.clone();
        let entered = gpu.enter().unwrap();
        let place = self.mapping.start();
        // SAFETY: as many bytes of each.
        unsafe { self.stream.copy_out(&entered, place, self.to.start(), BYTES) }.unwrap();
        let stream = std::mem::replace(&mut self.stream, Stream::new(&gpu).unwrap());
        self.mark(&entered, &stream);
        self.wait_for_mark();
        // SAFETY: pinned memory that nothing writes now.
        unsafe { std::slice::from_raw_parts(place, BYTES) }.to_vec()
    }

    /// Clears the target by the stream.
    fn clear(&mut self) {
        self.to = DeviceBlock::of(&self.gpu, &vec![0; BYTES]).unwrap();
    }

    fn launch(&self, kernel: &mut Kernel, to: u64, from: u64, bytes: u64) {
        let entered = self.gpu.enter().unwrap();
        let (to, from) = (self.to.start() + to, self.from.start() + from);
        // SAFETY: in bounds of both blocks, which stay until the copy has ended.
        unsafe { kernel.launch(&entered, &[[to, from, bytes]]) }.unwrap();
    }

    /// Starts `blocks` of the holder, and waits until `started` of them run.
    fn hold(&self, stream: &Stream, blocks: u32, started: u32) {
        let entered = self.gpu.enter().unwrap();
        let library = entered.library();
        let calls = library.kernels.as_ref().unwrap();
        let (mut module, mut holder) = (null_mut(), null_mut());
        self.word(WORDS).store(0, Ordering::Relaxed);
        (0..blocks as usize)
            .for_each(|at| self.word(WORDS + 4 + 4 * at).store(0, Ordering::Relaxed));
        let mut words = self.pinned.device() + WORDS as u64;
        let mut places = [(&raw mut words).cast::<c_void>()];
        // SAFETY: a program and its only function, with its only parameter.
        unsafe {
            let code = (calls.module_load)(&mut module, HOLDER.as_ptr().cast());
            library.check("cuModuleLoadData", code).unwrap();
            let code = (calls.module_function)(&mut holder, module, c"holder".as_ptr());
            library.check("cuModuleGetFunction", code).unwrap();
            let code = (calls.launch)(
                holder,
                blocks,
                1,
                1,
                HOLDER_THREADS,
                1,
                1,
                0,
                stream.raw(),
                places.as_mut_ptr(),
                null_mut(),
            );
            library.check("cuLaunchKernel", code).unwrap();
        }
        let running = || {
            let started = |at: &usize| self.word(WORDS + 4 + 4 * at).load(Ordering::Relaxed) == 1;
            (0..blocks as usize).filter(started).count() as u32
        };
        wait_until("the holder", || running() >= started);
    }

    fn release(&self) {
        self.word(WORDS).store(1, Ordering::Release);
    }
}

fn has_left(kernel: &Kernel) {
    wait_until("the end of a launch", || kernel.has_left());
}

#[test]
fn kernel_copies_and_is_taken_back() {
    let Some(gpu) = gpu() else { return };
    let mut ground = Ground::new(gpu.clone());
    let mut kernel = Kernel::new(&Program::new(&gpu).unwrap()).unwrap();
    has_left(&kernel);
    lengths_and_places(&mut ground, &mut kernel);
    many_copies(&mut ground, &mut kernel);
    all_multiprocessors_held(&mut ground, &mut kernel);
    few_threads_free(&mut ground, &mut kernel);
}

/// Every byte comes, and none beside it changes.
fn lengths_and_places(ground: &mut Ground, kernel: &mut Kernel) {
    let cases = [
        (0, 0, 1),
        (0, 0, 128),
        (16, 48, 4096),
        (1, 0, 5000),
        (7, 7, 32 << 10),
        (32, 0, (32 << 10) + 5),
        (64, 16, (1 << 20) + 17),
        (3, 1, (2 << 20) + 9),
        (0, 0, BYTES),
        (16, 32, BYTES - 100),
        (5, 0, BYTES - 77),
    ];
    for (to, from, bytes) in cases {
        ground.clear();
        let start = Instant::now();
        ground.launch(kernel, to as u64, from as u64, bytes as u64);
        wait_until("a copy", || kernel.progress() == Progress::Copied);
        println!("{bytes} bytes from {from} to {to}: {:?}", start.elapsed());
        has_left(kernel);
        for (at, got) in ground.target().into_iter().enumerate() {
            let is_inside = (to..to + bytes).contains(&at);
            let wanted = if is_inside { pattern(1, from + at - to) } else { 0 };
            assert_eq!(got, wanted, "byte {at} of {bytes} from {from} to {to}");
        }
    }
}

/// One launch copies many stretches.
fn many_copies(ground: &mut Ground, kernel: &mut Kernel) {
    ground.clear();
    let gpu = ground.gpu.clone();
    let entered = gpu.enter().unwrap();
    let (to, from) = (ground.to.start(), ground.from.start());
    let bytes_of = |at: usize| 1 + at * at % 70_001;
    let copies: Vec<_> = (0..128)
        .map(|at| [to + 100_000 * at as u64, from + 50_003 * at as u64, bytes_of(at) as u64])
        .collect();
    // SAFETY: in bounds of both blocks, which stay until the copies have ended.
    unsafe { kernel.launch(&entered, &copies) }.unwrap();
    wait_until("copies", || kernel.progress() == Progress::Copied);
    has_left(kernel);
    for (at, got) in ground.target().into_iter().enumerate() {
        let (copy, within) = (at / 100_000, at % 100_000);
        let is_inside = copy < 128 && within < bytes_of(copy);
        let wanted = if is_inside { pattern(1, 50_003 * copy + within) } else { 0 };
        assert_eq!(got, wanted, "byte {within} of copy {copy}");
    }
}

/// A launch waits, streams of copies do not wait behind it, and it copies nothing when it starts.
fn all_multiprocessors_held(ground: &mut Ground, kernel: &mut Kernel) {
    ground.clear();
    let streams: Vec<Stream> = (0..16).map(|_| Stream::new(&ground.gpu).unwrap()).collect();
    let user = Stream::new(&ground.gpu).unwrap();
    let blocks = blocks_of_gpu();
    ground.hold(&user, blocks, blocks);
    ground.launch(kernel, 0, 0, BYTES as u64);
    for _ in 0..LOOKS {
        assert_eq!(kernel.progress(), Progress::Waiting);
    }
    assert!(kernel.take_back());
    let gpu = ground.gpu.clone();
    let entered = gpu.enter().unwrap();
    for stream in &streams {
        let place = ground.mapping.start();
        // SAFETY: as many bytes of each.
        unsafe { stream.copy_out(&entered, place, ground.from.start(), 4096) }.unwrap();
        ground.mark(&entered, stream);
        ground.wait_for_mark();
    }
    assert!(!kernel.has_left());
    ground.release();
    has_left(kernel);
    assert_eq!(kernel.progress(), Progress::GaveWay);
    assert!(ground.target().iter().all(|byte| *byte == 0));
}

/// A copy ends although most of its blocks find no room.
fn few_threads_free(ground: &mut Ground, kernel: &mut Kernel) {
    ground.clear();
    let user = Stream::new(&ground.gpu).unwrap();
    let blocks = blocks_of_gpu() - 1;
    ground.hold(&user, blocks, blocks);
    ground.launch(kernel, 0, 0, BYTES as u64);
    wait_until("a copy", || kernel.progress() == Progress::Copied);
    assert!(!kernel.has_left(), "every block found room");
    ground.release();
    has_left(kernel);
    let bytes = ground.target();
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(1, at)));
}
