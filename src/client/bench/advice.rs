//! Says what limits the throughput, and how many instances would move the limit.

mod text;

use super::{
    counts::Key,
    level::{Level, Step},
    members::Member,
};

/// An instance this busy has no time left: what is missing is the way from one execution to the next.
const SATURATED: f64 = 0.85;

/// Cores this busy are no longer idle when work comes.
const EXHAUSTED: f64 = 0.9;

/// More in flight still pays if it brings this share of what it would bring without any limit.
const GROWING: f64 = 0.2;

/// Capacities this near to each other are moved together.
const NEAR: f64 = 1.1;

/// A step may stay this little below what is asked of it: times are not measured any better.
const CLOSE_ENOUGH: f64 = 0.95;

/// Nobody should believe a forecast of more than this many times what was measured.
const FARTHEST: f64 = 8.0;

/// The machine that the load came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// Cores it may use.
    pub(super) cores: usize,
    /// Threads of this process that send.
    pub(super) threads: usize,
}

/// What keeps the throughput from growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// A step whose instances are all busy.
    Step,
    /// The cores that server and client share.
    Cores,
    /// This process.
    Client,
    /// Too little was asked for to tell.
    Load,
    /// No step: what lies between them, or before them.
    Elsewhere,
}

impl Limit {
    /// As JSON has it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Limit::Step => "step",
            Limit::Cores => "cores",
            Limit::Client => "client",
            Limit::Load => "load",
            Limit::Elsewhere => "elsewhere",
        }
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub(super) struct Advice {
    pub(super) limit: Limit,
    /// The index of the level that was looked at: the one with the highest throughput.
    pub(super) level: usize,
    /// Its steps, the one with the least capacity first.
    pub(super) steps: Vec<Step>,
    /// Inferences in a second that the suggestion should allow.
    pub(super) goal: Option<f64>,
    pub(super) suggestions: Vec<Suggestion>,
    /// One sentence.
    pub(super) headline: String,
    /// Why, with numbers.
    pub(super) reasons: Vec<String>,
    /// What makes the numbers doubtful.
    pub(super) doubts: Vec<String>,
}

/// Another number of instances.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Suggestion {
    pub(super) key: Key,
    pub(super) now: u64,
    pub(super) then: u64,
}

/// What the sentences are made of.
struct Findings<'a> {
    levels: &'a [Level],
    best: &'a Level,
    /// Those whose utilisation says something, least capacity first.
    steps: Vec<&'a Step>,
    machine: Machine,
    /// Inferences in a second at which the cores would be exhausted, if that is known.
    core_capacity: Option<f64>,
    target: Option<f64>,
}

/// Judges the level with the highest throughput; `None` if nothing was answered.
pub(super) fn advise(
    members: &[Member],
    levels: &[Level],
    machine: Machine,
    target: Option<f64>,
) -> Option<Advice> {
    let rate = |it: &(usize, &Level)| it.1.throughput();
    let (index, best) =
        levels.iter().enumerate().max_by(|one, other| rate(one).total_cmp(&rate(other)))?;
    if best.answered() == 0 {
        return None;
    }
    let all = best.steps(members);
    let findings = Findings {
        levels,
        best,
        steps: all.iter().filter(|it| !overlaps(it)).collect(),
        machine,
        core_capacity: core_capacity(best, machine),
        target,
    };
    let limit = findings.limit(index);
    let (goal, suggestions) = findings.suggestions(limit);
    let (headline, mut reasons) = text::reasons(&findings, limit);
    reasons.extend(text::outlook(&findings, limit, (goal, &suggestions)));
    let doubts = text::doubts(&findings, members, &all);
    Some(Advice { limit, level: index, steps: all, goal, suggestions, headline, reasons, doubts })
}

/// Does an instance work at several requests at once? Then it is never simply busy.
fn overlaps(step: &Step) -> bool {
    step.member.overlaps || 1.05 < step.utilisation
}

fn core_capacity(level: &Level, machine: Machine) -> Option<f64> {
    let used = level.used.client + level.used.server?;
    let cores = machine.cores as f64;
    // From next to nothing nothing can be foretold.
    (0.05 * cores <= used).then(|| level.throughput() * EXHAUSTED * cores / used)
}

impl Findings<'_> {
    fn limit(&self, index: usize) -> Limit {
        let used = self.best.used;
        let is_growing = self.is_growing(index);
        let own = used.server.map(|it| it + used.client);
        match self.steps.first() {
            _ if own.is_some_and(|it| EXHAUSTED * self.machine.cores as f64 <= it) => Limit::Cores,
            _ if EXHAUSTED * self.machine.threads as f64 <= used.client => Limit::Client,
            Some(step) if is_growing != Some(false) && can_batch_more(step) => Limit::Load,
            Some(step) if is_saturated(step, is_growing) => Limit::Step,
            _ if is_growing == Some(false) => Limit::Elsewhere,
            _ => Limit::Load,
        }
    }

    /// Did the throughput grow towards this level? Unknown if there is none below it; it did not if
    /// there is one above it.
    fn is_growing(&self, index: usize) -> Option<bool> {
        if index + 1 < self.levels.len() {
            return Some(false);
        }
        let below = &self.levels[index.checked_sub(1)?];
        let more = self.best.in_flight as f64 / below.in_flight as f64 - 1.0;
        let gain = self.best.throughput() / below.throughput().max(1e-9) - 1.0;
        Some(GROWING * more <= gain)
    }

    /// What to aim for in inferences in a second, and with how many instances.
    fn suggestions(&self, limit: Limit) -> (Option<f64>, Vec<Suggestion>) {
        let Some(goal) = self.goal(limit) else { return (None, Vec::new()) };
        let more = |step: &&Step| {
            let now = step.member.instances;
            let then = (goal * CLOSE_ENOUGH * step.demand_ns / 1e9).ceil() as u64;
            let key = step.member.key.clone();
            (now < then).then_some(Suggestion { key, now, then })
        };
        (Some(goal), self.steps.iter().filter_map(more).collect())
    }

    fn goal(&self, limit: Limit) -> Option<f64> {
        let slowest = self.steps.first()?.capacity;
        let goal = match (self.target, limit) {
            (Some(target), _) => target,
            (None, Limit::Step) => {
                let rest = self.steps.iter().map(|it| it.capacity).find(|it| slowest * NEAR < *it);
                rest.unwrap_or(2.0 * slowest).min(FARTHEST * slowest)
            }
            _ => return None,
        };
        let goal = self.core_capacity.map_or(goal, |it| goal.min(it));
        // Cores that allow hardly more than there is are the next limit at once.
        (self.target.is_some() || slowest * NEAR < goal).then_some(goal)
    }
}

/// Nearly always busy, or often enough with others waiting and nothing gained from more of them.
fn is_saturated(step: &Step, is_growing: Option<bool>) -> bool {
    let is_awaited = step.member.instances as f64 <= step.waiting;
    SATURATED <= step.utilisation
        || (0.5 <= step.utilisation && is_awaited && is_growing == Some(false))
}

/// Would more in flight make larger executions rather than longer queues?
fn can_batch_more(step: &Step) -> bool {
    step.member.has_batching && step.counts.mean_batch() < 0.9 * step.member.max_batch as f64
}

#[cfg(test)]
mod tests;
