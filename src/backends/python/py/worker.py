"""Runs one model: reads frames of requests, calls `execute`, writes frames of answers."""
import gc
import json
import mmap
import os
import struct
import sys
from _thread import allocate_lock
from inspect import iscoroutinefunction
from time import perf_counter_ns as now

import troupe_forked
import troupe_preload
import troupe_requests
from troupe_calls import Calls
from troupe_decode import NOTHING, Decoder, is_left_out, skip
from troupe_encode import AGAIN, Encoder, PartEncoder
from troupe_failures import PlainError, describe, report, report_threads
from troupe_frames import (
    ANSWER, CHECK, CHECKED, FAILED, FRAME, NUMBER, NUMBERS, READY, Frames, ServerGone, padded
)
from troupe_loading import complete, limit_memory, load_module, model_class, trace_pipeline
from troupe_requests import DecoupledRequest, Request
from troupe_segments import Segments
from troupe_standard_logging import Bridge
from troupe_title import set_title
from troupe_types import TritonModelException

EXECUTE_HEAD = struct.Struct("<IIHHHH")
pack_answer = struct.Struct("<Ic3xIIQQQIHBB").pack

# Answers are held back for at most this long while there is more to execute.
HOLD_NS = 100_000
HOLD_BYTES = 1 << 20

# What a model says of itself.
IS_READY, IS_NOT_READY, CHECK_FAILED = 0, 1, 2


