//! Breaks deadlocks of model calls by failing the youngest call in a wait-for cycle.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{rate_claims::RateClaims, scheduler::Scheduler};
use crate::instance::InstancePool;
use troupe_base::{
    error::Error,
    request::{
        CallChain,
        deadlock::{BlockedInstance, InstanceWait, ModelWaits, WaitReporter},
    },
};

/// Calls that have waited less are left alone.
const MIN_BLOCKED_TIME: Duration = Duration::from_millis(500);

/// What the batchers of one model report together: an instance of one of them that is not blocked
/// gets to the queue of another.
pub(super) struct ModelReport(Mutex<ReportParts>);

struct ReportParts {
    reporter: WaitReporter,
    /// What each batcher saw last.
    batchers: Vec<ModelWaits>,
}

impl ModelReport {
    /// Of so many batchers.
    pub(super) fn new(reporter: WaitReporter, batchers: usize) -> ModelReport {
        // One that has not looked yet may have an instance that is not blocked.
        let unknown =
            || ModelWaits { observed: Instant::now(), instances: vec![None], queued: Vec::new() };
        let batchers = (0..batchers).map(|_| unknown()).collect();
        ModelReport(Mutex::new(ReportParts { reporter, batchers }))
    }

    /// What one batcher sees now; answers the call that has to fail, and why.
    fn report(
        &self,
        batcher: usize,
        instances: Vec<Option<InstanceWait>>,
        queued: impl FnOnce() -> Vec<(Arc<CallChain>, Instant)>,
    ) -> Option<(Arc<CallChain>, String)> {
        let mut parts = self.0.lock();
        let ReportParts { reporter, batchers } = &mut *parts;
        let observed = Instant::now();
        batchers[batcher] = ModelWaits { observed, instances, queued: Vec::new() };
        let is_blocked = |it: &ModelWaits| it.instances.iter().any(Option::is_some);
        if !batchers.iter().any(is_blocked) {
            reporter.clear();
            return None;
        }
        batchers[batcher].queued = queued();
        // Only what was so at all of these moments counts.
        let observed = batchers.iter().map(|it| it.observed).min()?;
        let instances = batchers.iter().flat_map(|it| it.instances.clone()).collect();
        let queued = batchers.iter().flat_map(|it| it.queued.clone()).collect();
        reporter.report(ModelWaits { observed, instances, queued })
    }
}

/// Reports who waits for this model, and fails a call of it if that is the one to fail. `claims` are
/// there where executions share resources.
pub(super) fn check(
    report: &ModelReport,
    batcher: usize,
    pool: &InstancePool,
    scheduler: &dyn Scheduler,
    claims: Option<&RateClaims>,
) {
    let wait = |(slot, blocked): (usize, Option<BlockedInstance>)| match (blocked, claims) {
        (Some(blocked), None) => Some(InstanceWait::Call(blocked)),
        (Some(blocked), Some(_)) => {
            let seat = pool.seat(slot).map(|it| it.id());
            Some(InstanceWait::Call(BlockedInstance { seat, ..blocked }))
        }
        (None, claims) => claims?.wait(slot, pool, MIN_BLOCKED_TIME),
    };
    let blocked = pool.blocked(MIN_BLOCKED_TIME);
    let instances = blocked.into_iter().enumerate().map(wait).collect();
    let victim = report.report(batcher, instances, || scheduler.callers());
    if let Some((call, text)) = victim {
        pool.fail_call(&call, &Error::unavailable(text));
    }
}
