//! The shards of a model's batcher: one on each of several engine threads, with instances of its
//! own, and one queue for all of them.

use std::sync::{Arc, OnceLock, atomic::Ordering};

use super::{
    rest_board::{Rest, RestBoard},
    scheduler::{Pushed, Sharded, ShardedQueue},
};
use crate::instance::InstancePool;
use troupe_base::{request::Pending, statistics::Statistics};

/// What the batchers of one model share.
pub(super) struct Shards {
    queue: ShardedQueue,
    board: RestBoard,
    batchers: Box<[OnceLock<Box<dyn ShardAddress>>]>,
}

/// A batcher as the others reach it.
pub(super) trait ShardAddress: Send + Sync {
    /// Has it look into the queue.
    fn call(&self);
    /// Has it take back what its instances have not begun.
    fn take_back(&self);
}

impl Shards {
    /// So many batchers, each of which joins.
    pub(super) fn new(count: usize) -> Shards {
        Shards {
            queue: ShardedQueue::new(count),
            board: RestBoard::new(count),
            batchers: (0..count).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Queues a request that came in on the thread of the batcher `home`, or is nearest to it, and
    /// tells a batcher if one has to be told. `stats` are those of the model.
    pub(super) fn ask(&self, home: usize, pending: Pending, stats: &Statistics) {
        stats.pending.fetch_add(1, Ordering::Relaxed);
        match self.queue.push(home, pending) {
            Pushed::Queued => self.tell(self.board.call(home)),
            Pushed::Full(rejected) => {
                stats.pending.fetch_sub(1, Ordering::Relaxed);
                stats.refused.fetch_add(1, Ordering::Relaxed);
                rejected.pending.reply.answer(Err(rejected.error));
            }
            Pushed::Closed(pending) => {
                stats.pending.fetch_sub(1, Ordering::Relaxed);
                drop(pending);
            }
        }
    }

    /// Has that batcher look into the queue.
    fn tell(&self, batcher: Option<usize>) {
        if let Some(address) = batcher.and_then(|batcher| self.batchers[batcher].get()) {
            address.call();
        }
    }
}

/// One of the batchers, as itself sees it.
pub(super) struct Shard {
    all: Arc<Shards>,
    index: usize,
}

impl Shard {
    /// A batcher joins the others, which reach it there; each once.
    pub(super) fn join(all: Arc<Shards>, index: usize, address: Box<dyn ShardAddress>) -> Shard {
        // Nobody else has this index.
        let _ = all.batchers[index].set(address);
        Shard { all, index }
    }

    /// What it has to do next.
    pub(super) fn scheduler(&self) -> Box<Sharded> {
        Box::new(Sharded::new(self.all.queue.clone(), self.index))
    }

    /// Which one it is.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// How many there are.
    pub(super) fn batchers(&self) -> usize {
        self.all.batchers.len()
    }

    /// Tells a batcher, this one if it rests, that something was queued here.
    pub(super) fn call(&self) {
        self.all.tell(self.all.board.call(self.index));
    }

    /// Tells another batcher that rests that this one has more to do than it can begin.
    pub(super) fn call_other(&self) {
        self.all.tell(self.all.board.call_other(self.index));
    }

    /// It begins to look into the queue.
    pub(super) fn heard(&self) {
        self.all.board.heard(self.index);
    }

    /// Says how its instances are, and calls another batcher if more is queued than they can begin;
    /// true if they may be given more: one rests, or has room since now, and whoever queued something
    /// just before did not see that.
    pub(super) fn rest(&self, pool: &InstancePool) -> bool {
        let (idle, has_room, is_ahead) = (pool.idle(), pool.has_room(), pool.is_ahead());
        let rest = Rest { idle, has_room, is_ahead };
        let has_room_again = self.all.board.write(self.index, rest);
        // In this order: whoever queues something from now on sees how they are.
        if self.all.queue.is_empty() {
            return false;
        }
        if idle == 0 {
            self.call_other();
        }
        idle != 0 || has_room_again
    }

    /// Does an instance of another batcher rest?
    pub(super) fn others_rest(&self) -> bool {
        self.all.board.others_rest(self.index)
    }

    /// May an instance of another batcher have work that it has not begun?
    pub(super) fn others_are_ahead(&self) -> bool {
        self.all.board.others_ahead(self.index).next().is_some()
    }

    /// Has the others take back what their instances have not begun.
    pub(super) fn take_back_from_others(&self) {
        for other in self.all.board.others_ahead(self.index) {
            if let Some(address) = self.all.batchers[other].get() {
                address.take_back();
            }
        }
    }

    /// It has panicked: nobody is given anything any more.
    pub(super) fn close(&self) {
        self.all.queue.close();
    }

    /// Has one of them panicked?
    pub(super) fn is_closed(&self) -> bool {
        self.all.queue.is_closed()
    }
}
