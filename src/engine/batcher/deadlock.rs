//! Breaks deadlocks of model calls by failing the youngest call in a wait-for cycle.

use std::time::{Duration, Instant};

use super::scheduler::Scheduler;
use crate::instance::InstancePool;
use troupe_base::{
    error::Error,
    request::deadlock::{ModelWaits, WaitReporter},
};

/// Calls that have waited less are left alone.
const MIN_BLOCKED_TIME: Duration = Duration::from_millis(500);

/// Reports who waits for this model, and fails a call of it if that is the one to fail.
pub(super) fn check(waits: &mut WaitReporter, pool: &InstancePool, scheduler: &dyn Scheduler) {
    let instances = pool.blocked(MIN_BLOCKED_TIME);
    if instances.iter().all(Option::is_none) {
        return waits.clear();
    }
    let queued = scheduler.callers();
    let report = ModelWaits { observed: Instant::now(), instances, queued };
    if let Some((call, text)) = waits.report(report) {
        pool.fail_call(&call, &Error::unavailable(text));
    }
}
