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

/// It pays so much that nothing can be a limit yet.
const GROWING_FAST: f64 = 0.5;

/// Below this share of a request's latency, what executes it is not what it waits for.
const EXPLAINED: f64 = 0.5;

/// A level this near to the best throughput shows the limit better, if more are in flight.
const AS_GOOD: f64 = 0.85;

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
    /// The index of the level with the highest throughput.
    pub(super) best: usize,
    /// The index of the level that was looked at: as good, with as many in flight as can be.
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
    /// The one looked at.
    level: &'a Level,
    /// The share that the last step up brought of what it could have; unknown without one.
    growth: Option<f64>,
    /// The share of the latency in which steps execute.
    executing: f64,
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
    let levels_by_index = || levels.iter().enumerate();
    let (best, highest) =
        levels_by_index().max_by(|one, other| rate(one).total_cmp(&rate(other)))?;
    if highest.answered() == 0 {
        return None;
    }
    let is_as_good = |it: &(usize, &Level)| AS_GOOD * highest.throughput() <= rate(it);
    let (index, level) = levels_by_index().rev().find(is_as_good)?;
    let all = level.steps(members);
    let findings = Findings {
        levels,
        level,
        growth: growth(levels, best),
        executing: level.executing(&all),
        steps: all.iter().filter(|it| !overlaps(it)).collect(),
        machine,
        core_capacity: core_capacity(level, machine),
        target,
    };
    let limit = findings.limit();
    let (goal, suggestions) = findings.suggestions(limit);
    let (headline, mut reasons) = text::reasons(&findings, limit);
    reasons.extend(text::outlook(&findings, limit, (goal, &suggestions)));
    let doubts = text::doubts(&findings, members, &all);
    Some(Advice {
        limit,
        best,
        level: index,
        steps: all,
        goal,
        suggestions,
        headline,
        reasons,
        doubts,
    })
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
    fn limit(&self) -> Limit {
        let (used, cores) = (self.level.used, EXHAUSTED * self.machine.cores as f64);
        let own = used.server.map(|it| it + used.client);
        let is_flat = self.growth.is_some_and(|it| it < GROWING);
        match self.steps.first() {
            _ if own.is_some_and(|it| cores <= it) => Limit::Cores,
            _ if EXHAUSTED * self.machine.threads as f64 <= used.client => Limit::Client,
            Some(step) if !is_flat && can_batch_more(step) => Limit::Load,
            Some(step) if is_saturated(step, is_flat) => Limit::Step,
            // Whoever keeps them busy: what waits here waits for a core.
            _ if self.executing < EXPLAINED && used.machine.is_some_and(|it| cores <= it) => {
                Limit::Cores
            }
            _ => self.limit_without_a_step(),
        }
    }

    fn limit_without_a_step(&self) -> Limit {
        match self.growth {
            None => Limit::Load,
            Some(growth) if GROWING_FAST <= growth => Limit::Load,
            Some(growth) if GROWING <= growth && EXPLAINED <= self.executing => Limit::Load,
            Some(_) => Limit::Elsewhere,
        }
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

/// What more in flight brought to the throughput of this level, as a share of how many more there
/// were. Nothing if there is a level above, which brought nothing; unknown if there is none below.
fn growth(levels: &[Level], best: usize) -> Option<f64> {
    if best + 1 < levels.len() {
        return Some(0.0);
    }
    let (below, best) = (&levels[best.checked_sub(1)?], &levels[best]);
    let more = best.in_flight as f64 / below.in_flight as f64 - 1.0;
    let gain = best.throughput() / below.throughput().max(1e-9) - 1.0;
    Some(gain / more)
}

/// Nearly always busy, or often enough with others waiting and nothing gained from more of them.
fn is_saturated(step: &Step, is_flat: bool) -> bool {
    let is_awaited = step.member.instances as f64 <= step.waiting;
    SATURATED <= step.utilisation || (0.5 <= step.utilisation && is_awaited && is_flat)
}

/// Would more in flight make larger executions rather than longer queues?
fn can_batch_more(step: &Step) -> bool {
    step.member.has_batching && step.counts.mean_batch() < 0.9 * step.member.max_batch as f64
}

#[cfg(test)]
mod tests;
