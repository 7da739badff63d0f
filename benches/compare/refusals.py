#!/usr/bin/env python3
"""Times refusals from outside of the load, by a process that the load generator cannot delay.

    refusals.py HOST:PORT SECONDS BYTES   asks with the head of a request of so many bytes, 50 times a
                                          second, each over a connection that is already open

Prints one line of JSON: how long refusals took, in milliseconds. With the right to, it runs at
real-time priority: what it sees is the server's time, and the wait for a core.
"""
import json
import os
import socket
import sys
import time

PAUSE_SECONDS = 0.02


def main():
    address, seconds, size = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    head = ("POST /v2/models/sleep_ms/infer HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            f"Content-Length: {size}\r\n\r\n").encode()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except PermissionError:
        pass
    host, port = address.split(":")
    times, others, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(PAUSE_SECONDS)
        try:
            with socket.create_connection((host, int(port)), timeout=5) as peer:
                # The connection is accepted and known to a thread of the server before the clock starts.
                time.sleep(PAUSE_SECONDS)
                peer.settimeout(0.2)
                begun = time.perf_counter()
                peer.sendall(head)
                refused = b" 503 " in peer.recv(64)
                took = 1000 * (time.perf_counter() - begun)
        except OSError:
            # There was room: the server waits for the body.
            others += 1
            continue
        if refused:
            times.append(took)
        else:
            others += 1
    times.sort()
    at = lambda part: round(times[int(part * (len(times) - 1))], 2) if times else None
    print(json.dumps({"refused": len(times), "others": others, "ms p50": at(0.5), "ms p99": at(0.99)}))


if __name__ == "__main__":
    main()
