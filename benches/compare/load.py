"""Sends one request over and over, with wrk over HTTP and with h2load over gRPC."""
import dataclasses
import json
import os
import re
import subprocess
import tempfile
import time

import processes

METHOD = "/inference.GRPCInferenceService/ModelInfer"
#: How long a single answer may take, and how long a tool may outlast its time.
PATIENCE = 60
WRK = """
local file = assert(io.open("%(body)s", "rb"))
wrk.method, wrk.body = "POST", file:read("*a")
file:close()
%(headers)s
done = function(summary, latency)
  local e = summary.errors
  print(string.format(
    '=== {"answers":%%d,"micros":%%d,"errors":%%d,"p50":%%f,"p99":%%f}',
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


def measure(server, case, protocol, clients, seconds):
    """Loads the server with one case for some seconds."""
    run = {"http": _wrk, "grpc": _h2load}[protocol]
    with tempfile.TemporaryDirectory(prefix="troupe-bench-") as folder:
        answered = server.successes(case.model)
        server_cpu, own_cpu, all_cpu = _clocks(server.pid)
        begun = time.perf_counter()
        report = run(server, case, clients, seconds, folder)
        wall = time.perf_counter() - begun
        server_cpu, own_cpu, all_cpu = (
            now - then for now, then in zip(_clocks(server.pid), (server_cpu, own_cpu, all_cpu)))
        answered = server.successes(case.model) - answered
    answers, took = report["answers"], report["micros"] / 1e6
    # gRPC failures ride on status 200, so only the server's own count tells.
    errors = max(report["errors"], answers - answered)
    other = max(0.0, all_cpu - server_cpu - own_cpu)
    return Measured(rate=answers / took, p50=report["p50"], p99=report["p99"],
                    cpu=server_cpu * 1e6 / max(1, answered), answers=answers, errors=errors,
                    server_percent=100 * server_cpu / wall, client_percent=100 * own_cpu / wall,
                    other_percent=100 * other / wall)


def _clocks(server):
    spent = os.times()
    own = spent.user + spent.system + spent.children_user + spent.children_system
    return processes.cpu_seconds(server), own, processes.busy_seconds()


def _wrk(server, case, clients, seconds, folder):
    body, headers = case.http()
    lines = "\n".join(f'wrk.headers["{key}"] = "{value}"' for key, value in headers.items())
    script = _file(folder, "script.lua", (WRK % {
        "body": _file(folder, "body", body), "headers": lines}).encode())
    url = f"http://{server.http}/v2/models/{case.model}/infer"
    output = _run(["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", f"--timeout={PATIENCE}s",
                   "-s", script, url], seconds)
    return json.loads(re.search(r"^=== (.*)$", output, re.M).group(1))


def _h2load(server, case, clients, seconds, folder):
    log = os.path.join(folder, "log")
    output = _run(["h2load", "-t1", f"-c{clients}", "-m1", f"-D{seconds}", "--warm-up-time=0",
                   "-d", _file(folder, "body", case.grpc()), f"--log-file={log}",
                   "-H", "content-type: application/grpc", "-H", "te: trailers",
                   f"http://{server.grpc}{METHOD}"], seconds)
    codes = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", output)
    with open(log, encoding="utf-8") as file:
        waits = sorted(int(line.split("\t")[2]) for line in file)
    good, *bad = map(int, codes.groups())
    at = lambda part: waits[min(len(waits) - 1, int(part * len(waits)))] if waits else 0
    return {"answers": good, "errors": sum(bad), "micros": seconds * 1e6,
            "p50": at(0.5), "p99": at(0.99)}


def grpc_once(server, case, folder):
    """The framed answer to one request, by nghttp, which comes with h2load."""
    body = _file(folder, "frame", case.grpc())
    done = subprocess.run(["nghttp", "-d", body, "-H", ":method: POST", "-H",
                           "content-type: application/grpc", "-H", "te: trailers",
                           f"http://{server.grpc}{METHOD}"],
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
