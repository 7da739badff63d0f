"""Measures requests per second over cores: the server on some, the load generator on others."""
import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import tempfile
import time

import cases
import cpus
import load
import processes
import race
import repositories
import scale_report
import servers
from race import say

CLIENTS = 64
#: Whether troupe spins by default depends on the cores it may use, and ratios are over cores. Builds
#: without the flag are refused.
SPIN = {"troupe": ("--spin=off",)}
#: How long the run takes that warms the server up, whose system calls are counted.
WARM_UP = 1


@dataclasses.dataclass(frozen=True)
class Series:
    """A case that is measured at every number of cores."""
    key: str
    label: str
    server: str
    #: Folders of models, or how many instances each model of the Python ensemble has.
    models: object
    case: object


#: What `--cases` chooses from, in the order of the table.
SERIES = [
    Series("ensemble", "native `ensemble`", "troupe", "native", cases.CASES["ensemble"]),
    Series("chain8", "native `chain8`", "troupe", "native", cases.CASES["chain8"]),
    Series("hot", "one native model", "troupe", "native", cases.CASES["identity"]),
    Series("python1", "Python `ensemble`, 1 instance each", "troupe", 1, cases.CASES["ensemble"]),
    Series("python4", "Python `ensemble`, 4 instances each", "troupe", 4, cases.CASES["ensemble"]),
    Series("triton1", "Triton, Python `ensemble`, 1 instance each", "triton", 1,
           cases.CASES["ensemble"]),
    Series("triton4", "Triton, Python `ensemble`, 4 instances each", "triton", 4,
           cases.CASES["ensemble"]),
]
PYTHON_MODELS = ("add_sub", "mul", "ensemble")


@dataclasses.dataclass
class Run:
    """One run; percents are of one core, counts are per request."""
    rate: float
    p50: float
    p99: float
    cpu: float
    wake_ups: float
    server_percent: float
    client_percent: float
    other_percent: float
    #: The thread of the server or of a worker that worked most.
    busiest: str
    busiest_percent: float
    #: Threads that were gone at the end: what they did is not in wake-ups and busiest thread.
    ended_threads: int
    answers: int
    errors: int
    #: Counted from 1.
    round: int = 0


@dataclasses.dataclass
class Result:
    """What a series did on a number of cores. `problems` say why rounds are missing."""
    series: Series
    cores: int
    generator_cores: int
    runs: list = dataclasses.field(default_factory=list)
    #: Per request; without the kernel's leave to count them there are none.
    system_calls: list = dataclasses.field(default_factory=list)
    problems: list = dataclasses.field(default_factory=list)


def run(options, launch):
    """The whole table: every series on every number of cores, there and back in turn."""
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 2)
    machine = cpus.Machine.here()
    counts = chosen_counts(options, machine)
    series = [it for it in SERIES if options.wants(it.key, CLIENTS)]
    series = without_triton(options, series)
    for line in machine.remarks(counts):
        say(line)
    results = [Result(it, count, len(machine.generator_cpus(count)))
               for it in series for count in counts]
    with tempfile.TemporaryDirectory(prefix="troupe-scale-") as folder, machine.kept():
        bench = Bench(options, machine, launch, folder)
        for turn in range(options.rounds):
            for count in counts if turn % 2 == 0 else counts[::-1]:
                say(f"== round {turn + 1} of {options.rounds}, {cpus.cores(count)} for the server,"
                    f" {len(machine.generator_cpus(count))} processors for the load generator")
                bench.measure_all([it for it in results if it.cores == count], turn + 1)
                # After every number of cores: an interrupted run keeps what it has.
                text = scale_report.write(results, machine, options.out)
    return text


def chosen_counts(options, machine):
    """The numbers of cores that the server gets, least first."""
    if not options.cores:
        return machine.counts()
    wanted = sorted({int(it) for it in options.cores.split(",")})
    most = max(1, machine.usable - 1)
    if wanted[0] < 1 or most < wanted[-1]:
        raise servers.Failed(f"--cores={options.cores}: the server can have 1 to {most} cores here,"
                             " the load generator needs one too")
    return wanted


def without_triton(options, series):
    """All of them, but those on Triton if it is not here."""
    try:
        servers.triton_paths(options.triton)
        return series
    except servers.Failed as failure:
        ours = [it for it in series if it.server != "triton"]
        if len(ours) < len(series):
            say(f"without Triton: {failure}")
        return ours


