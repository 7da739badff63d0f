"""What `scale` measured as a table, with the aims, as JSON, and as a chart over cores."""
import dataclasses
import json
import os
import statistics

import chart
import report

#: From here on somebody is busy, in percent of the cores they have.
BUSY = 90
HEADINGS = ("case", "cores", "req/s", "range", "× one core", "p50 µs", "p99 µs", "CPU µs/req",
            "CPU × one core", "wake-ups/req", "system calls/req", "server busy",
            "generator busy", "busiest thread", "bounded by", "errors")


@dataclasses.dataclass(frozen=True)
class Aim:
    """A ratio of requests per second: a series at some cores by another at some cores."""
    what: str
    measured: tuple  # of (key of the series, cores)
    beside: tuple
    at_least: float


AIMS = [
    Aim("native `ensemble`, 8 cores by 1", ("ensemble", 8), ("ensemble", 1), 6.5),
    Aim("native `chain8`, 8 cores by 1", ("chain8", 8), ("chain8", 1), 6.5),
    Aim("one hot native model, 8 cores by 1", ("hot", 8), ("hot", 1), 6),
    Aim("Python `ensemble`, 8 cores, 4 instances by 1", ("python4", 8), ("python1", 8), 3.5),
]


def write(results, machine, folder):
    """Writes everything that is there, and gives back the Markdown."""
    text = (f"{table(results)}\n\n{aims(results)}\n\n"
            + "\n".join(f"* {line}" for line in [*machine.remarks(sorted(counts(results))), *NOTES])
            + f"\n\n{report.environment_line()}\n")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "scale")
    with open(f"{path}.md", "w", encoding="utf-8") as file:
        file.write(text)
    with open(f"{path}.json", "w", encoding="utf-8") as file:
        json.dump(document(results, machine), file, indent=1)
    with open(f"{path}.svg", "w", encoding="utf-8") as file:
        file.write(chart.draw_over_cores(lines(results)))
    return text


NOTES = (
    "engine threads: as many as the server has cores; Python workers share these cores",
    "troupe runs with --spin=off: the default depends on the cores it may use",
    "wake-ups are voluntary context switches of all threads of the server and its workers; ≥ where"
    " threads ended during a run, whose own are not known",
    "the busiest thread is one of the server or of a worker, in percent of one core",
)


def counts(results):
    return {it.cores for it in results}


def median(result, field):
    """Of all rounds, or nothing if there was none."""
    values = [getattr(run, field) for run in result.runs] if result else []
    return statistics.median(values) if values else None


def ratio(result, other, field):
    """Round by round, as far as both have them; the median of that."""
    if not result or not other:
        return None
    beside = {run.round: getattr(run, field) for run in other.runs}
    ratios = [getattr(run, field) / beside[run.round] for run in result.runs
              if beside.get(run.round)]
    return statistics.median(ratios) if ratios else None


def find(results, key, cores):
    return next((it for it in results if it.series.key == key and it.cores == cores), None)


def bound(result):
    """Who had no time left in the median run."""
    of_server = median(result, "server_percent") / result.cores
    of_generator = median(result, "client_percent") / result.generator_cores
    named = []
    if BUSY <= of_generator:
        named.append("generator")
    if BUSY <= of_server:
        named.append("server")
    elif BUSY <= median(result, "busiest_percent"):
        named.append(f"one thread ({busiest(result).busiest})")
    if 20 <= median(result, "other_percent") / (result.cores + result.generator_cores):
        named.append("others on this machine")
    return ", ".join(named) or "nobody: wake-ups, locks"


def busiest(result):
    return max(result.runs, key=lambda run: run.busiest_percent)


def table(results):
    rows = [row(it, find(results, it.series.key, 1)) for it in results if it.runs or it.problems]
    return "\n".join("| " + " | ".join(cells) + " |"
                     for cells in [HEADINGS, ["---"] * len(HEADINGS), *rows])


def row(result, one_core):
    start = [result.series.label, str(result.cores)]
    if not result.runs:
        return [*start, *[""] * (len(HEADINGS) - 3), failed_rounds(result)]
    rates = [run.rate for run in result.runs]
    share = lambda field, cores: f"{median(result, field) / cores:.0f}%"
    calls = result.system_calls
    name, percent = busiest(result).busiest, busiest(result).busiest_percent
    at_least = "≥ " if any(run.ended_threads for run in result.runs) else ""
    errors = str(sum(run.errors for run in result.runs))
    return [*start, f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f}–{max(rates):,.0f}",
            times(ratio(result, one_core, "rate")), f"{median(result, 'p50'):,.0f}",
            f"{median(result, 'p99'):,.0f}", f"{median(result, 'cpu'):,.1f}",
            times(ratio(result, one_core, "cpu")), f"{at_least}{median(result, 'wake_ups'):.2f}",
            f"{statistics.median(calls):.1f}" if calls else "–",
            share("server_percent", result.cores), share("client_percent", result.generator_cores),
            f"{cell(name)} {percent:.0f}%", cell(bound(result)),
            "; ".join(filter(None, [errors, failed_rounds(result)]))]


def failed_rounds(result):
    """How many rounds there is nothing of, and why of the first."""
    if not result.problems:
        return ""
    return f"{len(result.problems)} without a result, {cell(result.problems[0][:160])}"


def cell(text):
    """A bar would end the cell."""
    return text.replace("|", "/")


def times(value):
    return f"{value:.2f}" if value else "–"


def aims(results):
    lines = ["| aim | to reach | measured | result |", "| --- | --- | --- | --- |"]
    for aim in AIMS:
        value, verdict = judge(results, aim)
        lines.append(f"| {aim.what} | ≥ {aim.at_least:g}× | {times(value)} | {verdict} |")
    return "\n".join(lines)


def judge(results, aim):
    """The ratio, and whether it is what it should be."""
    measured, beside = find(results, *aim.measured), find(results, *aim.beside)
    value = ratio(measured, beside, "rate")
    if value is None:
        has_failed = any(it and it.problems for it in (measured, beside))
        return None, "**not measured**: rounds failed" if has_failed else "not measurable here"
    if measured.problems or beside.problems:
        return value, "**missed**: rounds failed"
    if any(run.errors for run in [*measured.runs, *beside.runs]):
        return value, "**missed**: requests failed"
    if aim.at_least <= value:
        return value, "met"
    return value, f"**missed**; bounded by {bound(measured)}"


def lines(results):
    """What the chart draws: by label, (cores, requests per second)."""
    found = {}
    for it in results:
        if it.runs:
            found.setdefault(it.series.label.replace("`", ""), []).append(
                (it.cores, median(it, "rate")))
    return found


def document(results, machine):
    described = [{"case": it.series.key, "label": it.series.label, "cores": it.cores,
                  "generator_cores": it.generator_cores, "problems": it.problems,
                  "system_calls_per_request": it.system_calls,
                  "bounded_by": bound(it) if it.runs else "",
                  "runs": [dataclasses.asdict(run) for run in it.runs]} for it in results]
    judged = [{"aim": aim.what, "at_least": aim.at_least, "measured": value, "result": verdict}
              for aim in AIMS for value, verdict in [judge(results, aim)]]
    environment = {**report.environment(), "usable_cores": machine.usable,
                   "quota": machine.quota, "spin": "off"}
    return {"environment": environment, "results": described, "aims": judged}
