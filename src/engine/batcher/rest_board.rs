//! A board on which the batchers of one model say who rests: whoever has work for somebody calls
//! one that can begin it.
//!
//! No request waits while an instance rests. That needs an order: who queues a request looks at the
//! board after it is in the queue, and a batcher looks into the queue after it has written on the
//! board. The queue has a lock, so one of them sees the other.

use super::atomics::{AtomicBool, AtomicUsize, Ordering};

/// What all batchers of a model say of themselves.
pub(super) struct RestBoard(Box<[Entry]>);

/// What one batcher says; on a cache line of its own.
#[repr(align(128))]
struct Entry {
    idle: AtomicUsize,
    has_room: AtomicBool,
    is_ahead: AtomicBool,
    /// It is to look into the queue, and has not begun to.
    is_called: AtomicBool,
}

/// What a batcher's instances could be given now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rest {
    /// Executions that could begin at once.
    pub(super) idle: usize,
    /// Work can be given to an instance, if only to wait in front of it.
    pub(super) has_room: bool,
    /// An instance may have been given work that it has not begun.
    pub(super) is_ahead: bool,
}

impl RestBoard {
    /// Nobody rests before it says so.
    pub(super) fn new(batchers: usize) -> RestBoard {
        let entry = || Entry {
            idle: AtomicUsize::new(0),
            has_room: AtomicBool::new(false),
            is_ahead: AtomicBool::new(false),
            is_called: AtomicBool::new(false),
        };
        RestBoard((0..batchers).map(|_| entry()).collect())
    }

    /// A batcher says how it is. Then it looks into the queue. True if it had said before that it
    /// has no room, and has some now.
    pub(super) fn write(&self, batcher: usize, rest: Rest) -> bool {
        let entry = &self.0[batcher];
        let had_room = entry.has_room.load(Ordering::Relaxed);
        // Others read these all the time: a line that does not change stays in their caches.
        if entry.idle.load(Ordering::Relaxed) != rest.idle {
            entry.idle.store(rest.idle, Ordering::Relaxed);
        }
        if had_room != rest.has_room {
            entry.has_room.store(rest.has_room, Ordering::Relaxed);
        }
        if entry.is_ahead.load(Ordering::Relaxed) != rest.is_ahead {
            entry.is_ahead.store(rest.is_ahead, Ordering::Relaxed);
        }
        rest.has_room && !had_room
    }

    /// A batcher that was called begins to look into the queue.
    pub(super) fn heard(&self, batcher: usize) {
        // Whoever found it called has queued something before: it is seen from here on.
        self.0[batcher].is_called.swap(false, Ordering::AcqRel);
    }

    /// Something was queued for the batcher `home`: the one to be told, if somebody has to be.
    ///
    /// 1. `home`, if it rests: nobody has to be woken on another thread;
    /// 2. else another one that rests;
    /// 3. else `home`, if work can wait in front of its instances.
    pub(super) fn call(&self, home: usize) -> Option<usize> {
        let is_idle = self.0[home].idle.load(Ordering::Relaxed) != 0;
        if is_idle {
            // What it leaves it calls another one for.
            return self.0[home].call().then_some(home);
        }
        let other = self.call_other(home);
        other.or_else(|| {
            let has_room = self.0[home].has_room.load(Ordering::Relaxed);
            (has_room && self.0[home].call()).then_some(home)
        })
    }

    /// More is queued than `busy` can begin: another one that rests and is to be told.
    pub(super) fn call_other(&self, busy: usize) -> Option<usize> {
        let mut others = self.others(busy);
        others.find(|other| {
            let entry = &self.0[*other];
            entry.idle.load(Ordering::Relaxed) != 0 && entry.call()
        })
    }

    /// Does an instance of another batcher rest?
    pub(super) fn others_rest(&self, batcher: usize) -> bool {
        self.others(batcher).any(|it| self.0[it].idle.load(Ordering::Relaxed) != 0)
    }

    /// The other batchers whose instances may have work that they have not begun.
    pub(super) fn others_ahead(&self, batcher: usize) -> impl Iterator<Item = usize> + '_ {
        self.others(batcher).filter(|it| self.0[*it].is_ahead.load(Ordering::Relaxed))
    }

    /// From the next one on, so that not all call the first.
    fn others(&self, batcher: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.0.len();
        (1..count).map(move |distance| (batcher + distance) % count)
    }
}

impl Entry {
    /// False if it was called before, and has not heard.
    fn call(&self) -> bool {
        !self.is_called.swap(true, Ordering::AcqRel)
    }
}
