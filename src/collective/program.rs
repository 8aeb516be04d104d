//! What a rank's stream does in one AllGather. It may be recorded once and replayed: nothing in it
//! counts.
//!
//! Each word is set to 1 by one side and taken, back to 0, by the other. The setter sets it again
//! only after it has seen a later word of the taker. So no replay overtakes another, although a
//! rank may begin the next one while others are still in this one.

use super::plan::Plan;

/// Where each word lies: in the words of its owner, which takes it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Word {
    /// Of this rank's memory, by a mate: that one's memory may be written.
    Ready {
        /// Takes it.
        owner: u32,
        /// Sets it.
        by: u32,
    },
    /// A mate has copied all that it gives to the owner.
    Done {
        /// Takes it.
        owner: u32,
        /// Sets it.
        by: u32,
    },
    /// This rank's service may begin. Its value is the length of a chunk in bytes.
    Go,
    /// A landing is there, and whole. The one behind the last: all puts of this rank have left.
    Landed(u32),
    /// Whether the AllGather is under way: for who looks whether it hangs.
    State,
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
        (3 * self.ranks + 4).next_multiple_of(8)
    }

    /// The number of a word.
    pub const fn at(&self, word: Word) -> u32 {
        match word {
            Word::Go => 0,
            Word::State => 1,
            Word::Ready { by, .. } => 2 + by,
            Word::Done { by, .. } => 2 + self.ranks + by,
            Word::Landed(landing) => 2 + 2 * self.ranks + landing,
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
    /// Waits until a word is 1, then writes 0.
    Take(Word),
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

/// The steps of one AllGather with chunks of `bytes`, which are not 0.
pub fn program(plan: Plan<'_>, bytes: u64, in_place: bool) -> impl Iterator<Item = Op> + use<'_> {
    let (me, mates) = (plan.rank(), move || plan.mates());
    let served = plan.has_strangers();
    let begin = [Op::Write(Word::State, BEGUN)].into_iter();
    // the service puts from this rank's memory; copies to mates need not wait for this one
    let own = (!in_place && served).then_some(Op::CopyOwn);
    let own_beside = (!in_place && !served).then_some(Op::CopyOwn);
    let go = served.then_some(Op::Write(Word::Go, bytes));
    let ready = mates().map(move |mate| Op::Write(Word::Ready { owner: mate, by: me }, 1));
    let admitted = mates().map(move |mate| Op::Take(Word::Ready { owner: me, by: mate }));
    let copies = mates().map(move |to| Op::Copy { chunk: me, to });
    let landings = (1..=plan.landings()).flat_map(move |landing| {
        let chunks = plan.passes_on().then(|| plan.landing(landing)).into_iter().flatten();
        let pass = move |(chunk, _)| mates().map(move |to| Op::Copy { chunk, to });
        [Op::Take(Word::Landed(landing))].into_iter().chain(chunks.flat_map(pass))
    });
    let done = mates().map(move |mate| Op::Write(Word::Done { owner: mate, by: me }, 1));
    let complete = mates().map(move |mate| Op::Take(Word::Done { owner: me, by: mate }));
    let left = served.then_some(Op::Take(Word::Landed(plan.landings() + 1)));
    let end = [Op::Write(Word::State, ENDED)];
    begin
        .chain(own)
        .chain(go)
        .chain(ready)
        .chain(admitted)
        .chain(copies)
        .chain(own_beside)
        .chain(landings)
        .chain(done)
        .chain(complete)
        .chain(left)
        .chain(end)
}
