"""Writes results as Markdown, CSV and JSON."""
import csv
import dataclasses
import json
import math
import os
import platform
import statistics
import subprocess
import time

import cases
import chart
import race


@dataclasses.dataclass
class Figure:
    """One number of ours, what it has to be at most, and what the other server has."""
    what: str
    unit: str
    ours: float
    theirs: float = math.nan
    at_most: float = math.nan

    def verdict(self):
        if math.isnan(self.at_most):
            return ""
        return "met" if self.ours <= self.at_most else "**missed**"


def races(results, folder, name):
    """Writes tables and chart of results, and gives back the Markdown."""
    first, second = next((it.names for it in results), ("troupe", "triton"))
    headings = ["case", "protocol", "clients", f"{first} req/s", f"{second} req/s",
                "req/s ×", "range", "p50 µs", "p50 ×", "p99 ×", "CPU µs/req", "CPU ×",
                "errors", "others' CPU", "target", "result"]
    text = _table(headings, [_race_row(it) for it in results]) + "\n"
    missed = [it for it in results for _, met in it.verdicts() if not met]
    goals = sum(len(it.goals) for it in results)
    text += f"\n{goals - len(missed)} of {goals} targets met. {environment_line()}\n"
    _save(folder, name, text, [_flat(it) for it in results], [_whole(it) for it in results])
    with open(os.path.join(folder, f"{name}.svg"), "w", encoding="utf-8") as file:
        file.write(chart.draw([it for it in results if not it.problem], first, second))
    return text


def figures(results, folder, name):
    """Writes the table of single numbers, and gives back the Markdown."""
    headings = ["what", "troupe", "Triton", "target", "result"]
    rows = [[it.what, _with_unit(it.ours, it.unit), _with_unit(it.theirs, it.unit),
             "" if math.isnan(it.at_most) else "≤ " + _with_unit(it.at_most, it.unit),
             it.verdict()] for it in results]
    text = f"{_table(headings, rows)}\n\n{environment_line()}\n"
    plain = [dataclasses.asdict(it) for it in results]
    _save(folder, name, text, plain, plain)
    return text


def environment_line():
    facts = environment()
    return (f"{facts['cores']} × {facts['cpu']}, Linux {facts['kernel']}, {facts['date']},"
            f" commit {facts['commit']}.")


def environment():
    """Where and when, as far as it matters for the numbers."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    here = os.path.dirname(os.path.abspath(__file__))
    commit = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count(),
            "kernel": platform.release(), "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"), "commit": commit.stdout.strip() or "unknown"}


def _race_row(result):
    start = [result.case, result.protocol, str(result.clients)]
    targets = "<br>".join(map(str, result.goals))
    if result.problem:
        # A bar would end the cell.
        return [*start, *[""] * 11, targets, result.problem[:160].replace("|", "/")]
    median = lambda side, metric: f"{result.median(side, metric):,.0f}"
    both = lambda metric: f"{median(0, metric)} / {median(1, metric)}"
    ratio = lambda metric: f"{result.ratio(metric):.2f}"
    spread = result.ratios(cases.RATE)
    verdicts = [_verdict(result, goal, met) for goal, met in result.verdicts()]
    return [*start, median(0, cases.RATE), median(1, cases.RATE),
            ratio(cases.RATE), f"{min(spread):.2f}–{max(spread):.2f}", both(cases.P50),
            ratio(cases.P50), ratio("p99"), both(cases.CPU), ratio(cases.CPU),
            f"{result.errors(0)} / {result.errors(1)}", f"{_disturbance(result):.0f}%", targets, "<br>".join(verdicts)]


def _verdict(result, goal, met):
    text = "met" if met else "**missed**"
    # The others have a column.
    return f"{text}: {result.ratio(goal.metric):.2f}" if goal.metric == cases.ROWS else text


def _disturbance(result):
    """What other processes used in the median run, in percent of one core."""
    return statistics.median(run.other_percent for side in result.runs for run in side)


def _flat(result):
    row = {"case": result.case, "protocol": result.protocol, "clients": result.clients,
           "problem": result.problem}
    for index, name in enumerate(result.names if not result.problem else ()):
        for metric in race.METRICS:
            row[f"{name} {metric}"] = round(result.median(index, metric), 2)
    for metric in race.METRICS if not result.problem else ():
        row[f"{metric} ratio"] = round(result.ratio(metric), 4)
    return row


def _whole(result):
    verdicts = [{"goal": str(goal), "met": met} for goal, met in result.verdicts()]
    runs = {name: [dataclasses.asdict(run) for run in side]
            for name, side in zip(result.names, result.runs)}
    return {**_flat(result), "goals": verdicts, "runs": runs}


def _save(folder, name, text, rows, document):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with open(f"{path}.md", "w", encoding="utf-8") as file:
        file.write(text)
    with open(f"{path}.json", "w", encoding="utf-8") as file:
        json.dump({"environment": environment(), "results": document}, file, indent=1)
    with open(f"{path}.csv", "w", encoding="utf-8", newline="") as file:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _with_unit(number, unit):
    if math.isnan(number):
        return "–"
    return f"{number:,.0f} {unit}" if 100 <= abs(number) else f"{number:.1f} {unit}"


def _table(headings, rows):
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
