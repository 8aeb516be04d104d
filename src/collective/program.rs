//! What a rank's stream does in one AllGather. It may be recorded once and replayed: nothing in it
//! counts.
//!
//! Each word is set to 1 by one side and put back to 0 by the other. The setter sets it again only
//! after it has seen a later word of the other side. So no replay overtakes another, although a
//! rank may begin the next one while others are still in this one. Each write takes the stream
//! time, so that none is between a wait and what it lets through, or behind the last wait.

use super::plan::Plan;

/// Where each word lies: in the words of its owner, which takes it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Word {
    /// Of this rank's memory, by a mate: that one's memory may be written.
    Ready {
        /// Waits for it.
        owner: u32,
        /// Sets it.
        by: u32,
    },
    /// A mate has copied all that it gives to the owner. It is 1 between two AllGathers, too.
    Done {
        /// Waits for it.
        owner: u32,
        /// Sets it.
        by: u32,
    },
    /// This rank's service may begin. Its value is the length of a chunk in bytes.
    Go,
    /// A landing is there, and whole. The one behind the last: all puts of this rank have left.
    Landed(u32),
    /// Whether the AllGather is under way, for who looks whether it hangs. Where this rank has no
    /// others than mates, their [`Word::Done`] say it.
    State,
    /// The owner has given the request up: what it copies to mates from then on is not valid.
    Failed {
        /// Sets it, and nobody takes it.
        owner: u32,
    },
}

/// The number of each word among those of one owner.
#[derive(Copy, Clone, Debug)]
pub struct Words {
    /// Ranks of the group.
    pub ranks: u32,
}

impl Words {
    /// How many words an owner has.
    pub const fn count(&self) -> u32 {
        (3 * self.ranks + 5).next_multiple_of(8)
    }

    /// The number of a word.
    pub const fn at(&self, word: Word) -> u32 {
        match word {
            Word::Go => 0,
            Word::State => 1,
            Word::Ready { by, .. } => 2 + by,
            Word::Done { by, .. } => 2 + self.ranks + by,
            Word::Landed(landing) => 2 + 2 * self.ranks + landing,
            Word::Failed { .. } => 4 + 3 * self.ranks,
        }
    }
}

/// Values of [`Word::State`].
pub const BEGUN: u64 = 1;
/// As above.
pub const ENDED: u64 = 2;

/// One step of a stream.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Op {
    /// Writes a value.
    Write(Word, u64),
    /// Waits until a word is 1.
    Await(Word),
    /// Copies what the caller gives to its place in this rank's memory.
    CopyOwn,
    /// Copies a chunk to its place in a mate's memory: of this rank's memory, or the chunk that the
    /// caller gives.
    Copy {
        /// The chunk.
        chunk: u32,
        /// The mate.
        to: u32,
    },
}

/// Whether a rank has a [`Word::State`].
pub fn has_state(plan: Plan<'_>) -> bool {
    plan.has_strangers() || plan.mates().next().is_none()
}

/// The steps of one AllGather with chunks of `bytes`, which are not 0.
pub fn program(plan: Plan<'_>, bytes: u64, in_place: bool) -> impl Iterator<Item = Op> + use<'_> {
    let (me, mates) = (plan.rank(), move || plan.mates());
    let served = plan.has_strangers();
    let state = move |value| has_state(plan).then_some(Op::Write(Word::State, value));
    let ready = |owner, by| Word::Ready { owner, by };
    let done = |owner, by| Word::Done { owner, by };
    let take = |word| [Op::Await(word), Op::Write(word, 0)];
    let open = mates().map(move |mate| Op::Write(done(me, mate), 0));
    // the service puts from this rank's memory; copies to mates need not wait for this one
    let own = (!in_place && served).then_some(Op::CopyOwn);
    let own_beside = (!in_place && !served).then_some(Op::CopyOwn);
    let go = served.then_some(Op::Write(Word::Go, bytes));
    let admit = mates().map(move |mate| Op::Write(ready(mate, me), 1));
    let admitted = mates().map(move |mate| Op::Await(ready(me, mate)));
    let copies = mates().map(move |to| Op::Copy { chunk: me, to });
    let landings = (1..=plan.landings()).flat_map(move |landing| {
        let chunks = plan.passes_on().then(|| plan.landing(landing)).into_iter().flatten();
        let pass = move |(chunk, _)| mates().map(move |to| Op::Copy { chunk, to });
        take(Word::Landed(landing)).into_iter().chain(chunks.flat_map(pass))
    });
    let taken = mates().map(move |mate| Op::Write(ready(me, mate), 0));
    let tell = mates().map(move |mate| Op::Write(done(mate, me), 1));
    let complete = mates().map(move |mate| Op::Await(done(me, mate)));
    let left = served.then(|| take(Word::Landed(plan.landings() + 1))).into_iter().flatten();
    state(BEGUN)
        .into_iter()
        .chain(open)
        .chain(own)
        .chain(go)
        .chain(admit)
        .chain(admitted)
        .chain(copies)
        .chain(own_beside)
        .chain(landings)
        .chain(taken)
        .chain(tell)
        .chain(complete)
        .chain(left)
        .chain(state(ENDED))
}
