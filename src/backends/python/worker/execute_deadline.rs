//! The deadline of `execute`: ends a worker that takes longer for one `execute` than its model
//! allows.

use std::{
    cell::RefCell,
    rc::{Rc, Weak},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::link::{Overrun, WorkerLink, WorkerState};

/// Checks so many times within the limit, so that it is passed by an eighth at most.
const CHECKS_PER_LIMIT: u32 = 8;
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a worker may take to say where it is; one that is stopped or does not listen never
/// does.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// Checks the worker while it has something to do, as long as the instance lives.
pub(crate) async fn watch(link: Weak<RefCell<WorkerLink>>, limit: Duration, busy: Rc<Notify>) {
    let interval = (limit / CHECKS_PER_LIMIT).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL);
    loop {
        tokio::time::sleep(interval).await;
        let Some(held) = link.upgrade() else { return };
        let is_idle = held.borrow_mut().check_deadline(limit, Instant::now());
        drop(held);
        if is_idle {
            busy.notified().await;
        }
    }
}

impl WorkerLink {
    /// Ends the worker if it is late; says whether it has nothing to do.
    fn check_deadline(&mut self, limit: Duration, now: Instant) -> bool {
        let WorkerState::Up(connection) = &self.state else { return true };
        if let Some(overrun) = &self.overrun {
            if ABORT_GRACE <= now - overrun.since {
                connection.process.kill();
            }
            return false;
        }
        if self.in_flight.is_empty() {
            return true;
        }
        let begun = connection.progress.begun();
        let open = self.in_flight.iter_mut().flat_map(|it| it.open());
        let mut running = open.filter(|(_, number, _)| *number < begun);
        let is_late = running.any(|(_, _, group)| limit <= now - *group.seen.get_or_insert(now));
        if is_late {
            let ms = limit.as_millis();
            let text = format!(
                "execute took longer than the {ms} ms of EXECUTE_TIMEOUT_MS, so its worker was ended"
            );
            self.overrun = Some(Overrun { text, since: now });
            connection.process.abort();
        }
        false
    }
}
