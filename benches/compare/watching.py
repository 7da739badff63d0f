"""What it costs to be watched: troupe beside troupe, one with metrics or traces, and one without."""
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


#: Traces are on, to a collector that is not there, and hardly ever a request is sampled.
TRACES = ("--trace-config=mode=opentelemetry", "--trace-config=level=TIMESTAMPS",
          "--trace-config=rate=1000000", "--trace-config=opentelemetry,url=http://127.0.0.1:9/v1/traces")
TRACE_GOALS = (cases.Goal(cases.RATE, cases.ABOVE, 0.99), cases.Goal(cases.CPU, cases.BELOW, 1.01))


def run(options, launch):
    """With metrics, and without."""
    more = ALL if options.all else ()
    return race(options, launch, "metrics", (more, ("--allow-metrics=false",), GOALS))


def traces(options, launch):
    """With traces that hardly ever sample; with --all, every request is sampled."""
    more = TRACES + (("--trace-config=rate=1",) if options.all else ())
    return race(options, launch, "traces", (more, (), TRACE_GOALS))


def race(options, launch, name, sides):
    """`launch` starts a server by name, repository and flags; `options.wants` says which rows."""
    more, less, goals = sides
    rows = [(cases.CASES[name], clients) for name in CASES for clients in CLIENTS
            if options.wants(name, clients)]
    if not rows:
        return ""
    repository, results = os.path.join(HERE, "native"), []
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(launch(name, repository, more))
        hidden = stack.enter_context(launch("none", repository, less))
        for server in (shown, hidden):
            server.wait_ready()
        stack.enter_context(read_now_and_then(shown))
        two = Race(options)
        for case, clients in rows:
            pair = [Side(name, shown, case), Side("none", hidden, case)]
            results.append(two.run(pair, "http", clients, goals))
    return report.races(results, options.out, name)


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
