"""Sides of a race that are no model on a server: a bare loop, and the steps of an ensemble."""
import json
import os
import statistics
import subprocess

import load
import race
import servers

HERE = os.path.dirname(os.path.abspath(__file__))


class Loop:
    """A process with ocr_loop.py; asks it for one thing at a time."""

    def __init__(self, python, models, log):
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [python, os.path.join(HERE, "ocr_loop.py"), models], text=True, stderr=errors,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.log = log

    def ask(self, what, **arguments):
        try:
            self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer that does not come says it
        answer = self.process.stdout.readline()
        if not answer:
            raise servers.Failed(f"the bare loop ended, see {self.log}")
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # It ends with its input.
        self.process.stdin.close()
        self.process.wait(servers.PATIENCE)
        self.process.stdout.close()


class LoopSide:
    """What a bare loop does with a case: `rows` or `pictures`."""

    def __init__(self, loop, case, what, **arguments):
        self.name, self.loop, self.case = "bare loop", loop, case
        self.what, self.arguments = what, arguments

    def answer(self, _):
        if self.what == "rows":
            return self.case.checked(self.loop.ask("word", **self.arguments))
        return self.case.checked(self.loop.ask("words", **self.arguments))

    def measure(self, _protocol, _clients, seconds):
        if self.what == "rows":  # looks for its best size in the first call
            size = self.loop.ask(self.what, seconds=0, **self.arguments)["size"]
            race.say(f"{self.case.name:>16} bare loop: {size} rows in a run")
        run = lambda: self.loop.ask(self.what, seconds=seconds, **self.arguments)
        report, spent = load.watched(self.loop.process.pid, run)
        return load.measured(report, spent, report["answers"])


class StepsSide:
    """The models of an ensemble of two steps, one after the other, without the ensemble.

    Who must do both with the same hands has 1 / (1/t1 + 1/t2) of either.
    """

    def __init__(self, server, case, steps):
        self.name, self.server, self.case, self.steps = "its steps", server, case, steps

    def answer(self, protocol):
        first, second = self.steps
        # The second step reads, as its inputs in order, what the first wrote.
        wrote = race.Side(first.name, self.server, first).answer(protocol)
        inputs = tuple((name, kind, list(shape), wrote[f"OUTPUT{index}"][2])
                       for index, (name, kind, shape) in enumerate(second.inputs))
        return race.Side(second.name, self.server, second.with_tensors(inputs)).answer(protocol)

    def measure(self, protocol, clients, seconds):
        runs = [load.measure(self.server, case, protocol, clients, seconds) for case in self.steps]
        total = lambda what: sum(getattr(run, what) for run in runs)
        mean = lambda what: statistics.mean(getattr(run, what) for run in runs)
        return load.Measured(
            rate=1 / sum(1 / run.rate for run in runs), p50=total("p50"), p99=total("p99"),
            cpu=total("cpu"), server_percent=mean("server_percent"),
            client_percent=mean("client_percent"), other_percent=mean("other_percent"),
            answers=total("answers"), errors=total("errors"))
