//! The companion: its adds, and how it ends.

use super::super::Step;
use super::super::domain::{VerbsDomain, rkey};
use super::super::port::Health;
use super::super::rail::Verbs;
use super::super::sys::abi::{SendWr, Sge, Wc};
use super::super::sys::{CompletionQueue, MemoryRegion, QueuePair, numbers as n};
use super::ends;
use super::error::{AddError, CompanionError, OutcomeUnknown, at};
use crate::base::units::Span;
use crate::fabric::RailKey;
use crate::memory::probe::clock_ns;
use crate::memory::{Errno, Reserve, heap};
use core::ffi::c_int;

/// Adds that a companion may have on their way.
pub const ADDS_MAX: u32 = 64;
/// Where the sink is registered.
const SINK_ADDRESS: u64 = 0;
/// Bytes of a word, and of the sink.
const WORD_BYTES: u32 = 8;
/// Where the word lies that set-up adds to: in the page of the sink, on a line of its own.
const TRIAL_AT: usize = 64;
/// What the sink, and that word, hold before set-up adds.
const SINK_BEFORE: u64 = 0x5111_c0de;
const TRIAL_BEFORE: u64 = 41;
/// How long set-up waits for its add: a device that works takes microseconds, an emulated one that
/// shares its processor milliseconds.
const TRIAL_MAX: Span = Span::millis(10_000);

/// Names an add of one companion.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct AddNumber(u64);

/// The two queue pairs of a port, and what they stand on.
#[derive(Debug)]
pub struct Companion<'m> {
    // dropped in this order; queue pairs before their queue and memory
    adder: Option<QueuePair>,
    responder: Option<QueuePair>,
    cq: CompletionQueue,
    sink: MemoryRegion,
    page: Reserve,
    domain: VerbsDomain<'m>,
    /// How often the port had another GID when this was made.
    revivals: u32,
    /// How many adds were posted, and how many of those have ended well.
    posted: u64,
    ended: u64,
    /// Regions that adds on their way hold, by number.
    held: [u32; ADDS_MAX as usize],
    is_lost: bool,
}

// SAFETY: its pointers lead into its page and the rail's block, which one thread uses at a time.
unsafe impl Send for Companion<'_> {}

