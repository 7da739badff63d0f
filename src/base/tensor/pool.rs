//! Pool of shared-memory segments: reused when free, with a limit on all bytes of one server.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

use super::{
    owner::Owner,
    segment::{Home, Segment, SegmentMut},
};
use crate::{
    budget::{Budget, ByteBudget, Exceeded, Kind, Reserved},
    error::{Error, Result},
};

/// Unused bytes that may always be kept: enough for a few large requests in flight.
const MIN_IDLE_LIMIT: usize = 256 << 20;

/// What of the server's budget workers' unused segments may take, in parts: an eighth. They cannot be
/// freed when requests need room: their workers may be filling them.
const PARKED_PARTS: usize = 8;

/// How shared memory grows and shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSizes {
    /// Sizes of segments are multiples of this; 0: each is about as large as needed.
    pub growth: usize,
    /// At most so many unused bytes are not given back, however long they are unused.
    pub kept: usize,
    /// Bytes of all segments, those of workers included; `usize::MAX`: no limit.
    pub most: usize,
}

impl Default for SegmentSizes {
    fn default() -> SegmentSizes {
        SegmentSizes { growth: 0, kept: 0, most: usize::MAX }
    }
}

/// Segments the server fills: kept for reuse by owner and size class, up to `limit` idle bytes.
pub struct SegmentPool {
    idle: Mutex<IdleSegments>,
    limit: usize,
    sizes: SegmentSizes,
    budget: Arc<Budget>,
    /// Of workers' segments those that no request uses.
    parked: Arc<Budget>,
    server: Arc<ByteBudget>,
}

/// A pool as the requests of one owner use it.
#[derive(Clone, Debug)]
pub struct OwnedPool {
    /// The pool.
    pub pool: Arc<SegmentPool>,
    /// Whose requests they are.
    pub owner: Owner,
}

impl OwnedPool {
    /// A segment of at least `size` bytes, as [`SegmentPool::take`].
    pub fn take(&self, size: usize) -> Result<SegmentMut> {
        self.pool.take(size, self.owner)
    }

    /// One that is kept for reuse, if there is one.
    pub fn take_idle(&self, size: usize) -> Option<SegmentMut> {
        self.pool.take_idle(size, self.owner)
    }
}

/// What nobody uses, since when: by owner and size, the oldest first.
#[derive(Default)]
struct IdleSegments {
    buckets: HashMap<(Owner, usize), VecDeque<(Segment, Instant)>>,
    bytes: usize,
}

impl IdleSegments {
    fn take(&mut self, owner: Owner, size: usize) -> Option<Segment> {
        // The newest: its pages are most likely in caches.
        let (segment, _) = self.buckets.get_mut(&(owner, size))?.pop_back()?;
        self.bytes -= size;
        Some(segment)
    }

    fn put(&mut self, owner: Owner, segment: Segment) {
        let size = segment.size();
        self.bytes += size;
        self.buckets.entry((owner, size)).or_default().push_back((segment, Instant::now()));
    }

    /// Takes out the one that was not used for longest, if that is at least `age`.
    fn take_oldest(&mut self, age: Duration) -> Option<Segment> {
        let fronts = self.buckets.iter().filter_map(|(key, all)| Some((*key, all.front()?.1)));
        let (key, since) = fronts.min_by_key(|(_, since)| *since)?;
        if since.elapsed() < age {
            return None;
        }
        let all = self.buckets.get_mut(&key)?;
        let (segment, _) = all.pop_front()?;
        if all.is_empty() {
            self.buckets.remove(&key);
        }
        self.bytes -= segment.size();
        Some(segment)
    }
}

impl fmt::Debug for SegmentPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sizes, bytes) = (self.sizes, self.bytes());
        f.debug_struct("SegmentPool").field("sizes", &sizes).field("bytes", &bytes).finish()
    }
}

impl SegmentPool {
    /// A pool that keeps at most `limit` bytes of unused segments.
    pub fn new(limit: usize) -> Arc<SegmentPool> {
        SegmentPool::with_sizes(limit, SegmentSizes::default(), ByteBudget::unlimited())
    }

