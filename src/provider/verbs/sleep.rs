//! Before the rail's user sleeps. Messages, and stripes with their immediates, complete here, and
//! so wake who sleeps; lines of control do not.

use super::peer::State;
use super::rail::Verbs;

impl Verbs<'_> {
    /// What becomes readable when there is something to poll for, once [`Verbs::arm`] has said so:
    /// of completions, and of what happens to the device. `None`: nothing does, so nobody sleeps.
    pub fn wait_fds(&self) -> Option<[i32; 2]> {
        Some([self.cq.channel()?.fd(), self.domain.shared().device().event_fd()])
    }

    /// Asks the device to make a descriptor readable with its next completion, and hands over what
    /// was posted. `false`: something is there already, or is due by time; poll instead.
    ///
    /// *Cost*: three system calls.
    pub fn arm(&mut self) -> bool {
        // a descriptor that is readable stays so until it is looked at
        self.look_at_device();
        if self.is_idle() {
            self.cq.hush();
            return true;
        }
        if !self.dirty.is_empty() {
            self.ring_all();
        }
        // those that work still end when that has been so for long enough
        let is_port_late = self.health().port_down_since.is_some()
            && self.peers.iter().any(|peer| peer.state == State::Live);
        // what is not looked at comes without a completion, or was taken already
        let is_quiet = self.dirty.is_empty()
            && self.owing.is_empty()
            && self.asides.none_done()
            && self.endings == 0
            && self.batch_at == self.batch_count
            && !is_port_late;
        is_quiet && self.cq.ask() && {
            // what came before it was asked is told of by nobody
            let count = self.cq.poll(&mut self.batch);
            (self.batch_at, self.batch_count) = (0, count.max(0) as usize);
            count == 0
        }
    }
}
