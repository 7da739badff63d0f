"""Measures what servers cost before the first request: start, memory, size."""
import os
import statistics
import subprocess
import tempfile
import time

import processes
from race import say
from report import Figure

IMPORT = "import numpy, sys; print(flush=True); sys.stdin.read()"


def startup(options, start):
    """Seconds from start to ready, for an empty repository and for the compared models."""
    with tempfile.TemporaryDirectory(prefix="troupe-bench-") as empty:
        nothing = _starts(options, start, empty, "empty repository")
    models = _starts(options, start, options.models, "models")
    return [
        Figure("start to ready, empty repository", "ms", *nothing, at_most=100),
        Figure("start to ready, these models", "ms", *models, at_most=models[1] / 2),
    ]


def memory(options, start):
    """Resident memory of idle servers, and of their workers beyond a bare interpreter."""
    found = {}
    for name in ("troupe", "triton"):
        with start(name, options.models) as server:
            server.wait_ready()
            time.sleep(2)  # idle is when start-up's garbage is gone
            workers = [pid for pid in processes.tree(server.pid)[1:]]
            rss, each = processes.rss_mib(server.pid), list(map(processes.pss_mib, workers))
            say(f"{name}: {rss:.1f} MiB RSS, {processes.threads(server.pid)} threads,"
                f" {len(workers)} workers, PSS {_spread(each)}")
        bare = _bare(options.python, len(workers))
        say(f"{name}: as many bare interpreters with numpy, PSS {_spread(bare)}")
        found[name] = rss, statistics.median(each) - statistics.median(bare)
    ours, theirs = found["troupe"], found["triton"]
    return [
        Figure("idle server, RSS", "MiB", ours[0], theirs[0], at_most=30),
        Figure("a worker beyond a bare interpreter with numpy, PSS", "MiB", ours[1], theirs[1],
               at_most=5),
    ]


def size(options, triton_root):
    """Bytes on disk, in units of a million."""
    ours = os.path.getsize(options.troupe) / 1e6
    theirs = sum(os.lstat(os.path.join(folder, name)).st_size
                 for folder, _, names in os.walk(triton_root) for name in names) / 1e6
    return [Figure("binary (Triton: its folder in the wheel; the image has 12 GB)", "MB", ours,
                   theirs, at_most=30)]


def _starts(options, start, repository, what):
    """Milliseconds of both servers, medians."""
    times = {"troupe": [], "triton": []}
    # The first round fills the page cache and is not counted.
    for turn in range(options.rounds + 1):
        for name in list(times) if turn % 2 == 0 else list(times)[::-1]:
            with start(name, repository) as server:
                ready = 1000 * server.wait_ready()
            if turn:
                times[name].append(ready)
                say(f"{what}, {name}: ready after {ready:,.0f} ms")
    return [statistics.median(times[name]) for name in ("troupe", "triton")]


def _bare(python, count):
    """PSS of so many interpreters that have imported numpy and do nothing."""
    children = [subprocess.Popen([python, "-c", IMPORT], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for child in children:
            child.stdout.readline()
        return [processes.pss_mib(child.pid) for child in children]
    finally:
        for child in children:
            child.stdin.close()
            child.wait(10)
            child.stdout.close()


def _spread(numbers):
    if not numbers:
        return "none"
    return f"{min(numbers):.1f}–{max(numbers):.1f} MiB"
