//! The health of a model: how many of its instances are up, and why one is not.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// How many instances of a model can take work right now.
#[derive(Debug, Default)]
pub struct Health {
    total: AtomicUsize,
    up: AtomicUsize,
    /// Nobody gives the instances work any more.
    is_broken: AtomicBool,
    /// Why the instance that went down last is down, and stays it for now.
    why_down: Mutex<String>,
}

impl Health {
    /// Counts a new instance that is up.
    pub fn join(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
        self.up.fetch_add(1, Ordering::Relaxed);
    }
    /// An instance goes, which was up or not.
    pub fn leave(&self, was_up: bool) {
        self.total.fetch_sub(1, Ordering::Relaxed);
        if was_up {
            self.up.fetch_sub(1, Ordering::Relaxed);
        }
    }
    /// An instance lost its worker.
    pub fn down(&self) {
        self.up.fetch_sub(1, Ordering::Relaxed);
    }
    /// Why an instance that lost its worker has none yet.
    pub fn stays_down(&self, why: &str) {
        *self.why_down.lock() = why.to_owned();
    }
    /// Why no instance is up; `None` while one is.
    pub fn why_not(&self) -> Option<String> {
        (!self.is_ready()).then(|| match self.why_down.lock().clone() {
            text if text.is_empty() => "no instance is up".to_owned(),
            text => format!("no instance is up: {text}"),
        })
    }
    /// An instance has a worker again.
    pub fn up(&self) {
        self.up.fetch_add(1, Ordering::Relaxed);
    }
    /// Nobody will ever give the instances work again: the model has to be loaded anew.
    pub fn break_down(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }
    /// Instances that are up, and all there are; none of an ensemble.
    pub fn instances(&self) -> (usize, usize) {
        (self.up.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
    /// At least one instance can run, or the model has none by nature (an ensemble).
    pub fn is_ready(&self) -> bool {
        let is_up =
            || self.total.load(Ordering::Relaxed) == 0 || 0 < self.up.load(Ordering::Relaxed);
        !self.is_broken.load(Ordering::Relaxed) && is_up()
    }
}
