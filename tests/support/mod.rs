//! What tests share: a model repository on disk, the running server, and clients without a library.

pub(crate) mod browser;
pub(crate) mod certificates;
pub(crate) mod collector;
pub(crate) mod gate;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod http2;
pub(crate) mod models;
pub(crate) mod perf_analyzer;
pub(crate) mod process;
pub(crate) mod prometheus;
pub(crate) mod regions;
pub(crate) mod repository;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod subject;
pub(crate) mod venv;

use std::{
    thread,
    time::{Duration, Instant},
};

pub(crate) use self::{
    http::{Answer, Http},
    models::{Model, ensemble, native, python},
    repository::Repository,
    server::{Server, troupe},
};

/// Longer than anything here takes on a busy machine; nothing is measured against it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `found` finds something, and says what it waited for when it never does.
pub(crate) fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(it) = found() {
            return it;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for {what}");
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

/// Runs the same thing from several threads at once; answers in the order of the callers.
pub(crate) fn at_once<T: Send>(callers: usize, call: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let call = &call;
    thread::scope(|scope| {
        let all: Vec<_> = (0..callers).map(|it| scope.spawn(move || call(it))).collect();
        all.into_iter().map(|it| it.join().expect("the caller's own assertion failed")).collect()
    })
}
