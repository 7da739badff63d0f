//! The room that the machine has for another instance: memory, and cores.

use std::{future::Future, thread};

use crate::engines::{MemoryLeft, MemoryProbe};
use troupe_base::{
    config::{InstanceKind, InstanceScaling},
    error::Result,
};

/// Where it is not known yet what an instance takes, so much of the memory has to be left.
const UNKNOWN_SHARE: u64 = 8;

/// Says how many instances there is room for.
pub(super) struct Room {
    memory: Option<MemoryProbe>,
    /// Bytes that each instance took which was added last.
    instance_bytes: Option<u64>,
    /// The log has said that there is no room.
    is_told: bool,
}

/// Why there are not as many instances as the queue asks for.
#[derive(Debug, PartialEq)]
enum Limit {
    Cores(usize),
    Memory { left: MemoryLeft, needed: u64 },
}

impl Room {
    pub(super) fn new(memory: Option<MemoryProbe>) -> Room {
        Room { memory, instance_bytes: None, is_told: false }
    }

    /// As many of the `wanted` instances as there is room for, at least those that there are. If it is
    /// not all of them, the log says why, once.
    pub(super) fn fit(
        &mut self,
        model: &str,
        count: u32,
        wanted: u32,
        kind: InstanceKind,
        scaling: &InstanceScaling,
    ) -> u32 {
        // What the config has at least is asked of nobody.
        if wanted <= scaling.min {
            return wanted;
        }
        let cores = match kind {
            InstanceKind::Cpu => thread::available_parallelism().ok().map(usize::from),
            // The model decides what it runs on, or it is a device.
            InstanceKind::Gpu | InstanceKind::Model => None,
        };
        let left = self.memory.and_then(|probe| probe());
        let (fits, limit) = fitting(count, wanted, cores, left, self.instance_bytes);
        let fits = fits.max(scaling.min.min(wanted));
        match limit {
            None => self.is_told = false,
            Some(limit) if !self.is_told => {
                self.is_told = true;
                tracing::info!("`{model}` gets {fits} instances, not {wanted}: {}", limit.text());
            }
            Some(_) => (),
        }
        fits
    }

    /// Nobody asks for more.
    pub(super) fn is_enough(&mut self) {
        self.is_told = false;
    }

    /// Looks what the instances take that are added meanwhile.
    pub(super) async fn measured(
        &mut self,
        change: impl Future<Output = Result<()>>,
        count: u32,
        wanted: u32,
    ) -> Result<()> {
        let free = || self.memory.and_then(|probe| probe()).map(|it| it.free);
        let before = free();
        change.await?;
        let added = wanted.saturating_sub(count);
        if let (Some(before), Some(after), 1..) = (before, free(), added) {
            self.instance_bytes = Some(before.saturating_sub(after) / u64::from(added));
        }
        Ok(())
    }
}

/// How many instances there is room for, up to those that are wanted, and what there is too little of.
fn fitting(
    count: u32,
    wanted: u32,
    cores: Option<usize>,
    left: Option<MemoryLeft>,
    instance_bytes: Option<u64>,
) -> (u32, Option<Limit>) {
    let (mut fits, mut limit) = (wanted, None);
    if let Some(cores) = cores
        && let most = u32::try_from(cores).unwrap_or(u32::MAX).max(count)
        && most < fits
    {
        (fits, limit) = (most, Some(Limit::Cores(cores)));
    }
    let Some(left) = left else { return (fits, limit) };
    // As much as one takes stays free.
    let (more, needed) = match instance_bytes {
        None => {
            let needed = left.total / UNKNOWN_SHARE;
            (u64::from(needed <= left.free), needed)
        }
        Some(0) => return (fits, limit),
        Some(bytes) => ((left.free / bytes).saturating_sub(1), bytes.saturating_mul(2)),
    };
    let most = count.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
    if most < fits {
        // The next one tells what one takes: that is no lack of memory.
        let is_lack = instance_bytes.is_some() || more == 0;
        (fits, limit) = (most, if is_lack { Some(Limit::Memory { left, needed }) } else { limit });
    }
    (fits, limit)
}

impl Limit {
    fn text(&self) -> String {
        let mib = |bytes: u64| bytes >> 20;
        match self {
            Limit::Cores(cores) => format!("this process may use {cores} cores"),
            Limit::Memory { left, needed } => format!(
                "{} of {} MiB of memory are left, and another instance needs {} MiB to be free",
                mib(left.free),
                mib(left.total),
                mib(*needed)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(count, wanted)`, cores, free of 800 bytes, bytes of an instance; how many fit, and whether the
    /// log says that there is no room.
    fn check(
        asked: (u32, u32),
        cores: Option<usize>,
        memory: Option<(u64, Option<u64>)>,
        expected: (u32, bool),
    ) {
        let left = memory.map(|(free, _)| MemoryLeft { free, total: 800 });
        let bytes = memory.and_then(|(_, bytes)| bytes);
        let (fits, limit) = fitting(asked.0, asked.1, cores, left, bytes);
        assert_eq!((fits, limit.is_some()), expected, "{asked:?} {cores:?} {memory:?} {limit:?}");
    }

    #[test]
    fn cores_and_memory_limit_what_is_added() {
        check((1, 4), None, None, (4, false));
        check((1, 4), Some(2), None, (2, true));
        check((1, 2), Some(2), None, (2, false));
        // Those that are there stay, and are more than the cores if the config says so.
        check((3, 4), Some(2), None, (3, true));
        // Each takes 100: so much has to stay.
        check((1, 4), None, Some((400, Some(100))), (4, false));
        check((1, 4), None, Some((399, Some(100))), (3, true));
        check((1, 4), None, Some((199, Some(100))), (1, true));
        check((1, 4), None, Some((0, Some(0))), (4, false));
        // Nobody knows yet: one at a time, if an eighth is left.
        check((1, 4), None, Some((100, None)), (2, false));
        check((1, 4), None, Some((99, None)), (1, true));
        check((1, 4), Some(3), Some((250, Some(100))), (2, true));
    }

    #[test]
    fn what_is_added_is_measured() {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        static FREE: AtomicU64 = AtomicU64::new(1000);
        let mut room =
            Room::new(Some(|| Some(MemoryLeft { free: FREE.load(Relaxed), total: 1000 })));
        let take = |bytes| async move {
            FREE.fetch_sub(bytes, Relaxed);
            Ok(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(room.measured(take(300), 1, 4)).unwrap();
        assert_eq!(room.instance_bytes, Some(100));
        // What goes says nothing.
        runtime.block_on(room.measured(take(100), 4, 2)).unwrap();
        assert_eq!(room.instance_bytes, Some(100));
    }
}
