//! Shared-memory segments of one worker: those it was sent, and those it made for its outputs.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use super::fd_passing::{receive_descriptor, send_descriptor};
use troupe_base::{
    metrics::CopiedBytes,
    tensor::{Home, Lease, Owner, Segment, SegmentPool, Tensor},
};

/// Freed segments are looked for once so many are known.
const MIN_SWEEP_SEGMENTS: usize = 64;
/// Beside the number of a worker's segment that came back: it is not used again, as others know it
/// or too many are kept.
/// `segments.py` has the same.
const FREED: u64 = 1 << 63;

/// What of the process's descriptors the segments of one worker may take, in parts: a quarter.
const DESCRIPTOR_PARTS: u64 = 4;

/// Segments by the worker's names and by ours.
pub(crate) struct Segments {
    passing: OwnedFd,
    /// Where copies are put, and what all segments are counted in.
    pub(crate) pool: Arc<SegmentPool>,
    /// What the worker has mapped of ours, and whether it still exists.
    known: HashMap<u64, Weak<()>>,
    sweep_at: usize,
    /// Sent since the last frame: id and size.
    pub(crate) new: Vec<(u64, u64)>,
    /// Freed since the last frame.
    pub(crate) forgotten: Vec<u64>,
    /// Counts what had to be copied.
    pub(crate) copied: Arc<CopiedBytes>,
    own: Arc<OwnSegments>,
    /// What replies to calls brought the worker and it may still look at, by number.
    holds: HashMap<u64, Tensor>,
    next_hold: u64,
}

/// The segments the worker made, for its outputs; they come back here once nobody uses them.
struct OwnSegments {
    pool: Arc<SegmentPool>,
    state: Mutex<OwnSegmentsState>,
}

#[derive(Default)]
struct OwnSegmentsState {
    /// The worker's number of a segment, by ours.
    numbers: HashMap<u64, u64>,
    /// In nobody's use, by the worker's number.
    parked: HashMap<u64, Segment>,
    /// Came back since the last frame.
    released: Vec<u64>,
}

impl Home for OwnSegments {
    fn give_back(&self, mut segment: Segment, is_reusable: bool) {
        let mut own = self.state.lock();
        let Some(number) = own.numbers.get(&segment.id()).copied() else { return };
        if is_reusable && self.pool.park(&mut segment) {
            own.released.push(number);
            own.parked.insert(number, segment);
        } else {
            own.released.push(number | FREED);
            own.numbers.remove(&segment.id());
        }
    }
}

impl Segments {
    /// For a new worker.
    pub(crate) fn new(
        passing: OwnedFd,
        pool: Arc<SegmentPool>,
        copied: Arc<CopiedBytes>,
    ) -> Segments {
        let own = OwnSegments { pool: pool.clone(), state: Mutex::default() };
        Segments {
            passing,
            pool,
            known: HashMap::new(),
            sweep_at: MIN_SWEEP_SEGMENTS,
            new: Vec::new(),
            forgotten: Vec::new(),
            copied,
            own: own.into(),
            holds: HashMap::new(),
            next_hold: 0,
        }
    }

    /// Shows the worker a segment unless it knows it, for a request of `owner`; false if that is
    /// not possible now.
    pub(crate) fn show(&mut self, segment: &Segment, owner: Owner) -> bool {
        segment.show_to(owner);
        if self.known.contains_key(&segment.id()) {
            return true;
        }
        if !send_descriptor(&self.passing, segment.fd()) {
            return false;
        }
        self.known.insert(segment.id(), segment.alive());
        self.new.push((segment.id(), segment.size() as u64));
        if self.sweep_at < self.known.len() {
            self.sweep();
        }
        true
    }

    /// Finds what was freed, so that the worker unmaps it.
    pub(crate) fn sweep(&mut self) {
        self.known.retain(|id, alive| {
            let is_alive = 0 < alive.strong_count();
            if !is_alive {
                self.forgotten.push(*id);
            }
            is_alive
        });
        self.sweep_at = MIN_SWEEP_SEGMENTS.max(2 * self.known.len());
    }

    /// The worker's own segments that came back since the last call.
    pub(crate) fn released(&self) -> Vec<u64> {
        std::mem::take(&mut self.own.state.lock().released)
    }

    /// Has the worker to be told of segments: new ones, forgotten ones, its own that came back?
    pub(crate) fn has_updates(&self) -> bool {
        !self.new.is_empty()
            || !self.forgotten.is_empty()
            || !self.own.state.lock().released.is_empty()
    }

    /// The worker made segment `number` of `size` bytes and sent it.
    pub(crate) fn adopt(&mut self, number: u64, size: u64) -> Result<(), String> {
        let fd = receive_descriptor(&self.passing).ok_or("a segment without its descriptor")?;
        let segment = self.pool.adopt(fd).map_err(|error| error.to_string())?;
        if segment.size() as u64 != size {
            return Err(format!("a segment of {} bytes instead of {size}", segment.size()));
        }
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let mut own = self.own.state.lock();
        if descriptors / DESCRIPTOR_PARTS <= own.numbers.len() as u64 {
            return Err(format!("more than {} segments", own.numbers.len()));
        }
        own.numbers.insert(segment.id(), number);
        if own.parked.insert(number, segment).is_some() {
            return Err(format!("two segments of number {number}"));
        }
        Ok(())
    }

    /// The worker put an output into its segment `number`.
    pub(crate) fn lease(&mut self, number: u64) -> Option<Arc<Lease>> {
        let mut segment = self.own.state.lock().parked.remove(&number)?;
        segment.unpark();
        let home: Arc<dyn Home> = self.own.clone();
        Some(segment.lease(Arc::downgrade(&home)))
    }

    /// Keeps a tensor until the worker lets go of it. Its number is unique among the worker's.
    pub(crate) fn hold(&mut self, tensor: Tensor) -> u64 {
        self.next_hold += 1;
        self.holds.insert(self.next_hold, tensor);
        self.next_hold
    }

    /// A tensor the worker has not let go of.
    pub(crate) fn held(&self, number: u64) -> Option<&Tensor> {
        self.holds.get(&number)
    }

    /// The worker does not look at it any more. If it has written to its view of the memory, it
    /// would not see what is put there later.
    pub(crate) fn let_go(&mut self, number: u64) {
        let held = self.holds.remove(&(number & !FREED));
        if number & FREED != 0
            && let Some((lease, _)) = held.as_ref().and_then(Tensor::segment)
        {
            lease.retain();
        }
    }

    /// The worker freed its segment `number`.
    pub(crate) fn drop_own(&mut self, number: u64) {
        let mut own = self.own.state.lock();
        if let Some(segment) = own.parked.remove(&number) {
            own.numbers.remove(&segment.id());
        }
    }
}
