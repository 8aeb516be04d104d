//! What the software HCA writes for device code, and reads of it, as the public headers of NCCL's
//! releases see it: a C++ program reads each field by its name.
//!
//! `XTIE_NCCL_HEADERS` names a folder with one folder for each release of [`RELEASES`], as
//! `scripts/test nccl_headers` fills it from NCCL's wheels. Nothing is compared without it.

use crosstie::base::sync::AtomicU64;
use crosstie::hca::ENTRY_WORDS;
use crosstie::hca::completion::{self, Syndrome};
use crosstie::hca::entry::{Address, INLINE_MAX, Segment, Work};
use crosstie::hca::fake_gpu;
use crosstie::hca::layout::{
    Context72, Context88, HANDLER_CPU_PROXY, MEMORY_GPU, QueueAddresses, QueuePair28, QueuePair30,
    WindowHandle, WordTable,
};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADERS: &str = "XTIE_NCCL_HEADERS";
/// Where the headers lie in a wheel.
const INSIDE: &str = "nvidia/nccl/include/nccl_device/gin/gdaki";

const NUMBER: u32 = 0x00ab_cdef;
const INDEX: u64 = 0x1_0203;
const DEPTH: u16 = 1024;
const REMOTE: Address = Address { key: 0x8000_0001, offset: 0x1122_3344_5566 };
const LOCAL: Segment = Segment { at: Address { key: 0x8000_0002, offset: 0x77 }, bytes: 4096 };
const OTHER: Segment = Segment { at: Address { key: 0x8000_0003, offset: 0x88 }, bytes: 64 };
const AT: QueueAddresses = QueueAddresses {
    entries: 0x1111_0000_0001,
    completions: 0x2222_0000_0002,
    doorbell: 0x3333_0000_0003,
    doorbell_record: 0x4444_0000_0004,
};

/// A release, and what its headers have that others have not.
struct Release {
    name: &'static str,
    /// The queue pair of [`QueuePair30`].
    later_queue: bool,
    /// Tables of words say where a context's begin.
    offset: bool,
    /// The context of [`Context88`].
    gets: bool,
    /// A context says whether reads need a dump. Ours need none: a read ends when its bytes are
    /// there.
    dump_choice: bool,
    /// A completion queue says how its entries lie.
    queue_kind: bool,
}

const RELEASES: [Release; 5] = [
    release("2.28.9", [false, false, false, false]),
    release("2.29.7", [false, true, false, false]),
    release("2.30.4", [true, true, false, false]),
    release("2.30.7", [true, true, true, false]),
    release("2.32.3", [true, true, true, true]),
];

const fn release(name: &'static str, has: [bool; 4]) -> Release {
    let [later_queue, offset, gets, newest] = has;
    Release { name, later_queue, offset, gets, dump_choice: newest, queue_kind: newest }
}

/// One structure: its bytes, and what expressions of `it` say of them.
struct Image {
    of: &'static str,
    bytes: Vec<u8>,
    says: Vec<(String, u64)>,
}

fn image(of: &'static str, bytes: &[u8], says: &[(&str, u64)]) -> Image {
    let says = says.iter().map(|(what, value)| (String::from(*what), *value)).collect();
    Image { of, bytes: bytes.to_vec(), says }
}

/// The bytes of a structure of device code.
fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: as long as the value. Padding of these structures is a named field, which
    // `src/hca/layout.rs` asserts by their sizes.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

