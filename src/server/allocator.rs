//! The allocator: returns memory to the system after bursts, which it would otherwise do only on
//! threads that still allocate.

use std::{fs, sync::Arc, time::Duration};

use actix_rt::ArbiterHandle;
use tokio::time::{MissedTickBehavior, interval};

use troupe_base::budget::{ByteBudget, Kind};

/// Between two looks.
const TICK: Duration = Duration::from_secs(2);
/// A busy server reuses what is free: it is asked less often.
const BUSY_TICKS: u32 = 4;
/// Less is not worth the work.
const MIN_SURPLUS_BYTES: usize = 4 << 20;
/// For machines that do not say.
const PAGE_BYTES: usize = 4096;

/// Watches the memory on each of these threads, for as long as the server has its budget.
pub(super) fn watch(threads: &[ArbiterHandle], budget: &Arc<ByteBudget>) {
    for thread in threads {
        let budget = Arc::downgrade(budget);
        thread.spawn(async move {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut memory = Watched { least: resident_bytes(), ticks: 0, last: 0 };
            while let Some(budget) = budget.upgrade() {
                let (in_use, idle) = (budget.in_use(), budget.in_use_by(Kind::Segments));
                if memory.is_due(resident_bytes(), in_use, idle) {
                    collect();
                    memory.least = resident_bytes().saturating_sub(in_use);
                }
                drop(budget);
                ticks.tick().await;
            }
        });
    }
}

/// What one thread knows of the process's memory.
struct Watched {
    /// Resident bytes after the last collection, without what requests held then.
    least: usize,
    /// Since then.
    ticks: u32,
    /// Resident bytes at the last look.
    last: usize,
}

impl Watched {
    /// Is there much that nobody uses, and is nobody about to use it?
    ///
    /// The budget has `in_use` bytes, of them `idle` that no request holds.
    fn is_due(&mut self, resident: usize, in_use: usize, idle: usize) -> bool {
        self.ticks += 1;
        let is_quiet = resident <= self.last && in_use.saturating_sub(idle) < MIN_SURPLUS_BYTES;
        self.last = resident;
        let surplus = resident.saturating_sub(self.least).saturating_sub(in_use);
        let is_due = MIN_SURPLUS_BYTES < surplus && (is_quiet || BUSY_TICKS <= self.ticks);
        if is_due {
            self.ticks = 0;
        }
        is_due
    }
}

/// Returns what this thread has freed, and what no thread uses.
#[allow(unsafe_code, reason = "the allocator is a C library")]
fn collect() {
    // SAFETY: may be called on any thread at any time; it frees only what is not in use.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// The process's resident memory, with the shared memory that the budget counts too; 0 if the system
/// does not say.
fn resident_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|it| it.parse::<usize>().ok());
    pages.unwrap_or(0) * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn memory_is_collected_soon_when_it_is_quiet_and_seldom_when_it_is_not() {
        let mut memory = Watched { least: 50 * MB, ticks: 0, last: 0 };
        for (resident, in_use, idle, expected) in [
            (200, 100, 0, false),
            (180, 100, 0, false),
            (180, 0, 0, true),
            (52, 0, 0, false),
            (200, 0, 0, false),
            (201, 0, 0, false),
            (202, 0, 0, true),
            // Shared memory that is kept for reuse is nobody's request.
            (152, 100, 100, false),
            (152, 40, 40, true),
            (152, 40, 0, false),
        ] {
            let is_due = memory.is_due(resident * MB, in_use * MB, idle * MB);
            assert_eq!(is_due, expected, "{resident} {in_use} {idle}");
        }
    }
}
