//! Takes a system call away from this process: what a container's filter, an old kernel or a full
//! host would answer.

const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Offset of the number in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;

/// From now on `call` gives `errno` in all threads of this process. `false`: no filters here.
pub fn deny(call: libc::c_long, errno: i32) -> bool {
    deny_with(call, errno, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// The same in the calling thread alone, and in those that it starts.
pub fn deny_here(call: libc::c_long, errno: i32) -> bool {
    deny_with(call, errno, 0)
}

fn deny_with(call: libc::c_long, errno: i32, flags: libc::c_ulong) -> bool {
    let code = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        code(LOAD_NUMBER, 0, 0, NUMBER_AT),
        code(JUMP_EQUAL, 0, 1, call as u32),
        code(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        code(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives until the calls return; the kernel checks it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const filter,
            ) == 0
    }
}
