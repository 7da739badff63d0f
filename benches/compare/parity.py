"""Asks troupe and the real Triton the same of every scheduler, and prints the answers that differ."""
import contextlib
import json
import os
import re
import subprocess
import tempfile
import time

import parity_models
import servers
from race import say

SIDES = ("troupe", "triton")
CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "parity_client.py")
FLAGS = ("--cache-config=local,size=10485760", "--rate-limit=execution_count", "--metrics-interval-ms=200")
OURS = ("--allow-client-shm=true",)
#: Metrics that are compared, with their values where those are no times.
METRIC = re.compile(r"^(nv_[a-z_]+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
TIMES = re.compile("duration|_us|summary|util|energy|power|memory|cpu|gpu")
#: Of a label and our answer: why it is not Triton's.
KNOWN = (
    (r'=> .*step 0 \(model|"troupe": ', "errors of a step name the step"),
    (r"\(its outputs: ", "an unknown output's error names those that there are"),
    (r"=> \[400, .*(Unable to parse|invalid value|has invalid type|cannot be longer)",
     "a malformed parameter is the client's mistake, 400 where Triton says 500 or 501"),
    ('string_dyna|the id of another type|texts:|sequence_id ("a|""|of)', "ids have to be of the type of "
     "the control; the Triton of the wheel checks none, and knows no texts with Python models"),
    (r"cached_ensemble: 1 =>", "hits of ensembles answer like misses"),
    (r"request_failure|fail\.count", "what found no room in a queue is a failure, once in each ensemble; "
     "so are crashes"),
    ("nv_model_load_duration_secs", "newer than the Triton of the wheel"),
    (r"exec_count|execution_count|batch_stats\.\d", "which requests meet in a batch"),
    (r"request has been cancelled", "Triton leaves the text out"),
    ("limited: who comes when", "by executions × priority, as Triton's page says"),
    (r'^timed: (its own|statistics)|model="timed"', "Triton looks at a queue every 500 ms while its "
     "instance is busy, and then refuses what could have run"),
)


def run(options, start):
    """`start` starts a server by name, repository and flags. Answers a text: what differs."""
    answers = []
    for name in SIDES:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="troupe-parity-"))
            parity_models.write(folder)
            server = stack.enter_context(start(name, folder, FLAGS + (OURS if name == "troupe" else ())))
            server.wait_ready(servers.LONG_PATIENCE)
            say(f"asking {name}")
            answers.append(asked(server, servers.triton_python(options.triton)))
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, f"parity-{name}.json"), "w", encoding="utf-8") as file:
            json.dump(answers[-1], file, indent=1, sort_keys=True)
    return report(*answers)


def asked(server, python):
    """Answers by their labels, flat."""
    def client(part):
        command = [python, CLIENT, server.http, server.grpc, part]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=servers.LONG_PATIENCE)
        return {**json.loads(done.stdout), f"{part}: the client's end": done.returncode}

    found = {}
    for label, answer in client("calls").items():
        found.update(flat(label, answer) if label.endswith("config") else {label: answer})
    for model in parity_models.MODELS:
        stats = json.loads(server.get(f"/v2/models/{model}/stats")[1])["model_stats"][0]
        found.update(it for it in flat(f"{model}: statistics", stats).items()
                     if not re.search(r"\.ns$|last_inference|memory_usage", it[0]))
    time.sleep(1)  # gauges are read now and then
    found.update(metrics(server.ask_metrics()))
    # Last of all: the real one does not get over these.
    return {**found, **client("parameters"), **client("texts")}


def flat(label, answer):
    """The leaves of a JSON document by their paths."""
    if isinstance(answer, dict) and answer:
        parts = answer.items()
    elif isinstance(answer, list) and answer and isinstance(answer[0], dict):
        parts = enumerate(answer)
    else:
        return {label: answer}
    leaves = {}
    for key, part in parts:
        leaves.update(flat(f"{label}.{key}", part))
    return leaves


def metrics(page):
    found = {}
    for name, labels, value in METRIC.findall(page):
        labels = ",".join(sorted((labels or "").split(",")))
        found[f"metric {name}{{{labels}}}"] = "a time" if TIMES.search(name) else float(value)
    for name, text in re.findall(r"^# HELP (nv_\S+) (.*)$", page, re.MULTILINE):
        found[f"metric {name}'s help"] = text
    return found


def report(ours, theirs):
    lines, known = [], 0
    for label in sorted({*ours, *theirs}):
        pair = [side.get(label, "(nothing)") for side in (ours, theirs)]
        if pair[0] == pair[1]:
            continue
        if any(re.search(pattern, f"{label} => {json.dumps(pair[0])}") for pattern, _ in KNOWN):
            known += 1
            continue
        lines.append(f"- {label}")
        lines += [f"    {name:6} {json.dumps(it)[:400]}" for name, it in zip(SIDES, pair)]
    compared = len({*ours, *theirs})
    differ = sum(line.startswith("- ") for line in lines)
    why = [f"- on purpose: {pattern}: {reason}" for pattern, reason in KNOWN]
    return "\n".join([*lines, f"{compared} answers, {differ} differ, {known} more on purpose", *why])
