//! Where the server is in its life, and a count of the requests in flight: a stopping server drains
//! them.

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst},
};

use tokio::sync::Notify;

use troupe_base::error::{Error, Result};

/// Where the server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The repository is being loaded.
    Starting,
    /// The first load is through.
    Serving,
    /// The first load failed and the server stays to say so.
    Failed,
    /// SIGTERM was seen: accepted requests finish, new ones are refused.
    Exiting,
}

/// Shared by everyone who must know the stage; counts what is in flight.
#[derive(Debug, Default)]
pub struct Lifecycle {
    stage: AtomicU8,
    in_flight: AtomicUsize,
    idle: Notify,
    exiting: Notify,
}

impl Lifecycle {
    /// Where the server is.
    pub fn stage(&self) -> Stage {
        match self.stage.load(SeqCst) {
            0 => Stage::Starting,
            1 => Stage::Serving,
            2 => Stage::Failed,
            _ => Stage::Exiting,
        }
    }

    /// The first load ended. Does nothing once the server is exiting.
    pub fn started(&self, is_ok: bool) {
        let stage = if is_ok { Stage::Serving } else { Stage::Failed };
        let _ = self.stage.compare_exchange(Stage::Starting as u8, stage as u8, SeqCst, SeqCst);
    }

    /// From now on requests are refused.
    pub fn exit(&self) {
        self.stage.store(Stage::Exiting as u8, SeqCst);
        self.exiting.notify_waiters();
    }

    /// Returns once requests are refused, for good.
    pub async fn wait_exit(&self) {
        let exiting = self.exiting.notified();
        if !self.is_exiting() {
            exiting.await;
        }
    }

    /// SIGTERM was seen.
    pub fn is_exiting(&self) -> bool {
        self.stage() == Stage::Exiting
    }

    /// Counts an inference in, or refuses it; it is counted out when the guard drops.
    pub fn enter(self: &Arc<Self>) -> Result<InFlightGuard> {
        // Counted before the stage is read: `exit` then `wait_idle` cannot miss it.
        self.in_flight.fetch_add(1, SeqCst);
        let guard = InFlightGuard(self.clone());
        match self.stage() {
            Stage::Serving => Ok(guard),
            Stage::Exiting => Err(Error::unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference \
                 requests",
            )),
            Stage::Starting | Stage::Failed => Err(not_ready()),
        }
    }

    /// For everything but inference and health: only while serving.
    pub fn check_serving(&self) -> Result<()> {
        if self.stage() == Stage::Serving { Ok(()) } else { Err(not_ready()) }
    }

    /// Inferences accepted and not answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(SeqCst)
    }

    /// Returns once nothing is in flight; only to be called after `exit`.
    pub async fn wait_idle(&self) {
        loop {
            let notified = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            notified.await;
        }
    }
}

fn not_ready() -> Error {
    Error::unavailable("Server not ready")
}

/// One inference in flight, until dropped.
#[derive(Debug)]
pub struct InFlightGuard(Arc<Lifecycle>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, SeqCst) == 1 && self.0.is_exiting() {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_refused_before_the_load_and_after_the_signal() {
        let life = Arc::new(Lifecycle::default());
        let refusal = |life: &Arc<Lifecycle>| life.enter().unwrap_err().to_string();
        assert_eq!(refusal(&life), "Server not ready");
        life.started(true);
        let accepted = life.enter().unwrap();
        life.exit();
        life.started(true);
        assert!(refusal(&life).starts_with("Server is stopping, "));
        assert_eq!(life.in_flight(), 1);
        drop(accepted);
        assert_eq!(life.in_flight(), 0);
    }

    #[tokio::test]
    async fn waiting_ends_with_the_last_request() {
        let life = Arc::new(Lifecycle::default());
        life.started(true);
        let accepted = life.enter().unwrap();
        life.exit();
        let waiting = tokio::spawn({
            let life = life.clone();
            async move { life.wait_idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(accepted);
        waiting.await.unwrap();
    }
}