fn queue_pair(release: &Release) -> Image {
    let bytes = match release.later_queue {
        false => bytes_of(&QueuePair28::new(NUMBER, DEPTH, &AT)).to_vec(),
        true => bytes_of(&QueuePair30::new(NUMBER, DEPTH, &AT)).to_vec(),
    };
    let (shifted, depth) = (NUMBER << 8, u64::from(DEPTH));
    let announced = |segments: u32| u64::from(shifted | segments);
    let mut pair = image(
        "doca_gpu_dev_verbs_qp",
        &bytes,
        &[
            ("it.sq_rsvd_index", 0),
            ("it.sq_ready_index", 0),
            ("it.sq_wqe_pi", 0),
            ("it.sq_num", NUMBER.into()),
            ("it.sq_num_shift8", shifted.into()),
            ("be(it.sq_num_shift8_be)", announced(0)),
            ("be(it.sq_num_shift8_be_1ds)", announced(1)),
            ("be(it.sq_num_shift8_be_2ds)", announced(2)),
            ("be(it.sq_num_shift8_be_3ds)", announced(3)),
            ("be(it.sq_num_shift8_be_4ds)", announced(4)),
            ("it.sq_lock", 0),
            ("it.sq_wqe_num", depth),
            ("it.sq_wqe_mask", depth - 1),
            ("it.sq_wqe_daddr", AT.entries),
            ("it.sq_dbrec", AT.doorbell_record),
            ("it.sq_db", AT.doorbell),
            ("it.cq_sq.cqe_daddr", AT.completions),
            ("it.cq_sq.cq_num", NUMBER.into()),
            ("it.cq_sq.cqe_num", depth),
            ("it.cq_sq.dbrec", 0),
            ("it.cq_sq.cqe_ci", 0),
            ("it.cq_sq.cqe_mask", depth - 1),
            ("it.cq_sq.cqe_size", 64),
            ("it.cq_sq.cqe_rsvd", 0),
            ("it.cq_sq.mem_type", MEMORY_GPU.into()),
            ("it.nic_handler", HANDLER_CPU_PROXY.into()),
            ("it.mem_type", MEMORY_GPU.into()),
            ("DOCA_GPUNETIO_VERBS_NIC_HANDLER_CPU_PROXY", HANDLER_CPU_PROXY.into()),
            ("DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU", MEMORY_GPU.into()),
            ("DOCA_GPUNETIO_VERBS_MKEY_SWAPPED", 1),
        ],
    );
    if release.later_queue {
        pair.says.push(("be(it.sq_num_shift8_be_5ds)".into(), announced(5)));
    }
    if release.queue_kind {
        pair.says.push(("it.cq_sq.cq_type == DOCA_GPUNETIO_VERBS_CQ_64B".into(), 1));
    }
    pair
}

fn context(release: &Release) -> Image {
    let table = |at: u64| WordTable {
        words: 0x5000 + at,
        remote_keys: 0x6000 + at,
        local_key: 0x7000_0000 + at as u32,
        offset: 0x800 + at as u32,
    };
    let base = Context72::new(0x9000, 0xa000, table(1), table(2), 0xb000_0000);
    let bytes = match release.gets {
        false => bytes_of(&base).to_vec(),
        true => bytes_of(&Context88 { base, issued_gets: 0xc000, visible_gets: 0xd000 }).to_vec(),
    };
    let mut context = image(
        "ncclGinGdakiGPUContext",
        &bytes,
        &[
            ("it.gdqp", 0x9000),
            ("it.companion_gdqp", 0xa000),
            ("it.counters_table.buffer", 0x5001),
            ("it.counters_table.rkeys", 0x6001),
            ("it.counters_table.lkey", 0x7000_0001),
            ("it.signals_table.buffer", 0x5002),
            ("it.signals_table.rkeys", 0x6002),
            ("it.signals_table.lkey", 0x7000_0002),
            ("it.sink_buffer_lkey", 0xb000_0000),
        ],
    );
    if release.offset {
        context.says.push(("it.counters_table.offset".into(), 0x801));
        context.says.push(("it.signals_table.offset".into(), 0x802));
    }
    if release.gets {
        context.says.push(("it.last_issued_get".into(), 0xc000));
        context.says.push(("it.last_visible_get".into(), 0xd000));
    }
    if release.dump_choice {
        context.says.push(("it.use_mcst".into(), 0));
    }
    context
}

fn window() -> Image {
    let handle = WindowHandle::new(0xe000, 0xf000_0000);
    let says = [("it.rkeys", 0xe000), ("it.lkey", 0xf000_0000)];
    image("ncclGinGdakiMemHandle", bytes_of(&handle), &says)
}

/// An entry as the fake GPU of our tests writes it, which `hca::entry` reads.
fn entry(work: &Work, opcode: &'static str, segments: u32, says: &[(&str, u64)]) -> Image {
    let words = fake_gpu::encode(work, NUMBER, INDEX, 0);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut entry = image("doca_gpu_dev_verbs_wqe", &bytes, says);
    let index = (INDEX & 0xffff) << 8;
    let head = format!("be(it.rw_cseg.opmod_idx_opcode) - DOCA_GPUNETIO_IB_MLX5_OPCODE_{opcode}");
    entry.says.push((head, index));
    entry.says.push(("be(it.rw_cseg.qpn_ds)".into(), u64::from(NUMBER << 8 | segments)));
    let completion = "it.rw_cseg.fm_ce_se & DOCA_GPUNETIO_IB_MLX5_WQE_CTRL_CQ_UPDATE";
    entry.says.push((completion.into(), 8));
    entry
}

