//! Takes a system call away from this process: what a container's filter, an old kernel or a full
//! host would answer.

const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Offset of the number in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
/// Offset of the arguments there, of eight bytes each.
const ARGUMENTS_AT: u32 = 16;

/// From now on `call` gives `errno` in all threads of this process. `false`: no filters here.
pub fn deny(call: libc::c_long, errno: i32) -> bool {
    deny_with(call, errno, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// The same in the calling thread alone, and in those that it starts.
pub fn deny_here(call: libc::c_long, errno: i32) -> bool {
    deny_with(call, errno, 0)
}

/// As [`deny`], where an argument of the call is `value`: its lower half.
pub fn deny_where(call: libc::c_long, argument: u32, value: u32, errno: i32) -> bool {
    deny_where_with(call, argument, value, errno, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// The same in the calling thread alone, and in those that it starts.
pub fn deny_where_here(call: libc::c_long, argument: u32, value: u32, errno: i32) -> bool {
    deny_where_with(call, argument, value, errno, 0)
}

fn deny_where_with(
    call: libc::c_long,
    argument: u32,
    value: u32,
    errno: i32,
    flags: libc::c_ulong,
) -> bool {
    install(
        &mut [
            code(LOAD_NUMBER, 0, 0, NUMBER_AT),
            code(JUMP_EQUAL, 0, 3, call as u32),
            code(LOAD_NUMBER, 0, 0, ARGUMENTS_AT + 8 * argument),
            code(JUMP_EQUAL, 0, 1, value),
            code(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
            code(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ],
        flags,
    )
}

fn deny_with(call: libc::c_long, errno: i32, flags: libc::c_ulong) -> bool {
    install(
        &mut [
            code(LOAD_NUMBER, 0, 0, NUMBER_AT),
            code(JUMP_EQUAL, 0, 1, call as u32),
            code(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
            code(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ],
        flags,
    )
}

const fn code(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn install(program: &mut [libc::sock_filter], flags: libc::c_ulong) -> bool {
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
