//! What a level of load shows: the numbers that the advice and its sentences rest on.

use super::super::{
    counts::{Counts, ModelKey},
    format::plain,
    level::{LoadLevel, StepLoad},
};

/// An instance this busy has no time left: what is missing is the way from one execution to the
/// next.
pub(super) const SATURATED_SHARE: f64 = 0.85;

/// Cores this busy are no longer idle when work comes.
pub(super) const EXHAUSTED_SHARE: f64 = 0.9;

/// Capacities this near to each other are moved together.
pub(super) const NEAR_RATIO: f64 = 1.1;

/// Instances for each core that are suggested at most, unless they are known to wait.
pub(super) const INSTANCES_PER_CORE: u64 = 4;

/// Instances that use less of a core than this while they execute wait for something else.
const WAITING_SHARE: f64 = 0.25;

/// The machine that the load came from.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ClientMachine {
    /// Cores it may use.
    pub(in super::super) cores: usize,
    /// Threads of this process that send.
    pub(in super::super) threads: usize,
}

/// What keeps the throughput from growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Bottleneck {
    /// A step whose instances are all busy.
    Step,
    /// A step whose sequence slots were all taken, while its instances could have done more.
    Slots,
    /// The cores that server and client share.
    Cores,
    /// This process.
    Client,
    /// Too little was asked for to tell.
    Load,
    /// No step: what lies between them, or before them.
    Elsewhere,
}

impl Bottleneck {
    /// As JSON has it.
    pub(in super::super) fn as_str(self) -> &'static str {
        match self {
            Bottleneck::Step => "step",
            Bottleneck::Slots => "slots",
            Bottleneck::Cores => "cores",
            Bottleneck::Client => "client",
            Bottleneck::Load => "load",
            Bottleneck::Elsewhere => "elsewhere",
        }
    }
}

/// Another number of instances.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Suggestion {
    pub(in super::super) key: ModelKey,
    pub(in super::super) now: u64,
    pub(in super::super) then: u64,
    /// A plain function may say it instead of a config.
    pub(in super::super) is_python: bool,
}

/// What the sentences are made of.
pub(super) struct Findings<'a> {
    pub(super) levels: &'a [LoadLevel],
    /// The one looked at.
    pub(super) level: &'a LoadLevel,
    /// The share that the last step up brought of what it could have; unknown without one.
    pub(super) growth: Option<f64>,
    /// The share of the latency in which steps execute.
    pub(super) executing: f64,
    /// Those whose utilisation says something, least capacity first.
    pub(super) steps: Vec<&'a StepLoad>,
    pub(super) machine: ClientMachine,
    /// Inferences in a second at which the cores would be exhausted, if that is known.
    pub(super) core_capacity: Option<f64>,
    pub(super) target: Option<f64>,
}

impl Findings<'_> {
    /// Models that answered out of the response cache.
    pub(super) fn cached(&self) -> impl Iterator<Item = (&ModelKey, &Counts)> {
        self.level.counts.iter().filter(|(_, counts)| counts.hits != 0)
    }

    /// The step with the fewest slots, if there were more sequences at a time than that.
    pub(super) fn short_of_slots(&self) -> Option<(&StepLoad, u64)> {
        let slots = self.steps.iter().filter_map(|it| Some((*it, it.slots()?)));
        let short = slots.filter(|(_, slots)| *slots < self.level.in_flight as u64);
        short.min_by_key(|(_, slots)| *slots)
    }

    /// Would more in flight make larger executions rather than longer queues?
    pub(super) fn can_batch_more(&self, step: &StepLoad) -> bool {
        let has_slot = step.slots().is_none_or(|it| (self.level.in_flight as u64) < it);
        has_slot && can_batch_more(step)
    }

    /// Cores that neither the server nor this command used, if that is known.
    pub(super) fn others(&self) -> Option<f64> {
        let used = self.level.used;
        Some((used.machine? - used.client - used.server?).max(0.0))
    }

    /// Cores that others used of a machine without an idle one, if those are many.
    pub(super) fn disturbing(&self) -> Option<f64> {
        let busy = self.level.used.machine.unwrap_or(0.0);
        let is_full = EXHAUSTED_SHARE * self.machine.cores as f64 <= busy;
        self.others().filter(|it| is_full && 0.25 * busy < *it)
    }

    /// The same, where steps compute: what waits for something else takes no longer for it.
    pub(super) fn stretching(&self) -> Option<f64> {
        self.disturbing().filter(|_| !self.does_wait())
    }

    /// Do executions use next to nothing of the cores, as far as that is known?
    pub(super) fn does_wait(&self) -> bool {
        let busy = |it: &&StepLoad| it.utilisation * it.member.instances as f64;
        let busy: f64 = self.steps.iter().map(busy).sum();
        self.level.used.server.is_some_and(|it| it < WAITING_SHARE * busy)
    }
}

/// Has it room for more rows, and are larger executions worth it?
fn can_batch_more(step: &StepLoad) -> bool {
    let pays = step.member.batch_cost.is_none_or(|it| it.pays());
    let is_small = step.counts.mean_batch() < 0.9 * step.member.max_batch as f64;
    step.member.has_batching && is_small && pays
}

/// A step's model between backticks.
pub(super) fn name(step: &StepLoad) -> String {
    format!("`{}`", plain(&step.member.key.name))
}