impl<'m> Companion<'m> {
    /// Makes the two queue pairs on the port of a rail, and tries an add.
    ///
    /// *Errors*: why the port can have none.
    ///
    /// *Cost*: control path; waits for one add, which ends within microseconds.
    pub fn open(rail: &Verbs<'m>) -> Result<Companion<'m>, CompanionError> {
        Companion::open_over(rail, Some(SINK_ADDRESS))
    }

    /// [`Companion::open`] with the sink registered as other memory is, at its own address: for who
    /// wants to see that refused.
    pub fn open_with_ordinary_sink(rail: &Verbs<'m>) -> Result<Companion<'m>, CompanionError> {
        Companion::open_over(rail, None)
    }

    fn open_over(rail: &Verbs<'m>, sink_at: Option<u64>) -> Result<Companion<'m>, CompanionError> {
        let abilities = &rail.peers.abilities;
        let reads = abilities.reads_max.min(abilities.answers_max);
        if !abilities.has_atomics || reads == 0 {
            return Err(CompanionError::Atomics);
        }
        let shared = rail.domain.shared();
        let (device, pd) = (shared.device(), shared.pd());
        let page = Reserve::create(heap::page_bytes()).map_err(at(Step::Buffers))?;
        let (start, access) = (page.start() as u64, n::ACCESS_LOCAL_WRITE);
        let iova = sink_at.unwrap_or(start);
        // SAFETY: a page of ours, which outlives the registration (order of the fields).
        let sink = unsafe { pd.register_at(start, WORD_BYTES as usize, iova, access) };
        let sink = sink.map_err(|errno| match errno {
            Errno(libc::ENOSYS) => CompanionError::Library,
            errno @ Errno(libc::EINVAL | libc::EOPNOTSUPP) => CompanionError::Sink(errno),
            errno => CompanionError::Refused(Step::Buffers, errno),
        })?;
        // the responder is sent nothing and completes nothing
        let cq = CompletionQueue::create(device, ADDS_MAX as c_int + 1);
        let cq = cq.map_err(at(Step::CompletionQueue))?;
        let [adder, responder] = [(); 2].map(|()| ends::create(rail, &cq, ADDS_MAX));
        let (mut adder, mut responder) = (adder?, responder?);
        let numbers = [adder.number(), responder.number()];
        ends::join(rail, &mut adder, numbers[1], 0, reads)?;
        ends::join(rail, &mut responder, numbers[0], n::ACCESS_REMOTE_ATOMIC, reads)?;
        let mut companion = Companion {
            adder: Some(adder),
            responder: Some(responder),
            cq,
            sink,
            page,
            domain: rail.domain,
            revivals: rail.health().revivals,
            posted: 0,
            ended: 0,
            held: [0; ADDS_MAX as usize],
            is_lost: false,
        };
        companion.try_out()?;
        Ok(companion)
    }

    /// An add to a word of ours, and a look at what it has left.
    fn try_out(&mut self) -> Result<(), CompanionError> {
        let sink: *mut u64 = self.page.start().cast();
        // SAFETY: inside the page.
        let trial: *mut u64 = unsafe { self.page.start().add(TRIAL_AT) }.cast();
        // SAFETY: aligned words of ours, which nobody else uses yet.
        unsafe { sink.write_volatile(SINK_BEFORE) };
        // SAFETY: as above.
        unsafe { trial.write_volatile(TRIAL_BEFORE) };
        let access = n::ACCESS_LOCAL_WRITE | n::ACCESS_REMOTE_WRITE | n::ACCESS_REMOTE_ATOMIC;
        let pd = self.domain.shared().pd();
        // SAFETY: the word in our page, which outlives the registration.
        let word = unsafe { pd.register(trial as u64, WORD_BYTES as usize, access, false) };
        let word = word.map_err(at(Step::Buffers))?;
        let posted = self.post(0, word.rkey(), trial as u64, 1);
        posted.map_err(at(Step::ReadyToSend))?;
        match self.trial_status() {
            None => return Err(CompanionError::Late),
            Some(n::WC_SUCCESS) => {}
            Some(status @ (n::WC_LOC_PROT_ERR | n::WC_LOC_QP_OP_ERR | n::WC_LOC_ACCESS_ERR)) => {
                return Err(CompanionError::SinkElsewhere(status));
            }
            Some(status) => return Err(CompanionError::Trial(status)),
        }
        // SAFETY: aligned words of ours; the add has ended.
        let [old, new] = unsafe { [sink.read_volatile(), trial.read_volatile()] };
        match (old, new) == (TRIAL_BEFORE, TRIAL_BEFORE + 1) {
            true => Ok(()),
            false => Err(CompanionError::Wrong),
        }
    }

    /// How set-up's add ended. `None`: it has not.
    fn trial_status(&mut self) -> Option<c_int> {
        let (start, mut found) = (clock_ns(), [Wc::NOTHING]);
        loop {
            match self.cq.poll(&mut found) {
                0 if clock_ns().saturating_sub(start) >= TRIAL_MAX.0 => return None,
                0 => std::thread::yield_now(),
                count if count < 0 => return None,
                _ => return Some(found[0].status),
            }
        }
    }

    fn post(&mut self, id: u64, rkey: u32, address: u64, value: u64) -> Result<(), Errno> {
        let Some(adder) = &mut self.adder else { return Err(Errno(libc::ENODEV)) };
        let mut sink = Sge { addr: SINK_ADDRESS, length: WORD_BYTES, lkey: self.sink.lkey() };
        let mut add = SendWr {
            wr_id: id,
            sg_list: &mut sink,
            num_sge: 1,
            opcode: n::WR_FETCH_ADD,
            send_flags: n::SEND_SIGNALED,
            remote_addr: address,
            rkey_or_add: value,
            atomic_rkey: rkey,
            ..SendWr::NOTHING
        };
        // SAFETY: one request; its part is the sink, which is registered as long as this lives. The
        // library copies request and part.
        unsafe { adder.send(&mut add, false) }
    }

    /// Adds `value` to the word at `address`, modulo 2^64. The word's region, which `key` names on
    /// this port, is busy until the add has ended.
    ///
    /// *Errors*: nothing was posted.
    pub fn add(&mut self, key: RailKey, address: u64, value: u64) -> Result<AddNumber, AddError> {
        if self.is_lost {
            return Err(AddError::Lost);
        }
        if !address.is_multiple_of(WORD_BYTES.into()) {
            return Err(AddError::Unaligned);
        }
        if self.is_full() {
            return Err(AddError::Again);
        }
        let held = self.domain.hold(key, address, WORD_BYTES.into());
        let (region, _) = held.ok_or(AddError::Region)?;
        if !self.domain.takes_adds(region) {
            self.domain.release(region);
            return Err(AddError::NoAdds);
        }
        let number = self.posted;
        if let Err(errno) = self.post(number, rkey(key), address, value) {
            self.domain.release(region);
            return Err(match errno {
                Errno::NO_MEMORY => AddError::Again,
                errno => AddError::Refused(errno),
            });
        }
        self.held[(number % u64::from(ADDS_MAX)) as usize] = region;
        self.posted += 1;
        Ok(AddNumber(number))
    }

    /// How an add ended; `None`: it has not, as far as the last poll knows. May be asked as often
    /// as one likes.
    pub fn outcome(&self, AddNumber(number): AddNumber) -> Option<Result<(), OutcomeUnknown>> {
        match number < self.ended {
            true => Some(Ok(())),
            // a number that is none of this companion's says nothing
            false if self.is_lost || number >= self.posted => Some(Err(OutcomeUnknown)),
            false => None,
        }
    }

    /// Whether as many adds are on their way as there may be, as far as the last poll knows.
    pub fn is_full(&self) -> bool {
        self.posted - self.ended == ADDS_MAX.into()
    }

    /// Whether adds are on their way.
    pub fn is_busy(&self) -> bool {
        !self.is_lost && self.posted != self.ended
    }

    /// Whether it takes no adds any more.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Takes what the device says of adds. `rail` is the one that it was made on.
    ///
    /// *Cost*: where an add has failed, or the port, the driver destroys two queue pairs, and may
    /// wait for packets that are on their way.
    pub fn poll(&mut self, rail: &mut Verbs<'m>) {
        if self.is_lost {
            return;
        }
        let mut found = [Wc::NOTHING; 8];
        loop {
            let count = self.cq.poll(&mut found);
            let Ok(count) = usize::try_from(count) else { return self.lose(rail.health()) };
            for wc in &found[..count] {
                match wc.status {
                    n::WC_SUCCESS => self.ended_through(wc.wr_id),
                    _ => return self.lose(rail.health()),
                }
            }
            if count < found.len() {
                break;
            }
        }
        // a rail without peers is not polled, and hears nothing of its device
        rail.watch();
        let health = rail.health();
        if health.is_lost() || health.revivals != self.revivals {
            self.lose(health);
        }
    }

    /// Every add up to and with that number has ended well.
    fn ended_through(&mut self, number: u64) {
        while self.ended <= number && self.ended != self.posted {
            self.domain.release(self.held[(self.ended % u64::from(ADDS_MAX)) as usize]);
            self.ended += 1;
        }
    }

    /// There are no more adds. Regions of those that have not ended are free once the device
    /// touches nothing any more: once it has destroyed the queue pairs, or is gone.
    #[cold]
    fn lose(&mut self, health: Health) {
        self.is_lost = true;
        let is_gone = health.lost_code == libc::ENODEV;
        let mut is_over = true;
        for pair in [&mut self.adder, &mut self.responder] {
            let Some(over) = pair.take() else { continue };
            match over.destroy() {
                Ok(()) => {}
                Err(gone) if is_gone => core::mem::forget(gone), // the kernel has, with the device
                Err(kept) => (*pair, is_over) = (Some(kept), false),
            }
        }
        // otherwise they stay registered as long as the rail is open
        if is_over {
            for number in self.ended..self.posted {
                self.domain.release(self.held[(number % u64::from(ADDS_MAX)) as usize]);
            }
        }
    }
}
