"""Races two builds of troupe at several numbers of engine threads: what a change of the code costs."""
import contextlib
import csv
import os
import statistics

import cases
import python_models
from race import Race, Side, say

#: By repository: (case, protocol, clients).
PYTHON = [
    *((cases.CASES[name], protocol, clients)
      for protocol in ("http", "grpc")
      for name, counts in (("ensemble", (1, 16)), ("add_sub", (16,)), ("chain8", (16,)),
                           ("identity_1m", (1,)))
      for clients in counts),
    (python_models.CALL, "http", 1),
    (python_models.CALL, "http", 16),
]
NATIVE = [
    *((cases.CASES[name], "http", clients)
      for name, counts in (("add_sub", (64,)), ("ensemble", (1, 64)), ("chain8", (1, 64)))
      for clients in counts),
    (cases.CASES["ensemble"], "grpc", 64),
]
#: What a build may lose, and what it may cost more.
RATE, CPU = 0.97, 1.03
COLUMNS = ("models", "case", "over", "clients", "threads", "req/s ×", "from", "to", "p50 ×",
           "CPU/req ×", "from", "to", "req/s", "errors")


def run(options, start_sides, native):
    """The whole table, one number of threads after the other."""
    rows = []
    for threads in options.threads.split(","):
        for name, folder, wanted in (("native", native, NATIVE), ("python", options.models, PYTHON)):
            wanted = [row for row in wanted if options.wants(row[0].name, row[2])]
            if not wanted:
                continue
            say(f"== {name} models, {threads} engine threads")
            with contextlib.ExitStack() as stack:
                sides = start_sides(options, stack, folder, (f"--http-thread-count={threads}",))
                race = Race(options)
                for case, protocol, clients in wanted:
                    pair = [Side(side, server, case) for side, server in sides]
                    result = race.run(pair, protocol, clients, ())
                    rows.append(line(name, threads, result))
                    write(options, rows)
    return table(rows) + verdict(rows)


def line(models, threads, result):
    """One row: medians of the ratios of all rounds, and their middle half."""
    if result.problem:
        return (models, result.case, result.protocol, result.clients, threads,
                *[""] * 8, result.problem)
    rate, cpu = result.ratios("req/s"), result.ratios(cases.CPU)
    return (models, result.case, result.protocol, result.clients, threads,
            statistics.median(rate), *half(rate), result.ratio(cases.P50),
            statistics.median(cpu), *half(cpu), result.median(0, "req/s"),
            result.errors(0) + result.errors(1))


def half(ratios):
    """Where the middle half of the rounds lies."""
    if len(ratios) < 2:
        return ratios[0], ratios[0]
    low, _, high = statistics.quantiles(ratios, n=4)
    return low, high


def table(rows):
    """The rows as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        cells = [f"{cell:.2f}" if isinstance(cell, float) and cell < 1000 else
                 f"{cell:,.0f}" if isinstance(cell, float) else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def verdict(rows):
    """Which rows lose more than they may: by requests a second and by CPU time alike."""
    bad = [row for row in rows if isinstance(row[5], float) and row[5] < RATE and CPU < row[9]]
    names = [f"{row[0]} {row[1]} {row[2]} {row[3]} clients {row[4]} threads" for row in bad]
    return "".join(f"slower: {name}\n" for name in names) or "no case is slower\n"


def write(options, rows):
    """After every row: an interrupted run keeps what it has."""
    path = os.path.join(options.out, "builds")
    with open(f"{path}.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    with open(f"{path}.md", "w", encoding="utf-8") as file:
        file.write(table(rows) + verdict(rows))
