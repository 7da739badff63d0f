//! Memory that worker processes can map: anonymous `memfd` segments, recycled, never named.
//!
//! Only who makes a segment can write to it: the seal `F_SEAL_FUTURE_WRITE` refuses everybody else a
//! writable mapping and `write`, whatever the descriptor allows. Others may map it privately.
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
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    io::Errno,
};

use super::owner::Owner;
use crate::{
    budget::{Hold, Kept, Reserved},
    error::{Error, Result},
};

/// One mapped `memfd`. Its id is unique in this process's life, so workers can cache mappings.
pub struct Segment {
    id: u64,
    file: File,
    map: MmapRaw,
    alive: Arc<()>,
    /// The number of the owner for whose requests it was filled or shown to workers, or one of the
    /// two below.
    owner: AtomicU64,
    /// Counted as long as it exists.
    _reserved: Reserved,
    /// What it takes of the server's budget while no request is charged for its contents.
    idle: Option<(Kept, Option<Reserved>)>,
}

/// Takes a segment back when the last tensor in it is gone.
pub trait Home: Send + Sync {
    /// Called once per lease; dropping the segment frees it, as must happen unless it is reusable:
    /// a worker keeps arrays over it, or workers of several owners know it.
    fn give_back(&self, segment: Segment, is_reusable: bool);
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

/// Of segments that no owner has used yet.
const NO_OWNER: u64 = u64::MAX;
/// Of segments that workers of several owners know.
const SEVERAL_OWNERS: u64 = u64::MAX - 1;

/// A worker cannot make a larger one, of any machine's memory: 1 TiB.
const MAX_ADOPTED_BYTES: u64 = 1 << 40;

impl Segment {
    /// A new segment of `size` bytes.
    pub(super) fn create(size: usize, owner: Owner, reserved: Reserved) -> Result<Segment> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("troupe", flags).map_err(no_memory)?;
        rustix::fs::ftruncate(&fd, size as u64).map_err(no_memory)?;
        let file = File::from(fd);
        let map = MmapOptions::new().len(size.max(1)).map_raw(&file).map_err(no_memory)?;
        // After the only mapping that can write was made.
        seal(file.as_fd())?;
        Ok(Segment::new(file, map, u64::from(owner.number()), reserved))
    }

    /// Maps a segment that a worker made and sent, to be read; it reserves the size it has.
    pub(super) fn adopt(fd: OwnedFd, reserve: impl FnOnce(usize) -> Reserved) -> Result<Segment> {
        // Before its size is read: until then the worker can change it.
        seal(fd.as_fd())?;
        let size = rustix::fs::fstat(&fd).map_err(no_memory)?.st_size;
        let size = u64::try_from(size).ok().filter(|it| *it <= MAX_ADOPTED_BYTES);
        let size = size.ok_or_else(|| no_memory("a worker's segment is too large"))? as usize;
        let reserved = reserve(size);
        let file = File::from(fd);
        let mut options = MmapOptions::new();
        let map = options.len(size.max(1)).map_raw_read_only(&file).map_err(no_memory)?;
        Ok(Segment::new(file, map, NO_OWNER, reserved))
    }

    fn new(file: File, map: MmapRaw, owner: u64, reserved: Reserved) -> Segment {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (alive, owner) = (Arc::default(), AtomicU64::new(owner));
        Segment { id, file, map, alive, owner, _reserved: reserved, idle: None }
    }

    /// It is kept for reuse: what it takes of the server's budget, and of what workers may keep.
    pub(super) fn set_idle(&mut self, kept: Kept, of_workers: Option<Reserved>) {
        self.idle = Some((kept, of_workers));
    }

