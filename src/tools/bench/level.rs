//! One level of load as it was measured: throughput, latencies, how busy each step was.

use std::collections::BTreeMap;

use super::{
    cores::CoresUsed,
    counts::{Counts, ModelKey},
    format::{digits, percent},
    load::LoadTotals,
    members::Member,
};

/// An instance may take its next request while it ends the last one, and then counts as busy with
/// both for a moment. One that is busy for more than this many works at several at once.
const MAX_HANDOVER_RATIO: f64 = 1.5;

/// The same where an instance may send responses after its execution: what is above is no handover.
const MAX_STREAM_RATIO: f64 = 1.05;

/// One level of load.
#[derive(Clone, Default)]
pub(super) struct LoadLevel {
    pub(super) in_flight: usize,
    /// Rows of a request.
    pub(super) batch: u64,
    /// How long it was measured.
    pub(super) seconds: f64,
    /// By the clients.
    pub(super) seen: LoadTotals,
    /// Standard deviation of the throughput over parts of that time, as a share of it.
    pub(super) spread: Option<f64>,
    /// By the server: models that did something.
    pub(super) counts: BTreeMap<ModelKey, Counts>,
    /// Between the server's counts.
    pub(super) server_seconds: f64,
    pub(super) used: CoresUsed,
    /// The first error's text.
    pub(super) error: Option<String>,
    /// It was ended before its time.
    pub(super) is_cut: bool,
}

/// A model under one level of load.
#[derive(Clone, Debug)]
pub(super) struct StepLoad {
    pub(super) member: Member,
    pub(super) counts: Counts,
    /// The share of time in which an instance was executing; above 1 only where an instance works at
    /// several requests at once.
    pub(super) utilisation: f64,
    /// Requests that waited for an instance, on average.
    pub(super) waiting: f64,
    /// Nanoseconds of an instance's time that an inference of the measured model takes.
    pub(super) demand_ns: f64,
    /// Inferences of the measured model in a second that its instances could do.
    pub(super) capacity: f64,
}

impl StepLoad {
    /// Sequences that all of its instances have at a time; `None` without sequences.
    pub(super) fn slots(&self) -> Option<u64> {
        Some(self.member.sequences?.slots.saturating_mul(self.member.instances))
    }

    /// Does an instance work at several requests at once? Then it is never simply busy.
    pub(super) fn overlaps(&self) -> bool {
        1.0 < self.utilisation
    }

    /// How busy its instances were: `97 %`, or `4.00 at once`.
    pub(super) fn busy(&self) -> String {
        match 1.0 < self.utilisation {
            true => format!("{} at once", digits(self.utilisation)),
            false => percent(self.utilisation),
        }
    }
}

impl LoadLevel {
    /// Requests answered.
    pub(super) fn answered(&self) -> u64 {
        self.seen.latency.count()
    }

    /// Inferences, that is rows, in a second.
    pub(super) fn throughput(&self) -> f64 {
        self.answered() as f64 * self.batch as f64 / self.seconds.max(1e-9)
    }

    /// Responses in a second.
    pub(super) fn response_rate(&self) -> f64 {
        self.seen.responses as f64 / self.seconds.max(1e-9)
    }

    /// How each member that executes was loaded; the one with the least capacity first.
    pub(super) fn steps(&self, members: &[Member]) -> Vec<StepLoad> {
        let mut steps: Vec<StepLoad> = members.iter().filter_map(|it| self.step(it)).collect();
        steps.sort_by(|one, other| one.capacity.total_cmp(&other.capacity));
        steps
    }

    /// The share of a request's latency in which steps execute it; above 1 if they do so side by
    /// side.
    pub(super) fn executing(&self, steps: &[StepLoad]) -> f64 {
        let all = |it: &StepLoad| it.counts.input_ns + it.counts.infer_ns + it.counts.output_ns;
        let requests = self.answered() as f64 / self.seconds.max(1e-9) * self.server_seconds;
        let each = steps.iter().map(all).sum::<u64>() as f64 / requests.max(1.0);
        each / self.seen.latency.mean().max(1.0)
    }

    fn step(&self, member: &Member) -> Option<StepLoad> {
        let counts = self.counts.get(&member.key).filter(|_| 0 < member.instances)?.clone();
        let (counted, seconds) = (counts.busy_ns(), self.server_seconds.max(1e-9));
        let whole = seconds * 1e9 * member.instances as f64;
        let most = if member.is_decoupled { MAX_STREAM_RATIO } else { MAX_HANDOVER_RATIO };
        let is_handover = counted <= whole * most;
        let busy = if is_handover { counted.min(whole) } else { counted };
        let inferences = self.throughput() * seconds;
        let demand_ns = busy / inferences;
        let is_known = 0.0 < busy && 0.0 < inferences;
        is_known.then(|| StepLoad {
            utilisation: busy / whole,
            waiting: counts.queue_ns as f64 / 1e9 / seconds,
            demand_ns,
            capacity: member.instances as f64 * 1e9 / demand_ns,
            member: member.clone(),
            counts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::counts::Batches, *};

    #[test]
    fn instances_are_busy_all_the_time_at_most_unless_they_work_at_several_requests() {
        let member = Member { instances: 2, ..Member::default() };
        let load = |busy_seconds: u64| {
            let batches = Batches { count: 1000, ns: busy_seconds * 1_000_000_000 };
            let counts = Counts { batches: [(1, batches)].into(), ..Counts::default() };
            let mut level = LoadLevel {
                batch: 1,
                seconds: 10.0,
                server_seconds: 10.0,
                counts: [(ModelKey::default(), counts)].into(),
                ..LoadLevel::default()
            };
            (0..1000).for_each(|_| level.seen.latency.add(std::time::Duration::from_millis(1)));
            level.step(&member).unwrap()
        };
        for (busy_seconds, busy, capacity, overlaps) in [
            (10, "50 %", 200.0, false),
            (20, "100 %", 100.0, false),
            // As much as was measured, and not less.
            (22, "100 %", 100.0, false),
            (40, "2.00 at once", 50.0, true),
        ] {
            let step = load(busy_seconds);
            let found = (&*step.busy(), step.capacity.round(), step.overlaps());
            assert_eq!(found, (busy, capacity, overlaps));
        }
    }
}
