//! A socket that loses whatever is sent to it.

/// From now on nothing that is sent to this socket arrives: its kernel drops it, unacknowledged.
pub fn black_hole(socket: i32) {
    let drop_all = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }; // "return 0"
    let mut filters = [drop_all];
    let program = libc::sock_fprog { len: 1, filter: filters.as_mut_ptr() };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: a whole program, which the kernel copies.
    let rc =
        unsafe { libc::setsockopt(socket, level, option, (&raw const program).cast(), length) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}