    fn with_sizes(limit: usize, sizes: SegmentSizes, server: Arc<ByteBudget>) -> Arc<SegmentPool> {
        let (idle, budget) = (Mutex::default(), Budget::new(sizes.most));
        let parked = Budget::new(server.cap() / PARKED_PARTS);
        Arc::new(SegmentPool { idle, limit: limit.max(sizes.kept), sizes, budget, parked, server })
    }

    /// The pool of one server: for gateways that read large bodies and for backends. Whoever serves
    /// trims what stays unused. Until then it keeps up to `idle_limit` bytes of it, or a little, as
    /// long as requests leave it so much of `server`.
    pub fn of_server(
        sizes: SegmentSizes,
        idle_limit: usize,
        server: &Arc<ByteBudget>,
    ) -> Arc<SegmentPool> {
        let limit = idle_limit.max(MIN_IDLE_LIMIT);
        let pool = SegmentPool::with_sizes(limit, sizes, server.clone());
        let idle = Arc::downgrade(&pool);
        server.reclaims_by(move |bytes| {
            if let Some(pool) = idle.upgrade() {
                pool.free_idle(bytes);
            }
        });
        pool
    }

    /// How it grows and shrinks.
    pub fn sizes(&self) -> SegmentSizes {
        self.sizes
    }

    /// Bytes of all segments that exist, used or not, those of workers included.
    pub fn bytes(&self) -> usize {
        self.budget.in_use()
    }

    /// A segment of at least `size` bytes for a request of `owner`, reused if the owner has one.
    /// UNAVAILABLE if there is no memory, or as much as there may be.
    pub fn take(self: &Arc<Self>, size: usize, owner: Owner) -> Result<SegmentMut> {
        if let Some(reused) = self.take_idle(size, owner) {
            return Ok(reused);
        }
        let class = self.sizes.class(size);
        let segment = Segment::create(class, owner, self.reserve(class)?)?;
        Ok(self.to_be_filled(segment))
    }

    fn take_idle(self: &Arc<Self>, size: usize, owner: Owner) -> Option<SegmentMut> {
        let mut segment = self.idle.lock().take(owner, self.sizes.class(size))?;
        segment.unpark();
        Some(self.to_be_filled(segment))
    }

    fn to_be_filled(self: &Arc<Self>, segment: Segment) -> SegmentMut {
        let pool: Arc<dyn Home> = self.clone();
        SegmentMut::new(segment, Arc::downgrade(&pool))
    }

    /// Maps a segment that a worker made and sent, even if it is more than there may be.
    pub fn adopt(&self, fd: OwnedFd) -> Result<Segment> {
        Segment::adopt(fd, |size| self.budget.reserve_beyond(size))
    }

    /// Counts a worker's segment that no request uses any more; `false` if there are too many such:
    /// it has to be freed.
    pub fn park(&self, segment: &mut Segment) -> bool {
        let Ok(reserved) = self.parked.reserve(segment.size()) else { return false };
        segment.set_idle(self.server.keep(Kind::Segments, segment.size()), Some(reserved));
        true
    }

    /// UNAVAILABLE if there is more than there may be, by what workers made.
    pub fn check_room(&self) -> Result<()> {
        let (used, most) = (self.bytes(), self.sizes.most);
        if used <= most {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "no shared memory for tensors: {used} bytes are in use, and shm-max-byte-size is {most}"
        )))
    }

    fn reserve(&self, size: usize) -> Result<Reserved> {
        // What is kept for reuse stands in the way only here.
        let reserved = self.budget.reserve(size).or_else(|_| {
            let freed = std::mem::take(&mut *self.idle.lock());
            drop(freed);
            self.budget.reserve(size)
        });
        reserved.map_err(|Exceeded { in_use, cap }| {
            Error::unavailable(format!(
                "no shared memory for tensors: {in_use} bytes are in use, and {size} more would \
                 exceed shm-max-byte-size, which is {cap}"
            ))
        })
    }

    /// Frees so many bytes of what nobody uses, if there are so many: requests need them.
    fn free_idle(&self, bytes: usize) {
        let idle = self.idle.lock();
        let left = idle.bytes.saturating_sub(bytes);
        free_down_to(left, Duration::ZERO, idle);
    }

    /// Frees segments nobody has used for `age`, but for what is always kept.
    pub fn trim(&self, age: Duration) {
        free_down_to(self.sizes.kept, age, self.idle.lock());
    }
}

