//! The schedules of an AllGather. Chunk `c` is what rank `c` gives; each rank ends with all chunks.
//!
//! | Schedule | To strangers | To mates |
//! | --- | --- | --- |
//! | direct | its chunk, to each | its chunk |
//! | pipeline | its chunk, then what came, to the next team: a ring | the same chunks |

/// Which schedule.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Algorithm {
    /// One hop: best for short chunks, and where all ranks are mates.
    Direct,
    /// A ring over teams of equal size: each chunk enters a team once.
    Pipeline,
}

/// A chunk that goes to a stranger.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Put {
    /// Whose bytes.
    pub chunk: u32,
    /// The rank that gets them.
    pub to: u32,
    /// The landing that brings the chunk to this rank; 0: its own.
    pub after: u32,
}

/// One rank's part in an AllGather.
#[derive(Copy, Clone, Debug)]
pub struct Plan<'t> {
    teams: &'t [u32],
    rank: u32,
    algorithm: Algorithm,
    /// Ranks of each team, where all have as many and follow one another; else 0.
    each: u32,
}

/// Why there is no such plan.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum PlanError {
    /// The rank is not one of those that the teams have.
    Rank,
    /// The pipeline needs teams of equal size, whose ranks follow one another.
    Teams,
}

impl<'t> Plan<'t> {
    /// The plan of `rank`; `teams` has the number of each rank's team.
    pub fn new(teams: &'t [u32], rank: u32, algorithm: Algorithm) -> Result<Plan<'t>, PlanError> {
        if rank as usize >= teams.len() {
            return Err(PlanError::Rank);
        }
        let each = each_of(teams);
        match algorithm {
            Algorithm::Pipeline if each == 0 => Err(PlanError::Teams),
            Algorithm::Direct | Algorithm::Pipeline => Ok(Plan { teams, rank, algorithm, each }),
        }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.teams.len() as u32
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The other ranks, each rank's in another order, so that not all begin with the same.
    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, ranks) = (self.rank, self.ranks());
        (1..ranks).map(move |step| (rank + step) % ranks)
    }

    /// Ranks whose memory this rank's stream reaches.
    pub fn mates(&self) -> impl Iterator<Item = u32> + use<'t> {
        let (teams, team) = (self.teams, self.teams[self.rank as usize]);
        self.others().filter(move |rank| teams[*rank as usize] == team)
    }

    /// All other ranks.
    pub fn strangers(&self) -> impl Iterator<Item = u32> + use<'t> {
        let (teams, team) = (self.teams, self.teams[self.rank as usize]);
        self.others().filter(move |rank| teams[*rank as usize] != team)
    }

    /// Whether chunks come from strangers.
    pub fn has_strangers(&self) -> bool {
        self.strangers().next().is_some()
    }

    /// How often this rank's stream waits for chunks of strangers.
    pub fn landings(&self) -> u32 {
        match self.algorithm {
            Algorithm::Direct => u32::from(self.has_strangers()),
            Algorithm::Pipeline => self.ranks() / self.each - 1,
        }
    }

    /// Whether mates get from this rank what lands here.
    pub fn passes_on(&self) -> bool {
        self.algorithm == Algorithm::Pipeline
    }

    /// Chunks that one landing brings, from 1 on, and the ranks that put them.
    pub fn landing(&self, landing: u32) -> impl Iterator<Item = (u32, u32)> + use<'t> {
        let ring = (self.algorithm == Algorithm::Pipeline)
            .then(|| (self.before(landing * self.each), self.before(self.each)));
        let direct = (self.algorithm == Algorithm::Direct).then(|| self.strangers());
        ring.into_iter().chain(direct.into_iter().flatten().map(|rank| (rank, rank)))
    }

    /// How many chunks `from` has put here when a landing is there, counted over one AllGather.
    pub fn landed(&self, landing: u32) -> u32 {
        match self.algorithm {
            Algorithm::Direct => 1,
            Algorithm::Pipeline => landing,
        }
    }

    /// How many chunks each stranger that puts here brings in one AllGather.
    pub fn chunks_each(&self) -> u32 {
        self.landed(self.landings())
    }

    /// What this rank puts to strangers, in this order.
    pub fn puts(&self) -> impl Iterator<Item = Put> + use<'t> {
        let plan = *self;
        let ring = (self.algorithm == Algorithm::Pipeline).then(|| {
            (0..plan.landings()).map(move |step| Put {
                chunk: plan.before(step * plan.each),
                to: (plan.rank + plan.each) % plan.ranks(),
                after: step,
            })
        });
        let own = move |to| Put { chunk: plan.rank, to, after: 0 };
        let direct = (self.algorithm == Algorithm::Direct).then(|| plan.strangers().map(own));
        ring.into_iter().flatten().chain(direct.into_iter().flatten())
    }

    /// The ranks that put to this one.
    pub fn sources(&self) -> impl Iterator<Item = u32> + use<'t> {
        (self.landings() > 0).then(|| self.landing(1)).into_iter().flatten().map(|(_, from)| from)
    }

    fn before(&self, ranks: u32) -> u32 {
        (self.rank + self.ranks() - ranks % self.ranks()) % self.ranks()
    }
}

/// Ranks of each team where all teams are alike; else 0.
fn each_of(teams: &[u32]) -> u32 {
    let first = teams.first();
    let each = teams.iter().take_while(|team| Some(*team) == first).count();
    let is_even = each != 0 && teams.len().is_multiple_of(each);
    let is_alike = is_even
        && teams.chunks(each).enumerate().all(|(at, team)| {
            let is_new = !teams[..at * each].contains(&team[0]);
            is_new && team.iter().all(|it| *it == team[0])
        });
    if is_alike { each as u32 } else { 0 }
}
