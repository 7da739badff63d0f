"""What the schedulers are raced in: sequences, priorities under overload, cached answers."""
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import cases
import load
import report
from python_models import bytes_copied
from race import Race, Side, say

HERE = os.path.dirname(os.path.abspath(__file__))
SIDES = ("troupe", "triton")
#: Requests of one sequence.
LENGTH = 16
# A thread of wrk has one connection here, and so one sequence after the other.
SEQUENCES = """
local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("id", FIRST + threads * 1000000)
  -- wrk asks the first thread for a request that it does not send.
  thread:set("is_tried", threads == 1)
end
wrk.method, wrk.headers["Content-Type"] = "POST", "application/json"
local step = 0
function request()
  if is_tried then
    is_tried = false
    return wrk.format("GET", "/v2/health/live")
  end
  step = step % LENGTH + 1
  if step == 1 then id = id + 1 end
  return wrk.format(nil, nil, nil, string.format(
    '{"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,1],"data":[%d]}],' ..
    '"parameters":{"sequence_id":%d,"sequence_start":%s,"sequence_end":%s}}',
    step, id, tostring(step == 1), tostring(step == LENGTH)))
end
"""
#: (model, clients, goals)
ROWS = [
    ("sequence", 64, (cases.Goal(cases.RATE, cases.ABOVE, 4), cases.Goal(cases.CPU, cases.BELOW, 0.25))),
    ("sequence_pair", 64, (cases.Goal(cases.RATE, cases.ABOVE, 5),)),
]
#: Cached, beside an identity without a queue: (case, clients, goals).
CACHED = [(cases.Case("add_sub_cached", "add_sub_cached",
                      (("add_sub_input0", "FP32", (4,)), ("add_sub_input1", "FP32", (4,)))), 64),
          (cases.Case("rows_cached", "rows_cached", (("INPUT0", "FP32", (256, 1024)),)), 4)]
BESIDE = {"add_sub_cached": cases.CASES["identity"], "rows_cached": cases.CASES["identity_1m"]}
HIT = (cases.Goal(cases.RATE, cases.ABOVE, 0.9),)
LEVELS = cases.Case("levels", "levels", (("INPUT0", "FP32", (1, 1)),))
#: Clients of the high level, and of the low one.
HIGH, LOW = 4, 36
#: An answer of 1 MiB, and how often it is asked for again.
LARGE, HITS = cases.Case("copies", "slow_cached", (("INPUT0", "FP32", (262144,)),)), 16
#: Equal requests at once, of a model that takes 50 ms.
EQUAL = 100


class Sequences(Side):
    """A side whose clients each run one sequence after the other."""

    def measure(self, protocol, clients, seconds):
        first = time.time_ns() // 1000 % (1 << 40) * 1000
        if protocol == "stream":
            run = lambda _: streamed(self.server, self.case.model, clients, seconds, first)
            return load.measured(*load.counted(self.server, self.case.model, run))
        script = SEQUENCES.replace("FIRST", str(first)).replace("LENGTH", str(LENGTH))
        run = lambda folder: load.wrk(script + load.WRK_DONE, clients, self.server, self.case.model,
                                      clients, seconds, folder)
        return load.measured(*load.counted(self.server, self.case.model, run))

    def answer(self, protocol):
        """The sums of one sequence."""
        sums = []
        for step in range(1, 4):
            body = {"inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [step]}],
                    "parameters": {"sequence_id": 7, "sequence_start": step == 1,
                                   "sequence_end": step == 3}}
            sums.append(ask(self.server, self.case.model, body)["outputs"][0]["data"])
        return {"OUTPUT": ("INT32", (3,), json.dumps(sums).encode())}


def run(options, start):
    """`start` starts a server by name, repository and flags; `options.wants` says which rows."""
    results, lines = [], []
    with contextlib.ExitStack() as stack:
        folder = os.path.join(HERE, "schedulers")
        sides = [(name, stack.enter_context(start(name, folder, ()))) for name in SIDES]
        for _, server in sides:
            server.wait_ready()
        for model, clients, goals in ROWS:
            if options.wants(model, clients):
                pair = [Sequences(name, server, cases.Case(model, model, ()))
                        for name, server in sides]
                for protocol in ("http", "stream"):
                    results.append(Race(options).run(pair, protocol, clients, goals))
        if options.wants("levels", HIGH + LOW):
            lines += [overload(name, server, options) for name, server in sides]
    with contextlib.ExitStack() as stack:
        flags = ("--cache-config=local,size=268435456",)
        folder = os.path.join(HERE, "schedulers_cached")
        server = stack.enter_context(start("troupe", folder, flags))
        server.wait_ready()
        for case, clients in CACHED:
            if options.wants(case.name, clients):
                pair = [Side("cached", server, case), Side("identity", server, BESIDE[case.name])]
                results.append(Race(options).run(pair, "http", clients, HIT))
        if options.wants("copies", 1):
            lines.append(copies(server))
        if options.wants("slow_cached", EQUAL):
            lines.append(at_once(server))
    text = report.races(results, options.out, "schedulers") if results else ""
    return "\n".join([text, *lines])


