"""Races what only Python models do: calls, many responses, strings, large tensors in a chain."""
import contextlib
import dataclasses
import os
import re
import statistics

import cases
import report
import servers
import wire
from cases import ABOVE, BELOW, P50, RATE, Case, Goal
from race import Race, Side, say

NATIVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")
#: What an empty Python model may add to the same in the server itself.
MICROSECONDS = 100
#: Bytes that were copied for Python workers, as the server counts them; the steps of chain8.
COPIED, STEPS = re.compile(r"^troupe_python_bytes_copied\S*\s+(\S+)$", re.M), 8


@dataclasses.dataclass(frozen=True)
class Thousand(Case):
    """A decoupled model whose responses are its input plus 0, 1, 2, …"""

    def understand(self, answers):
        if len(answers) != self.parts:
            raise ValueError(f"expected {self.parts} responses, got {len(answers)}")
        values = wire.floats(self.requests()[0][0][3])
        for number, answer in enumerate(answers):
            expected = tuple(value + number for value in values)
            if wire.floats(answer["OUTPUT0"][2]) != expected:
                raise ValueError(f"response {number}: expected {expected}, got {answer}")
        return answers

    def agree(self, first, second):
        return first == second


CALL = Case("call", "call_add_sub", (("INPUT0", "FP32", (4,)), ("INPUT1", "FP32", (4,))))
THOUSAND = Thousand("thousand", "thousand", (("INPUT0", "FP32", (4,)),), parts=1000)
STRINGS = Case("strings_100k", "identity_bytes", (("INPUT0", "BYTES", (100_000,)),))
CHAIN = cases.CASES["chain8_16m"]
EMPTY = Case("empty", "identity_fp32", (("INPUT0", "FP32", (256,)),))
FASTER = {times: (Goal(RATE, ABOVE, times),) for times in (3, 5)}
#: (case, protocol, clients, goals)
ROWS = [
    *((CALL, "http", clients, (*FASTER[3], Goal(P50, BELOW, 0.5))) for clients in (1, 16)),
    (THOUSAND, "stream", 1, FASTER[5]),
    (STRINGS, "http", 1, FASTER[3]),
    (CHAIN, "http", 1, FASTER[5]),
]
CASES = ("call", "thousand", "strings_100k", "chain8_16m", "copied", "empty", "edge")
#: A call to `add_sub`, the same as a step of an ensemble, and the model without either.
PAIR = (("INPUT0", "FP32", (4,)), ("INPUT1", "FP32", (4,)))
EDGE = [Case(name, name, PAIR) for name in ("pass_pair", "pass_add_sub", "call_add_sub")]
#: How many times the cost of the step a call may cost.
EDGES = 1.3


def run(options, start_sides, launch):
    """Side against side; then what is asked of troupe alone, if it takes part."""
    rows = [row for row in ROWS if options.wants(row[0].name, row[2])]
    texts, figures = [], []
    with contextlib.ExitStack() as stack:
        sides = start_sides(options, stack)
        race, results = Race(options), []
        for case, protocol, clients, goals in rows:
            pair = [Side(name, server, case) for name, server in sides]
            results.append(race.run(pair, protocol, clients, goals))
        if results:
            texts.append(report.races(results, options.out, "python"))
        ours = sides[0][1]
        if ours.name == "troupe":
            if options.wants("copied", 1):
                figures += copied(ours)
            if options.wants("empty", 1):
                native = stack.enter_context(launch("troupe", NATIVE))
                native.wait_ready()
                figures.append(empty(options, ours, native))
            if options.wants("edge", 1):
                figures += edge(options, ours)
    if figures:
        texts.append(report.figures(figures, options.out, "python-alone"))
    return "\n".join(texts)


def copied(server):
    """Bytes that one large request through eight steps has copied between them."""
    before = bytes_copied(server)
    Side("troupe", server, CHAIN).answer("http")
    after = bytes_copied(server)
    if before is None or after is None:
        say("this build has no metric troupe_python_bytes_copied_total")
        return []
    return [report.Figure(f"one request through {STEPS} steps, 16 MiB: copied between steps", "MiB",
                          (after - before) / cases.MIB, at_most=0)]


def bytes_copied(server):
    """The sum over all models; None if the server does not count."""
    found = COPIED.findall(server.ask_metrics())
    return sum(map(float, found)) if found else None


def empty(options, python, native):
    """What the way to a Python worker and back adds to the median, with 1 KiB and one client."""
    sides = [Side("python", python, EMPTY), Side("native", native, EMPTY)]
    result = Race(options).run(sides, "http", 1, ())
    if result.problem or result.errors(0) or result.errors(1):
        raise servers.Failed(result.problem or f"requests failed, see {python.log}")
    added = [ours.p50 - theirs.p50 for ours, theirs in zip(*result.runs)]
    return report.Figure("an empty Python model beyond a native one, 1 KiB, 1 client: p50", "µs",
                         statistics.median(added), at_most=MICROSECONDS)


def edge(options, server):
    """What a call adds to the median of a model with one client, beside what a step adds to it."""
    sides = [Side(case.name, server, case) for case in EDGE]
    race, rounds = Race(options), []
    for turn in range(options.rounds):
        order = sides if turn % 2 == 0 else sides[::-1]
        rounds.append({side.name: race.measure(side, "http", 1) for side in order})
        wrong = [name for name, run in rounds[-1].items() if run.errors]
        if wrong:
            raise servers.Failed(f"requests to {wrong[0]} failed, see {server.log}")
    step, call = (statistics.median(it[name].p50 - it["pass_pair"].p50 for it in rounds)
                  for name in ("pass_add_sub", "call_add_sub"))
    return [report.Figure("add_sub as a step of an ensemble, 1 client: p50", "µs", step),
            report.Figure("add_sub called by a model, 1 client: p50", "µs", call,
                          at_most=EDGES * step)]
