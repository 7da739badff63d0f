#!/usr/bin/env python3
"""Loads troupe with more than it can take, and holds ten thousand connections open.

    overload.py overload      small and large requests over both doors from hundreds of clients, some of
                              whom do not read or hardly send, to a model that sleeps
    overload.py connections   10,000 idle connections of each door, then a request over each

Prints one line of JSON with what came out.
"""
import argparse
import asyncio
import collections
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time

import cases
import processes
import servers

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
#: Two instances that sleep 20 ms answer a hundred times a second.
MODEL = "sleep_ms"
#: After this idle connections have given their buffers back, and the allocator has.
IDLE_SECONDS = 12
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def request(count):
    """A whole HTTP request with so many numbers."""
    case = cases.Case(MODEL, MODEL, (("INPUT0", "FP32", (count,)),))
    (body, headers), = case.bodies()
    lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: t\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return head.encode(), body, case


class Load:
    """Clients that ask one after the other, and what they were told."""

    def __init__(self, address):
        self.host, port = address.split(":")
        self.port, self.seen = int(port), collections.Counter()
        self.refused_after, self.end = [], 0

    async def client(self, head, body, pause=1):
        """One connection; who is refused comes again after a second, as it is told to."""
        streams = None
        while time.monotonic() < self.end:
            try:
                streams = streams or await asyncio.open_connection(self.host, self.port, limit=8 * MIB)
                reader, writer = streams
                begun = time.perf_counter()
                writer.write(head + body)
                status, kept = await answer(reader)
            except (OSError, asyncio.IncompleteReadError):
                self.seen["closed"] += 1
                streams = None
                await asyncio.sleep(pause)
                continue
            self.seen[status] += 1
            if status == 503:
                self.refused_after.append(time.perf_counter() - begun)
            if not kept:
                writer.close()
                streams = None
            if status == 503:
                await asyncio.sleep(pause)
        if streams:
            streams[1].close()

    async def deaf(self, head, body):
        """Asks again and again and reads nothing."""
        while time.monotonic() < self.end:
            try:
                _, writer = await asyncio.open_connection(self.host, self.port)
                for _ in range(8):
                    writer.write(head + body)
                    await asyncio.wait_for(writer.drain(), max(1, self.end - time.monotonic()))
                await asyncio.sleep(max(0, self.end - time.monotonic()))
            except (OSError, asyncio.TimeoutError):
                await asyncio.sleep(1)

    async def drip(self, head, body):
        """Sends a kilobyte a second of a large body."""
        while time.monotonic() < self.end:
            try:
                _, writer = await asyncio.open_connection(self.host, self.port)
                writer.write(head)
                for at in range(0, len(body), 1024):
                    writer.write(body[at:at + 1024])
                    await writer.drain()
                    await asyncio.sleep(1)
                    if self.end < time.monotonic():
                        return
            except OSError:
                await asyncio.sleep(1)


async def answer(reader):
    """The status of one answer, read whole, and whether the connection stays."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    await reader.readexactly(int(headers.get("content-length", 0)))
    return int(lines[0].split()[1]), headers.get("connection") != "close"


def watch(pid, stopped, highest):
    """The most memory the server's own process had."""
    while not stopped.wait(0.05):
        highest.append(processes.rss_mib(pid))