def streamed(server, model, clients, seconds, first):
    """What `streams.py` reports, each client with a stream of its own."""
    command = [sys.executable, os.path.join(HERE, "streams.py"), server.grpc, model,
               *map(str, (clients, seconds, LENGTH, first))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=seconds + load.PATIENCE, check=False)
    if done.returncode:
        raise ValueError(f"{server.name}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


def copies(server):
    """Bytes that hits of an answer of 1 MiB copied for a Python model, by the server's own count."""
    side, counts = Side("cached", server, LARGE), [bytes_copied(server) or 0]
    for times in (1, HITS):
        for _ in range(times):
            side.answer("http")
        counts.append(bytes_copied(server))
    miss, hits = (now - then for then, now in zip(counts, counts[1:]))
    line = (f"- 1 MiB of a Python model: {hits:.0f} bytes copied by {HITS} hits (aim: 0), "
            f"{miss:.0f} by the miss before them")
    say(line)
    return line


def overload(name, server, options):
    """The high level's p99 alone, and beside nine times as many clients of the low level."""
    def level(clients, priority):
        case = Prioritized(LEVELS.name, LEVELS.model, LEVELS.inputs, priority=priority)
        with tempfile.TemporaryDirectory(prefix="troupe-bench-") as folder:
            report = load.wrk_case(server, case, clients, options.seconds, folder)
        if report["errors"]:
            raise ValueError(f"{name}: {report['errors']} requests of level {priority} failed")
        return report

    alone, crowded = [], []
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        for _ in range(options.rounds):
            alone.append(level(HIGH, 1)["p99"])
            low = other.submit(level, LOW, 2)
            crowded.append(level(HIGH, 1)["p99"])
            low.result()
    ratio = sorted(of / by for of, by in zip(crowded, alone))[len(alone) // 2]
    line = (f"- priorities, {name}: p99 of the high level ({HIGH} clients) {ratio:.2f}× of alone "
            f"beside {LOW} clients of the low one (aim of troupe: ≤ 1.5×)")
    say(line)
    return line


class Prioritized(cases.Case):
    """A case whose requests are of one priority level."""

    def __init__(self, *args, priority):
        super().__init__(*args)
        object.__setattr__(self, "priority", priority)

    def bodies(self):
        (name, kind, shape, _), = self.requests()[0]
        body = {"inputs": [{"name": name, "datatype": kind, "shape": shape, "data": [1.5]}],
                "parameters": {"priority": self.priority}}
        return [(json.dumps(body).encode(), {"Content-Type": "application/json"})]


def at_once(server):
    """Equal requests at once: how many executions, and when the last was answered."""
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1],
                        "data": [time.time() % 1000]}]}
    barrier = threading.Barrier(EQUAL + 1)
    before = executions(server, "slow_cached")

    def client():
        barrier.wait()
        ask(server, "slow_cached", body)
        return time.perf_counter()

    with concurrent.futures.ThreadPoolExecutor(EQUAL) as clients:
        answers = [clients.submit(client) for _ in range(EQUAL)]
        barrier.wait()
        begun = time.perf_counter()
        ends = [it.result() for it in answers]
    count = executions(server, "slow_cached") - before
    line = (f"- {EQUAL} equal requests at once of a model that takes 50 ms: {count} executions, "
            f"all answered after {1000 * (max(ends) - begun):.0f} ms (client in Python; aim: 1, 60 ms)")
    say(line)
    return line


def executions(server, model):
    """How many there were."""
    _, stats = server.get(f"/v2/models/{model}/stats")
    return json.loads(stats)["model_stats"][0]["execution_count"]


def ask(server, model, body):
    """The answer to one JSON request."""
    status, answer, _ = server.ask("POST", f"/v2/models/{model}/infer", json.dumps(body))
    if status != 200:
        raise ValueError(f"{server.name} answered {status}: {answer[:200]}")
    return json.loads(answer)
