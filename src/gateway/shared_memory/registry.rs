//! The registry of one server's regions, with Triton's texts for what is wrong.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use super::region::Region;
use troupe_base::{
    error::{Error, ErrorKind, Result},
    tensor::SegmentPool,
};

/// Regions there may be. Each holds a descriptor, so there are also no more than a part of those.
const MAX_REGIONS: usize = 4096;
/// Regions have at most this part of the descriptors: one in so many.
const DESCRIPTORS_PER_REGION: u64 = 4;
/// Longest name of a region, in bytes.
const MAX_NAME_BYTES: usize = 1024;

/// The regions of one server that clients have registered.
#[derive(Debug)]
pub struct SharedMemory {
    pub(super) regions: Mutex<BTreeMap<String, Arc<Region>>>,
    /// Where what worker processes will read is put.
    pub(super) segments: Arc<SegmentPool>,
    /// So many regions there may be, unless descriptors are scarce.
    most: usize,
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
}

/// The registry of a server that has one: it was started with the flag.
pub(crate) fn allowed(registry: Option<&Arc<SharedMemory>>) -> Result<&Arc<SharedMemory>> {
    registry.ok_or_else(|| {
        Error::unsupported(
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to \
             enable.",
        )
    })
}

/// The region of this name, or all if it is empty; none where nothing can be registered.
pub(crate) fn status(registry: Option<&Arc<SharedMemory>>, name: &str) -> Result<Vec<Arc<Region>>> {
    match registry {
        Some(registry) => registry.status(name),
        None if name.is_empty() => Ok(Vec::new()),
        None => Err(unknown("system ", name)),
    }
}

/// The refusal of a name of no region of this kind.
pub(super) fn unknown(kind: &str, name: &str) -> Error {
    Error::not_found(format!("Unable to find {kind}shared memory region: '{name}'"))
}

impl SharedMemory {
    /// No regions yet.
    pub fn new(segments: Arc<SegmentPool>) -> Arc<SharedMemory> {
        SharedMemory::with_most(segments, MAX_REGIONS)
    }

    pub(super) fn with_most(segments: Arc<SegmentPool>, most: usize) -> Arc<SharedMemory> {
        let (read_bytes, written_bytes) = Default::default();
        let regions = Mutex::default();
        Arc::new(SharedMemory { regions, segments, most, read_bytes, written_bytes })
    }

    /// How many are registered.
    pub fn len(&self) -> usize {
        self.regions.lock().len()
    }

    /// Is none registered?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of tensors copied so far: out of regions, and into them.
    pub fn copied_bytes(&self) -> [u64; 2] {
        [&self.read_bytes, &self.written_bytes].map(|it| it.load(Relaxed))
    }

    /// Gives a part of the object `key` a name: `byte_size` bytes from `offset` on.
    pub fn register(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<()> {
        if name.is_empty() {
            let text = "'region name' is necessary to register system shared memory region";
            return Err(Error::invalid(text));
        }
        if MAX_NAME_BYTES < name.len() {
            return Err(Error::invalid(format!(
                "the name of a shared memory region has {} bytes, of at most {MAX_NAME_BYTES}",
                name.len()
            )));
        }
        self.check_new(&self.regions.lock(), name)?;
        let region = Region::open(name, key, offset, byte_size)?;
        let mut regions = self.regions.lock();
        // Another client may have been faster.
        self.check_new(&regions, name)?;
        regions.insert(name.to_owned(), Arc::new(region));
        Ok(())
    }

    /// The region of this name, or all in the order of their names if it is empty.
    pub fn status(&self, name: &str) -> Result<Vec<Arc<Region>>> {
        let regions = self.regions.lock();
        if name.is_empty() {
            return Ok(regions.values().cloned().collect());
        }
        regions.get(name).map(|it| vec![it.clone()]).ok_or_else(|| unknown("system ", name))
    }

    /// Forgets the region of this name, or all if it is empty; those that requests use, once the
    /// last of these has ended. An unknown name is no mistake.
    pub fn unregister(&self, name: &str) {
        self.regions.lock().retain(|known, region| {
            if !name.is_empty() && known != name {
                return true;
            }
            // Marked before it is counted: whoever ends a use does it the other way round.
            region.is_leaving.store(true, SeqCst);
            0 < region.uses.load(SeqCst)
        });
    }

    /// Forgets a region that was unregistered while it was in use.
    pub(super) fn forget(&self, region: &Arc<Region>) {
        let mut regions = self.regions.lock();
        let is_known = regions.get(&region.name).is_some_and(|it| Arc::ptr_eq(it, region));
        // Requests that began after it was unregistered may use it still.
        if is_known && region.uses.load(SeqCst) == 0 {
            regions.remove(&region.name);
        }
    }

    fn check_new(&self, regions: &BTreeMap<String, Arc<Region>>, name: &str) -> Result<()> {
        if regions.contains_key(name) {
            let text = format!("shared memory region '{name}' already in manager");
            return Err(Error::new(ErrorKind::AlreadyExists, text));
        }
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(descriptors / DESCRIPTORS_PER_REGION).unwrap_or(usize::MAX);
        if regions.len() < most.min(self.most) {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "cannot register shared memory region '{name}': {} are registered, and there may be no \
             more",
            regions.len()
        )))
    }
}
