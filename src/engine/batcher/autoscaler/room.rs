//! The room that the machine has for another instance: memory, and cores.

use std::{
    future::Future,
    thread,
    time::{Duration, Instant},
};

use crate::engines::{MemoryLeft, MemoryProbe};
use troupe_base::{config::InstanceKind, error::Result};

/// Where it is not known yet what an instance takes, so much of the memory has to be left.
const UNKNOWN_SHARE: u64 = 8;
/// What only one measurement says counts half, each time that it has kept instances away for so long:
/// something else may have taken the memory.
const DOUBT_AFTER: Duration = Duration::from_secs(300);

/// Says how many instances there is room for.
pub(super) struct Room {
    memory: Option<MemoryProbe>,
    instance: Option<InstanceBytes>,
    /// The log has said that there is no room.
    is_told: bool,
}

/// What one more instance takes of the memory, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
struct InstanceBytes {
    /// It is taken for this.
    estimate: u64,
    /// So much less was free after each that was added last.
    measured: u64,
    /// It was about as much the time before.
    is_sure: bool,
    /// When this was measured, or was doubted last.
    since: Instant,
}

/// What the queue asks for.
pub(super) struct AskedInstances<'a> {
    pub(super) model: &'a str,
    /// As many there are.
    pub(super) count: u32,
    /// As many there are to be.
    pub(super) wanted: u32,
    pub(super) kind: InstanceKind,
    /// So many there are whatever is left.
    pub(super) min: u32,
}

/// Why there are not as many instances as the queue asks for.
#[derive(Debug, PartialEq)]
enum Limit {
    Cores(usize),
    Memory { left: MemoryLeft, needed: u64 },
}

impl Room {
    pub(super) fn new(memory: Option<MemoryProbe>) -> Room {
        Room { memory, instance: None, is_told: false }
    }

    /// As many of the wanted instances as there is room for, at least those that there are. If it is
    /// not all of them, the log says why, once.
    pub(super) fn fit(&mut self, now: Instant, asked: &AskedInstances<'_>) -> u32 {
        let AskedInstances { model, count, wanted, kind, min } = *asked;
        // What the config has at least is asked of nobody.
        if wanted <= min {
            return wanted;
        }
        let cores = match kind {
            InstanceKind::Cpu => thread::available_parallelism().ok().map(usize::from),
            // The model decides what it runs on, or it is a device.
            InstanceKind::Gpu | InstanceKind::Model => None,
        };
        let left = self.memory.and_then(|probe| probe());
        let instance_bytes = self.instance.map(|it| it.estimate);
        let (fits, limit) = fitting(count, wanted, cores, left, instance_bytes);
        let fits = fits.max(min.min(wanted));
        if let (Some(instance), Some(Limit::Memory { left, .. })) = (&mut self.instance, &limit) {
            instance.doubt(now, left);
        }
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
        count: impl Fn() -> u32,
    ) -> Result<()> {
        let free = || self.memory.and_then(|probe| probe()).map(|it| it.free);
        let (before, count_before) = (free(), count());
        change.await?;
        // It may have been told something else meanwhile.
        let added = count().saturating_sub(count_before);
        if let (Some(before), Some(after), 1..) = (before, free(), added) {
            let measured = before.saturating_sub(after) / u64::from(added);
            self.instance = InstanceBytes::after(self.instance, measured, Instant::now());
        }
        Ok(())
    }
}

impl InstanceBytes {
    /// What is known after a measurement: nothing new if no memory was taken, as others have given
    /// some back meanwhile.
    fn after(before: Option<InstanceBytes>, measured: u64, now: Instant) -> Option<InstanceBytes> {
        if measured == 0 {
            return before;
        }
        let last = before.map_or(0, |it| it.measured);
        Some(InstanceBytes {
            // Nor is one that seems to take little believed at once.
            estimate: measured.max(before.map_or(0, |it| it.estimate) / 2),
            measured,
            is_sure: last / 2 <= measured && measured / 2 <= last,
            since: now,
        })
    }

    /// There is too little memory for another one. In the end it has to leave no more than where nothing
    /// is known.
    fn doubt(&mut self, now: Instant, left: &MemoryLeft) {
        if !self.is_sure && DOUBT_AFTER <= now.saturating_duration_since(self.since) {
            let least = left.total / UNKNOWN_SHARE / 2;
            self.estimate = (self.estimate / 2).max(least).min(self.estimate);
            self.since = now;
        }
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
        Some(bytes) => ((left.free / bytes.max(1)).saturating_sub(1), bytes.saturating_mul(2)),
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
        // Nobody knows yet: one at a time, if an eighth is left.
        check((1, 4), None, Some((100, None)), (2, false));
        check((1, 4), None, Some((99, None)), (1, true));
        check((1, 4), Some(3), Some((250, Some(100))), (2, true));
    }

    #[test]
    fn what_is_added_is_measured() {
        use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
        static FREE: AtomicU64 = AtomicU64::new(1000);
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let mut room =
            Room::new(Some(|| Some(MemoryLeft { free: FREE.load(Relaxed), total: 1000 })));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut after = |bytes, count| {
            let change = async move {
                FREE.fetch_sub(bytes, Relaxed);
                COUNT.store(count, Relaxed);
                Ok(())
            };
            runtime.block_on(room.measured(change, || COUNT.load(Relaxed))).unwrap();
            room.instance.map(|it| it.estimate)
        };
        // Nothing was taken: others gave some back.
        assert_eq!(after(0, 2), None);
        assert_eq!(after(300, 5), Some(100));
        // What goes says nothing, nor does a change that was given up.
        assert_eq!(after(100, 4), Some(100));
        assert_eq!(after(100, 4), Some(100));
        assert_eq!(after(0, 5), Some(100));
        assert_eq!(after(80, 6), Some(80));
    }

    #[test]
    fn one_measurement_does_not_decide_for_good() {
        let start = Instant::now();
        let seconds = |it: u64| start + Duration::from_secs(it);
        let estimates = |measured: &[u64], doubts: &[u64]| -> Vec<u64> {
            let mut instance = None;
            let mut all = Vec::new();
            for bytes in measured {
                instance = InstanceBytes::after(instance, *bytes, start);
                all.extend(instance.map(|it| it.estimate));
            }
            for second in doubts {
                let instance = instance.as_mut().unwrap();
                instance.doubt(seconds(*second), &MemoryLeft { free: 0, total: 1600 });
                all.push(instance.estimate);
            }
            all
        };
        // Something else took most of it: half each time, until an eighth of all has to be free.
        let doubts = [299, 300, 301, 599, 600, 900, 1200];
        assert_eq!(estimates(&[900], &doubts), [900, 900, 450, 450, 450, 225, 112, 100]);
        assert_eq!(estimates(&[60], &[300]), [60, 60]);
        // Two that say about the same are believed.
        assert_eq!(estimates(&[900, 700], &[300, 9000]), [900, 700, 700, 700]);
        assert_eq!(estimates(&[100, 900], &[300]), [100, 900, 450]);
        // One that says much less is believed a half at a time.
        assert_eq!(estimates(&[800, 0, 10, 10], &[]), [800, 800, 400, 200]);
    }
}
