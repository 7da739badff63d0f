//! Memory that worker processes can map: anonymous `memfd` segments, recycled, never named.
#![expect(unsafe_code, reason = "slices of a mapping that other processes can see")]

use std::{
    fs::File,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::{
    budget::{Hold, Reserved},
    error::{Error, Result},
};

/// One mapped `memfd`. Its id is unique in this process's life, so workers can cache mappings.
pub struct Segment {
    id: u64,
    file: File,
    map: MmapRaw,
    alive: Arc<()>,
    /// Counted as long as it exists.
    _reserved: Reserved,
}

/// Takes a segment back when the last tensor in it is gone.
pub trait Home: Send + Sync {
    /// Called once per lease; dropping the segment frees it.
    fn give_back(&self, segment: Segment);
}

/// A segment in use. Dropping the last `Arc` gives it back to its home.
pub struct Lease {
    /// `None` only while dropping.
    segment: Option<Segment>,
    home: Weak<dyn Home>,
    tensors: AtomicUsize,
    retained: AtomicBool,
    /// What a request is charged for the contents.
    _hold: Option<Hold>,
}

/// Ids are unique in the process, also among servers.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Segment {
    /// A new segment of `size` bytes.
    pub(super) fn create(size: usize, reserved: Reserved) -> Result<Segment> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("troupe", flags).map_err(no_memory)?;
        rustix::fs::ftruncate(&fd, size as u64).map_err(no_memory)?;
        Segment::map(fd, size, reserved)
    }

    /// Maps a segment that a worker made and sent; it reserves the size it has.
    pub(super) fn adopt(fd: OwnedFd, reserve: impl FnOnce(usize) -> Reserved) -> Result<Segment> {
        let size = rustix::fs::fstat(&fd).map_err(no_memory)?.st_size;
        let size = usize::try_from(size).unwrap_or(0);
        Segment::map(fd, size, reserve(size))
    }

    fn map(fd: OwnedFd, size: usize, reserved: Reserved) -> Result<Segment> {
        // A process that shrinks memory others have mapped would end them with SIGBUS.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(no_memory)?;
        let file = File::from(fd);
        let map = MmapOptions::new().len(size.max(1)).map_raw(&file).map_err(no_memory)?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(Segment { id, file, map, alive: Arc::default(), _reserved: reserved })
    }

    /// Unique in this process's life.
    pub fn id(&self) -> u64 {
        self.id
    }
    /// Bytes mapped.
    pub fn size(&self) -> usize {
        self.map.len()
    }
    /// To be sent to a worker.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
    /// Cannot be upgraded any more once the segment is freed: then workers may unmap it.
    pub fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }
    /// In use until the last `Arc` is dropped, then given back to `home`.
    pub fn lease(self, home: Weak<dyn Home>) -> Arc<Lease> {
        self.lease_counted(home, None)
    }

    fn lease_counted(self, home: Weak<dyn Home>, hold: Option<Hold>) -> Arc<Lease> {
        let (tensors, retained) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Lease { segment: Some(self), home, tensors, retained, _hold: hold })
    }
}

fn no_memory(error: impl std::fmt::Display) -> Error {
    Error::unavailable(format!("no shared memory for tensors: {error}"))
}

/// A segment nobody else knows yet, to be filled.
pub struct SegmentMut {
    segment: Segment,
    home: Weak<dyn Home>,
}

impl SegmentMut {
    pub(super) fn new(segment: Segment, home: Weak<dyn Home>) -> SegmentMut {
        SegmentMut { segment, home }
    }
    /// All its bytes, left over from earlier use.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours alone until `freeze`: pools hand a segment out only after
        // its last lease ended, and workers write only to segments they own.
        unsafe {
            std::slice::from_raw_parts_mut(self.segment.map.as_mut_ptr(), self.segment.size())
        }
    }
    /// Ends writing.
    pub fn freeze(self) -> Arc<Lease> {
        self.segment.lease(self.home)
    }
    /// The same; what a request holds for its contents is given back when the lease ends.
    pub fn freeze_counted(self, hold: Hold) -> Arc<Lease> {
        self.segment.lease_counted(self.home, Some(hold))
    }
}

impl Lease {
    /// The segment leased.
    pub fn segment(&self) -> &Segment {
        self.segment.as_ref().expect("taken only by drop")
    }

    /// How many tensors lie in the segment.
    pub fn tensors(&self) -> usize {
        self.tensors.load(Ordering::Acquire)
    }

    /// A worker keeps arrays over this memory: it must never be used for anything else.
    pub fn retain(&self) {
        self.retained.store(true, Ordering::Release);
    }

    /// Part of the segment as shared bytes that keep the lease alive.
    pub fn bytes(lease: &Arc<Lease>, range: Range<usize>) -> Result<Bytes> {
        if range.start > range.end || lease.segment().size() < range.end {
            return Err(Error::internal(format!(
                "bytes {}..{} lie outside a segment of {} bytes",
                range.start,
                range.end,
                lease.segment().size()
            )));
        }
        Ok(Bytes::from_owner(View(lease.clone())).slice(range))
    }

    /// Where `data` begins in this segment, if it lies in it.
    pub fn offset_of(&self, data: &[u8]) -> Option<usize> {
        let start = self.segment().map.as_ptr() as usize;
        let at = (data.as_ptr() as usize).checked_sub(start)?;
        (at + data.len() <= self.segment().size()).then_some(at)
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease of segment {}", self.segment().id)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.retained.load(Ordering::Acquire) {
            return;
        }
        if let (Some(segment), Some(home)) = (self.segment.take(), self.home.upgrade()) {
            home.give_back(segment);
        }
    }
}

/// A tensor's hold on the segment it lies in; counted, so that a sole reader can be told.
#[derive(Debug)]
pub(super) struct Held(Arc<Lease>);

impl Held {
    pub(super) fn new(lease: Arc<Lease>) -> Held {
        lease.tensors.fetch_add(1, Ordering::AcqRel);
        Held(lease)
    }
    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.0
    }
}

impl Clone for Held {
    fn clone(&self) -> Held {
        Held::new(self.0.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.tensors.fetch_sub(1, Ordering::AcqRel);
    }
}

struct View(Arc<Lease>);

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        let map = &self.0.segment().map;
        // SAFETY: the mapping lives as long as the lease. A worker process could write to it; it
        // can then only spoil numbers, never lengths, which live on our side.
        unsafe { std::slice::from_raw_parts(map.as_ptr(), map.len()) }
    }
}
