//! The worlds of a plan as a model of `stateright`.
//!
//! A machine borrows its block and cannot be cloned, so a state is the actions that lead to it, and
//! the digest of the world that they make; expanding it makes that world again.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crosstie::transport::mutant::Mutant;
use crosstie_kit::random::Random;
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::net::{Invariant, Violation};
use crate::world::{Action, Plan, World};

/// How much of a model is looked at.
#[derive(Copy, Clone, Debug)]
pub enum Depth {
    /// So many transitions, the shortest histories first.
    Transitions(usize),
    /// Everything.
    Full,
}

#[derive(Copy, Clone, Debug)]
pub struct Failover {
    pub plan: &'static Plan,
    pub mutant: Option<Mutant>,
}

/// A state of the model.
#[derive(Clone, Debug)]
pub struct Node {
    pub history: Vec<Action>,
    digest: u64,
    enabled: Vec<Action>,
    wrong: Option<Violation>,
    over: bool,
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, out: &mut H) {
        (self.digest, self.wrong.is_some()).hash(out);
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.digest == other.digest
    }
}

impl Failover {
    /// Makes the world of a history; `then` looks at it. A panic of the machine is a violation.
    fn world<T>(
        &self,
        history: &[Action],
        then: impl FnOnce(&mut World) -> T,
    ) -> Result<T, Violation> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let mut world = World::new(self.plan, self.mutant);
            history.iter().for_each(|action| world.act(*action));
            then(&mut world)
        }));
        made.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            (Invariant::Ends, format!("panic: {}", text.unwrap_or_default()))
        })
    }

    fn node(&self, history: Vec<Action>) -> Node {
        let looked = self.world(&history, |world| {
            let mut enabled = Vec::new();
            world.enabled(&mut enabled);
            (world.digest(), enabled, world.wrong(), world.is_over())
        });
        match looked {
            Ok((digest, enabled, wrong, over)) => Node { history, digest, enabled, wrong, over },
            Err(wrong) => {
                Node { history, digest: 0, enabled: vec![], wrong: Some(wrong), over: false }
            }
        }
    }

    /// What goes wrong when nothing fails after a history.
    pub fn finish(&self, history: &[Action]) -> Option<Violation> {
        let finished = self.world(history, |world| {
            world.finish();
            let wrong = world.wrong();
            wrong.map(|(kind, what)| (kind, format!("{what}\nthen {:?}", world.trace)))
        });
        finished.unwrap_or_else(Some)
    }

    /// One random walk of so many actions, to its end.
    pub fn walk(&self, seed: u64, count: u64) -> Option<Violation> {
        let walked = self.world(&[], |world| {
            world.wander(&mut Random::new(seed), count);
            world.settle_all();
            let wrong = world.wrong();
            wrong.map(|(kind, what)| (kind, format!("{what}\nafter {:?}", world.trace)))
        });
        walked.unwrap_or_else(Some)
    }

    /// Looks for a violation; the result counts the states.
    pub fn check(self, depth: Depth) -> Found {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let builder = self.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures);
        let builder = match depth {
            Depth::Transitions(count) => builder.target_state_count(count),
            Depth::Full => builder,
        };
        let checker = builder.spawn_bfs().join();
        let states = checker.unique_state_count();
        let mut wrong = None;
        let mut over = false;
        for (name, path) in checker.discoveries() {
            let last = path.last_state();
            match name {
                OVER => over = true,
                _ => wrong = Some((last.clone(), name)),
            }
        }
        let wrong = wrong.map(|(node, name)| {
            let violation = node.wrong.clone().or_else(|| self.finish(&node.history));
            Wrong { name, violation, history: node.history }
        });
        Found { states, depth: checker.max_depth(), over, wrong }
    }
}

/// What a check found.
#[derive(Debug)]
pub struct Found {
    pub states: usize,
    pub depth: usize,
    /// A state was seen in which everything had ended.
    pub over: bool,
    pub wrong: Option<Wrong>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}, after {:?}", self.name, self.history)?;
        match &self.violation {
            Some((invariant, sentence)) => write!(out, "{invariant:?}: {sentence}"),
            None => Ok(()),
        }
    }
}

/// A violation, and how to come to it.
#[derive(Debug)]
pub struct Wrong {
    pub name: &'static str,
    pub violation: Option<Violation>,
    pub history: Vec<Action>,
}

const OVER: &str = "everything can end";

fn keeps(node: &Node, invariant: Invariant) -> bool {
    node.wrong.as_ref().is_none_or(|(broken, _)| *broken != invariant)
}

impl Model for Failover {
    type State = Node;
    type Action = Action;

    fn init_states(&self) -> Vec<Node> {
        vec![self.node(Vec::new())]
    }

    fn actions(&self, state: &Node, actions: &mut Vec<Action>) {
        if state.wrong.is_none() {
            actions.extend_from_slice(&state.enabled);
        }
    }

    fn next_state(&self, last: &Node, action: Action) -> Option<Node> {
        let mut history = last.history.clone();
        history.push(action);
        let node = self.node(history);
        (node.digest != last.digest || node.wrong.is_some()).then_some(node)
    }

    fn properties(&self) -> Vec<Property<Failover>> {
        vec![
            Property::always("(a) one live write of a place", |_, node| {
                keeps(node, Invariant::OneWrite)
            }),
            Property::always("(b) what has ended is whole", |_, node| {
                keeps(node, Invariant::Complete)
            }),
            Property::always("(c) every request ends", |model: &Failover, node: &Node| {
                keeps(node, Invariant::Ends)
                    && (node.wrong.is_some() || model.finish(&node.history).is_none())
            }),
            Property::always("(d) once and in order", |_, node| keeps(node, Invariant::Once)),
            Property::always("(e) nothing given back is touched", |_, node| {
                keeps(node, Invariant::GivenBack)
            }),
            Property::sometimes(OVER, |_, node: &Node| node.over),
        ]
    }
}
