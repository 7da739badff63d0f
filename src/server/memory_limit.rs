//! The memory this process may use: of the machine, or of the control groups it is in.

use std::fs;

use super::control_groups::{self, GroupFolder};
use troupe_engine::engines::MemoryLeft;

/// Of the memory this process may use, for requests in flight; the rest is for models and buffers.
const INFLIGHT_PERCENT: u64 = 40;
/// Where nothing says how much memory there is.
const UNKNOWN_BYTES: u64 = 4 << 30;
/// The largest message unless the command line says: what both protocols can frame.
const MAX_DEFAULT_INPUT_BYTES: usize = i32::MAX as usize;

/// `--max-inflight-bytes`, unless it is given.
pub(super) fn default_inflight_bytes() -> usize {
    let bytes = available_bytes() / 100 * INFLIGHT_PERCENT;
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// `--http-max-input-size`, unless it is given: a quarter of the budget, so that a few of the
/// largest fit into it.
pub(super) fn default_input_bytes(inflight: usize) -> usize {
    (inflight / 4).clamp(1, MAX_DEFAULT_INPUT_BYTES)
}

/// Shared memory that nobody uses, kept for a moment: a tenth, so that tensors of a quarter of a GiB
/// are used again.
pub(super) fn idle_shared_bytes() -> usize {
    usize::try_from(available_bytes() / 10).unwrap_or(usize::MAX)
}

/// What the machine and the control groups leave this process.
pub(super) fn available_bytes() -> u64 {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let machine = machine_bytes(&read("/proc/meminfo"));
    let groups = read("/proc/self/cgroup");
    let limits = group_files(&groups).into_iter().filter_map(|file| limit(&read(&file)));
    limits.chain(machine).min().unwrap_or(UNKNOWN_BYTES)
}

/// What of it is in use by nobody, as far as the machine and the control groups tell.
pub(super) fn left() -> Option<MemoryLeft> {
    left_by(&|path| fs::read_to_string(path).unwrap_or_default())
}

fn left_by(read: &dyn Fn(&str) -> String) -> Option<MemoryLeft> {
    let meminfo = read("/proc/meminfo");
    let total = machine_bytes(&meminfo)?;
    let machine = MemoryLeft { free: kilobytes(&meminfo, "MemAvailable:")?, total };
    let folders = control_groups::folders(&read("/proc/self/cgroup"), "memory");
    let groups = folders.iter().filter_map(|it| left_in(it, read));
    groups.chain([machine]).min_by_key(|it| it.free)
}

/// Of a group with a limit. Files that were read count as its own, and are given up when it needs more.
fn left_in(folder: &GroupFolder, read: &dyn Fn(&str) -> String) -> Option<MemoryLeft> {
    let file = |name: &str| read(&format!("{}/{name}", folder.path));
    let (total, used, idle) = match folder.is_unified {
        true => (file("memory.max"), file("memory.current"), "inactive_file "),
        false => {
            let used = file("memory.usage_in_bytes");
            (file("memory.limit_in_bytes"), used, "total_inactive_file ")
        }
    };
    let (total, used) = (limit(&total)?, limit(&used)?);
    let stat = file("memory.stat");
    let idle = stat.lines().find_map(|it| limit(it.strip_prefix(idle)?)).unwrap_or(0);
    Some(MemoryLeft { free: total.saturating_sub(used.saturating_sub(idle)), total })
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    kilobytes(meminfo, "MemTotal:")
}

/// In bytes.
fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The files that say the limits of the groups in `/proc/self/cgroup` and of those around them.
fn group_files(groups: &str) -> Vec<String> {
    let folders = control_groups::folders(groups, "memory").into_iter();
    let file = |it: GroupFolder| match it.is_unified {
        true => it.path + "/memory.max",
        false => it.path + "/memory.limit_in_bytes",
    };
    folders.map(file).collect()
}

/// What such a file says; `None` for `max` and for a file that is not there. Version 1 writes a
/// number beyond all memory instead.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_all_groups_around_this_process_are_looked_at() {
        let both = "12:cpu,cpuacct:/a\n4:memory:/docker/x\n0::/user.slice/b\n";
        assert_eq!(
            group_files(both),
            [
                "/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/user.slice/b/memory.max",
                "/sys/fs/cgroup/user.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert!(group_files("nonsense\n").is_empty());
    }

    #[test]
    fn limits_and_sizes_are_read() {
        for (text, expected) in [("max\n", None), ("1048576\n", Some(1 << 20)), ("", None)] {
            assert_eq!(limit(text), expected);
        }
        let meminfo = "MemTotal:       16384 kB\nMemFree:  1 kB\n";
        assert_eq!(machine_bytes(meminfo), Some(16 << 20));
        assert_eq!(machine_bytes("MemTotal: many\n"), None);
        for (inflight, expected) in [(1, 1), (400, 100), (usize::MAX, i32::MAX as usize)] {
            assert_eq!(default_input_bytes(inflight), expected);
        }
    }

    #[test]
    fn what_is_left_is_that_of_the_fullest_group() {
        let left = |files: &[(&str, &str)]| {
            let read = |path: &str| {
                let found = files.iter().find(|(name, _)| *name == path);
                found.map_or_else(String::new, |(_, text)| (*text).to_owned())
            };
            left_by(&read).map(|it| (it.free, it.total))
        };
        let machine = ("/proc/meminfo", "MemTotal: 16 kB\nMemAvailable: 8 kB\n");
        let groups = ("/proc/self/cgroup", "4:memory:/x\n0::/y\n");
        assert_eq!(left(&[]), None);
        assert_eq!(left(&[machine, groups]), Some((8 << 10, 16 << 10)));
        let unified = [
            ("/sys/fs/cgroup/y/memory.max", "1000\n"),
            ("/sys/fs/cgroup/y/memory.current", "900\n"),
            ("/sys/fs/cgroup/y/memory.stat", "anon 1\ninactive_file 300\n"),
        ];
        let all: Vec<_> = [machine, groups].into_iter().chain(unified).collect();
        assert_eq!(left(&all), Some((400, 1000)));
        let first = [
            ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "500\n"),
            ("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "490\n"),
            ("/sys/fs/cgroup/memory/x/memory.stat", "inactive_file 9\ntotal_inactive_file 20\n"),
        ];
        let all: Vec<_> = all.into_iter().chain(first).collect();
        assert_eq!(left(&all), Some((30, 500)));
        let unlimited = ("/sys/fs/cgroup/y/memory.max", "max\n");
        assert_eq!(left(&[machine, groups, unlimited]), Some((8 << 10, 16 << 10)));
    }
}
