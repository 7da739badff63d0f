//! CPU and memory by the kernel's count.

use std::fs;

use troupe_base::metrics::CpuUsage;

/// Remembers the last sample: utilization is what happened since; at first, since the machine
/// began.
#[derive(Debug, Default)]
pub(super) struct CpuSampler {
    last: Ticks,
    has_complained: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    busy: u64,
    idle: u64,
}

impl CpuSampler {
    /// `None` where the kernel does not tell.
    pub(super) fn sample(&mut self) -> Option<CpuUsage> {
        let sampled = self.try_sample();
        if sampled.is_none() && !self.has_complained {
            self.has_complained = true;
            tracing::warn!("no CPU metrics: /proc/stat or /proc/meminfo cannot be read");
        }
        sampled
    }

    fn try_sample(&mut self) -> Option<CpuUsage> {
        let ticks = ticks(&fs::read_to_string("/proc/stat").ok()?)?;
        let (memory_total, memory_used) = memory(&fs::read_to_string("/proc/meminfo").ok()?)?;
        let utilization = utilization(self.last, ticks);
        self.last = ticks;
        Some(CpuUsage { utilization, memory_total, memory_used })
    }
}

/// Of all CPUs together. What guests used is in the time of users already.
fn ticks(stat: &str) -> Option<Ticks> {
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> = numbers.split_whitespace().map_while(|it| it.parse().ok()).collect();
    let &[user, nice, system, idle, iowait, irq, softirq, steal, ..] = &*numbers else {
        return None;
    };
    Some(Ticks { busy: user + nice + system + irq + softirq + steal, idle: idle + iowait })
}

fn utilization(last: Ticks, now: Ticks) -> f64 {
    let busy = now.busy.saturating_sub(last.busy);
    let all = busy + now.idle.saturating_sub(last.idle);
    if all == 0 { 0.0 } else { busy as f64 / all as f64 }
}

/// Bytes there are, and bytes of them that are not available.
fn memory(meminfo: &str) -> Option<(u64, u64)> {
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|it| it.strip_prefix(name))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    let (total, available) = (bytes("MemTotal:")?, bytes("MemAvailable:")?);
    Some((total, total.saturating_sub(available)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let stat = "cpu  10 1 5 80 4 1 2 3 9 9\ncpu0 1 2 3\n";
        assert_eq!(ticks(stat), Some(Ticks { busy: 22, idle: 84 }));
        assert_eq!(ticks("cpu 1 2 3"), None);
        assert_eq!(ticks(""), None);
        let meminfo = "MemTotal:       2048 kB\nMemFree: 1 kB\nMemAvailable:   512 kB\n";
        assert_eq!(memory(meminfo), Some((2 << 20, 3 << 19)));
        assert_eq!(memory("MemTotal: x kB"), None);
    }

    #[test]
    fn utilization_is_what_happened_since_the_last_sample() {
        let ticks = |busy, idle| Ticks { busy, idle };
        assert_eq!(utilization(ticks(10, 10), ticks(20, 40)), 0.25);
        assert_eq!(utilization(ticks(10, 10), ticks(10, 10)), 0.0);
        assert_eq!(utilization(ticks(10, 10), ticks(9, 20)), 0.0);
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let cpu = CpuSampler::default().sample().unwrap();
        assert!((0.0..=1.0).contains(&cpu.utilization), "{cpu:?}");
        assert!(0 < cpu.memory_used && cpu.memory_used < cpu.memory_total, "{cpu:?}");
    }
}
