//! The memory this process may use: of the machine, or of the control groups it is in.

use std::fs;

use super::control_groups::{self, GroupFolder};

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

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
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
}
