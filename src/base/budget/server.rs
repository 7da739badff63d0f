//! The server's byte budget: what requests in flight hold, by kind, against one cap.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use super::Budget;

/// What bytes in flight are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bodies of requests, as far as they have arrived.
    Received,
    /// Tensors that were decoded out of text, or made by models.
    Tensors,
    /// Texts of answers that are not sent yet.
    Responses,
    /// Shared memory that is kept for reuse.
    Segments,
    /// What a request takes besides: its context, its names, small tensors.
    Other,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 5] =
        [Kind::Received, Kind::Tensors, Kind::Responses, Kind::Segments, Kind::Other];

    /// As metrics call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Received => "received",
            Kind::Tensors => "tensors",
            Kind::Responses => "responses",
            Kind::Segments => "segments",
            Kind::Other => "other",
        }
    }
}

/// Why a request was refused, or what a model answered to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The server holds as many bytes as it may.
    ServerBytes,
    /// The requests of its connection hold their share.
    ConnectionBytes,
    /// The requests at its model hold their share.
    ModelBytes,
    /// Its message is larger than any may be.
    Size,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Reason; 4] =
        [Reason::ServerBytes, Reason::ConnectionBytes, Reason::ModelBytes, Reason::Size];

    /// As metrics call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::ServerBytes => "server_bytes",
            Reason::ConnectionBytes => "connection_bytes",
            Reason::ModelBytes => "model_bytes",
            Reason::Size => "size",
        }
    }
}

/// What requests may take of `cap`: a quarter is left for what models answer to those that were
/// taken on, which would fail otherwise when they are nearly done.
pub(super) fn admitted(cap: usize) -> usize {
    if cap == usize::MAX { cap } else { cap - cap / 4 }
}

/// A counter that shares its cache line with nothing else: every thread writes to it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded<T>(T);

/// The bytes that all requests of one server may hold together.
#[derive(Debug)]
pub struct ByteBudget {
    cap: usize,
    in_use: CachePadded<AtomicUsize>,
    kinds: [CachePadded<AtomicUsize>; Kind::ALL.len()],
    refused: [AtomicU64; Reason::ALL.len()],
    reclaim: Reclaim,
}

/// Frees so many bytes of what is kept for reuse, if there are so many.
#[derive(Default)]
struct Reclaim(OnceLock<Box<dyn Fn(usize) + Send + Sync>>);

impl fmt::Debug for Reclaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reclaim")
    }
}

impl ByteBudget {
    /// At most `cap` bytes; `usize::MAX`: no limit.
    pub fn new(cap: usize) -> Arc<ByteBudget> {
        Arc::new(ByteBudget {
            cap,
            in_use: CachePadded::default(),
            kinds: Default::default(),
            refused: Default::default(),
            reclaim: Reclaim::default(),
        })
    }

    /// Counts, and refuses nothing.
    pub fn unlimited() -> Arc<ByteBudget> {
        ByteBudget::new(usize::MAX)
    }

    /// The bytes there may be in all (`--max-inflight-bytes`).
    pub fn cap(&self) -> usize {
        self.cap
    }

    /// What the requests of one connection may hold of it: half, so that none takes everything.
    pub fn share(&self) -> usize {
        if self.cap == usize::MAX { self.cap } else { self.cap.div_ceil(2) }
    }

    /// What waits and runs at one model may hold of it, answers not included: its inputs.
    pub fn model_share(&self) -> Arc<Budget> {
        Budget::new(admitted(self.share()))
    }

    /// The bytes in use now; more than the cap only by what existed before it was counted.
    pub fn in_use(&self) -> usize {
        self.in_use.0.load(Ordering::Relaxed)
    }

    /// The bytes of one kind that are in use now.
    pub fn in_use_by(&self, kind: Kind) -> usize {
        if let Some(count) = self.of_kind(kind) {
            return count.load(Ordering::Relaxed);
        }
        let of_kinds: usize = self.kinds.iter().map(|it| it.0.load(Ordering::Relaxed)).sum();
        self.in_use().saturating_sub(of_kinds)
    }

    /// The rest is `Kind::Other`, which every request has: it needs no count of its own.
    fn of_kind(&self, kind: Kind) -> Option<&AtomicUsize> {
        (kind != Kind::Other).then(|| &self.kinds[kind as usize].0)
    }

    /// Is there more than there may be, also without what is kept for reuse?
    pub fn is_exceeded(&self) -> bool {
        let surplus = self.in_use().saturating_sub(self.cap);
        if surplus != 0 {
            self.reclaim(surplus);
        }
        self.cap < self.in_use()
    }

    /// Do requests hold more than half of what they may? From then on clients that are slow make
    /// room for others.
    pub fn is_short(&self) -> bool {
        !self.has_room(admitted(self.cap) / 2)
    }

    /// Would there be room for so many bytes of requests, if what is kept for reuse gave way?
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let held = self.in_use().saturating_sub(self.in_use_by(Kind::Segments));
        held.saturating_add(bytes) <= admitted(self.cap)
    }

    /// How many requests were refused for that reason.
    pub fn refusals(&self, reason: Reason) -> u64 {
        self.refused[reason as usize].load(Ordering::Relaxed)
    }

    /// A request is refused.
    pub fn count_refusal(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes `bytes` for a request if so many are left for requests; else says how many are in
    /// use.
    pub(super) fn take(&self, kind: Kind, bytes: usize) -> Result<(), usize> {
        self.take_free(kind, bytes).or_else(|in_use| {
            let missing = in_use.saturating_add(bytes).saturating_sub(admitted(self.cap));
            self.reclaim(missing);
            self.take_free(kind, bytes)
        })
    }

    /// Frees so many bytes of what is kept for reuse, if so much is kept.
    fn reclaim(&self, bytes: usize) {
        if bytes <= self.in_use_by(Kind::Segments)
            && let Some(reclaim) = self.reclaim.0.get()
        {
            reclaim(bytes);
        }
    }

    /// Has `reclaim` free so many bytes of what is kept for reuse before a request is refused.
    pub fn reclaims_by(&self, reclaim: impl Fn(usize) + Send + Sync + 'static) {
        // Of a second pool nothing is reclaimed: a server has one.
        let _ = self.reclaim.0.set(Box::new(reclaim));
    }

    fn take_free(&self, kind: Kind, bytes: usize) -> Result<(), usize> {
        let most = admitted(self.cap);
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        self.in_use.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)?;
        if let Some(count) = self.of_kind(kind) {
            count.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts `bytes` that exist already.
    pub fn take_beyond(&self, kind: Kind, bytes: usize) {
        self.in_use.0.fetch_add(bytes, Ordering::Relaxed);
        if let Some(count) = self.of_kind(kind) {
            count.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The same until the result is dropped.
    pub fn keep(self: &Arc<ByteBudget>, kind: Kind, bytes: usize) -> Kept {
        self.take_beyond(kind, bytes);
        Kept { budget: self.clone(), kind, bytes }
    }

    /// They are free again.
    pub fn give_back(&self, kind: Kind, bytes: usize) {
        self.in_use.0.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(count) = self.of_kind(kind) {
            count.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// Bytes of no request that are given back when this is dropped.
#[derive(Debug)]
pub struct Kept {
    budget: Arc<ByteBudget>,
    kind: Kind,
    bytes: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.budget.give_back(self.kind, self.bytes);
    }
}
