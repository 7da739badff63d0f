//! The cores this process may use: its affinity, and the quotas of the control groups it is in.

use std::{fs, thread};

use super::control_groups::{self, GroupFolder};
use troupe_options::{Serve, Spin};

/// The most engine threads unless the command line says.
const MAX_DEFAULT_THREADS: usize = 32;
/// Where nothing says how many cores there are.
const UNKNOWN_CORES: usize = 2;

/// The time that a control group may have on all cores together.
#[derive(Debug, PartialEq)]
struct CpuQuota {
    cores: f64,
    /// Periods so far, and in how many of them the group had to wait for the next.
    periods: u64,
    throttled: u64,
}

/// As many as the command line says; else half the cores: the other half is for the models.
pub(super) fn engine_threads(options: &Serve) -> usize {
    let default = || (usable_cores() / 2).clamp(1, MAX_DEFAULT_THREADS);
    options.listeners.engine_threads().map_or_else(default, |it| it as usize)
}

/// By affinity and quotas, of which a part of a core does not count.
fn usable_cores() -> usize {
    thread::available_parallelism().map_or(UNKNOWN_CORES, usize::from)
}

/// As the command line says; only if it says for how long where no core is known to be free, and
/// under a quota: what a spin takes of that is missing later, when all threads have to wait.
pub(super) fn spin(asked: Spin) -> Spin {
    let knows_free_cores = || knows_free_cores(usable_cores(), machine_cores(&read("/proc/stat")));
    match asked {
        Spin::Auto if quota(&read).is_some() || !knows_free_cores() => Spin::Off,
        _ => asked,
    }
}

/// Can one of several cores be known to be free? The kernel counts the threads that want to run of the
/// whole machine, which says nothing about some of its cores; 0 of the machine: nobody knows how many.
fn knows_free_cores(usable: usize, machine: usize) -> bool {
    1 < usable && (1..=usable).contains(&machine)
}

/// What the log says of the cores: how many, and which quota is why they are no more.
pub(super) fn describe() -> String {
    described(usable_cores(), machine_cores(&read("/proc/stat")), quota(&read))
}

fn described(usable: usize, machine: usize, quota: Option<CpuQuota>) -> String {
    let mut text = match usable < machine {
        true => format!("{usable} of {machine}"),
        false => usable.to_string(),
    };
    if let Some(CpuQuota { cores, periods, throttled }) = quota {
        text += &format!(", quota {cores:.2}");
        if throttled != 0 {
            text += &format!(", throttled in {throttled} of {periods} periods");
        }
    }
    text
}

/// Nothing of a file that cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn machine_cores(stat: &str) -> usize {
    let is_core = |line: &&str| {
        let number = line.strip_prefix("cpu").and_then(|rest| rest.bytes().next());
        number.is_some_and(|it| it.is_ascii_digit())
    };
    stat.lines().filter(is_core).count()
}

/// The smallest of all groups around this process.
fn quota(read: &dyn Fn(&str) -> String) -> Option<CpuQuota> {
    let folders = control_groups::folders(&read("/proc/self/cgroup"), "cpu");
    let quotas = folders.iter().filter_map(|folder| quota_of(folder, read));
    quotas.min_by(|a, b| a.cores.total_cmp(&b.cores))
}

fn quota_of(folder: &GroupFolder, read: &dyn Fn(&str) -> String) -> Option<CpuQuota> {
    let file = |name: &str| read(&format!("{}/{name}", folder.path));
    let limit = match folder.is_unified {
        true => file("cpu.max"),
        false => file("cpu.cfs_quota_us") + " " + &file("cpu.cfs_period_us"),
    };
    // No number is no limit: `max`, or -1.
    let mut numbers = limit.split_whitespace().map(|it| it.parse::<u64>().ok());
    let (time, period) = (numbers.next()??, numbers.next()??);
    if period == 0 {
        return None;
    }
    let counts = file("cpu.stat");
    let count = |name: &str| {
        let mut words = counts.lines().filter_map(|line| line.split_once(' '));
        words.find(|(it, _)| *it == name).and_then(|(_, number)| number.trim().parse().ok())
    };
    Some(CpuQuota {
        cores: time as f64 / period as f64,
        periods: count("nr_periods").unwrap_or(0),
        throttled: count("nr_throttled").unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: Option<(f64, u64, u64)>) {
        let read = |path: &str| {
            let found = files.iter().find(|(name, _)| *name == path);
            found.map_or_else(String::new, |(_, text)| (*text).to_owned())
        };
        let found = quota(&read).map(|it| (it.cores, it.periods, it.throttled));
        assert_eq!(found, expected, "{files:?}");
    }

    #[test]
    fn the_smallest_quota_of_both_versions_counts() {
        let groups = ("/proc/self/cgroup", "4:cpu,cpuacct:/docker/x\n0::/user.slice/b\n");
        check(&[groups], None);
        check(&[groups, ("/sys/fs/cgroup/user.slice/b/cpu.max", "max 100000\n")], None);
        let stat = ("/sys/fs/cgroup/user.slice/cpu.stat", "nr_periods 90\nnr_throttled 7\n");
        let unified = ("/sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n");
        check(&[groups, unified, stat], Some((2.5, 90, 7)));
        let quota = ("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "150000\n");
        let period = ("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
        check(&[groups, unified, stat, quota, period], Some((1.5, 0, 0)));
        check(&[groups, (quota.0, "-1\n"), period], None);
        check(&[groups, quota, (period.0, "0\n")], None);
    }

    #[test]
    fn nobody_spins_by_default_where_no_core_is_known_to_be_free() {
        for (usable, machine, expected) in [
            (2, 2, true),
            (64, 64, true),
            // A core has gone since the other was asked.
            (4, 3, true),
            (1, 1, false),
            (1, 64, false),
            (4, 64, false),
            (4, 0, false),
        ] {
            assert_eq!(knows_free_cores(usable, machine), expected, "{usable} of {machine}");
        }
    }

    #[test]
    fn the_log_says_why_there_are_no_more_cores() {
        let quota = |throttled| Some(CpuQuota { cores: 2.5, periods: 90, throttled });
        assert_eq!(described(8, 8, None), "8");
        assert_eq!(described(2, 64, None), "2 of 64");
        assert_eq!(described(2, 64, quota(0)), "2 of 64, quota 2.50");
        let text = "2 of 64, quota 2.50, throttled in 7 of 90 periods";
        assert_eq!(described(2, 64, quota(7)), text);
        assert_eq!(machine_cores("cpu  1 2\ncpu0 1\ncpu1 2\ncpufreq 3\nintr 4\n"), 2);
    }
}