class Worker:
    """One model instance and its sockets."""

    def __init__(self, control, passing, progress):
        self.pid = os.getpid()
        # How many groups were begun, in order: the server reads it when this process has ended.
        self.progress = memoryview(mmap.mmap(progress, mmap.PAGESIZE)).cast("Q")
        os.close(progress)
        self.frames = Frames(control, self.progress)
        self.segments = Segments(passing, self.frames)
        self.frames.release = self.segments.release
        self.frames.update_segments = self.segments.update
        self.calls = Calls(self)
        self.begun = 0
        # A lock used as a memory barrier; its methods, because `with` takes twice the time.
        barrier = allocate_lock()
        self.lock_barrier, self.unlock_barrier = barrier.acquire, barrier.release
        self.hold_ns = HOLD_NS
        # Only for models that have coroutines.
        self.loop = None
        self.model = None
        self.is_async = False
        # What the model does, in the words of its methods.
        self.stage = "initialize"
        # The group in work, as (sequence, number); for coroutines a context variable has it, since
        # each task works on another one.
        self.group = None
        self.task_group = None

    # Loading.

    def start(self):
        """Loads the model that the first frame names; False if there is nothing to serve."""
        _, raw = self.frames.receive(self.frames.executions_spin)
        args = json.loads(bytes(raw[8:]))
        troupe_requests.worker = troupe_forked.worker = self
        Bridge(self.frames).install()
        self.model_name = args["model_name"]
        self.model_version = int(args["model_version"])
        self.version_dir = os.path.dirname(args["path"])
        set_title((args["args"] or {}).get("model_instance_name", self.model_name))
        self.segments.growth, self.segments.kept = args["shm_growth"], args["shm_kept"]
        try:
            made = self.load(args)
        except ServerGone:
            raise
        except BaseException as error:
            is_import = isinstance(error, ImportError)
            self.frames.send_json(FAILED, {"error": describe(error), "is_import": is_import})
            return False
        self.frames.send_json(READY, made)
        if args["template"]:
            troupe_preload.serve(self, main)
        is_asked = args["complete"] or args["template"] or args["pipeline"]
        return not is_asked

    def load(self, args):
        if args["memory_limit"]:
            limit_memory(args["memory_limit"])
        report_threads(self.frames)
        module = load_module(
            args["path"], args["model_dir"], args["model_version"], args.pop("snapshot")
        )
        if args["pipeline"]:
            return {"config": trace_pipeline(module, args["pipeline"])}
        model = model_class(module, args["model_config"], args["model_dir"])
        if args["complete"]:
            self.stage = "auto_complete_config"
            return {"config": complete(model, args["model_name"], args["model_config"])}
        if not callable(getattr(model, "execute", None)):
            raise TritonModelException(
                f"Python model {args['path']} does not implement `execute` method."
            )
        if args["template"]:
            troupe_preload.preload(model, args["args"])
            return {}
        if args["execute_timeout_ms"]:
            # What was executed in time is answered before something else takes too long.
            self.hold_ns = -1
        config = json.loads(args["model_config"])
        self.outputs = args["outputs"]
        policy = config.get("model_transaction_policy") or {}
        self.is_decoupled = bool(policy.get("decoupled"))
        kind = DecoupledRequest if self.is_decoupled else Request
        self.decode = Decoder(args["inputs"], self.outputs, self.segments, kind).requests
        self.encoder = Encoder(self.outputs, self.segments)
        self.encoder.kept = self.frames.kept
        self.parts = PartEncoder(self.outputs, self.segments)
        self.encoder.log = self.parts.log = self.frames.log
        self.encode = self.encoder.responses
        self.is_async = iscoroutinefunction(model.execute)
        if self.is_async:
            # Before the model makes its locks and clients: some of them ask which loop there is.
            self.make_loop()
            self.segments.drops_written = False
        self.model = model()
        if hasattr(self.model, "initialize"):
            self.awaited(self.model.initialize(args["args"]))
        self.execute = self.model.execute
        gc.collect()
        gc.freeze()
        return {"is_async": self.is_async, "has_check": hasattr(self.model, "is_ready")}

    def finalize(self):
        self.frames.out = []
        self.stage = "finalize"
        if hasattr(self.model, "finalize"):
            try:
                self.awaited(self.model.finalize())
            except Exception as error:
                report(self.frames, "`finalize`", error)
        # With what was counted and not sent.
        self.frames.send(())

    # Requests.

    def serve(self):
        self.stage = "execute"
        if self.is_async:
            from troupe_coroutines import Coroutines

            Coroutines(self).serve()
            return
        frames = self.frames
        while True:
            kind, raw = frames.execution()
            if kind == CHECK:
                self.check()
            else:
                self.run(raw)

    def begin(self, raw):
        """Reads the head of a frame of executions: (sequence, groups, where they start)."""
        sequence, groups, new, forgotten, released, _ = EXECUTE_HEAD.unpack_from(raw, 8)
        # What it says of segments was taken in when it came.
        return sequence, groups, 24 + 16 * new + 8 * (forgotten + released)

    def count(self):
        """Counts a group as begun, before anything in it can end this process; False if the server
        has taken it back."""
        number = self.begun
        self.begun = self.progress[0] = number + 1
        # Either the server sees the count, or we see what it wrote before it looked.
        # Without waiting: an alarm of the model's in between leaves it locked.
        self.lock_barrier(False)
        self.unlock_barrier()
        # In this order: they are written in the other one.
        return not (number < self.progress[2] and self.progress[1] <= number)

    def run(self, raw):
        """All groups of a frame, each one call of `execute` and one frame of answers."""
        data = raw if type(raw) is bytearray else bytearray(raw)
        frames = self.frames
        sequence, groups, at = self.begin(raw)
        decode, execute, encode = self.decode, self.execute, self.encode
        hold_ns, segments = self.hold_ns, self.segments
        time = last = now()
        size = 0
        for number in range(groups):
            if frames.is_gone:
                raise ServerGone
            group = (sequence, number)
            if not self.count():
                count, at = skip(raw, at)
                frames.out += answer(group, (0, 0, 0), count, (b"", AGAIN * count))
                continue
            start = at
            requests, used, at = decode(raw, data, at, group)
            if not requests and is_left_out(raw, start):
                continue
            count = len(requests)
            self.group = group
            segments.used = used
            started = now()
            try:
                responses = execute(requests)
                if type(responses) is not list or self.is_decoupled:
                    responses = self.settle(responses, requests)
                ended = now()
                body = encode(requests, responses, used)
            except ServerGone:
                raise
            except BaseException as error:
                ended = now()
                body, count = self.failure(requests, error), None
            requests = responses = self.group = None
            segments.used = NOTHING
            held = segments.held(used) if used else b""
            after = now()
            times = (started - time, ended - started, after - ended)
            frames.out += answer(group, times, count, (held, body))
            size += 48 + len(held) + len(body)
            time = after
            # A model that was called may wait for an answer that is held back here.
            if hold_ns < time - last or HOLD_BYTES < size or frames.has_called:
                frames.flush()
                time = last = now()
                size = 0

    def settle(self, responses, requests):
        """What `execute` returned, if not a list: a coroutine, nothing, or a mistake."""
        responses = self.awaited(responses)
        if self.is_decoupled:
            if responses is not None:
                raise PlainError(
                    f"Python model '{self.model_name}' is using the decoupled mode and the execute "
                    "function must return None."
                )
            return [None] * len(requests)
        if not isinstance(responses, list):
            raise PlainError(
                f"Expected a list in the execute return, found type '{type(responses)}'."
            )
        return responses

    def failure(self, requests, error):
        """What `execute` raised, as the answer to all requests of its group."""
        self.encoder.undo(0)
        close_senders(requests)
        body = padded_text(describe(error))
        # Its traceback holds the model's locals, and these hold arrays.
        error.__traceback__ = None
        return body

    # The model's own check.

    def check(self):
        """Tells the server what `is_ready` says."""
        try:
            self.send_verdict(self.awaited(self.model.is_ready()))
        except ServerGone:
            raise
        except BaseException as error:
            self.send_check(CHECK_FAILED, describe(error))

    def send_verdict(self, verdict):
        if not isinstance(verdict, bool):
            raise PlainError("is_ready() must return a boolean value")
        self.send_check(IS_READY if verdict else IS_NOT_READY, "")

    def send_check(self, verdict, text):
        data = text.encode("utf-8", "replace")
        body = NUMBERS.pack(verdict, len(data)) + padded(data)
        self.frames.send([FRAME.pack(8 + len(body), CHECKED), body])

    # Coroutines.

    def make_loop(self):
        import asyncio

        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def awaited(self, result):
        """The result of a coroutine, run to its end; anything else as it is."""
        if not hasattr(result, "__await__"):
            return result
        if self.loop is None:
            self.make_loop()
        return self.loop.run_until_complete(result)


def answer(group, times, count, parts):
    """The frame that answers a group; `count` is None if all its requests failed."""
    held, body = parts
    sequence, number = group
    decoding, executing, encoding = times
    failed = count is None
    head = pack_answer(
        48 + len(held) + len(body),
        ANSWER,
        sequence,
        number,
        decoding,
        executing,
        encoding,
        0 if failed else count,
        len(held) // 8,
        failed,
        0,
    )
    return head, held, body


def close_senders(requests):
    """After a failure that answers them all."""
    for request in requests:
        sender = request._sender and request._sender()
        if sender is not None:
            sender._fail()
        request._has_sender = True


def padded_text(text):
    data = text.encode("utf-8", "replace")
    return NUMBER.pack(len(data)) + padded(data)


def main(control, passing, progress):
    worker = Worker(control, passing, progress)
    try:
        if worker.start():
            worker.serve()
    except (ServerGone, BrokenPipeError, ConnectionResetError):
        pass
    if os.getpid() != worker.pid:
        print("a process that the model forked came back from `execute`", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    if worker.model is not None:
        worker.finalize()
