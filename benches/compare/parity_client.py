"""Asks one server what `parity` compares; runs where tritonclient is. Prints labels and answers."""
import concurrent.futures
import http.client
import json
import queue
import signal
import sys
import time

import numpy
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, shared_memory

HTTP, GRPC, PART = sys.argv[1:]
VALUES = [11, 7, 5, 3, 2, 0, 1]
CLIENTS = {"http": tritonclient.http.InferenceServerClient(HTTP, concurrency=16),
           "grpc": tritonclient.grpc.InferenceServerClient(GRPC)}
MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}
#: Model, and the ids of two of its sequences.
SEQUENCES = [("simple_sequence", 1000, 1001), ("simple_dyna_sequence", 1002, 1003),
             ("sequence_ensemble", 1006, 1007)]
#: Of `sequence_id`, as JSON.
NUMBERS = ["7", "0", "-1", "1.5", "true", "null", "[1]", "18446744073709551615", "18446744073709551616"]
TEXTS = ['""', '"a"', *('"%s"' % ("x" * length) for length in (127, 128, 129, 300))]
#: Seconds for all calls; servers that are out of order may not answer at all.
PATIENCE = 150
RESULTS = {}


def main():
    part = {"calls": calls, "parameters": parameters, "texts": texts}[PART]
    signal.signal(signal.SIGALRM, lambda *_: sys.exit("it takes too long"))
    signal.alarm(PATIENCE)
    try:
        part()
    finally:
        # Also what there is when the server has ended.
        json.dump(RESULTS, sys.stdout)


def calls():
    for sequences in SEQUENCES:
        sequences_of(*sequences)
    backlog()
    queues()
    rate_limits()
    caches()
    regions()
    for model in ("simple_sequence", "simple_dyna_sequence", "defaults", "levels", "timed", "limited_b",
                  "cached"):
        note(f"{model}: config", lambda: config(model))


def sequences_of(model, one, two):
    for protocol in CLIENTS:
        note(f"{model}, {protocol}: one after the other", lambda: in_turn(protocol, model, one, two))
        wrong_use(protocol, model, one)
    note(f"{model}, http: asynchronous", lambda: asynchronous_http(model, one, two))
    note(f"{model}, grpc: asynchronous", lambda: asynchronous_grpc(model, one, two))
    note(f"{model}: stream", lambda: streamed(model, one, two))
    note(f"{model}: stream without START", lambda: stream_without_start(model, one))


def texts():
    """Sequences whose ids are texts, or should not be."""
    for model in ("simple_sequence", "simple_dyna_sequence"):
        for protocol in CLIENTS:
            note(f"{model}, {protocol}: the id of another type", lambda: infer(
                protocol, model, 1, sequence_id="text", sequence_start=True, sequence_end=True))
    sequences_of("simple_string_dyna_sequence", "1004", "1005")
    ids("simple_string_dyna_sequence", NUMBERS + TEXTS)
    for model in ("simple_sequence", "sequence_ensemble", "simple_dyna_sequence"):
        ids(model, TEXTS)


def note(label, ask):
    """Keeps an answer, or what came instead of one."""
    try:
        RESULTS[label] = ask()
    except InferenceServerException as error:
        RESULTS[label] = f"{error.status()}: {error.message()}"


def tensor(protocol, number, kind="INT32", shape=(1, 1)):
    made = MODULES[protocol].InferInput("INPUT", shape, kind)
    made.set_data_from_numpy(numpy.full(shape, number, {"INT32": numpy.int32}.get(kind, numpy.float32)))
    return [made]


def infer(protocol, model, number, rows=1, **more):
    answer = CLIENTS[protocol].infer(model, tensor(protocol, number, shape=(rows, 1)), **more)
    return answer.as_numpy("OUTPUT").reshape(-1).tolist()


def flags(step, of=len(VALUES)):
    return {"sequence_start": step == 0, "sequence_end": step + 1 == of}


def in_turn(protocol, model, one, two):
    return [[infer(protocol, model, sign * value, sequence_id=id, **flags(step))
             for id, sign in ((one, 1), (two, -1))] for step, value in enumerate(VALUES)]


def asynchronous_http(model, one, two):
    answers = []
    for step, value in enumerate(VALUES):
        asked = [CLIENTS["http"].async_infer(model, tensor("http", value), sequence_id=id, **flags(step))
                 for id in (one, two)]
        answers.append([it.get_result().as_numpy("OUTPUT").tolist() for it in asked])
    return answers


def asynchronous_grpc(model, one, two):
    answers = []
    for step, value in enumerate(VALUES):
        done = queue.Queue()
        for id in (one, two):
            CLIENTS["grpc"].async_infer(
                model, tensor("grpc", value), lambda result, error, of=id: done.put((str(of), result, error)),
                sequence_id=id, **flags(step))
        found = sorted((done.get(timeout=30) for _ in range(2)), key=lambda it: it[0])
        answers.append([str(error) if error else result.as_numpy("OUTPUT").tolist()
                        for _, result, error in found])
    return answers