def overload(options):
    small, large = request(4), request(MIB // 4)
    budget = options.budget * MIB
    cores = sorted(os.sched_getaffinity(0))
    # The load generator has a core of its own: what is timed is the server, not the wait for a core.
    os.sched_setaffinity(0, cores[:-1] or cores)
    with start(options, (f"--max-inflight-bytes={budget}",)) as server, \
            tempfile.TemporaryDirectory(prefix="troupe-bench-") as folder:
        os.sched_setaffinity(0, cores[-1:])
        server.wait_ready()
        idle = processes.rss_mib(server.pid)
        best = rate(server, small, 8, 5)
        load, stopped, highest = Load(server.http), threading.Event(), []
        watcher = threading.Thread(target=watch, args=(server.pid, stopped, highest))
        watcher.start()
        grpc = [over_grpc(server, shape[2], folder, clients, options.seconds)
                for shape, clients in ((small, 100), (large, 50))]
        answered = server.successes(MODEL)
        refusals = subprocess.Popen([sys.executable, os.path.join(HERE, "refusals.py"), server.http,
                                     str(options.seconds), str(MIB)], stdout=subprocess.PIPE)
        load.end = time.monotonic() + options.seconds
        begun = time.monotonic()
        asyncio.run(crowd(load, small, large))
        took = time.monotonic() - begun
        answered = server.successes(MODEL) - answered
        for process in grpc:
            process.wait(30)
        seen_beside = json.loads(refusals.communicate(timeout=30)[0])
        time.sleep(10)
        after = processes.rss_mib(server.pid)
        stopped.set()
        watcher.join()
        status, _ = server.get("/v2/health/live")
        probe = probe_refusals(server, large)
    return {"budget MiB": options.budget, "idle MiB": round(idle), "highest MiB": round(max(highest)),
            "10 s later MiB": round(after), "best req/s": round(best),
            "req/s under load": round(answered / took), "statuses": dict(load.seen),
            "refused ms p50": ms(load.refused_after, 0.5), "refused ms p99": ms(load.refused_after, 0.99),
            "refused, seen from beside": seen_beside,
            "live": status, "answers after it": probe}


async def crowd(load, small, large):
    """Everybody at once."""
    await asyncio.gather(*(load.client(*small[:2]) for _ in range(400)),
                         *(load.client(*large[:2]) for _ in range(100)),
                         *(load.deaf(*large[:2]) for _ in range(50)),
                         *(load.drip(*large[:2]) for _ in range(50)))


def over_grpc(server, case, folder, clients, seconds):
    path = os.path.join(folder, f"body{clients}")
    with open(path, "wb") as file:
        file.write(case.grpc())
    return subprocess.Popen(["h2load", "-t1", f"-c{clients}", "-m1", f"-D{seconds}", "-d", path, "-H",
                             "content-type: application/grpc", "-H", "te: trailers",
                             f"http://{server.grpc}/inference.GRPCInferenceService/ModelInfer"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def rate(server, shape, clients, seconds):
    """Answers a second to a few clients: the best the model can do."""
    load = Load(server.http)
    load.end = time.monotonic() + seconds

    async def run():
        await asyncio.gather(*(load.client(*shape[:2]) for _ in range(clients)))

    asyncio.run(run())
    return load.seen[200] / seconds


def probe_refusals(server, shape):
    """Whether it serves as before: the statuses of twenty large requests."""
    load = Load(server.http)
    load.end = time.monotonic() + 1
    asyncio.run(load.client(*shape[:2]))
    return dict(load.seen)


def connections(options):
    count = options.connections
    asking = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"
    settings = b"\0\0\0\4\1\0\0\0\0"
    found = {}
    with start(options, (f"--max-connections={options.connections + 100}",)) as server:
        server.wait_ready()
        for door, address, hello in (("http", server.http, asking), ("grpc", server.grpc, PREFACE + settings)):
            before = processes.rss_mib(server.pid)
            open_ones = asyncio.run(held(address, hello, asking if door == "http" else None, count,
                                         lambda: time.sleep(IDLE_SECONDS) or processes.rss_mib(server.pid)))
            rss, served = open_ones
            found[door] = {"KB each": round((rss - before) * 1024 / count, 1), "served": served}
            time.sleep(2)
    return found


async def held(address, hello, again, count, look):
    """Opens connections, looks, asks over each once more; how many were answered."""
    host, port = address.split(":")
    streams = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(hello)
        await reader.read(4096)
        streams.append((reader, writer))
    rss, served = look(), 0
    for reader, writer in streams:
        # An HTTP/2 ping asks a connection without a call.
        writer.write(again or b"\0\0\10\6\0\0\0\0\0" + b"12345678")
    for reader, writer in streams:
        served += bool(await asyncio.wait_for(reader.read(4096), 30))
        writer.close()
    return rss, served


def ms(times, part):
    times = sorted(times)
    return round(1000 * times[int(part * (len(times) - 1))], 1) if times else None


def start(options, flags):
    with tempfile.TemporaryDirectory(prefix="troupe-bench-") as folder:
        log = os.path.join(folder, "log")
    os.makedirs(os.path.dirname(log), exist_ok=True)
    flags = ("--model-control-mode=explicit", f"--load-model={MODEL}", *flags)
    return servers.start_troupe(options.troupe, os.path.join(HERE, "models"), (options.python, flags), log)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overload", "connections"])
    parser.add_argument("--troupe", default=os.path.join(HERE, "..", "..", "target", "dist", "troupe"))
    parser.add_argument("--python", default="", help="interpreter of the model [default: troupe's own]")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--budget", type=int, default=64, help="MiB of --max-inflight-bytes")
    parser.add_argument("--connections", type=int, default=10_000)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        print(json.dumps({"overload": overload, "connections": connections}[options.what](options)))
    except servers.Failed as failure:
        return f"error: {failure}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
