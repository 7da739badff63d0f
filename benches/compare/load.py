"""Sends one request over and over, with wrk over HTTP and with h2load over gRPC."""
import dataclasses
import functools
import json
import os
import re
import subprocess
import tempfile
import time

import processes

SERVICE = "/inference.GRPCInferenceService"
#: A stream ends as soon as its one request has all its responses.
METHODS = {"grpc": f"{SERVICE}/ModelInfer", "stream": f"{SERVICE}/ModelStreamInfer"}
#: How long a single answer may take, and how long a tool may outlast its time.
PATIENCE = 60
# Several bodies are sent in turn; one is left to wrk, which then has less to do.
WRK = """
local requests, turn = {
REQUESTS
}, 0
for _, request in ipairs(requests) do
  local file = assert(io.open(request[1], "rb"))
  request[1] = file:read("*a")
  file:close()
end
wrk.method, wrk.body = "POST", requests[1][1]
for key, value in pairs(requests[1][2]) do wrk.headers[key] = value end
if #requests > 1 then
  function request()
    turn = turn % #requests + 1
    return wrk.format(nil, nil, requests[turn][2], requests[turn][1])
  end
end
"""
WRK_DONE = """
function done(summary, latency)
  local e = summary.errors
  print(string.format(
    '=== {"answers":%d,"micros":%d,"errors":%d,"p50":%f,"p99":%f}',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


@dataclasses.dataclass
class Measured:
    """One run. Times are in microseconds, CPU times per answer or in percent of one core."""
    rate: float
    p50: float
    p99: float
    cpu: float
    server_percent: float
    client_percent: float
    other_percent: float
    answers: int
    errors: int


    @property
    def rows_per_cpu(self):
        """Answers in a second of CPU time."""
        return 1e6 / self.cpu if self.cpu else float("inf")


@dataclasses.dataclass
class Spent:
    """Seconds of CPU time that went by during a run, and of the clock."""
    server: float
    own: float
    all: float
    wall: float


def measure(server, case, protocol, clients, seconds, threads=1):
    """Loads the server with one case for some seconds, over HTTP from some threads."""
    run = (functools.partial(_wrk, min(threads, clients)) if protocol == "http"
           else functools.partial(_h2load, METHODS[protocol]))
    report, spent, answered = counted(server, case.model,
                                      lambda folder: run(server, case, clients, seconds, folder))
    report["answers"] *= case.parts
    return measured(report, spent, answered * case.parts)


def counted(server, model, run):
    """What a run reports, what was spent, and how many requests of the model went well."""
    with tempfile.TemporaryDirectory(prefix="troupe-bench-") as folder:
        answered = server.successes(model)
        report, spent = watched(server.pid, lambda: run(folder))
        return report, spent, server.successes(model) - answered


def watched(pid, run):
    """What a run reports, and the CPU time that a process, its children and others spent."""
    clocks = _clocks(pid)
    begun = time.perf_counter()
    report = run()
    wall = time.perf_counter() - begun
    return report, Spent(*(now - then for now, then in zip(_clocks(pid), clocks)), wall)


def measured(report, spent, answered):
    """Numbers of one run; `answered` is how many answers the server says it gave."""
    answers, took = report["answers"], report["micros"] / 1e6
    # gRPC failures ride on status 200, so only the server's own count tells.
    errors = max(report["errors"], answers - answered)
    other = max(0.0, spent.all - spent.server - spent.own)
    percent = lambda seconds: 100 * seconds / spent.wall
    return Measured(rate=answers / took, p50=report["p50"], p99=report["p99"],
                    cpu=spent.server * 1e6 / max(1, answered), answers=answers, errors=errors,
                    server_percent=percent(spent.server), client_percent=percent(spent.own),
                    other_percent=percent(other))


def _clocks(server):
    spent = os.times()
    own = spent.user + spent.system + spent.children_user + spent.children_system
    return processes.cpu_seconds(server), own, processes.busy_seconds()


def _wrk(threads, server, case, clients, seconds, folder):
    requests = []
    for index, (body, headers) in enumerate(case.bodies()):
        lines = ", ".join(f'["{key}"] = "{value}"' for key, value in headers.items())
        requests.append(f'  {{ "{_file(folder, f"body{index}", body)}", {{ {lines} }} }},')
    script = WRK.replace("REQUESTS", "\n".join(requests)) + WRK_DONE
    return wrk(script, threads, server, case.model, clients, seconds, folder)


def wrk_case(server, case, clients, seconds, folder):
    """What wrk reports of a case, on one thread."""
    return _wrk(1, server, case, clients, seconds, folder)


def wrk(script, threads, server, model, clients, seconds, folder):
    """What wrk reports of a model that is asked by a script, which ends with WRK_DONE."""
    url = f"http://{server.http}/v2/models/{model}/infer"
    output = _run(["wrk", f"-t{threads}", f"-c{clients}", f"-d{seconds}s", f"--timeout={PATIENCE}s",
                   "-s", _file(folder, "script.lua", script.encode()), url], seconds)
    return json.loads(re.search(r"^=== (.*)$", output, re.M).group(1))


def _h2load(method, server, case, clients, seconds, folder):
    log = os.path.join(folder, "log")
    output = _run(["h2load", "-t1", f"-c{clients}", "-m1", f"-D{seconds}", "--warm-up-time=0",
                   "-d", _file(folder, "body", case.grpc()), f"--log-file={log}",
                   "-H", "content-type: application/grpc", "-H", "te: trailers",
                   f"{server.grpc_scheme}://{server.grpc}{method}"], seconds)
    codes = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", output)
    with open(log, encoding="utf-8") as file:
        ended = [tuple(map(int, line.split("\t"))) for line in file]
    waits = sorted(wait for *_, wait in ended)
    good, *bad = map(int, codes.groups())
    micros = seconds * 1e6
    if ended and method == METHODS["stream"]:
        # The last one is cut off half way, and has a status nevertheless.
        good = len(ended)
        micros = max(begun + wait for begun, _, wait in ended) - min(begun for begun, *_ in ended)
    at = lambda part: waits[min(len(waits) - 1, int(part * len(waits)))] if waits else 0
    return {"answers": good, "errors": sum(bad), "micros": micros,
            "p50": at(0.5), "p99": at(0.99)}


def grpc_once(server, case, protocol, folder):
    """The framed answers to one request, by nghttp, which comes with h2load."""
    body = _file(folder, "frame", case.grpc())
    done = subprocess.run(["nghttp", "-d", body, "-H", ":method: POST", "-H",
                           "content-type: application/grpc", "-H", "te: trailers",
                           f"{server.grpc_scheme}://{server.grpc}{METHODS[protocol]}"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE,
                          check=False)
    return done.stdout


def _file(folder, name, content):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(content)
    return path


def _run(command, seconds):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=seconds + PATIENCE, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout[-300:]}")
    return done.stdout
