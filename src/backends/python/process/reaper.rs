//! The one thread that lives for ever: it starts fork servers, reaps, logs and waits for workers.

use std::{
    future::Future,
    sync::{Arc, OnceLock, Weak},
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use tokio::{runtime::Handle, sync::watch};

use crate::python::process::fork_server::ForkServer;
use troupe_base::error::{Error, Result};

/// How long a thread of the pool for blocking work stays without any.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long killed processes may take to be gone.
const DYING: Duration = Duration::from_millis(500);

/// Access to the thread.
pub(crate) struct Reaper {
    runtime: Handle,
    /// Processes that live, fork servers included.
    living: Mutex<usize>,
    none_left: Condvar,
    hosts: Mutex<Vec<Weak<ForkServer>>>,
    /// Turns true when the server ends.
    closing: watch::Sender<bool>,
}

static KEEPER: OnceLock<Reaper> = OnceLock::new();

/// The thread, started on first use.
pub(crate) fn reaper() -> &'static Reaper {
    KEEPER.get_or_init(Reaper::start)
}

impl Reaper {
    fn start() -> Reaper {
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::Builder::new()
            .name("python-keeper".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .thread_keep_alive(THREAD_KEEP_ALIVE)
                    .build()
                    .expect("a runtime needs three descriptors");
                // The receiver waits below.
                let _ = sender.send(runtime.handle().clone());
                runtime.block_on(std::future::pending::<()>());
            })
            .expect("a server that cannot start one thread cannot serve");
        let runtime = receiver.recv().expect("the thread sends before it does anything else");
        Reaper {
            runtime,
            living: Mutex::default(),
            none_left: Condvar::new(),
            hosts: Mutex::default(),
            closing: watch::channel(false).0,
        }
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
        receiver.recv().map_err(|_| Error::internal("the keeper of Python workers has ended"))
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

    /// Remembers a fork server, and keeps it for a while so that the next load finds it.
    pub(crate) fn adopt(&self, host: &Arc<ForkServer>) {
        let mut hosts = self.hosts.lock();
        hosts.retain(|it| 0 < it.strong_count());
        hosts.push(Arc::downgrade(host));
    }

    /// Keeps `held` for `time`, or until the server ends.
    pub(crate) fn linger<T: Send + 'static>(&self, held: T, time: Duration) {
        let mut closing = self.closing.subscribe();
        self.spawn(async move {
            let _ = tokio::time::timeout(time, closing.wait_for(|it| *it)).await;
            drop(held);
        });
    }

    /// No worker may be started any more.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }
}

/// Waits until no worker process is left; kills what is left at the deadline. No worker can be
/// started after this was called. Blocks.
pub(crate) fn wait_for_workers(deadline: Instant) {
    let Some(reaper) = KEEPER.get() else { return };
    reaper.closing.send_replace(true);
    let mut living = reaper.living.lock();
    while 0 < *living {
        if reaper.none_left.wait_until(&mut living, deadline).timed_out() {
            break;
        }
    }
    if *living == 0 {
        return;
    }
    drop(living);
    for host in reaper.hosts.lock().iter().filter_map(Weak::upgrade) {
        host.kill_all();
    }
    let last = Instant::now() + DYING;
    let mut living = reaper.living.lock();
    while 0 < *living && !reaper.none_left.wait_until(&mut living, last).timed_out() {}
}
