//! The parts of regions that the tensors of requests lie in.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
};

use super::{
    region::Region,
    registry::{SharedMemory, unknown},
};
use troupe_base::{
    error::{Error, Result},
    tensor::SegmentPool,
};

/// The parameters of a tensor in which a request says where it lies, as in `RegionRange`.
pub(crate) const REGION_PARAMETER: &str = "shared_memory_region";
pub(crate) const OFFSET_PARAMETER: &str = "shared_memory_offset";
pub(crate) const SIZE_PARAMETER: &str = "shared_memory_byte_size";

/// Where a request says that a tensor lies: the name of a region, and bytes in it.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionRange<'a> {
    /// The region's name.
    pub region: &'a str,
    /// From the region's begin.
    pub offset: u64,
    /// How many.
    pub byte_size: u64,
}

/// The part of a region that one tensor of one request lies in. The region stays registered as long
/// as this exists.
pub struct RegionSlice {
    registry: Arc<SharedMemory>,
    region: Arc<Region>,
    offset: u64,
    size: usize,
}

impl SharedMemory {
    /// The part of a region that a request may read or write.
    pub fn slice(self: &Arc<Self>, range: &RegionRange<'_>) -> Result<RegionSlice> {
        let RegionRange { region: name, offset, byte_size } = *range;
        let regions = self.regions.lock();
        let region = regions.get(name).ok_or_else(|| unknown("", name))?;
        let invalid = |what: &str| {
            Error::invalid(format!("Invalid {what} for shared memory region: '{name}'"))
        };
        if region.byte_size <= offset {
            return Err(invalid("offset"));
        }
        let end = offset.checked_add(byte_size).ok_or_else(|| {
            Error::invalid(format!(
                "Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds \
                 maximum value ({}) for region '{name}'",
                u64::MAX
            ))
        })?;
        match usize::try_from(byte_size) {
            Ok(size) if end <= region.byte_size => {
                region.uses.fetch_add(1, SeqCst);
                Ok(RegionSlice { registry: self.clone(), region: region.clone(), offset, size })
            }
            _ => Err(invalid("offset + byte size")),
        }
    }
}

impl RegionSlice {
    /// The region's name.
    pub fn region(&self) -> &str {
        &self.region.name
    }

    /// Where in the region it begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes there is room for.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Where to put what worker processes will read.
    pub(super) fn segments(&self) -> &Arc<SegmentPool> {
        &self.registry.segments
    }

    /// A copy of its bytes.
    pub(super) fn read(&self) -> Result<Vec<u8>> {
        let bytes = self.region.read(self.offset, self.size)?;
        self.registry.read_bytes.fetch_add(bytes.len() as u64, Relaxed);
        Ok(bytes)
    }

    /// The same into `place`, which is not longer.
    pub(super) fn read_into(&self, place: &mut [u8]) -> Result<()> {
        self.region.read_into(self.offset, place)?;
        self.registry.read_bytes.fetch_add(place.len() as u64, Relaxed);
        Ok(())
    }

    /// Writes `data`, which is not longer, to its begin.
    pub(super) fn write(&self, data: &[u8]) -> Result<()> {
        self.region.write(self.offset, data)?;
        self.registry.written_bytes.fetch_add(data.len() as u64, Relaxed);
        Ok(())
    }
}

impl Clone for RegionSlice {
    fn clone(&self) -> RegionSlice {
        // It is in use already, so nobody forgets it meanwhile.
        self.region.uses.fetch_add(1, SeqCst);
        let (registry, region) = (self.registry.clone(), self.region.clone());
        RegionSlice { registry, region, ..*self }
    }
}

impl Drop for RegionSlice {
    fn drop(&mut self) {
        // Counted before it is asked: whoever unregisters does it the other way round.
        if self.region.uses.fetch_sub(1, SeqCst) == 1 && self.region.is_leaving.load(SeqCst) {
            self.registry.forget(&self.region);
        }
    }
}

impl PartialEq for RegionSlice {
    fn eq(&self, other: &RegionSlice) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
            && (self.offset, self.size) == (other.offset, other.size)
    }
}

impl fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {} of region '{}'", self.size, self.offset, self.region.name)
    }
}
