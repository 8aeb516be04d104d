//! Other users: what a thread of this process does as one of them.

/// A user that owns nothing here.
pub const OTHER: u32 = 47110;

/// Whether this process may become another user.
pub fn is_root() -> bool {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Does something as another user: in a thread of its own, since the kernel keeps a user for each.
/// Threads that it starts are that user's, too.
pub fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // the C library's function would change all threads
            // SAFETY: no pointers.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
            assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
            act()
        });
        other.join().expect("the other user's thread")
    })
}
