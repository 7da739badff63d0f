"""Runs one model: reads frames of requests, calls `execute`, writes frames of answers."""
import gc
import json
import os
import struct
from time import perf_counter_ns as now

import troupe_requests
from troupe_decode import Decoder
from troupe_encode import Encoder, PartEncoder
from troupe_failures import PlainError, describe
from troupe_frames import ANSWER, FAILED, NUMBER, READY, Frames, ServerGone, padded
from troupe_loading import complete, load_module
from troupe_requests import DecoupledRequest, Request
from troupe_segments import Segments
from troupe_types import TritonModelException

EXECUTE_HEAD = struct.Struct("<IIHHHH")
ANSWER_HEAD = struct.Struct("<Ic3xIIQQQIHBB")
TRIM = 1

# Answers are held back for at most this long while there is more to execute.
HOLD_NS = 100_000
HOLD_BYTES = 1 << 20


class Worker:
    """One model instance and its sockets."""

    def __init__(self, control, passing):
        self.frames = Frames(control)
        self.segments = Segments(passing, self.frames)
        self.frames.release = self.segments.release
        self.loop = None
        self.model = None

    # Loading.

    def start(self):
        """Obeys the first frame; False if there is nothing to serve."""
        _, raw = self.frames.receive(False)
        args = json.loads(bytes(raw[8:]))
        troupe_requests.worker = self
        self.model_name = args["model_name"]
        self.model_version = int(args["model_version"])
        self.version_dir = os.path.dirname(args["path"])
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
        return not args["complete"]

    def load(self, args):
        module = load_module(args["path"], args["model_dir"], args["model_version"])
        model = module.TritonPythonModel
        if args["complete"]:
            return {"config": complete(model, args["model_name"], args["model_config"])}
        if not callable(getattr(model, "execute", None)):
            raise TritonModelException(
                f"Python model {args['path']} does not implement `execute` method."
            )
        config = json.loads(args["model_config"])
        inputs = [tensor["name"] for tensor in config.get("input", ())]
        self.outputs = [tensor["name"] for tensor in config.get("output", ())]
        policy = config.get("model_transaction_policy") or {}
        self.is_decoupled = bool(policy.get("decoupled"))
        kind = DecoupledRequest if self.is_decoupled else Request
        self.decode = Decoder(inputs, self.outputs, self.segments, kind).requests
        self.encoder = Encoder(self.outputs, self.segments)
        self.parts = PartEncoder(self.outputs, self.segments)
        self.encode = self.encoder.responses
        self.model = model()
        if hasattr(self.model, "initialize"):
            self.model.initialize(args["args"])
        self.execute = self.model.execute
        gc.collect()
        gc.freeze()
        return {}

    def finalize(self):
        self.frames.out = []
        if hasattr(self.model, "finalize"):
            self.model.finalize()
        # With what was counted and not sent.
        self.frames.send(())

    # Requests.

    def serve(self):
        frames = self.frames
        while True:
            self.run(frames.execution()[1])

    def run(self, raw):
        """All groups of a frame, each one call of `execute` and one frame of answers."""
        data = raw if type(raw) is bytearray else bytearray(raw)
        frames, segments = self.frames, self.segments
        sequence, groups, new, forgotten, released, flags = EXECUTE_HEAD.unpack_from(raw, 8)
        at = 24
        if new or forgotten or released:
            at = segments.news(raw, at, (new, forgotten, released))
        if flags & TRIM:
            segments.trim()
        if groups != 1:
            # Under load others need this core, and the next frame is there anyway.
            frames.is_eager = False
        decode, execute, encode = self.decode, self.execute, self.encode
        time = last = now()
        size = 0
        for number in range(groups):
            requests, at = decode(raw, data, at, (sequence, number))
            count, failed = len(requests), 0
            started = now()
            try:
                responses = execute(requests)
                if type(responses) is not list or self.is_decoupled:
                    responses = self.settle(responses, requests)
                ended = now()
                body = encode(requests, responses)
            except ServerGone:
                raise
            except BaseException as error:
                ended = now()
                self.encoder.undo(0)
                body, count, failed = padded_text(describe(error)), 0, 1
                close_senders(requests)
                # Its traceback holds the model's locals, and these hold arrays.
                error.__traceback__ = None
            requests = responses = None
            held = segments.held() if segments.used else b""
            total = 48 + len(held) + len(body)
            after = now()
            frames.out += (
                ANSWER_HEAD.pack(
                    total,
                    ANSWER,
                    sequence,
                    number,
                    started - time,
                    ended - started,
                    after - ended,
                    count,
                    len(held) // 8,
                    failed,
                    0,
                ),
                held,
                body,
            )
            size += total
            time = after
            if HOLD_NS < time - last or HOLD_BYTES < size:
                frames.flush()
                time = last = now()
                size = 0

    def settle(self, responses, requests):
        """What `execute` returned, if not a list: a coroutine, nothing, or a mistake."""
        if hasattr(responses, "__await__"):
            if self.loop is None:
                import asyncio

                self.loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self.loop)
            responses = self.loop.run_until_complete(responses)
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


def main(control, passing):
    worker = Worker(control, passing)
    try:
        if worker.start():
            worker.serve()
    except (ServerGone, BrokenPipeError, ConnectionResetError):
        pass
    if worker.model is not None:
        worker.finalize()
