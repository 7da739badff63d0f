//! A region: a part of a shared memory object, read and written by the kernel, never mapped.

use std::{
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, AtomicUsize},
};

use rustix::{
    buffer::spare_capacity,
    fs::fstat,
    io::{Errno, pread, pwrite},
};

use super::key;
use troupe_base::error::{Error, Result};

/// A part of a shared memory object, under the name a client gave it.
#[derive(Debug)]
pub struct Region {
    /// The client's name for it.
    pub name: String,
    /// The object's name, as the client wrote it.
    pub key: String,
    /// Where in the object it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub byte_size: u64,
    file: OwnedFd,
    /// Slices of it that exist.
    pub(super) uses: AtomicUsize,
    /// Unregistered, and forgotten once no slice exists.
    pub(super) is_leaving: AtomicBool,
}

impl Region {
    /// `byte_size` bytes from `offset` on of the object `key`, which has so many.
    pub(super) fn open(name: &str, key: &str, offset: u64, byte_size: u64) -> Result<Region> {
        let file = key::open(name, key)?;
        let failed = |why: &str| {
            Error::invalid(format!("failed to register shared memory region '{name}': {why}"))
        };
        let size = fstat(&file).map_err(|it| failed(&it.to_string()))?.st_size;
        let end = offset.checked_add(byte_size);
        if byte_size == 0 || end.is_none_or(|end| u64::try_from(size).unwrap_or(0) < end) {
            return Err(failed("invalid args"));
        }
        Ok(Region {
            name: name.to_owned(),
            key: key.to_owned(),
            offset,
            byte_size,
            file,
            uses: AtomicUsize::new(0),
            is_leaving: AtomicBool::new(false),
        })
    }

    /// A copy of `size` bytes from `at` on, counted from the region's begin.
    pub(super) fn read(&self, at: u64, size: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| {
            Error::unavailable(format!("no memory for {size} bytes of a shared memory region"))
        })?;
        while bytes.len() < size {
            let from = self.offset + at + bytes.len() as u64;
            match pread(&self.file, spare_capacity(&mut bytes), from) {
                Ok(0) => return Err(self.shrunk()),
                Ok(_) | Err(Errno::INTR) => (),
                Err(error) => return Err(self.failed("read", error)),
            }
        }
        // The allocator may have given room for more.
        bytes.truncate(size);
        Ok(bytes)
    }

    /// The same into all of `place`.
    pub(super) fn read_into(&self, at: u64, place: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < place.len() {
            match pread(&self.file, &mut place[done..], self.offset + at + done as u64) {
                Ok(0) => return Err(self.shrunk()),
                Ok(found) => done += found,
                Err(Errno::INTR) => (),
                Err(error) => return Err(self.failed("read", error)),
            }
        }
        Ok(())
    }

    /// Writes `data` from `at` on, counted from the region's begin.
    pub(super) fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        let start = self.offset + at;
        let size = fstat(&self.file).map_err(|error| self.failed("written", error))?.st_size;
        // Writing behind the end would make the object longer again.
        if u64::try_from(size).unwrap_or(0) < start + data.len() as u64 {
            return Err(self.shrunk());
        }
        let mut done = 0;
        while done < data.len() {
            match pwrite(&self.file, &data[done..], start + done as u64) {
                Ok(0) => return Err(self.failed("written", Errno::IO)),
                Ok(written) => done += written,
                Err(Errno::INTR) => (),
                Err(error) => return Err(self.failed("written", error)),
            }
        }
        Ok(())
    }

    fn shrunk(&self) -> Error {
        Error::invalid(format!(
            "the object of shared memory region '{}' is shorter than when it was registered",
            self.name
        ))
    }

    fn failed(&self, what: &str, error: Errno) -> Error {
        let name = &self.name;
        Error::internal(format!("shared memory region '{name}' could not be {what}: {error}"))
    }
}
