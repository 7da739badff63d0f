//! The autoscaler of a model: adds and removes instances as its queue asks for.

mod decision;
mod room;

use std::{
    sync::{Arc, OnceLock, Weak, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use tokio::task::JoinHandle;

use self::{
    decision::{QueueSample, QueueWatch},
    room::{AskedInstances, Room},
};
use super::scaling::Scaler;
use crate::engines::MemoryProbe;
use troupe_base::{config::InstanceScaling, failure_log::on_one_line, statistics::Statistics};

/// Between two looks at the queue: a part of the times that a config names, within these.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_secs(1);
const LOOKS: u32 = 4;
/// Until it is tried again after an instance could not be opened; twice as long after each failure.
const MIN_RETRY_PAUSE: Duration = Duration::from_secs(5);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(300);

/// The autoscaler of a model, from when its number of instances first follows its queue. Clones share
/// it.
#[derive(Clone)]
pub(super) struct AutoscalerSlot {
    started: Arc<OnceLock<Autoscaler>>,
    memory: Option<MemoryProbe>,
}

/// The task that looks at the queue; it ends when this is dropped, and gives up what it has begun.
struct Autoscaler(JoinHandle<()>);

impl AutoscalerSlot {
    /// There is none yet; later ones ask how much memory is left.
    pub(super) fn new(memory: Option<MemoryProbe>) -> AutoscalerSlot {
        AutoscalerSlot { started: Arc::default(), memory }
    }

    /// Looks from now on, as long as the model is there, if its config says so by now; to be called in
    /// the repository's runtime, which serves no requests.
    pub(super) fn start_if_wanted(&self, scaler: &Arc<Scaler>) {
        if scaler.scaling().is_some() {
            let start = || run(Arc::downgrade(scaler), Room::new(self.memory));
            self.started.get_or_init(|| Autoscaler(tokio::spawn(start())));
        }
    }
}

impl Drop for Autoscaler {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run(scaler: Weak<Scaler>, room: Room) {
    let mut following =
        Following { watch: QueueWatch::default(), room, retries: Retries::default() };
    loop {
        let Some(scaler) = scaler.upgrade() else { return };
        let pause = match scaler.scaling() {
            // A reload may have it follow the queue again.
            None => MAX_INTERVAL,
            Some(scaling) => {
                following.look(&scaler, &scaling).await;
                (scaling.up_after.min(scaling.down_after) / LOOKS).clamp(MIN_INTERVAL, MAX_INTERVAL)
            }
        };
        drop(scaler);
        tokio::time::sleep(pause).await;
    }
}

/// What is known between two looks.
struct Following {
    watch: QueueWatch,
    room: Room,
    retries: Retries,
}

impl Following {
    /// Looks at the queue, and changes the number of instances if it is time.
    async fn look(&mut self, scaler: &Scaler, scaling: &InstanceScaling) {
        let now = Instant::now();
        let count = scaler.count();
        let wanted =
            self.watch.look(now, sample(&scaler.source.stats, scaler.places()), count, scaling);
        let model = &scaler.source.config.name;
        let wanted = match count < wanted {
            true if self.retries.is_waiting(now) => count,
            true => {
                let (kind, min) = (scaler.kind(), scaling.min);
                self.room.fit(now, &AskedInstances { model, count, wanted, kind, min })
            }
            false => {
                self.room.is_enough();
                wanted
            }
        };
        if wanted == count {
            return;
        }
        let why = format!(", as {}", self.watch.reason(scaling));
        let change = scaler.follow(scaling, wanted, &why);
        let changed = self.room.measured(change, || scaler.count()).await;
        match changed {
            Ok(()) => self.retries = Retries::default(),
            Err(error) => {
                let pause = self.retries.failed(Instant::now());
                let error = on_one_line(&error.to_string());
                tracing::warn!(
                    "`{model}` stays at {count} instances, another could not be opened: {error}; \
                     tried again in {pause:?}"
                );
            }
        }
        // What was opened takes its time, too.
        self.watch.changed();
    }
}

/// Instances that cannot be opened are tried again after pauses that grow.
#[derive(Default)]
struct Retries {
    failures: u32,
    at: Option<Instant>,
}

impl Retries {
    fn is_waiting(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| now < at)
    }

    /// Says how long the pause is.
    fn failed(&mut self, now: Instant) -> Duration {
        let pause = MIN_RETRY_PAUSE.saturating_mul(1 << self.failures.min(16)).min(MAX_RETRY_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.at = Some(now + pause);
        pause
    }
}

/// Answers out of the response cache have waited for no instance, and are left out.
fn sample(stats: &Statistics, places: usize) -> QueueSample {
    let totals = stats.totals();
    // The hits are read later.
    let hits_waited = stats.extra.cache.as_ref().map(|it| it.hits_waited()).unwrap_or_default();
    let phases = totals.batches.iter().map(|(_, it)| {
        it.compute_input_ns.saturating_add(it.compute_infer_ns).saturating_add(it.compute_output_ns)
    });
    QueueSample {
        executed: totals.compute_input.count,
        queued: Duration::from_nanos(totals.queue.ns).saturating_sub(hits_waited),
        refused: stats.refused.load(Relaxed),
        busy: Duration::from_nanos(phases.sum()),
        places,
        pending: stats.pending(),
        in_flight: stats.in_flight.count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::statistics::{CacheStatistics, OptionalStatistics, Timing};

    #[test]
    fn answers_out_of_the_cache_have_waited_for_no_instance() {
        let cache = Some(Box::new(CacheStatistics::new(false)));
        let stats = Statistics::new(OptionalStatistics { cache, ..OptionalStatistics::default() });
        let ms = Duration::from_millis;
        let answered =
            |queue| stats.success(&Timing { queue, ..Timing::default() }, queue + ms(50));
        answered(ms(3));
        for _ in 0..100 {
            let cache = stats.extra.cache.as_ref().unwrap();
            cache.hit(ms(1));
            cache.hit_waited(ms(50));
            answered(ms(50));
        }
        let sample = sample(&stats, 1);
        assert_eq!((sample.executed, sample.queued), (1, ms(3)));
        // The statistics extension shows all of it.
        assert_eq!(stats.totals().queue.ns, 5_003_000_000);
    }

    #[test]
    fn pauses_after_failures_grow_to_a_limit() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        assert!(!retries.is_waiting(now));
        let pauses: Vec<u64> = (0..8).map(|_| retries.failed(now).as_secs()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert!(retries.is_waiting(now + Duration::from_secs(299)));
        assert!(!retries.is_waiting(now + Duration::from_secs(300)));
    }
}
