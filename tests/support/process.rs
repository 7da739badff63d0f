//! What the kernel knows of a process: its memory, its children, its end.

use std::{collections::BTreeSet, fs, path::PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use super::until;

/// Sends a signal; a process that is gone already is fine.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

/// Resident memory in MiB.
pub(crate) fn resident_mib(pid: u32) -> u64 {
    memory_mib(pid, "VmRSS")
}

/// A size in its status, in MiB: `VmRSS`, `VmHWM` for the most so far, `VmSize`.
pub(crate) fn memory_mib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// What its descriptors lead to.
pub(crate) fn descriptors(pid: u32) -> Vec<PathBuf> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    all.filter_map(|it| fs::read_link(it.path()).ok()).collect()
}

/// Sockets it has open.
pub(crate) fn sockets(pid: u32) -> usize {
    descriptors(pid).iter().filter(|it| it.to_string_lossy().starts_with("socket")).count()
}

/// Waits until a process holds about as much memory as before; the allocator and other requests
/// have some MiB.
pub(crate) fn memory_is_back(pid: u32, before_mib: u64) {
    let most = before_mib + before_mib / 20 + 16;
    until(&format!("{before_mib} MiB to be held again"), || resident_mib(pid) <= most);
}

/// Is there such a process, other than one that has ended and waits to be reaped?
pub(crate) fn is_alive(pid: u32) -> bool {
    state_and_parent(pid).is_some_and(|(state, _)| state != "Z")
}

/// Processes that descend from this one.
pub(crate) fn descendants(pid: u32) -> BTreeSet<u32> {
    let all: Vec<(u32, u32)> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|it| Some((it, state_and_parent(it)?.1)))
        .collect();
    let mut found = BTreeSet::from([pid]);
    loop {
        let next = all.iter().find(|(it, parent)| found.contains(parent) && !found.contains(it));
        let Some((next, _)) = next else {
            found.remove(&pid);
            return found;
        };
        found.insert(*next);
    }
}

/// Files in shared memory, but for those that tests make as clients.
pub(crate) fn shared_memory_files() -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir("/dev/shm") else { return BTreeSet::new() };
    let names = entries.filter_map(|it| it.ok()?.file_name().into_string().ok());
    names.filter(|it| !it.starts_with("troupe_test_")).collect()
}

/// Waits until shared memory holds nothing that was not there before.
pub(crate) fn no_file_is_left(before: &BTreeSet<String>) {
    until("no file to be left in /dev/shm", || shared_memory_files().is_subset(before));
}

fn state_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}