impl Home for SegmentPool {
    fn give_back(&self, mut segment: Segment, is_reusable: bool) {
        let Some(owner) = segment.owner().filter(|_| is_reusable) else { return };
        segment.set_idle(self.server.keep(Kind::Segments, segment.size()), None);
        let mut idle = self.idle.lock();
        idle.put(owner, segment);
        free_down_to(self.limit, Duration::ZERO, idle);
    }
}

/// Frees what nobody has used for `age`, the oldest first, until so many bytes are left.
fn free_down_to(left: usize, age: Duration, mut idle: MutexGuard<'_, IdleSegments>) {
    let mut freed = Vec::new();
    while left < idle.bytes
        && let Some(segment) = idle.take_oldest(age)
    {
        freed.push(segment);
    }
    // Freed without the lock: unmapping takes time.
    drop(idle);
    drop(freed);
}

impl SegmentSizes {
    /// Multiples of `growth`, else the next step of 1, 1.25, 1.5, 1.75 × 2ⁿ, at least 64 KiB: reuse
    /// without wasting more than a fifth.
    fn class(self, size: usize) -> usize {
        let size = size.max(1 << 16);
        // What is larger than half of all addresses is refused later, not here.
        let power = || size.checked_next_power_of_two().unwrap_or(1 << (usize::BITS - 1));
        let step = if self.growth == 0 { power() / 8 } else { self.growth };
        size.div_ceil(step).saturating_mul(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: SegmentSizes =
        SegmentSizes { growth: 100 << 10, kept: 100 << 10, most: 300 << 10 };

    fn take(pool: &Arc<SegmentPool>, size: usize) -> Result<SegmentMut> {
        pool.take(size, Owner::default())
    }

    /// A segment that a worker made.
    fn adopt(pool: &SegmentPool, size: u64) -> Segment {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("a worker's", flags).unwrap();
        rustix::fs::ftruncate(&fd, size).unwrap();
        pool.adopt(fd).unwrap()
    }

    #[test]
    fn sizes_are_steps() {
        let class = |size| SegmentSizes::default().class(size);
        assert_eq!([1, 65_536, 65_537, 1 << 20].map(class), [65_536, 65_536, 81_920, 1 << 20]);
        assert_eq!([1, 102_400, 102_401].map(|it| SIZES.class(it)), [102_400, 102_400, 204_800]);
        // No size ends in a division by zero.
        assert_eq!([1 << 63, usize::MAX].map(class), [1 << 63, usize::MAX]);
    }

    #[test]
    fn there_is_no_more_than_there_may_be() {
        let pool = SegmentPool::with_sizes(1 << 30, SIZES, ByteBudget::unlimited());
        let first = take(&pool, 200 << 10).unwrap();
        let second = take(&pool, 100 << 10).unwrap();
        let error = take(&pool, 1).err().unwrap();
        let text = "no shared memory for tensors: 307200 bytes are in use, and 102400 more would \
                    exceed shm-max-byte-size, which is 307200";
        assert_eq!(error, Error::unavailable(text));
        assert!(take(&pool, usize::MAX - 1).is_err());
        // What is unused makes room for another size.
        drop((first.freeze(), second.freeze()));
        assert_eq!(pool.bytes(), 300 << 10);
        let all = take(&pool, 300 << 10).unwrap();
        assert!(pool.check_room().is_ok());
        let adopted = adopt(&pool, 4096);
        let text = "no shared memory for tensors: 311296 bytes are in use, and shm-max-byte-size \
                    is 307200";
        assert_eq!(pool.check_room(), Err(Error::unavailable(text)));
        drop((adopted, all));
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn what_is_to_be_kept_is_not_trimmed() {
        let budget = ByteBudget::new(1 << 30);
        let sizes = SegmentSizes { most: 1 << 30, ..SIZES };
        let pool = SegmentPool::with_sizes(1 << 30, sizes, budget.clone());
        let all = [1, 1, 200 << 10].map(|it| take(&pool, it).unwrap().freeze());
        drop(all);
        pool.trim(Duration::MAX);
        assert_eq!(pool.bytes(), 400 << 10);
        assert_eq!(budget.in_use_by(Kind::Segments), 400 << 10);
        pool.trim(Duration::ZERO);
        assert_eq!(pool.bytes(), 0);
        let all = [200 << 10, 1, 1].map(|it| take(&pool, it).unwrap().freeze());
        assert_eq!(budget.in_use(), 0);
        drop(all);
        pool.trim(Duration::ZERO);
        assert_eq!(pool.bytes(), 100 << 10);
    }

    #[test]
    fn a_segment_is_reused_only_by_the_owner_it_was_filled_for() {
        let pool = SegmentPool::new(1 << 30);
        let (one, other) = (Owner::unique(), Owner::unique());
        let id = |owner| pool.take(1, owner).unwrap().freeze().segment().id();
        let first = id(one);
        assert_ne!(id(other), first);
        assert_eq!(id(one), first);
        // Once a worker of another owner has seen it, nobody uses it again.
        let lease = pool.take(1, one).unwrap().freeze();
        lease.segment().show_to(one);
        lease.segment().show_to(other);
        drop(lease);
        assert_ne!(id(one), first);
    }

    #[test]
    fn workers_keep_an_eighth_of_the_budget() {
        let (server, sizes) = (ByteBudget::new(2 << 20), SegmentSizes::default());
        let pool = SegmentPool::with_sizes(1 << 30, sizes, server.clone());
        let mut all = [(); 3].map(|()| adopt(&pool, 100 << 10));
        assert_eq!(all.each_mut().map(|it| pool.park(it)), [true, true, false]);
        all[0].unpark();
        assert!(pool.park(&mut all[2]) && server.in_use_by(Kind::Segments) == 200 << 10);
    }

    #[test]
    fn the_oldest_goes_when_there_is_too_much() {
        let pool = SegmentPool::new(3 << 16);
        let owners = [(); 4].map(|()| Owner::unique());
        let ids = owners.map(|owner| pool.take(1, owner).unwrap().freeze().segment().id());
        assert_eq!(pool.bytes(), 3 << 16);
        let again = owners.map(|owner| pool.take(1, owner).unwrap());
        let again = again.map(|it| it.freeze());
        let is_same = |index: usize| again[index].segment().id() == ids[index];
        assert_eq!([0, 1, 2, 3].map(is_same), [false, true, true, true]);
    }

    /// A segment as large as all that may be kept is kept, too.
    #[test]
    fn a_segment_of_256_mib_is_used_again() {
        const SIZE: usize = 256 << 20;
        let server = ByteBudget::unlimited();
        let pool = SegmentPool::of_server(SegmentSizes::default(), 0, &server);
        let owner = Owner::unique();
        let id = || pool.take(SIZE, owner).unwrap().freeze().segment().id();
        let first = id();
        assert_eq!([id(), id()], [first, first]);
        assert_eq!(pool.bytes(), SIZE);
        // More than is always kept, where the machine has it.
        let pool = SegmentPool::of_server(SegmentSizes::default(), 4 * SIZE, &server);
        let both = [(); 2].map(|()| pool.take(SIZE, owner).unwrap().freeze());
        let ids = both.each_ref().map(|it| it.segment().id());
        drop(both);
        let again = [(); 2].map(|()| pool.take(SIZE, owner).unwrap().freeze().segment().id());
        assert!(again.iter().all(|it| ids.contains(it)), "{again:?} of {ids:?}");
    }
}
