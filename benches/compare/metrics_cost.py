"""What metrics cost: troupe beside troupe, one with metrics, read once a second, and one without."""
import contextlib
import os
import threading

import cases
import report
from race import Race, Side

HERE = os.path.dirname(os.path.abspath(__file__))
#: Native steps: whatever is counted weighs most where the models weigh nothing.
CASES = ("add_sub", "ensemble", "chain8", "diamond")
CLIENTS = (1, 16, 64)
GOALS = (cases.Goal(cases.RATE, cases.ABOVE, 0.98), cases.Goal(cases.CPU, cases.BELOW, 1.02))
#: Everything that can be counted.
ALL = ("--metrics-config=histogram_latencies=true", "--metrics-config=summary_latencies=true")


def run(options, launch):
    """`launch` starts a server by name, repository and flags; `options.wants` says which rows."""
    rows = [(cases.CASES[name], clients) for name in CASES for clients in CLIENTS
            if options.wants(name, clients)]
    if not rows:
        return ""
    repository, results = os.path.join(HERE, "native"), []
    more = ALL if options.all else ()
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(launch("metrics", repository, more))
        hidden = stack.enter_context(launch("none", repository, ("--allow-metrics=false",)))
        for server in (shown, hidden):
            server.wait_ready()
        stack.enter_context(read_now_and_then(shown))
        race = Race(options)
        for case, clients in rows:
            pair = [Side("metrics", shown, case), Side("none", hidden, case)]
            results.append(race.run(pair, "http", clients, GOALS))
    return report.races(results, options.out, "metrics")


@contextlib.contextmanager
def read_now_and_then(server, seconds=1):
    """Reads the page as a Prometheus would, until the end."""
    ended = threading.Event()

    def read():
        while not ended.wait(seconds):
            server.ask_metrics()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()
