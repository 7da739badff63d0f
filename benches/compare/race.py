"""Runs two sides in turn, A B B A, and sets what they did side by side."""
import dataclasses
import statistics
import sys
import tempfile
import time

import cases
import load
import processes
import wire

METRICS = {cases.RATE: "rate", cases.P50: "p50", "p99": "p99", cases.CPU: "cpu",
           cases.ROWS: "rows_per_cpu"}


@dataclasses.dataclass
class Side:
    """A case on a server, under the name it has in tables."""
    name: str
    server: object
    case: object

    def measure(self, protocol, clients, seconds):
        return load.measure(self.server, self.case, protocol, clients, seconds)

    def answer(self, protocol):
        """What the case makes of the answers to its requests; over gRPC there is one request."""
        answers = (self._grpc_answers(protocol) if protocol != "http"
                   else [self._http_answer(*request) for request in self.case.bodies()])
        return self.case.understand(answers)

    def _grpc_answers(self, protocol):
        with tempfile.TemporaryDirectory(prefix="troupe-bench-") as folder:
            body = load.grpc_once(self.server, self.case, protocol, folder)
        return wire.stream_answers(body) if protocol == "stream" else [wire.grpc_answer(body)]

    def _http_answer(self, body, headers):
        path = f"/v2/models/{self.case.model}/infer"
        status, answer, found = self.server.ask("POST", path, body, headers.items())
        if status != 200:
            raise ValueError(f"{self.name} answered {status}: {answer[:200]}")
        return wire.http_answer(answer, int(found["Inference-Header-Content-Length"]))


@dataclasses.dataclass
class Result:
    """What two sides did, round by round. `problem` says why there is nothing."""
    case: str
    protocol: str
    clients: int
    names: tuple
    goals: tuple
    runs: tuple = ((), ())
    problem: str = ""

    def median(self, side, metric):
        return statistics.median(getattr(run, METRICS[metric]) for run in self.runs[side])

    def ratios(self, metric):
        """First by second, round by round: rounds are neighbours in time, so drifts cancel."""
        pairs = [[getattr(run, METRICS[metric]) for run in pair] for pair in zip(*self.runs)]
        return [ours / theirs for ours, theirs in pairs if theirs]

    def ratio(self, metric):
        ratios = self.ratios(metric)
        return statistics.median(ratios) if ratios else float("nan")

    def errors(self, side):
        return sum(run.errors for run in self.runs[side])

    def verdicts(self):
        """Every goal with whether it was met; failed requests meet nothing."""
        good = not self.problem and not self.errors(0)
        return [(goal, good and goal.is_met(self.ratio(goal.metric))) for goal in self.goals]


class Race:
    """How long, how often, and how calm the machine has to be."""

    def __init__(self, options):
        self.seconds, self.rounds, self.calm = options.seconds, options.rounds, options.wait_quiet

    def run(self, sides, protocol, clients, goals):
        names = tuple(it.name for it in sides)
        result = Result(sides[0].case.name, protocol, clients, names, goals)
        try:
            check_answers(sides, protocol)
            runs = self._rounds(sides, protocol, clients)
        except Exception as error:  # one case must not end a run of many
            result.problem = f"{type(error).__name__}: {error}"
            say(f"{result.case} {protocol} {clients}: {result.problem}")
            return result
        result.runs = tuple(runs)
        for goal, met in result.verdicts():
            say(f"    {goal}: {result.ratio(goal.metric):.2f}× {'met' if met else 'MISSED'}")
        return result

    def _rounds(self, sides, protocol, clients):
        runs = [], []
        for turn in range(self.rounds):
            for index in (0, 1) if turn % 2 == 0 else (1, 0):
                runs[index].append(self.measure(sides[index], protocol, clients))
        return runs

    def measure(self, side, protocol, clients):
        """One run of one side, once the machine is calm enough."""
        if self.calm:
            wait_calm(self.calm)
        run = side.measure(protocol, clients, self.seconds)
        say(f"{side.case.name:>16} {protocol} {clients:3} clients, {side.name:12}"
            f" {run.rate:9,.0f}/s  p50 {run.p50:9,.0f}  p99 {run.p99:9,.0f}"
            f"  CPU/req {run.cpu:8,.0f} µs  server {run.server_percent:3.0f}%"
            f" client {run.client_percent:3.0f}% other {run.other_percent:3.0f}%"
            + (f"  {run.errors} ERRORS" if run.errors else ""))
        return run


def check_answers(sides, protocol):
    """Both sides must say the same before their speed means anything."""
    first, second = (side.answer(protocol) for side in sides)
    # Different models, as in native against native, share no output names.
    if sides[0].case.name == sides[1].case.name and not sides[0].case.agree(first, second):
        raise ValueError(f"answers differ: {str(first)[:300]} and {str(second)[:300]}")


def wait_calm(seconds, percent=15):
    """Waits for a moment in which others use little of the machine, but not for ever."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun, busy = time.monotonic(), processes.busy_seconds()
        time.sleep(0.3)
        if 100 * (processes.busy_seconds() - busy) / (time.monotonic() - begun) <= percent:
            return


def say(text):
    print(text, file=sys.stderr, flush=True)