fn remote_says() -> [(&'static str, u64); 2] {
    [("be64(it.rw_rseg.raddr)", REMOTE.offset), ("it.rw_rseg.rkey", REMOTE.key.into())]
}

fn data_says() -> Vec<(&'static str, u64)> {
    let mut says = remote_says().to_vec();
    says.extend([
        ("be(it.rw_dseg0.byte_count)", LOCAL.bytes),
        ("it.rw_dseg0.lkey", LOCAL.at.key.into()),
        ("be64(it.rw_dseg0.addr)", LOCAL.at.offset),
        ("be(it.rw_dseg1.byte_count)", OTHER.bytes),
        ("it.rw_dseg1.lkey", OTHER.at.key.into()),
        ("be64(it.rw_dseg1.addr)", OTHER.at.offset),
    ]);
    says
}

fn entries() -> Vec<Image> {
    let local = [LOCAL, OTHER];
    let data = std::array::from_fn(|at| at as u8 + 1);
    let inline = Work::WriteInline { remote: REMOTE, data, bytes: INLINE_MAX as u8 };
    let mut inline_says = remote_says().to_vec();
    inline_says.extend([
        ("be(it.rw_dseg0.byte_count) - DOCA_GPUNETIO_IB_MLX5_INLINE_SEG", INLINE_MAX as u64),
        ("it.inl_data[36]", 1),
        ("it.inl_data[63]", INLINE_MAX as u64),
        ("DOCA_GPUNETIO_VERBS_MAX_INLINE_SIZE", INLINE_MAX as u64),
    ]);
    let mut add_says = remote_says().to_vec();
    add_says.extend([
        ("be64(it.at_seg.swap_add)", 0x0102_0304_0506_0708),
        ("be(it.at_dseg.byte_count)", LOCAL.bytes),
        ("it.at_dseg.lkey", LOCAL.at.key.into()),
        ("be64(it.at_dseg.addr)", LOCAL.at.offset),
    ]);
    let wait_says =
        [("be(it.wait_dseg.max_index)", 0xffff_fff0), ("be(it.wait_dseg.qpn_cqn)", 0x0009_8765)];
    let dump_says = [
        ("be(it.snd_dseg0.byte_count)", LOCAL.bytes),
        ("it.snd_dseg0.lkey", LOCAL.at.key.into()),
        ("be64(it.snd_dseg0.addr)", LOCAL.at.offset),
    ];
    let add = Work::FetchAdd { remote: REMOTE, add: 0x0102_0304_0506_0708, local: LOCAL };
    let wait = Work::Wait { queue: 0x0009_8765, index: 0xffff_fff0 };
    vec![
        entry(&Work::Nop, "NOP", 1, &[]),
        entry(&Work::Write { remote: REMOTE, local }, "RDMA_WRITE", 4, &data_says()),
        entry(&Work::Read { remote: REMOTE, local }, "RDMA_READ", 4, &data_says()),
        entry(&inline, "RDMA_WRITE", 4, &inline_says),
        entry(&add, "ATOMIC_FA", 4, &add_says),
        entry(&wait, "WAIT", 2, &wait_says),
        entry(&Work::Dump { local: LOCAL }, "DUMP", 2, &dump_says),
    ]
}

/// The one slot of a completion queue, after [`INDEX`] laps.
fn completed(of: &'static str, failed: Option<Syndrome>, says: &[(&str, u64)]) -> Image {
    let ring = [const { AtomicU64::new(0) }; ENTRY_WORDS];
    completion::clear(&ring);
    completion::publish(&ring, NUMBER, INDEX, failed);
    let load = |word: &AtomicU64| word.load(crosstie::base::sync::Ordering::Relaxed).to_le_bytes();
    image(of, &ring.iter().flat_map(load).collect::<Vec<u8>>(), says)
}

fn completions() -> [Image; 2] {
    const OPCODE: &str = "it.op_own >> DOCA_GPUNETIO_VERBS_MLX5_CQE_OPCODE_SHIFT";
    const OWNER: &str = "it.op_own & DOCA_GPUNETIO_IB_MLX5_CQE_OWNER_MASK";
    let (lap, index) = (INDEX & 1, INDEX & 0xffff);
    let done = format!("({OPCODE}) == DOCA_GPUNETIO_IB_MLX5_CQE_REQ");
    let failed = format!("({OPCODE}) == DOCA_GPUNETIO_IB_MLX5_CQE_REQ_ERR");
    [
        completed(
            "doca_gpunetio_ib_mlx5_cqe64",
            None,
            &[
                (done.as_str(), 1),
                (OWNER, lap),
                ("__builtin_bswap16(it.wqe_counter)", index),
                ("be(it.sop_drop_qpn)", NUMBER.into()),
            ],
        ),
        completed(
            "doca_gpunetio_ib_mlx5_err_cqe_ex",
            Some(Syndrome::RemoteAccess),
            &[
                (failed.as_str(), 1),
                (OWNER, lap),
                ("__builtin_bswap16(it.wqe_counter)", index),
                ("it.syndrome", Syndrome::RemoteAccess as u64),
            ],
        ),
    ]
}

fn images(release: &Release) -> Vec<Image> {
    let mut images = vec![queue_pair(release), context(release), window()];
    images.extend(entries());
    images.extend(completions());
    images
}

/// A program that prints each expression which says something else, and its value.
fn program(images: &[Image]) -> String {
    let mut text = String::from(
        "#include \"doca_gpunetio/common/doca_gpunetio_verbs_dev.h\"\n\
         #include \"gin_gdaki_device_host_common.h\"\n\
         #include <cstring>\n\
         static uint32_t be(uint32_t it) { return __builtin_bswap32(it); }\n\
         static uint64_t be64(uint64_t it) { return __builtin_bswap64(it); }\n\
         static void same(const char *what, uint64_t is, uint64_t wanted) {\n\
         if (is != wanted) printf(\"%s is %#llx, not %#llx\\n\", what,\n\
         (unsigned long long)is, (unsigned long long)wanted);\n}\n\
         int main() {\n",
    );
    for Image { of, bytes, says } in images {
        let length = bytes.len();
        writeln!(text, "{{ static const unsigned char image[] = {{").unwrap();
        for line in bytes.chunks(16) {
            let line: String = line.iter().map(|byte| format!("{byte},")).collect();
            writeln!(text, "{line}").unwrap();
        }
        writeln!(text, "}};\nstruct {of} it;").unwrap();
        writeln!(text, "static_assert(sizeof it == {length}, \"sizeof({of})\");").unwrap();
        writeln!(text, "memcpy((void *)&it, image, sizeof it);").unwrap();
        for (what, value) in says {
            writeln!(text, "same(\"{of}: {what}\", (uint64_t)({what}), {value}ull);").unwrap();
        }
        text.push_str("}\n");
    }
    text.push_str("}\n");
    text
}

/// Builds a program against a release's headers, and what it prints.
fn printed(text: &str, headers: &Path, folder: &Path) -> String {
    let (source, built) = (folder.join("images.cpp"), folder.join("images"));
    std::fs::write(&source, text).unwrap();
    let mut compile = Command::new("c++");
    compile.args(["-std=c++17", "-I"]).arg(headers).arg(&source).arg("-o").arg(&built);
    let said = compile.output().expect("a C++ compiler");
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{}: {errors}", headers.display());
    let ran = Command::new(&built).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

/// The headers of a release. *Panics* when the folder does not have them.
fn headers_of(root: &Path, release: &Release) -> PathBuf {
    let headers = root.join(release.name).join(INSIDE);
    assert!(headers.is_dir(), "{HEADERS} has no {}", headers.display());
    headers
}

#[test]
fn structures_are_those_of_the_headers() {
    let Some(root) = std::env::var_os(HEADERS) else {
        println!("SKIP: {HEADERS} is not set (`scripts/test nccl_headers` fetches the headers)");
        return;
    };
    let folder = std::env::temp_dir().join(format!("crosstie-hca-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for release in &RELEASES {
        let headers = headers_of(Path::new(&root), release);
        let mut images = images(release);
        let count: usize = images.iter().map(|image| image.says.len()).sum();
        assert!(count > 100, "{count} expressions");
        let differ = printed(&program(&images), &headers, &folder);
        assert_eq!(differ, "", "NCCL {}", release.name);
        // a difference is found
        images[0].says.push(("it.sq_wqe_mask".into(), u64::from(DEPTH)));
        let planted = printed(&program(&images), &headers, &folder);
        assert_eq!(planted, "doca_gpu_dev_verbs_qp: it.sq_wqe_mask is 0x3ff, not 0x400\n");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
