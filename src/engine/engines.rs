//! The threads that serve: each runs gateway workers, step actors, batchers and light instances.

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use actix_rt::ArbiterHandle;
use parking_lot::Mutex;

use super::{
    rate_limiter::RateLimiter,
    thread_loads::{ThreadId, ThreadLoads, cpu_time},
};
use troupe_base::request::deadlock::WaitGraph;

/// What all batchers of one server share: the engine arbiters, given to those that have the least
/// to do, the graph in which deadlocks are found, and the rate limiter. Clones share them.
#[derive(Clone)]
pub struct Engines {
    arbiters: Arc<[ArbiterHandle]>,
    threads: Arc<[ThreadId]>,
    places: Arc<Mutex<Places>>,
    wait_graph: Arc<WaitGraph>,
    rate_limiter: Option<Arc<RateLimiter>>,
    memory: Option<MemoryProbe>,
}

/// Says how much memory there is right now, if that can be found out.
pub type MemoryProbe = fn() -> Option<MemoryLeft>;

/// The memory this process may use, of the machine or of the control groups it is in; in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLeft {
    /// In use by nobody.
    pub free: u64,
    /// In use or not.
    pub total: u64,
}

/// Where things are.
struct Places {
    loads: ThreadLoads,
    /// By the ensemble that runs them.
    neighbourhoods: BTreeMap<Arc<str>, Weak<Neighbourhood>>,
}

/// The thread of those that pass tensors on to each other, as long as one of them holds it.
pub struct Neighbourhood {
    thread: usize,
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
        let threads: Arc<[ThreadId]> = arbiters.iter().map(|_| ThreadId::new()).collect();
        for (number, arbiter) in arbiters.iter().enumerate() {
            let threads = threads.clone();
            arbiter.spawn_fn(move || {
                NUMBER.set(Some(number));
                threads[number].get_or_init(|| rustix::thread::gettid().as_raw_nonzero().get());
            });
        }
        let loads = ThreadLoads::new(arbiters.len(), Instant::now());
        let places = Places { loads, neighbourhoods: BTreeMap::new() };
        let (places, wait_graph) = (Arc::new(Mutex::new(places)), Arc::default());
        let arbiters = arbiters.into();
        Engines { arbiters, threads, places, wait_graph, rate_limiter: None, memory: None }
    }

    /// The same with a limit on what executes beside each other.
    pub fn limited(self, rate_limiter: Arc<RateLimiter>) -> Engines {
        Engines { rate_limiter: Some(rate_limiter), ..self }
    }

    /// The same, knowing how much memory is left for instances that are added while models serve.
    pub fn measuring(self, memory: MemoryProbe) -> Engines {
        Engines { memory: Some(memory), ..self }
    }

    /// Says how much memory is left; `None`: nobody does.
    pub fn memory(&self) -> Option<MemoryProbe> {
        self.memory
    }

    /// The numbers of so many different threads, or of all: those with the least to do. For a
    /// batcher each with its instances, or for an ensemble's steps.
    pub fn pick(&self, count: usize) -> Vec<usize> {
        let mut places = self.places.lock();
        self.look(&mut places.loads);
        places.loads.choose(count)
    }

    /// The number of the thread that is given one more connection, of which each has so many: that
    /// with the least to do.
    pub fn pick_for_connection(&self, connections: &[usize]) -> usize {
        let mut places = self.places.lock();
        self.look(&mut places.loads);
        places.loads.choose_for(connections)
    }

    /// The thread of those that this ensemble runs, and nobody else.
    pub fn beside(&self, ensemble: &Arc<str>) -> Arc<Neighbourhood> {
        let mut places = self.places.lock();
        if let Some(found) = places.neighbourhoods.get(ensemble).and_then(Weak::upgrade) {
            places.loads.give(found.thread);
            return found;
        }
        self.look(&mut places.loads);
        let thread = places.loads.choose(1)[0];
        let neighbourhood = Arc::new(Neighbourhood { thread });
        places.neighbourhoods.retain(|_, it| it.strong_count() != 0);
        places.neighbourhoods.insert(ensemble.clone(), Arc::downgrade(&neighbourhood));
        neighbourhood
    }

    fn look(&self, loads: &mut ThreadLoads) {
        let now = Instant::now();
        if 1 < self.threads.len() && loads.is_old(now) {
            loads.look(self.threads.iter().map(cpu_time), now);
        }
    }

    /// Who waits for whom among the models of this server.
    pub fn wait_graph(&self) -> &Arc<WaitGraph> {
        &self.wait_graph
    }

    /// Shares resources among all models; `None`: each executes as it can.
    pub fn rate_limiter(&self) -> Option<&Arc<RateLimiter>> {
        self.rate_limiter.as_ref()
    }

    /// All of them.
    pub fn all(&self) -> &[ArbiterHandle] {
        &self.arbiters
    }
}

impl Neighbourhood {
    /// Its number.
    pub fn thread(&self) -> usize {
        self.thread
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

#[cfg(test)]
mod tests {
    use actix_rt::{Arbiter, System};

    use super::*;

    #[test]
    fn neighbours_stay_together_as_long_as_one_is_there() {
        System::new().block_on(async {
            let engines = Engines::new((0..3).map(|_| Arbiter::new().handle()).collect());
            let thread = |name: &str| engines.beside(&name.into());
            let (a, b) = (thread("a"), thread("b"));
            assert_ne!(a.thread(), b.thread());
            for _ in 0..5 {
                assert_eq!(thread("a").thread(), a.thread());
            }
            // They count: what belongs to nobody goes elsewhere.
            assert!(engines.pick(2).iter().all(|it| *it != a.thread()));
            drop(b);
            let c = thread("c");
            assert_eq!(engines.places.lock().neighbourhoods.len(), 2, "those that are gone go");
            assert_ne!(c.thread(), a.thread());
        });
    }

    /// The numbers of threads that own something, and what each of so many threads has.
    fn check(threads: usize, owners: &[usize], expected: &[usize]) {
        let all = PerThread::new(threads, owners.iter().map(|it| (*it, *it)));
        assert_eq!(*all.0, *expected, "{owners:?}");
    }

    #[test]
    fn each_thread_has_its_own_or_shares_anothers() {
        check(4, &[2], &[2]);
        check(4, &[3, 1], &[3, 1, 3, 3]);
        check(3, &[2, 0, 1], &[0, 1, 2]);
    }
}
