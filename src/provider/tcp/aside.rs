//! What a peer's record says of the copy threads.
#![forbid(unsafe_code)]

use super::THREADS_MAX;
use super::ops::{List, Ops};
use crate::wire::stream::UNANSWERED_MAX;

/// One bit or place for each thread. Zeroed: nothing.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Aside {
    /// Threads that were given streams of the peer.
    all: u8,
    /// Threads that have streams of the peer and have not said that they ended.
    pub up: u8,
    /// Threads that have not said yet that a fence holds.
    fencing: u8,
    /// Threads that have not forgotten an earlier use of the peer's number.
    closing: u8,
    /// Whether a fence was told.
    is_fenced: bool,
    /// Writes that each thread was given and has not reported.
    aloft: [u8; THREADS_MAX],
    /// Fences that wait for threads.
    fences: List,
}

const _: () = assert!(UNANSWERED_MAX < u8::MAX as u32);

/// The threads of a mask.
pub fn threads(mask: u8) -> impl Iterator<Item = usize> {
    (0..THREADS_MAX).filter(move |thread| mask & 1 << thread != 0)
}

impl Aside {
    /// Of a peer that was just opened, of which these threads were given streams.
    pub fn opened(all: u8) -> Aside {
        Aside { all, up: all, ..Aside::default() }
    }

    /// Whether threads were given streams of the peer.
    pub fn is_used(&self) -> bool {
        self.all != 0
    }

    /// Whether threads have not forgotten an earlier use of the peer's number.
    pub fn is_closing(&self) -> bool {
        self.closing != 0
    }

    /// Whether a thread may be given one more write.
    pub fn takes_writes(&self, thread: usize) -> bool {
        u32::from(self.aloft[thread]) < UNANSWERED_MAX
    }

    /// A thread was given a write.
    pub fn write_begins(&mut self, thread: usize) {
        self.aloft[thread] += 1;
    }

    /// A thread has reported a write.
    pub fn write_ends(&mut self, thread: usize) {
        self.aloft[thread] -= 1;
    }

    /// A thread says that the peer is gone.
    pub fn down(&mut self, thread: usize) {
        self.up &= !(1 << thread);
    }

    /// The peer is fenced: the threads to tell, none of them twice.
    pub fn fence(&mut self) -> u8 {
        if !core::mem::replace(&mut self.is_fenced, true) {
            self.fencing = self.up;
            return self.up;
        }
        0
    }

    /// Ends a fence's op, now or when the threads have fenced.
    pub fn finish_fence(&mut self, ops: &mut Ops<'_>, op: u32) {
        match self.fencing {
            0 => ops.finish(op),
            _ => ops.append(&mut self.fences, op),
        }
    }

    /// A thread has fenced.
    pub fn fenced(&mut self, thread: usize, ops: &mut Ops<'_>) {
        self.down(thread);
        self.fencing &= !(1 << thread);
        while self.fencing == 0
            && let Some(op) = ops.take_first(&mut self.fences)
        {
            ops.finish(op);
        }
    }

    /// The peer is forgotten: the threads to tell.
    pub fn close(&mut self) -> u8 {
        (self.closing, self.up) = (self.all, 0);
        self.all
    }

    /// A thread has forgotten it; says whether all have.
    pub fn closed(&mut self, thread: usize) -> bool {
        self.closing &= !(1 << thread);
        self.closing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::ops::Entry;
    use super::*;

    #[test]
    fn fence_waits_for_every_thread_and_tells_them_once() {
        let mut storage = [Entry::default(); 3];
        let mut ops = Ops::new(&mut storage);
        let mut aside = Aside::opened(0b101);
        assert_eq!((aside.fence(), aside.fence()), (0b101, 0));
        for _ in 0..2 {
            let op = ops.acquire(Entry::default()).unwrap();
            aside.finish_fence(&mut ops, op);
        }
        aside.fenced(2, &mut ops);
        assert!(ops.none_done() && aside.up == 0b001);
        aside.fenced(0, &mut ops);
        assert!(ops.take_done().is_some() && ops.take_done().is_some() && ops.none_done());
        assert_eq!((aside.close(), aside.is_closing()), (0b101, true));
        assert!(!aside.closed(0) && aside.closed(2) && !aside.is_closing());
    }
}
