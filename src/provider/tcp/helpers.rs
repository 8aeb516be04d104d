//! The copy threads of a rail: the first peer starts them, and they are told and heard here.

use super::aside::{self, Aside};
use super::socket::Watch;
use super::threads::{Command, Copies, Event, Helper};
use super::{Limits, NONE, OpenError, Settings, THREADS_MAX};
use crate::base::ids::PeerIndex;
use crate::memory::{CpuSet, Errno, PinError, WakeFd, cpus_try};
use crate::provider::host_domain::HostDomain;
use std::os::fd::AsRawFd;

/// All copy threads of one rail.
#[derive(Debug)]
pub struct Helpers {
    /// How many the first peer starts, and their CPUs: those of the thread that has opened the
    /// rail, unless the settings say others; empty where the kernel did not say.
    wanted: Settings,
    /// What kept them from starting.
    refused: Option<Errno>,
    /// The first so many.
    threads: [Option<Helper>; THREADS_MAX],
    /// Rung by them while the data thread sleeps.
    wake: Option<WakeFd>,
    /// Whether they may ring.
    armed: bool,
}

impl Helpers {
    /// None yet.
    pub fn new(settings: &Settings) -> Result<Helpers, OpenError> {
        let wanted = Settings { thread_cpus: thread_cpus(settings)?, ..*settings };
        let threads = [const { None }; THREADS_MAX];
        Ok(Helpers { wanted, refused: None, threads, wake: None, armed: false })
    }

    /// Whether long writes are left to threads.
    #[inline]
    pub fn are_up(&self) -> bool {
        self.threads[0].is_some()
    }

    /// What kept them from starting, or from having the streams of a peer; told once.
    pub fn refused(&mut self) -> Option<Errno> {
        self.refused.take()
    }

    /// Starts them, once. They end when they are dropped.
    ///
    /// # Safety
    /// - the memory of `domain` stays valid until then.
    pub unsafe fn start(&mut self, limits: &Limits, watch: &Watch, domain: HostDomain<'_>) {
        if self.wanted.threads == 0 {
            return;
        }
        // SAFETY: this function's contract.
        match unsafe { start(limits, &self.wanted, watch, domain) } {
            Ok((threads, wake)) => (self.threads, self.wake) = (threads, Some(wake)),
            Err(OpenError::System(errno)) => self.refused = Some(Errno(errno)),
            Err(_) => self.refused = Some(Errno(libc::EINVAL)),
        }
        self.wanted.threads = 0;
    }

    /// The streams that the data thread moves, and copies of the others for the copy threads: none
    /// where there are no such threads, or no descriptors for them, which is told as their refusal.
    pub fn divided<'f>(&mut self, fds: &'f [i32]) -> (&'f [i32], Copies) {
        if !self.are_up() {
            return (fds, Copies::NONE);
        }
        match Copies::of(&fds[1..]) {
            Ok(copies) => (&fds[..1], copies),
            Err(errno) => {
                self.refused = Some(errno);
                (fds, Copies::NONE)
            }
        }
    }

    /// Gives copies of all streams of a peer but the first to the threads, if any were made.
    pub fn open(&mut self, peer: PeerIndex, copies: &Copies, sums: bool) -> Aside {
        let count = self.threads.iter().flatten().count();
        let copies = copies.as_slice();
        let mut up = 0;
        for thread in 0..count {
            let mut fds = Copies::NONE;
            copies.iter().skip(thread).step_by(count).for_each(|copy| fds.add(*copy));
            if !fds.as_slice().is_empty() {
                up |= 1 << thread;
                self.helper(thread).tell(Command::Open { peer, fds, sums });
            }
        }
        Aside::opened(up)
    }

    /// The thread that takes the next write to a peer, if any has streams of it.
    pub fn idlest(&self, aside: &Aside) -> Option<usize> {
        let queued = |n: &usize| self.threads[*n].as_ref().map_or(u64::MAX, |helper| helper.queued);
        aside::threads(aside.up).min_by_key(queued)
    }

    /// Hands a write of so many bytes to a thread.
    pub fn write(&mut self, thread: usize, length: u32, command: Command) {
        let helper = self.helper(thread);
        helper.tell(command);
        helper.queued += u64::from(length);
    }

    /// A thread has reported such a write.
    pub fn written(&mut self, thread: usize, length: u32) {
        self.helper(thread).queued -= u64::from(length);
    }

    fn helper(&mut self, thread: usize) -> &mut Helper {
        self.threads[thread].as_mut().expect("a thread of the peer's")
    }

    /// Tells every thread of the mask.
    pub fn tell_all(&mut self, mask: u8, command: Command) {
        aside::threads(mask).for_each(|thread| self.helper(thread).tell(command));
    }

    /// The next thing that a thread tells.
    pub fn heard(&mut self, thread: usize) -> Option<Event> {
        self.threads[thread].as_mut()?.heard()
    }

    /// Says that the data thread is about to sleep. `false`: a thread has news.
    pub fn arm(&mut self) -> bool {
        self.armed = true;
        self.threads.iter_mut().flatten().all(|helper| helper.arm())
    }

    /// The opposite.
    #[inline]
    pub fn disarm(&mut self) {
        if self.armed {
            self.disarm_all();
        }
    }

    #[cold]
    fn disarm_all(&mut self) {
        self.armed = false;
        self.threads.iter_mut().flatten().for_each(|helper| helper.disarm());
        if let Some(wake) = &self.wake {
            wake.drain();
        }
    }
}

/// The CPUs of copy threads, which can be had: those that the settings say, or this thread's.
fn thread_cpus(settings: &Settings) -> Result<CpuSet, OpenError> {
    if settings.threads == 0 {
        return Ok(CpuSet::EMPTY);
    }
    if settings.thread_cpus.is_empty() {
        return Ok(CpuSet::of_this_thread());
    }
    match cpus_try(&settings.thread_cpus) {
        Ok(()) => Ok(settings.thread_cpus),
        Err(PinError::Cpu(cpu)) => Err(OpenError::Cpu(cpu)),
        Err(PinError::System(errno)) => Err(OpenError::System(errno.0)),
    }
}

type Started = ([Option<Helper>; THREADS_MAX], WakeFd);

/// Starts the threads.
///
/// # Safety
/// - as [`Helpers::start`].
unsafe fn start(
    limits: &Limits,
    settings: &Settings,
    watch: &Watch,
    domain: HostDomain<'_>,
) -> Result<Started, OpenError> {
    let mut helpers = [const { None }; THREADS_MAX];
    let system = |errno: Errno| OpenError::System(errno.0);
    let wake = WakeFd::create().map_err(system)?;
    let fd = wake.fd().as_raw_fd();
    watch.add(fd, NONE).map_err(system)?;
    for slot in helpers.iter_mut().take(settings.threads as usize) {
        // SAFETY: this function's contract.
        *slot = Some(unsafe { Helper::start(limits, settings, fd, domain) }?);
    }
    Ok((helpers, wake))
}