class Bench:
    """Starts servers on their cores and loads them from the others."""

    def __init__(self, options, machine, launch, folder):
        self.options, self.machine, self.launch, self.folder = options, machine, launch, folder
        self.counts_calls = can_count_calls()

    def measure_all(self, results, turn):
        """Every series on one number of cores; those with the same models share a server."""
        groups = {}
        for result in results:
            groups.setdefault((result.series.server, result.series.models), []).append(result)
        for (server, models), group in groups.items():
            try:
                with self.started(server, models, group[0].cores) as running:
                    for result in group:
                        self.measure(running, result, turn)
            except (servers.Failed, OSError) as failure:  # the others may start
                for result in group:
                    result.problems.append(f"round {turn}: {failure}")
                say(f"{server}: {failure}")

    @contextlib.contextmanager
    def started(self, name, models, count):
        """A server on its cores, once it is ready; this process is then on the others."""
        flags = (f"--http-thread-count={count}", *SPIN.get(name, ()))
        self.machine.pin(self.machine.server_cpus(count))
        try:
            server = self.launch(name, self.repository(models), flags)
        finally:
            self.machine.pin(self.machine.generator_cpus(count))
        with server:
            server.wait_ready()
            yield server

    def repository(self, models):
        if models == "native":
            return os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")
        folder = os.path.join(self.folder, f"python{models}")
        if not os.path.exists(folder):
            found = [os.path.join(self.options.models, name) for name in PYTHON_MODELS]
            repositories.with_instances(folder, found, models)
        return folder

    def measure(self, server, result, turn):
        """One round of one series."""
        try:
            # Raises if the server does not answer.
            race.Side(server.name, server, result.series.case).answer("http")
            calls = self.warm_up(server, result)
            found = measured(server, result, self.options.seconds)
            found.round = turn
        except Exception as error:  # one case must not end a run of many
            result.problems.append(f"round {turn}: {type(error).__name__}: {error}")
            say(f"{result.series.label}: {result.problems[-1]}")
            return
        result.runs.append(found)
        result.system_calls += [calls] if calls is not None else []
        say(f"{result.series.label:>44} {result.cores:3} core(s) {found.rate:9,.0f}/s"
            f"  p50 {found.p50:7,.0f}  CPU/req {found.cpu:6,.1f} µs"
            f"  wake-ups/req {found.wake_ups:5.2f}  server {found.server_percent:4.0f}%"
            f" client {found.client_percent:4.0f}% other {found.other_percent:4.0f}%"
            + (f"  {found.errors} ERRORS" if found.errors else ""))

    def warm_up(self, server, result):
        """A run that is not counted; its system calls per request, if they can be counted."""
        shoot = lambda: load.measure(server, result.series.case, "http", CLIENTS, WARM_UP,
                                     result.generator_cores)
        if not self.counts_calls:
            shoot()
            return None
        calls, seen = counted_calls(server.pid, shoot)
        return calls / max(1, seen.answers) if calls is not None else None


def measured(server, result, seconds):
    """One run, with what the threads of the server did in it."""
    # Threads are looked at in the same order both times: as long after each of these moments.
    begun, before = time.perf_counter(), processes.threads_of(server.pid)
    seen = load.measure(server, result.series.case, "http", CLIENTS, seconds,
                        result.generator_cores)
    ended, after = time.perf_counter(), processes.threads_of(server.pid)
    spent = {thread: now.minus(before.get(thread)) for thread, now in after.items()}
    busiest = max(spent.values(), key=lambda it: it.cpu_seconds)
    return Run(rate=seen.rate, p50=seen.p50, p99=seen.p99, cpu=seen.cpu,
               wake_ups=sum(it.sleeps for it in spent.values()) / max(1, seen.answers),
               server_percent=seen.server_percent, client_percent=seen.client_percent,
               other_percent=seen.other_percent, busiest=busiest.name,
               busiest_percent=100 * busiest.cpu_seconds / (ended - begun),
               ended_threads=len(before.keys() - after.keys()),
               answers=seen.answers, errors=seen.errors)


def can_count_calls():
    """Whether `perf` is here and may count system calls."""
    if not shutil.which("perf"):
        return False
    command = ["perf", "stat", "-e", "raw_syscalls:sys_enter", "-x,", "true"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    return done.returncode == 0 and _count(done.stderr) is not None


def counted_calls(pid, shoot):
    """System calls of a process and its children while something runs, and what that returns."""
    pids = ",".join(map(str, processes.tree(pid)))
    perf = subprocess.Popen(["perf", "stat", "-e", "raw_syscalls:sys_enter", "-x,", "-p", pids],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(0.2)  # until it has attached itself to all of them
        seen = shoot()
        perf.send_signal(signal.SIGINT)
        _, text = perf.communicate(timeout=load.PATIENCE)
    finally:
        if perf.poll() is None:
            perf.kill()
            perf.wait()
    return _count(text), seen


def _count(text):
    for line in text.splitlines():
        first = line.split(",")[0]
        if "sys_enter" in line and first.isdigit():
            return int(first)
    return None
