//! Which processes may be peers.
//!
//! | shared key | a peer must |
//! |---|---|
//! | set | have the key |
//! | not set | on this host: run as this user, as root, or as a user that a setting names |
//!
//! The kernel names the user at the other end of a local socket (`SO_PEERCRED`). This check comes
//! before any frame.
#![forbid(unsafe_code)]

use super::channel::Channel;
use super::control::Control;
use super::event::Rail;
use super::key::Key;
use super::memory::LinkMemory;
use super::note::Note;
use super::os;
use super::peer::Peer;
use super::socket::{Credentials, Socket};
use crate::base::words::said;
use std::fs;

/// Most users that can be named: a setting of people, not a database.
pub const USERS_NAMED_MAX: usize = 16;
/// The kernel's name for users that a namespace does not know, unless the host has changed it.
const OVERFLOW_USER: u32 = 65534;
const ROOT: u32 = 0;

/// Users whose processes may be peers beside our own user's and root's.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Users {
    named: [u32; USERS_NAMED_MAX],
    count: usize,
}

impl Users {
    /// These and one more; `None`: there is no room.
    pub fn with(mut self, user: u32) -> Option<Users> {
        *self.named.get_mut(self.count)? = user;
        self.count += 1;
        Some(self)
    }

    /// Those that are named.
    pub fn named(&self) -> &[u32] {
        &self.named[..self.count]
    }
}

/// What makes a process a peer.
#[derive(Clone, Debug)]
pub struct Trust {
    /// What peers must have too; `None`: peers with a key are refused.
    pub(super) key: Option<Key>,
    /// Without a key: users whose processes may be peers on this host.
    users: Users,
    /// What the kernel calls all users that our namespace does not know.
    pub(super) overflow: u32,
    /// Which refusal of a user was said last.
    said: Option<UserCause>,
}

impl Trust {
    /// Those who have the key, or without one this user, root and `users`.
    pub fn new(key: Option<Key>, users: Users) -> Trust {
        Trust { key, users, overflow: overflow_user(), said: None }
    }

    /// Whether a process of this host may be a peer, as far as its user says. Where there is a key,
    /// the key says it. The number that stands for unknown users is never one of ours, whatever
    /// number we have.
    pub fn admits(&self, user: u32) -> bool {
        let known = user == ROOT || user == os::user() || self.users.named().contains(&user);
        self.key.is_some() || (user != self.overflow && known)
    }
}

/// The number under which the kernel shows users that our namespace does not know.
pub fn overflow_user() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(OVERFLOW_USER)
}

said! {
    /// Why a process of this host is no peer: a side has refused the other's user.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum UserCause {
        /// This side has refused the peer's.
        Theirs {
            /// The peer's.
            user: u32,
            /// It stands for users that our namespace does not know.
            unknown: bool,
        } => |f| match unknown {
            true => write!(
                f,
                "is of a user that this namespace does not know (shown as {user}); give both sides \
                 a shared key (CROSSTIE_KEY_FILE)"
            ),
            false => write!(
                f,
                "is of user {user}, and this process of user {}; shared memory needs one user or \
                 root, CROSSTIE_ALLOW_UIDS on both sides, or a shared key (CROSSTIE_KEY_FILE)",
                os::user()
            ),
        },
        /// The peer has refused this side's.
        Ours(user: u32) =>
            "has refused this process, which is of user {user}: name that in CROSSTIE_ALLOW_UIDS \
             of the peer, or give both sides a shared key (CROSSTIE_KEY_FILE)",
    }
}

impl<M: LinkMemory> Control<M> {
    /// Whether the process at the other end of a local socket may be a peer; if not, why. A kernel
    /// that does not say who it is has said nothing for it.
    pub fn user_check(&self, socket: &Socket) -> Result<(), (Peer, UserCause)> {
        let trust = &self.config.trust;
        let unknown = Credentials { pid: 0, uid: trust.overflow };
        let Credentials { pid, uid } = socket.credentials().unwrap_or(unknown);
        if trust.admits(uid) {
            return Ok(());
        }
        let peer = Peer { pid: pid.max(0) as u32, node_id: self.node_id, ..Peer::default() };
        Err((peer, UserCause::Theirs { user: uid, unknown: uid == trust.overflow }))
    }

    /// Counts a process that is refused for its user, and says so, once while the same user tries.
    pub fn user_refused(&mut self, peer: Peer, cause: UserCause) {
        self.counters.users_refused += 1;
        if self.config.trust.said.replace(cause) != Some(cause) {
            (self.config.note)(Note::User(peer, cause));
        }
    }

    /// Whether a caller at a local door may be a peer; if not, it is told, and people are.
    pub fn is_let_in(&mut self, channel: &Channel) -> bool {
        let Channel::Record(socket) = channel else {
            debug_assert_eq!(channel.rail(), Rail::Tcp);
            return true;
        };
        let Err((peer, cause)) = self.user_check(socket) else { return true };
        channel.refuse(0, crate::wire::hello::RefuseReason::User);
        self.user_refused(peer, cause);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: u32 = 4711;
    const OVERFLOW: u32 = 65533;

    fn trust(users: Users) -> Trust {
        Trust { overflow: OVERFLOW, ..Trust::new(None, users) }
    }

    #[test]
    fn without_a_key_own_user_root_and_named_users_are_let_in_and_with_one_all_are_asked_for_it() {
        let plain = trust(Users::default());
        assert!(plain.admits(os::user()) && plain.admits(ROOT));
        assert!(!plain.admits(OTHER) && !plain.admits(OVERFLOW));
        let named = trust(Users::default().with(OTHER).unwrap());
        assert!(named.admits(OTHER) && !named.admits(OTHER + 1));
        let keyed = Trust { key: Some(Key::new(&[7; 16]).unwrap()), ..plain };
        assert!(keyed.admits(OTHER) && keyed.admits(OVERFLOW));
    }

    #[test]
    fn overflow_user_is_never_let_in_also_where_it_has_our_number_or_was_named() {
        let ours = Trust { overflow: os::user(), ..trust(Users::default()) };
        assert!(!ours.admits(os::user()));
        assert!(!trust(Users::default().with(OVERFLOW).unwrap()).admits(OVERFLOW));
    }

    #[test]
    fn users_beyond_the_most_are_refused() {
        let full = (0..USERS_NAMED_MAX as u32).try_fold(Users::default(), Users::with).unwrap();
        assert_eq!(full.with(99), None);
    }
}
