#!/usr/bin/env python3
"""Runs troupe beside the real Triton on the same models and says which targets are met.

    compare.py setup              downloads Triton (asks nothing else of the network)
    compare.py http               the table of targets over HTTP; `grpc` over gRPC
    compare.py native             the engine alone: native steps
    compare.py python             calls, many responses, strings: what only Python models do
    compare.py ocr                reading words, beside a bare loop and beside Python steps
    compare.py onnx               ONNX models, beside a bare loop, their steps, and Triton
    compare.py metrics            what metrics cost: troupe with them beside troupe without
    compare.py traces             what traces cost: troupe with them beside troupe without
    compare.py doors              large tensors over gRPC, TLS, tensors in shared memory
    compare.py schedulers         sequences, priorities under overload, cached answers
    compare.py parity             which answers of the schedulers differ, of both servers
    compare.py startup | memory | size
    compare.py builds --sides=new=target/dist/troupe,old=/somewhere/troupe --threads=1,2,4,8
                                  two builds of troupe at several numbers of engine threads
    compare.py scale [--quick]    requests over cores, load generators on cores of their own
    compare.py http --sides=new=target/release/troupe,old=/somewhere/troupe
"""
import argparse
import contextlib
import os
import shutil
import sys

import builds
import cases
import doors
import footprint
import watching
import ocr
import onnx_models
import parity
import python_models
import report
import scale
import schedulers
import servers
from race import Race, Side, say

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def main():
    options = arguments()
    commands = {"setup": set_up, "http": protocol, "grpc": protocol, "native": native,
                "python": python, "ocr": models, "onnx": models, "metrics": metrics,
                "traces": metrics, "builds": two_builds, "doors": at_doors, "schedulers": scheduled,
                "parity": same_answers, "scale": over_cores,
                "startup": single, "memory": single, "size": single}
    try:
        commands[options.command](options)
    except servers.Failed as failure:
        return f"error: {failure}"
    except KeyboardInterrupt:
        return "interrupted"
    return 0


def set_up(options):
    servers.set_up_triton(options.triton)
    servers.set_up_loop(options.triton)
    say(f"Triton is in {options.triton}")


def protocol(options):
    """Python models, side against side."""
    need_tools()
    rows = cases.TARGETS + (cases.OTHERS if options.all else [])
    rows = [row for row in rows if wanted(options, row.case.name, row.clients)]
    with contextlib.ExitStack() as stack:
        sides = start_sides(options, stack)
        race, results = Race(options), []
        for done, row in enumerate(rows):
            say(f"[{done + 1}/{len(rows)}] {row.case.name}, {row.clients} clients")
            pair = [Side(name, server, row.case) for name, server in sides]
            results.append(race.run(pair, options.command, row.clients, row.goals))
            # After every row: an interrupted run keeps what it has.
            text = report.races(results, options.out, options.command)
    print(text if rows else "no case fits")


def native(options):
    """Native steps: against each other, and against Triton's Python steps."""
    need_tools()
    alone = [row for row in cases.ALONE if wanted(options, row[0].name, row[2])]
    beside = [row for row in cases.NATIVE if wanted(options, row.case.name, row.clients)]
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(start(options, "troupe", os.path.join(HERE, "native")))
        ours.wait_ready()
        race, results = Race(options), []
        for measured, other, clients, goal in alone:
            pair = [Side("ensemble", ours, measured), Side("one step", ours, other)]
            results.append(race.run(pair, "http", clients, (goal,)))
        if results:
            print(report.races(results, options.out, "native-alone"))
        if beside:
            theirs = stack.enter_context(start(options, "triton", options.models))
            theirs.wait_ready()
            print(native_beside(options, (ours, theirs), beside))


def native_beside(options, sides, rows):
    race, results = Race(options), []
    for row in rows:
        pair = [Side(name, server, row.case) for name, server in zip(("native", "triton"), sides)]
        results += [race.run(pair, wire, row.clients, row.goals) for wire in ("http", "grpc")]
    return report.races(results, options.out, "native")


def python(options):
    """Python models in what a plain request does not show."""
    need_tools()
    options.wants = lambda name, clients: wanted(options, name, clients)
    launch = lambda name, folder: start(options, name, folder)
    print(python_models.run(options, start_sides, launch) or "no case fits")


def models(options):
    """Models that run somewhere else than in Python, against whatever else runs them."""
    need_tools()
    os.makedirs(options.out, exist_ok=True)
    if options.command == "ocr":
        # Triton's packages are too old for the Python steps, and it takes no part.
        options.python = sys.executable
    options.wants = lambda name, clients: wanted(options, name, clients)
    run = {"ocr": ocr.run, "onnx": onnx_models.run}[options.command]
    print(run(options, lambda name, folder: start(options, name, folder)) or "no case fits")


def metrics(options):
    """troupe beside itself, with metrics or traces and without."""
    need_tools()
    options.wants = lambda name, clients: wanted(options, name, clients)
    launch = lambda name, folder, flags: start(options, name, folder, flags=flags)
    run = {"metrics": watching.run, "traces": watching.traces}[options.command]
    print(run(options, launch) or "no case fits")


