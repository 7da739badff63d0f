"""Which processors the server gets, and which the load generator."""
import contextlib
import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Machine:
    """The processors this process may use, by core: threads of one core are one entry."""
    cores: tuple
    #: Processors' worth of time that a cgroup grants, if it grants less than all.
    quota: float = 0

    @staticmethod
    def here():
        allowed = os.sched_getaffinity(0)
        cores = sorted({tuple(sorted(_siblings(cpu) & allowed)) for cpu in allowed})
        return Machine(tuple(cores), quota(_read))

    @property
    def usable(self):
        """Cores that can be given away."""
        return min(len(self.cores), max(1, int(self.quota))) if self.quota else len(self.cores)

    def counts(self):
        """Numbers of cores for the server: 1, 2, 4, 8 and so on, and half of the machine's."""
        half = max(1, self.usable // 2)
        doubled = [1 << power for power in range(half.bit_length()) if 1 << power <= half]
        return sorted({*doubled, half})

    def server_cpus(self, count):
        """One processor of each of the first cores; its sibling, if there is one, stays idle."""
        return {core[0] for core in self.cores[:count]}

    def generator_cpus(self, count):
        """As many cores as the server's at most may be half of, but at least what is left."""
        first = max(count, self.usable // 2)
        rest = self.cores[first:self.usable] or self.cores[-1:]
        return {cpu for core in rest for cpu in core}

    def remarks(self, counts):
        """What the reader has to know about this machine."""
        lines = [f"{cores(len(self.cores))}, of which the server gets"
                 f" {', '.join(map(str, counts))}"]
        if any(1 < len(core) for core in self.cores):
            lines.append("cores have several processors: the server gets one of each of its cores,"
                         " the others of them stay idle")
        if self.quota:
            lines.append(f"a cgroup grants this process {self.quota:g} processors")
        if self.usable < 2:
            lines.append("one core is too few: server and load generator share it, and what is"
                         " measured says nothing about either")
        if counts[-1] < 8:
            lines.append(f"the aims are about 8 cores for the server and 8 for the load generator;"
                         f" here are {self.usable} in all")
        return lines

    def pin(self, cpus):
        os.sched_setaffinity(0, cpus)

    @contextlib.contextmanager
    def kept(self):
        """Gives this process its processors back at the end."""
        allowed = os.sched_getaffinity(0)
        try:
            yield
        finally:
            os.sched_setaffinity(0, allowed)


def cores(count):
    return "1 core" if count == 1 else f"{count} cores"


def parse_list(text):
    """The kernel's way to write a set of numbers: `0-3,8`."""
    found = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _siblings(cpu):
    path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        with open(path, encoding="utf-8") as file:
            return parse_list(file.read()) | {cpu}
    except OSError:
        return {cpu}


def quota(read):
    """The least that a cgroup around this process grants, of versions 1 and 2; 0 is no limit.

    `read` gives the text of a file, nothing if there is none."""
    found = []
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = "/sys/fs/cgroup/cpu" if controllers else "/sys/fs/cgroup"
        names = group.strip("/").split("/") if group.strip("/") else []
        # In a container the group may be mounted at the root.
        for depth in range(len(names) + 1):
            folder = "/".join([root, *names[:depth]])
            limit = (read(f"{folder}/cpu.cfs_quota_us") + " " + read(f"{folder}/cpu.cfs_period_us")
                     if controllers else read(f"{folder}/cpu.max")).split()
            # No number is no limit: `max`, or -1.
            if len(limit) == 2 and all(it.isdigit() for it in limit) and int(limit[1]):
                found.append(int(limit[0]) / int(limit[1]))
    return min(found, default=0)


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
