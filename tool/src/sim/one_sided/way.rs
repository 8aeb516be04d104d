//! What one rank has issued to another.
#![forbid(unsafe_code)]

use super::bytes::Bytes;

/// An operation whose effect was not seen.
#[derive(Clone, Debug)]
pub struct Op {
    pub number: u64,
    /// How many of its rank's operations had a fence up to it, itself too.
    pub epoch: u64,
    pub window: usize,
    pub put: Option<Bytes>,
    /// Its signal and value, of those with bits.
    pub signal: Option<(usize, u64)>,
    /// The first of the operations that it needs.
    pub first: Option<u64>,
    /// One that it needs may have been refused.
    pub may_be_refused: bool,
}

/// What one rank has issued to another.
#[derive(Clone, Default, Debug)]
pub struct Way {
    pub ops: Vec<Op>,
    pub issued: u64,
    pub epoch: u64,
    /// The next operation has a fence.
    pub fences: bool,
    /// Some may have been refused since the last flush, or have been for sure.
    pub may_refuse: bool,
    pub refuses: bool,
    /// Operations that were refused for sure, and others that may have been.
    pub refused: Vec<u64>,
    pub doubtful: Vec<u64>,
}

impl Way {
    /// Of operations that need others: some of these were refused, so that they are, too.
    pub fn needs_look(&mut self) -> Vec<u64> {
        let mut lost = Vec::new();
        for op in &mut self.ops {
            let Some(first) = op.first else { continue };
            let needs = |number: &u64| (first..op.number).contains(number);
            if self.refused.iter().any(needs) {
                lost.push(op.number);
                self.refused.push(op.number);
            } else if self.doubtful.iter().any(needs) && !op.may_be_refused {
                op.may_be_refused = true;
                self.doubtful.push(op.number);
            }
            self.may_refuse |= op.may_be_refused;
        }
        self.refuses |= !lost.is_empty();
        self.ops.retain(|op| !lost.contains(&op.number));
        lost
    }
}