    /// It is used again: its request is charged for it.
    pub fn unpark(&mut self) {
        self.idle = None;
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
    /// A worker is shown the segment for a request of `owner`. Once workers of several owners know
    /// it, it is not used again: they could read what is written into it later.
    pub fn show_to(&self, owner: Owner) {
        let number = u64::from(owner.number());
        let (order, load) = (Ordering::AcqRel, Ordering::Acquire);
        let shown = self.owner.compare_exchange(NO_OWNER, number, order, load);
        if shown.is_err_and(|found| found != number) {
            self.owner.store(SEVERAL_OWNERS, Ordering::Release);
        }
    }
    /// For whose requests it may be used again; `None` before the first use, or if for nobody's.
    pub fn owner(&self) -> Option<Owner> {
        Owner::of_number(self.owner.load(Ordering::Acquire))
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

/// Nobody can change its size, or write to it but through mappings that exist: a process that shrinks
/// memory others have mapped would end them with SIGBUS.
fn seal(fd: BorrowedFd<'_>) -> Result<()> {
    let size = SealFlags::SHRINK | SealFlags::GROW;
    match fcntl_add_seals(fd, size | SealFlags::FUTURE_WRITE) {
        // Linux before 5.1 does not know the last one.
        Err(Errno::INVAL) => fcntl_add_seals(fd, size).map_err(no_memory),
        sealed => sealed.map_err(no_memory),
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
        let is_retained = self.retained.load(Ordering::Acquire);
        if let (Some(segment), Some(home)) = (self.segment.take(), self.home.upgrade()) {
            let is_shared = segment.owner.load(Ordering::Acquire) == SEVERAL_OWNERS;
            home.give_back(segment, !is_retained && !is_shared);
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
        // SAFETY: the mapping lives as long as the lease. The worker process that made the segment
        // could write to it; it can then only spoil numbers, never lengths, which live on our side.
        unsafe { std::slice::from_raw_parts(map.as_ptr(), map.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    fn reserved() -> Reserved {
        Budget::new(usize::MAX).reserve_beyond(0)
    }

    /// Can somebody who has the descriptor map it so that writes reach the others, write to it, or
    /// change its size?
    fn can_be_changed(fd: BorrowedFd<'_>) -> [bool; 3] {
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let file = File::options().read(true).write(true).open(again).unwrap();
        [
            MmapOptions::new().len(4096).map_raw(&file).is_ok(),
            rustix::io::pwrite(&file, b"x", 0).is_ok(),
            rustix::fs::ftruncate(&file, 0).is_ok(),
        ]
    }

    #[test]
    fn only_who_made_a_segment_can_write_to_it() {
        let mut made = SegmentMut {
            segment: Segment::create(4096, Owner::default(), reserved()).unwrap(),
            home: Weak::<crate::tensor::SegmentPool>::new(),
        };
        assert_eq!(can_be_changed(made.segment.fd()), [false; 3]);
        made.bytes_mut()[0] = 7;
        let lease = made.freeze();
        assert_eq!(Lease::bytes(&lease, 0..1).unwrap()[..], [7]);
        // A worker may map it to write for itself alone.
        // SAFETY: nobody changes the bytes while they are compared.
        let mut own = unsafe { MmapOptions::new().map_copy(&lease.segment().fd()).unwrap() };
        own[0] = 9;
        assert_eq!(Lease::bytes(&lease, 0..1).unwrap()[..], [7]);
    }

    #[test]
    fn a_workers_segment_is_sealed_before_it_is_measured() {
        let fd = memfd_create("a worker's", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 8192).unwrap();
        // Its maker wrote through a mapping that it keeps.
        let theirs = MmapOptions::new().map_raw(&File::from(fd.try_clone().unwrap())).unwrap();
        let adopted = Segment::adopt(fd, |size| {
            assert_eq!(size, 8192);
            reserved()
        });
        let adopted = adopted.unwrap();
        assert_eq!(can_be_changed(adopted.fd()), [false; 3]);
        assert_eq!((adopted.size(), theirs.len()), (8192, 8192));
    }

    #[test]
    fn what_cannot_be_sealed_or_is_too_large_is_refused() {
        let adopt = |fd: OwnedFd| Segment::adopt(fd, |_| reserved()).err().map(|it| it.to_string());
        let file = File::open("/proc/self/exe").unwrap();
        assert!(adopt(file.into()).is_some());
        let unsealable = memfd_create("a worker's", MemfdFlags::empty()).unwrap();
        assert!(adopt(unsealable).is_some());
        let huge = memfd_create("a worker's", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&huge, MAX_ADOPTED_BYTES + 1).unwrap();
        let text = "no shared memory for tensors: a worker's segment is too large";
        assert_eq!(adopt(huge).as_deref(), Some(text));
    }
}
