//! Long packets are dropped and short ones pass, as where a switch has a shorter MTU than hosts.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
/// Also where the driver knows nothing of it.
const XDP_FLAGS_SKB_MODE: u32 = 2;

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;

/// `struct bpf_insn`: the code, the registers (target low, source high), the offset, the number.
#[repr(C)]
struct Step(u8, u8, i16, i32);

/// The first words of `union bpf_attr`, for a program.
#[repr(C)]
#[derive(Default)]
struct Program {
    kind: u32,
    step_count: u32,
    steps: u64,
    license: u64,
    nothing: [u64; 13],
}

/// The same for a link.
#[repr(C)]
#[derive(Default)]
struct Link {
    program: i32,
    interface: u32,
    place: u32,
    flags: u32,
    nothing: [u64; 13],
}

fn bpf<T>(command: libc::c_long, words: &T) -> File {
    // SAFETY: a structure of the kind that the command reads, which points to what lives as long.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, words, size_of::<T>()) };
    assert!(fd >= 0, "bpf {command}: {}", std::io::Error::last_os_error());
    // SAFETY: a descriptor that was just made, and that nobody else has.
    unsafe { File::from_raw_fd(fd as i32) }
}

/// Frames of more than so many bytes that come in by an interface are dropped until this is.
pub fn long_drops(interface: &str, bytes_max: i32) -> File {
    let steps = [
        Step(0x61, 0x12, 0, 0),         // r2 = start of the frame
        Step(0x61, 0x13, 4, 0),         // r3 = its end
        Step(0x1f, 0x23, 0, 0),         // r3 -= r2
        Step(0xb7, 0x00, 0, XDP_PASS),  // r0 = pass
        Step(0xb5, 0x03, 1, bytes_max), // if r3 <= bytes_max skip one
        Step(0xb7, 0x00, 0, XDP_DROP),  // r0 = drop
        Step(0x95, 0x00, 0, 0),         // exit
    ];
    let program = bpf(
        BPF_PROG_LOAD,
        &Program {
            kind: BPF_PROG_TYPE_XDP,
            step_count: steps.len() as u32,
            steps: steps.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            ..Program::default()
        },
    );
    let name = CString::new(interface).expect("a name");
    // SAFETY: a string that ends with a zero.
    let interface = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let (place, flags) = (BPF_XDP, XDP_FLAGS_SKB_MODE);
    let program = program.as_raw_fd();
    bpf(BPF_LINK_CREATE, &Link { program, interface, place, flags, ..Link::default() })
}
