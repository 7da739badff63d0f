//! Ends a worker that takes longer for one `execute` than its model allows.

use std::{
    cell::RefCell,
    rc::{Rc, Weak},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::python::worker::link::Link;
use crate::python::worker::link::State;

/// Looks so many times within the limit, so that it is passed by an eighth at most.
const LOOKS: u32 = 8;
/// The least and the most time between looks.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// How long a worker may take to say where it is; one that is stopped or does not listen never does.
const GRACE: Duration = Duration::from_secs(1);

/// Why a worker is being ended, and since when.
pub(crate) struct Overrun {
    pub(crate) text: String,
    since: Instant,
}

/// Looks at the worker while it has something to do, as long as the instance lives.
pub(crate) async fn watch(link: Weak<RefCell<Link>>, limit: Duration, busy: Rc<Notify>) {
    let look = (limit / LOOKS).clamp(LOOK.0, LOOK.1);
    loop {
        tokio::time::sleep(look).await;
        let Some(held) = link.upgrade() else { return };
        let is_idle = held.borrow_mut().look(limit, Instant::now());
        drop(held);
        if is_idle {
            busy.notified().await;
        }
    }
}

impl Link {
    /// Ends the worker if it is late; says whether it has nothing to do.
    fn look(&mut self, limit: Duration, now: Instant) -> bool {
        let State::Up(connection) = &self.state else { return true };
        if let Some(late) = &self.late {
            if GRACE <= now - late.since {
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
            self.late = Some(Overrun { text, since: now });
            connection.process.abort();
        }
        false
    }
}
