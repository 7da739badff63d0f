"""What the kernel knows about processes: CPU time, memory, children."""
import dataclasses
import os
import re

TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass
class Thread:
    """What a thread has done: CPU time, and how often it slept and was woken."""
    name: str
    cpu_seconds: float
    sleeps: int

    def minus(self, before):
        """What it did since then; all of it, if it is new."""
        if before is None:
            return self
        return Thread(self.name, self.cpu_seconds - before.cpu_seconds,
                      self.sleeps - before.sleeps)


def tree(root):
    """The process and all its descendants."""
    children = {}
    for entry in os.listdir("/proc"):
        fields = _stat(entry) if entry.isdigit() else None
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, unseen = [], [root]
    while unseen:
        found.append(unseen.pop())
        unseen += children.get(found[-1], [])
    return found


def cpu_seconds(root):
    """User and system time of the tree, dead and collected children included."""
    stats = filter(None, map(_stat, tree(root)))
    return sum(int(ticks) for fields in stats for ticks in fields[11:15]) / TICKS


def threads_of(root):
    """All threads of the process and its descendants, by number."""
    found = {}
    for pid in tree(root):
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # it has ended
        for thread in threads:
            path = f"{pid}/task/{thread}"
            fields, status = _stat(path), _read(f"/proc/{path}/status")
            sleeps = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.M)
            if fields and sleeps:
                name = re.search(r"^Name:\s+(.*)", status, re.M).group(1)
                spent = (int(fields[11]) + int(fields[12])) / TICKS
                found[thread] = Thread(name, spent, int(sleeps.group(1)))
    return found


def busy_seconds():
    """CPU time that processes of this machine have used, and its host has taken away."""
    user, nice, system, _, _, _, _, steal = map(int, _read("/proc/stat").split()[1:9])
    return (user + nice + system + steal) / TICKS


def rss_mib(pid):
    return _kilobytes(f"/proc/{pid}/status", "VmRSS") / 1024


def pss_mib(pid):
    """Resident memory with shared pages divided among those who share them."""
    return _kilobytes(f"/proc/{pid}/smaps_rollup", "Pss") / 1024


def threads(pid):
    return _kilobytes(f"/proc/{pid}/status", "Threads")


def command(pid):
    return _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def _stat(pid):
    # The name in brackets may hold spaces and brackets itself.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _kilobytes(path, key):
    found = re.search(rf"^{key}:\s+(\d+)", _read(path), re.M)
    return int(found.group(1)) if found else 0


def _read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