def two_builds(options):
    """troupe beside another build of itself."""
    need_tools()
    options.wants = lambda name, clients: wanted(options, name, clients)
    print(builds.run(options, start_sides, os.path.join(HERE, "native")))


def at_doors(options):
    """Large tensors over gRPC, TLS, shared memory."""
    need_tools()
    options.wants = lambda name, clients: wanted(options, name, clients)
    launch = lambda name, flags: start(options, name, options.models, flags=flags)
    print(doors.run(options, launch) or "no case fits")


def scheduled(options):
    """Sequences and priorities beside Triton, cached answers beside an identity."""
    need_tools()
    options.wants = lambda name, clients: wanted(options, name, clients)
    launch = lambda name, folder, flags: start(options, name, folder, flags=flags)
    print(schedulers.run(options, launch))


def same_answers(options):
    """The answers of both servers to the same."""
    launch = lambda name, folder, flags: start(options, name, folder, flags=flags)
    print(parity.run(options, launch))


def over_cores(options):
    """Requests per second over cores."""
    if not shutil.which("wrk"):
        raise servers.Failed("wrk missing: install it")
    options.wants = lambda name, clients: wanted(options, name, clients)
    launch = lambda name, folder, flags: start(options, name, folder, flags=flags)
    print(scale.run(options, launch) or "no case fits")


def single(options):
    """Numbers that are not a matter of load."""
    launch = lambda name, repository: start(options, name, repository)
    results = {
        "startup": lambda: footprint.startup(options, launch),
        "memory": lambda: footprint.memory(options, launch),
        "size": lambda: footprint.size(options, servers.triton_paths(options.triton)[1]),
    }[options.command]()
    print(report.figures(results, options.out, options.command))


def start_sides(options, stack, models="", flags=()):
    """Both servers, running and ready, with their names; the same one twice shows the noise."""
    started = []
    for index, text in enumerate(options.sides.split(",")):
        name, _, binary = text.partition("=")
        server = start(options, name, models or options.models, binary, flags)
        stack.enter_context(server)
        say(f"{name} is ready after {server.wait_ready():.2f} s")
        taken = any(name == other for other, _ in started)
        started.append((f"{name}{index + 1}" if taken else name, server))
    if len(started) != 2:
        raise servers.Failed(f"--sides={options.sides} names {len(started)} sides, expected two")
    return started


def start(options, name, repository, binary="", flags=()):
    log = os.path.join(options.out, f"{name}.log")
    os.makedirs(options.out, exist_ok=True)
    if name == "triton":
        return servers.start_triton(options.triton, repository, log, flags)
    return servers.start_troupe(binary or options.troupe, repository, (options.python, flags), log)


def wanted(options, name, clients):
    """No choice means every case."""
    names = not options.cases or name in options.cases.split(",")
    return names and (not options.clients or str(clients) in options.clients.split(","))


def need_tools():
    missing = [tool for tool in ("wrk", "h2load", "nghttp") if not shutil.which(tool)]
    if missing:
        raise servers.Failed(f"{', '.join(missing)} missing: install wrk and nghttp2-client")


def arguments():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["setup", "http", "grpc", "native", "python", "ocr",
                                            "onnx", "metrics", "traces", "builds", "doors", "scale",
                                            "schedulers", "parity",
                                            "startup", "memory", "size"])
    parser.add_argument("--troupe", default=os.path.join(target, "dist", "troupe"),
                        metavar="BINARY", help="the build to measure")
    parser.add_argument("--triton", default=os.path.join(cache, "troupe-compare"),
                        metavar="FOLDER", help="where `setup` puts, or has put, the real Triton")
    parser.add_argument("--models", default=os.path.join(HERE, "models"), metavar="REPOSITORY")
    parser.add_argument("--out", default=os.path.join(target, "compare"), metavar="FOLDER",
                        help="tables, chart, raw numbers and logs")
    parser.add_argument("--sides", default="troupe,triton",
                        help="what to race: troupe, triton, or NAME=BINARY of another troupe")
    parser.add_argument("--cases", default="", help="only these, comma-separated, of: "
                        + ", ".join([*cases.CASES, *python_models.CASES, *ocr.CASES,
                                     *onnx_models.CASES]) + "; of `scale`: " + ", ".join(it.key for it in scale.SERIES))
    parser.add_argument("--clients", default="", help="only these numbers of clients")
    parser.add_argument("--all", action="store_true", help="also cases without a target; of `metrics`, "
                        "everything that can be counted")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each side (default 4)")
    parser.add_argument("--seconds", type=int, default=3, help="length of a run (default 3)")
    parser.add_argument("--threads", default="1,2,4,8", help="engine threads of `builds`")
    parser.add_argument("--cores", default="", help="cores of the server in `scale` (default 1, 2, 4"
                        " and so on, up to half of the machine's)")
    parser.add_argument("--quick", action="store_true", help="of `scale`: one short round")
    parser.add_argument("--wait-quiet", type=float, default=0, metavar="SECONDS",
                        help="before each run, wait up to so long for an idle machine")
    options = parser.parse_args()
    options.rounds, options.seconds = max(1, options.rounds), max(1, options.seconds)
    python = servers.triton_python(options.triton)
    options.python = python if os.access(python, os.X_OK) else sys.executable
    return options


if __name__ == "__main__":
    sys.exit(main())