def on_stream(requests):
    """Answers of `(model, number, more)`, as they come; each with its id."""
    done, client = queue.Queue(), tritonclient.grpc.InferenceServerClient(GRPC)
    client.start_stream(lambda result, error: done.put((result, error)))
    for index, (model, number, more) in enumerate(requests):
        client.async_stream_infer(model, tensor("grpc", number), request_id=f"{index}", **more)
    found = [done.get(timeout=30) for _ in requests]
    client.stop_stream()
    client.close()
    return found


def streamed(model, one, two):
    found = on_stream([(model, value, {"sequence_id": id, **flags(step)})
                       for step, value in enumerate(VALUES) for id in (one, two)])
    return sorted((str(error), "") if error else
                  (result.get_response().id, result.as_numpy("OUTPUT").tolist()) for result, error in found)


def stream_without_start(model, id):
    found = on_stream([(model, 1, {"sequence_id": id})])
    return [(str(error), error and error.status()) for _, error in found]


def wrong_use(protocol, model, id):
    def case(label, **more):
        note(f"{model}, {protocol}: {label}", lambda: infer(protocol, model, 1, **more))

    case("no id")
    case("no id but START", sequence_start=True)
    case("no START", sequence_id=id)
    case("only END", sequence_id=id, sequence_end=True)
    case("two rows", rows=2, sequence_id=id, sequence_start=True)
    case("START", sequence_id=id, sequence_start=True)
    case("START again", sequence_id=id, sequence_start=True)
    case("two rows in its middle", rows=2, sequence_id=id)
    case("END", sequence_id=id, sequence_end=True)
    case("after END", sequence_id=id)
    case("START and END", sequence_id=id, sequence_start=True, sequence_end=True)
    case("an input that is a control", sequence_id=id, sequence_start=True, sequence_end=True,
         outputs=[MODULES[protocol].InferRequestedOutput("START")])


