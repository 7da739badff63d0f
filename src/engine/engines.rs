//! The threads that serve: each runs gateway workers, step actors, batchers and light instances.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use actix_rt::ArbiterHandle;
use troupe_base::request::deadlock::WaitGraph;

/// What all batchers of one server share: the engine arbiters, given out in turn, and the graph in
/// which deadlocks are found. Clones share them.
#[derive(Clone)]
pub struct Engines {
    arbiters: Arc<[ArbiterHandle]>,
    next: Arc<AtomicUsize>,
    wait_graph: Arc<WaitGraph>,
}

/// One of a kind for each engine thread, in their order; or fewer, which threads share. Clones
/// share them.
pub(crate) struct PerThread<T>(Arc<[T]>);

thread_local! {
    /// The number of an engine thread among those of its server. Other threads draw one when they
    /// first ask an actor.
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// For the next thread that is none of an engine.
static NEXT_FOREIGN: AtomicUsize = AtomicUsize::new(0);

impl Engines {
    /// At least one arbiter is needed.
    pub fn new(arbiters: Vec<ArbiterHandle>) -> Engines {
        assert!(!arbiters.is_empty(), "an engine needs a thread");
        for (number, arbiter) in arbiters.iter().enumerate() {
            arbiter.spawn_fn(move || NUMBER.set(Some(number)));
        }
        Engines { arbiters: arbiters.into(), next: Arc::default(), wait_graph: Arc::default() }
    }

    /// The numbers of so many different threads, in turn: for a batcher each with its instances,
    /// or for an ensemble's steps.
    pub fn pick(&self, count: usize) -> Vec<usize> {
        let all = self.arbiters.len();
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        (0..count.min(all)).map(|index| (first + index) % all).collect()
    }

    /// Who waits for whom among the models of this server.
    pub fn wait_graph(&self) -> &Arc<WaitGraph> {
        &self.wait_graph
    }

    /// All of them.
    pub fn all(&self) -> &[ArbiterHandle] {
        &self.arbiters
    }
}

impl<T: Clone> PerThread<T> {
    /// For so many engine threads: the one with that number has this one. Threads that have none
    /// share those of others. At least one is needed.
    pub(crate) fn new(threads: usize, owned: impl Iterator<Item = (usize, T)>) -> PerThread<T> {
        let owned: Vec<(usize, T)> = owned.collect();
        if let [(_, one)] = &*owned {
            return PerThread(Arc::new([one.clone()]));
        }
        let own = |thread: usize| owned.iter().find(|(number, _)| *number == thread);
        let any = |thread: usize| own(thread).unwrap_or(&owned[thread % owned.len()]);
        (0..threads).map(|thread| any(thread).1.clone()).collect::<Vec<T>>().into()
    }
}

impl<T> PerThread<T> {
    /// The one of the current thread. Engine threads have their own, if there are enough; others
    /// always get the same.
    pub(crate) fn here(&self) -> &T {
        let number = NUMBER.get().unwrap_or_else(|| {
            let drawn = NEXT_FOREIGN.fetch_add(1, Ordering::Relaxed);
            NUMBER.set(Some(drawn));
            drawn
        });
        &self.0[number % self.0.len()]
    }
}

/// At least one is needed.
impl<T> From<Vec<T>> for PerThread<T> {
    fn from(all: Vec<T>) -> PerThread<T> {
        assert!(!all.is_empty(), "a thread needs one to ask");
        PerThread(all.into())
    }
}

impl<T> Clone for PerThread<T> {
    fn clone(&self) -> PerThread<T> {
        PerThread(self.0.clone())
    }
}
