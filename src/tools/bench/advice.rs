//! Says what limits the throughput, and how many instances would move the limit.

mod findings;
mod scheduling;
mod text;

pub(super) use self::findings::{Bottleneck, ClientMachine, Suggestion};
use self::findings::{EXHAUSTED_SHARE, Findings, INSTANCES_PER_CORE, NEAR_RATIO, SATURATED_SHARE};
use super::{
    level::{LoadLevel, StepLoad},
    members::Member,
};

/// More in flight still pays if it brings this share of what it would bring without any limit.
const MIN_GROWTH: f64 = 0.2;

/// It pays so much that nothing can be a limit yet.
const FAST_GROWTH: f64 = 0.5;

/// Below this share of a request's latency, what executes it is not what it waits for.
const EXPLAINED_SHARE: f64 = 0.5;

/// A level this near to the best throughput shows the limit better, if more are in flight.
const AS_GOOD_SHARE: f64 = 0.85;

/// A step may stay this little below what is asked of it: times are not measured any better.
const TOLERATED_SHARE: f64 = 0.95;

/// A forecast of more than this many times what was measured is not believable.
const MAX_FORECAST_RATIO: f64 = 8.0;

/// What was found.
#[derive(Clone, Debug)]
pub(super) struct Advice {
    pub(super) limit: Bottleneck,
    /// The index of the level with the highest throughput.
    pub(super) best: usize,
    /// The index of the level that was looked at: as good, with as many in flight as can be.
    pub(super) level: usize,
    /// Its steps, the one with the least capacity first.
    pub(super) steps: Vec<StepLoad>,
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

/// Judges the level with the highest throughput; `None` if nothing was answered.
pub(super) fn advise(
    members: &[Member],
    levels: &[LoadLevel],
    machine: ClientMachine,
    target: Option<f64>,
) -> Option<Advice> {
    let rate = |it: &(usize, &LoadLevel)| it.1.throughput();
    let levels_by_index = || levels.iter().enumerate();
    let (best, highest) =
        levels_by_index().max_by(|one, other| rate(one).total_cmp(&rate(other)))?;
    if highest.answered() == 0 {
        return None;
    }
    let is_as_good = |it: &(usize, &LoadLevel)| AS_GOOD_SHARE * highest.throughput() <= rate(it);
    let (index, level) = levels_by_index().rev().find(is_as_good)?;
    let all = level.steps(members);
    let findings = Findings {
        levels,
        level,
        growth: growth(levels, best),
        executing: level.executing(&all),
        steps: all.iter().filter(|it| !it.overlaps()).collect(),
        machine,
        core_capacity: core_capacity(level, machine),
        target,
    };
    let limit = findings.limit();
    let (goal, suggestions) = findings.suggestions(limit);
    let (headline, mut reasons) = text::reasons(&findings, limit);
    reasons.extend(scheduling::first_responses(&findings));
    reasons.extend(text::outlook(&findings, limit, goal, &suggestions));
    let mut doubts = text::doubts(&findings, members, &all);
    doubts.extend(scheduling::refusals(&findings, members));
    doubts.extend(scheduling::streams(&findings, limit));
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

fn core_capacity(level: &LoadLevel, machine: ClientMachine) -> Option<f64> {
    let used = level.used.client + level.used.server?;
    let cores = machine.cores as f64;
    // From next to nothing nothing can be foretold.
    (0.05 * cores <= used).then(|| level.throughput() * EXHAUSTED_SHARE * cores / used)
}

impl Findings<'_> {
    fn limit(&self) -> Bottleneck {
        let (used, cores) = (self.level.used, EXHAUSTED_SHARE * self.machine.cores as f64);
        let own = used.server.map(|it| it + used.client);
        let is_flat = self.growth.is_some_and(|it| it < MIN_GROWTH);
        // Whoever keeps them busy: what waits here waits for a core.
        let is_starved =
            self.executing < EXPLAINED_SHARE && used.machine.is_some_and(|it| cores <= it);
        match self.steps.first() {
            _ if own.is_some_and(|it| cores <= it) => Bottleneck::Cores,
            _ if EXHAUSTED_SHARE * self.machine.threads as f64 <= used.client => Bottleneck::Client,
            Some(step) if !is_flat && !is_starved && self.can_batch_more(step) => Bottleneck::Load,
            Some(step)
                if self.short_of_slots().is_some()
                    && !is_starved
                    && step.utilisation < SATURATED_SHARE =>
            {
                Bottleneck::Slots
            }
            Some(step) if is_saturated(step, is_flat) => Bottleneck::Step,
            _ if is_starved => Bottleneck::Cores,
            _ => self.limit_without_a_step(),
        }
    }

    fn limit_without_a_step(&self) -> Bottleneck {
        match self.growth {
            None => Bottleneck::Load,
            Some(growth) if FAST_GROWTH <= growth => Bottleneck::Load,
            Some(growth) if MIN_GROWTH <= growth && EXPLAINED_SHARE <= self.executing => {
                Bottleneck::Load
            }
            Some(_) => Bottleneck::Elsewhere,
        }
    }

    /// What the most instances allow that are sensible on these cores; `None` where executions are
    /// known to wait for something else, and any number of them may.
    fn sensible_goal(&self) -> Option<f64> {
        // Of a server elsewhere the cores are not known.
        if self.level.used.server.is_none() || self.does_wait() {
            return None;
        }
        let allowed = |step: &&StepLoad| {
            let most = (INSTANCES_PER_CORE * self.machine.cores as u64).max(step.member.instances);
            most as f64 * 1e9 / (step.demand_ns.max(1.0) * TOLERATED_SHARE)
        };
        self.steps.iter().map(allowed).min_by(f64::total_cmp)
    }

    /// What to aim for in inferences in a second, and with how many instances.
    fn suggestions(&self, limit: Bottleneck) -> (Option<f64>, Vec<Suggestion>) {
        // Times that others stretch say nothing about how many instances are needed, and requests
        // that are not executed do not either.
        if self.stretching().is_some() || self.cached().next().is_some() {
            return (None, Vec::new());
        }
        let Some(goal) = self.goal(limit) else { return (None, Vec::new()) };
        let more = |step: &&StepLoad| {
            let now = step.member.instances;
            let then = (goal * TOLERATED_SHARE * step.demand_ns / 1e9).ceil() as u64;
            let key = step.member.key.clone();
            let is_python = step.member.is_python;
            (now < then).then_some(Suggestion { key, now, then, is_python })
        };
        (Some(goal), self.steps.iter().filter_map(more).collect())
    }

    fn goal(&self, limit: Bottleneck) -> Option<f64> {
        let slowest = self.steps.first()?.capacity;
        let goal = match (self.target, limit) {
            (Some(target), _) => target,
            (None, Bottleneck::Step) => {
                let rest =
                    self.steps.iter().map(|it| it.capacity).find(|it| slowest * NEAR_RATIO < *it);
                rest.unwrap_or(2.0 * slowest).min(MAX_FORECAST_RATIO * slowest)
            }
            _ => return None,
        };
        let goal = self.core_capacity.map_or(goal, |it| goal.min(it));
        let goal = self.sensible_goal().map_or(goal, |it| goal.min(it));
        // Cores that allow hardly more than there is are the next limit at once.
        (self.target.is_some() || slowest * NEAR_RATIO < goal).then_some(goal)
    }
}

/// What more in flight brought to the throughput of this level, as a share of how many more there
/// were. Nothing if there is a level above, which brought nothing; unknown if there is none below.
fn growth(levels: &[LoadLevel], best: usize) -> Option<f64> {
    if best + 1 < levels.len() {
        return Some(0.0);
    }
    let (below, best) = (&levels[best.checked_sub(1)?], &levels[best]);
    let more = best.in_flight as f64 / below.in_flight as f64 - 1.0;
    let gain = best.throughput() / below.throughput().max(1e-9) - 1.0;
    Some(gain / more)
}

/// Nearly always busy, or often enough with others waiting and nothing gained from more of them.
fn is_saturated(step: &StepLoad, is_flat: bool) -> bool {
    let is_awaited = step.member.instances as f64 <= step.waiting;
    SATURATED_SHARE <= step.utilisation || (0.5 <= step.utilisation && is_awaited && is_flat)
}

#[cfg(test)]
mod tests;
