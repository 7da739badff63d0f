//! The reaper of one server: a thread that starts fork servers, reaps and logs workers, and a count
//! of the processes that live, to be waited for in the end.

use std::{
    convert::Infallible,
    future::Future,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use tokio::{
    runtime::{Builder, Handle},
    sync::{oneshot, watch},
};

use troupe_base::error::{Error, Result};

/// How long a thread for what blocks stays without work.
const IDLE_THREAD_TIME: Duration = Duration::from_secs(5);
/// How long killed processes may take to be gone.
const KILL_GRACE: Duration = Duration::from_millis(500);

/// A process and all that it has forked.
pub(crate) trait ProcessTree: Send + Sync {
    /// Ends them all at once.
    fn kill_all(&self);
}

/// Access to the thread, which ends with the last `Arc`.
pub(crate) struct Reaper {
    runtime: Handle,
    /// Processes that live, fork servers included.
    living: Mutex<usize>,
    none_left: Condvar,
    trees: Mutex<Vec<Weak<dyn ProcessTree>>>,
    /// Turns true when the server ends.
    closing: watch::Sender<bool>,
    /// Ends the thread when it is dropped.
    _thread: oneshot::Sender<Infallible>,
}

impl Reaper {
    /// Starts the thread. An error says that there is no descriptor or thread left.
    pub(crate) fn start() -> Result<Arc<Reaper>> {
        let failed = |error: std::io::Error| {
            Error::unavailable(format!("cannot start the thread that reaps workers: {error}"))
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_keep_alive(IDLE_THREAD_TIME)
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (sender, receiver) = oneshot::channel();
        let run = move || {
            // It ends with an error: nothing is ever sent.
            let _ = runtime.block_on(receiver);
        };
        thread::Builder::new().name("python-reaper".into()).spawn(run).map_err(failed)?;
        Ok(Arc::new(Reaper {
            runtime: handle,
            living: Mutex::default(),
            none_left: Condvar::new(),
            trees: Mutex::default(),
            closing: watch::channel(false).0,
            _thread: sender,
        }))
    }

    /// Runs on the thread.
    pub(crate) fn spawn<F>(&self, future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.runtime.spawn(future)
    }

    /// Runs on a thread that may block, started for it.
    pub(crate) fn spawn_blocking<T: Send + 'static>(
        &self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn_blocking(run)
    }

    /// Runs on the thread while the calling one waits; never call it on an arbiter.
    pub(crate) fn wait<F>(&self, future: F) -> Result<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.spawn(async move {
            // The receiver waits below.
            let _ = sender.send(future.await);
        });
        receiver.recv().map_err(|_| Error::internal("the reaper of Python workers has ended"))
    }

    /// Counts a process that was started.
    pub(crate) fn started(&self) {
        *self.living.lock() += 1;
    }

    /// Counts processes that were reaped.
    pub(crate) fn reaped(&self, count: usize) {
        let mut living = self.living.lock();
        *living = living.saturating_sub(count);
        if *living == 0 {
            self.none_left.notify_all();
        }
    }

    /// Remembers a process to be killed with all its children if the server cannot wait for them.
    pub(crate) fn remember(&self, tree: Weak<dyn ProcessTree>) {
        let mut trees = self.trees.lock();
        trees.retain(|tree| 0 < tree.strong_count());
        trees.push(tree);
    }

    /// Keeps `held` for `time`, or until the server ends.
    pub(crate) fn linger<T: Send + 'static>(&self, held: T, time: Duration) {
        let mut closing = self.closing.subscribe();
        self.spawn(async move {
            let _ = tokio::time::timeout(time, closing.wait_for(|is_closing| *is_closing)).await;
            drop(held);
        });
    }

    /// No worker may be started any more.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits until no process is left; kills what is left at the deadline. None can be started
    /// after this was called. Blocks.
    pub(crate) fn close(&self, deadline: Instant) {
        self.closing.send_replace(true);
        if self.wait_for_none(deadline) {
            return;
        }
        for tree in self.trees.lock().iter().filter_map(Weak::upgrade) {
            tree.kill_all();
        }
        self.wait_for_none(Instant::now() + KILL_GRACE);
    }

    /// Are all processes gone before the deadline?
    fn wait_for_none(&self, deadline: Instant) -> bool {
        let mut living = self.living.lock();
        while 0 < *living {
            if self.none_left.wait_until(&mut living, deadline).timed_out() {
                break;
            }
        }
        *living == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_runs_futures_and_ends_with_its_last_user() {
        let reaper = Reaper::start().unwrap();
        let name = reaper.wait(async { thread::current().name().map(str::to_owned) }).unwrap();
        assert_eq!(name.as_deref(), Some("python-reaper"));
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        reaper.spawn(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        drop(reaper);
        // The task is dropped with the thread's runtime.
        assert!(receiver.recv().is_err());
    }

    #[test]
    fn closing_waits_for_what_lives_and_no_longer_than_it_may() {
        let reaper = Reaper::start().unwrap();
        reaper.close(Instant::now());
        assert!(reaper.is_closing());
        reaper.started();
        let other = reaper.clone();
        let reaped = reaper.spawn_blocking(move || other.reaped(1));
        reaper.close(Instant::now() + Duration::from_secs(30));
        assert_eq!(*reaper.living.lock(), 0);
        drop(reaped);
    }
}