def later(*calls):
    """Answers of calls that begin 60 ms after each other."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
        asked = []
        for call in calls:
            asked.append(threads.submit(call))
            time.sleep(0.06)
        answers = []
        for it in asked:
            try:
                answers.append(it.result())
            except InferenceServerException as error:
                answers.append(f"{error.status()}: {error.message()}")
        return answers


def calls_of(protocol, model):
    """Makes calls of its sequences."""
    return lambda id, start=False, end=False, **more: lambda: infer(
        protocol, model, 1, sequence_id=id, sequence_start=start, sequence_end=end, **more)


def backlog():
    """A second sequence waits for the only slot, or is idle."""
    of = calls_of("grpc", "one_slot")
    note("one_slot: the backlog goes on", lambda: later(of(1, True), of(2, True, True), of(1, end=True)))
    note("one_slot: the backlog's timeout", lambda: later(
        of(1, True), of(2, True, timeout=200000), of(2, timeout=10000000)))
    note("one_slot: it is forgotten then", of(2))
    note("one_slot: the first one goes on", of(1, end=True))
    of = calls_of("http", "soon_idle")
    note("soon_idle: START", of(5, True))
    time.sleep(1)
    note("soon_idle: forgotten", of(5))
    of = calls_of("grpc", "sleepy")
    note("sleepy: a timeout in a slot means nothing", lambda: later(
        of(1, True), of(1, timeout=1000), of(1, end=True)))
    note("sleepy: the client's deadline, and the sequence goes on", lambda: later(
        of(1, True), of(1, client_timeout=0.1), of(1, end=True)))


def raw(model, parameters, number="1"):
    """Status and body of a request as text."""
    kind = "INT32" if "sequence" in model or model in ("defaults", "one_slot") else "FP32"
    body = ('{"inputs":[{"name":"INPUT","datatype":"%s","shape":[1,1],"data":[%s]}],"parameters":{%s}}'
            % (kind, number, parameters))
    return posted(model, body)


def posted(model, body):
    connection = http.client.HTTPConnection(HTTP, timeout=30)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body)
        reply = connection.getresponse()
        answer = reply.read().decode()
    except (OSError, http.client.HTTPException):
        return "the connection was cut"
    try:
        parsed = json.loads(answer)
    except ValueError:
        return [reply.status, answer]
    for output in parsed.get("outputs", []):
        if output["datatype"] == "FP32":
            # When it began.
            output.pop("data", None)
    return [reply.status, parsed]


def parameters():
    """What JSON may hold for a parameter."""
    for value in ("0", "1", '"true"', "null", "1.5"):
        note(f"sequence_start {value}",
             lambda: raw("simple_sequence", f'"sequence_id":9,"sequence_start":{value},"sequence_end":true'))
        note(f"sequence_end {value}",
             lambda: raw("simple_sequence", f'"sequence_id":9,"sequence_start":true,"sequence_end":{value}'))
        raw("simple_sequence", '"sequence_id":9,"sequence_end":true,"sequence_start":true')
    for name in ("priority", "timeout"):
        for value in ("0", "1", "3", "99", "-1", '"1"', "1.5", "true", "null", "18446744073709551616"):
            note(f"levels: {name} {value}", lambda: raw("levels", f'"{name}":{value}'))
    for model in ("simple_sequence", "sequence_ensemble", "simple_dyna_sequence"):
        ids(model, NUMBERS)


def ids(model, values):
    for id in values:
        label = f"{model}: sequence_id {id if len(id) < 30 else f'of {len(id) - 2} bytes'}"
        ends = '"sequence_start":true,"sequence_end":true'
        note(label, lambda: raw(model, f'"sequence_id":{id},{ends}'))


def sleeps(model, milliseconds, **more):
    """A call whose answer is when its execution began."""
    shape = (1,) if model.startswith("limited") else (1, 1)

    def call():
        answer = CLIENTS["grpc"].infer(model, tensor("grpc", milliseconds, "FP32", shape), **more)
        return float(answer.as_numpy("OUTPUT").reshape(-1)[0])
    return call


def order(answers):
    """Texts as they are; else the places in the order in which they began."""
    begun = sorted({it for it in answers if isinstance(it, float)})
    return [begun.index(it) if isinstance(it, float) else it for it in answers]


def queues():
    """Priorities and queue policies."""
    busy = lambda model: sleeps(model, 600)
    note("levels: their order", lambda: order(later(
        busy("levels"), *(sleeps("levels", 20, priority=it) for it in (3, 2, 0, 1, 9, 1)))))
    note("levels: a full queue", lambda: order(later(
        busy("levels"), *(sleeps("levels", 20, priority=3) for _ in range(4)))))
    note("levels: a full queue, http", lambda: [it for it in later(
        busy("levels"), *[lambda: raw("levels", '"priority":3', "20")] * 4) if isinstance(it, list)])
    note("timed: a timeout", lambda: order(later(busy("timed"), sleeps("timed", 20))))
    note("timed: a timeout, http", lambda: later(busy("timed"), lambda: raw("timed", "", "20"))[1:])
    note("timed: a shorter one", lambda: order(later(busy("timed"), sleeps("timed", 20, timeout=50000))))
    note("timed: its own", lambda: order(later(sleeps("timed", 100), sleeps("timed", 20, timeout=900000))))
    note("delayed: after those in time", lambda: order(later(
        busy("delayed"), *[sleeps("delayed", 20)] * 5, *[sleeps("delayed", 20)] * 4))[0])
    note("queue_ensemble: a step refuses", lambda: order(later(
        busy("timed"), sleeps("queue_ensemble", 20))))
    note("queue_ensemble: a step refuses, http", lambda: later(
        busy("timed"), lambda: raw("queue_ensemble", "", "20"))[1:])


def rate_limits():
    """Who gets the only resource."""
    def race():
        with concurrent.futures.ThreadPoolExecutor(12) as threads:
            first = [threads.submit(sleeps(f"limited_{it}", 60)) for it in "a"]
            time.sleep(0.02)
            asked = [("a", first[0])]
            for name in "aaaaabbbbbb":
                asked.append((name, threads.submit(sleeps(f"limited_{name}", 60))))
                time.sleep(0.001)
            return " ".join(it[1] for it in sorted((it.result(), name) for name, it in asked))
    note("limited: who comes when", race)


def regions():
    """An output in shared memory: what the answer says of it."""
    region = shared_memory.create_shared_memory_region("parity", "/troupe_parity", 64)
    try:
        CLIENTS["http"].register_system_shared_memory("parity", "/troupe_parity", 64)
        body = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 1], "data": [1]}],
                "outputs": [{"name": "OUTPUT", "parameters": {
                    "shared_memory_region": "parity", "shared_memory_byte_size": 4}}]}
        note("timed: an output in shared memory", lambda: posted("timed", json.dumps(body)))
        CLIENTS["http"].unregister_system_shared_memory()
    finally:
        shared_memory.destroy_shared_memory_region(region)


def caches():
    """A miss, a hit, and another; then what is counted."""
    for model in ("cached", "cached_batches", "cached_ensemble"):
        for number in (1, 1, 2):
            note(f"{model}: {number}", lambda: raw(model, "", str(number)))


def config(model):
    connection = http.client.HTTPConnection(HTTP, timeout=30)
    connection.request("GET", f"/v2/models/{model}/config")
    return json.loads(connection.getresponse().read())


if __name__ == "__main__":
    main()
