//! Pool of shared-memory segments: reused when free, with a limit on all bytes of one server.

use std::{
    fmt,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::segment::{Home, Segment, SegmentMut};
use crate::{
    budget::{Budget, Exceeded, Reserved},
    error::{Error, Result},
};

/// Unused bytes kept at most: enough for a few large requests in flight.
const IDLE_LIMIT: usize = 256 << 20;

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

/// Segments the server fills: kept for reuse by size class, up to `limit` idle bytes.
pub struct SegmentPool {
    idle: Mutex<Vec<(Segment, Instant)>>,
    limit: usize,
    sizes: SegmentSizes,
    budget: Arc<Budget>,
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
        SegmentPool::with_sizes(limit, SegmentSizes::default())
    }

    fn with_sizes(limit: usize, sizes: SegmentSizes) -> Arc<SegmentPool> {
        let (idle, budget) = (Mutex::default(), Budget::new(sizes.most));
        Arc::new(SegmentPool { idle, limit: limit.max(sizes.kept), sizes, budget })
    }

    /// The pool of one server: for gateways that read large bodies and for backends. Whoever serves
    /// trims what stays unused.
    pub fn of_server(sizes: SegmentSizes) -> Arc<SegmentPool> {
        SegmentPool::with_sizes(IDLE_LIMIT, sizes)
    }

    /// How it grows and shrinks.
    pub fn sizes(&self) -> SegmentSizes {
        self.sizes
    }

    /// Bytes of all segments that exist, used or not, those of workers included.
    pub fn bytes(&self) -> usize {
        self.budget.in_use()
    }

    /// A segment of at least `size` bytes, reused if there is one. UNAVAILABLE if there is no
    /// memory, or as much as there may be.
    pub fn take(self: &Arc<Self>, size: usize) -> Result<SegmentMut> {
        let class = self.sizes.class(size);
        let mut idle = self.idle.lock();
        let found = idle.iter().rposition(|it| it.0.size() == class);
        let reused = found.map(|index| idle.remove(index).0);
        drop(idle);
        let segment = match reused {
            Some(segment) => segment,
            None => Segment::create(class, self.reserve(class)?)?,
        };
        let pool: Arc<dyn Home> = self.clone();
        Ok(SegmentMut::new(segment, Arc::downgrade(&pool)))
    }

    /// Maps a segment that a worker made and sent, even if it is more than there may be.
    pub fn adopt(&self, fd: OwnedFd) -> Result<Segment> {
        Segment::adopt(fd, |size| self.budget.reserve_beyond(size))
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
            drop(std::mem::take(&mut *self.idle.lock()));
            self.budget.reserve(size)
        });
        reserved.map_err(|Exceeded { in_use, cap }| {
            Error::unavailable(format!(
                "no shared memory for tensors: {in_use} bytes are in use, and {size} more would \
                 exceed shm-max-byte-size, which is {cap}"
            ))
        })
    }

    /// Frees segments nobody has used for `age`, but for what is always kept.
    pub fn trim(&self, age: Duration) {
        let mut idle = self.idle.lock();
        let mut left: usize = idle.iter().map(|it| it.0.size()).sum();
        let surplus = idle.iter().take_while(|(segment, since)| {
            let goes = age <= since.elapsed() && self.sizes.kept < left;
            left -= segment.size();
            goes
        });
        let surplus = surplus.count();
        let freed: Vec<_> = idle.drain(..surplus).collect();
        drop(idle);
        drop(freed);
    }
}

impl Home for SegmentPool {
    fn give_back(&self, segment: Segment) {
        let mut idle = self.idle.lock();
        idle.push((segment, Instant::now()));
        let mut total: usize = idle.iter().map(|it| it.0.size()).sum();
        let mut surplus = 0;
        while self.limit < total {
            total -= idle[surplus].0.size();
            surplus += 1;
        }
        let freed: Vec<_> = idle.drain(..surplus).collect();
        drop(idle);
        drop(freed);
    }
}

impl SegmentSizes {
    /// Multiples of `growth`, else the next step of 1, 1.25, 1.5, 1.75 × 2ⁿ, at least 64 KiB: reuse
    /// without wasting more than a fifth.
    fn class(self, size: usize) -> usize {
        let size = size.max(1 << 16);
        let step = if self.growth == 0 { size.next_power_of_two() / 8 } else { self.growth };
        size.div_ceil(step).saturating_mul(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: SegmentSizes =
        SegmentSizes { growth: 100 << 10, kept: 100 << 10, most: 300 << 10 };

    #[test]
    fn sizes_are_steps() {
        let class = |size| SegmentSizes::default().class(size);
        assert_eq!([1, 65_536, 65_537, 1 << 20].map(class), [65_536, 65_536, 81_920, 1 << 20]);
        assert_eq!([1, 102_400, 102_401].map(|it| SIZES.class(it)), [102_400, 102_400, 204_800]);
    }

    #[test]
    fn there_is_no_more_than_there_may_be() {
        let pool = SegmentPool::with_sizes(1 << 30, SIZES);
        let first = pool.take(200 << 10).unwrap();
        let second = pool.take(100 << 10).unwrap();
        let error = pool.take(1).err().unwrap();
        let text = "no shared memory for tensors: 307200 bytes are in use, and 102400 more would \
                    exceed shm-max-byte-size, which is 307200";
        assert_eq!(error, Error::unavailable(text));
        assert!(pool.take(usize::MAX - 1).is_err());
        // What is unused makes room for another size.
        drop((first.freeze(), second.freeze()));
        assert_eq!(pool.bytes(), 300 << 10);
        let all = pool.take(300 << 10).unwrap();
        assert!(pool.check_room().is_ok());
        let fd = rustix::fs::memfd_create("a worker's", rustix::fs::MemfdFlags::ALLOW_SEALING);
        let fd = fd.unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        let adopted = pool.adopt(fd).unwrap();
        let text = "no shared memory for tensors: 311296 bytes are in use, and shm-max-byte-size \
                    is 307200";
        assert_eq!(pool.check_room(), Err(Error::unavailable(text)));
        drop((adopted, all));
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn what_is_to_be_kept_is_not_trimmed() {
        let pool = SegmentPool::with_sizes(1 << 30, SegmentSizes { most: 1 << 30, ..SIZES });
        let all = [1, 1, 200 << 10].map(|it| pool.take(it).unwrap().freeze());
        drop(all);
        pool.trim(Duration::MAX);
        assert_eq!(pool.bytes(), 400 << 10);
        pool.trim(Duration::ZERO);
        assert_eq!(pool.bytes(), 0);
        let all = [200 << 10, 1, 1].map(|it| pool.take(it).unwrap().freeze());
        drop(all);
        pool.trim(Duration::ZERO);
        assert_eq!(pool.bytes(), 100 << 10);
    }
}
