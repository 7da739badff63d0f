"""Calls to other models and to the server: requests out, responses in, to whoever waits for them."""
import json
import struct
from _thread import get_ident

from troupe_frames import FRAME, FRAME_LIMIT, NUMBER, NUMBERS, RESPONSE, ServerGone, padded
from troupe_packing import COPIES, HOLDS, INPUTS, Packer
from troupe_replies import FAILED, GIVEN, LAST, Replies, held_bytes
from troupe_types import TritonModelException

CALL, CANCEL, TAKEN, REPOSITORY = b"B", b"K", b"T", b"U"
CALL_HEAD = struct.Struct("<Ic3xQIIII")
MODEL_HEAD = struct.Struct("<qHHI")
SIGNAL = struct.Struct("<Ic3xQQ")
LENGTH = struct.Struct("<H")
# Flags of a call; `model_call.rs` has the same.
TAKES_MANY, EXTRA, BLOCKS = 1, 2, 4
# The call is made for no group.
NO_GROUP = (0xFFFFFFFF, 0xFFFFFFFF)
# What a call to the server asks for.
LOAD, UNLOAD, IS_READY = 1, 2, 3
# An iterator reports what it has taken once it is so many bytes: a part of the window of a call.
TAKEN_REPORT_BYTES = 256 << 10
# How many heads are kept.
CACHE_LIMIT = 1024
LIMITS = {"correlation_id": 1 << 64, "flags": 1 << 32, "timeout": 1 << 64}


class Calls:
    """Calls of other models (BLS) and of the repository."""

    def __init__(self, worker):
        self.worker = worker
        self.frames = worker.frames
        self.packer = Packer(worker.segments)
        self.response = Replies(worker.segments).response
        self.frames.discard = self.discard
        # How calls begin, by model, version and requested outputs.
        self.models = {}

    def exec(self, request, decoupled):
        """The response, or an iterator over all responses."""
        if decoupled:
            return ResponseIterator(self, self.start(request, TAKES_MANY, COPIES))
        if get_ident() == self.frames.main:
            call = self.start(request, BLOCKS, INPUTS)
        else:
            call = self.start(request, 0, HOLDS)
        try:
            return self.response(self.frames.reply(call)[1])
        except BaseException:
            # Perhaps an alarm of the model's own.
            self.forget(call)
            raise

    def async_exec(self, request, decoupled):
        """A future of the same; the call begins at once."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        call = self.start(request, TAKES_MANY if decoupled else 0, COPIES)
        if decoupled:
            future = loop.create_future()
            future.set_result(ResponseIterator(self, call))
            return future
        return Awaited(self, call, loop).future

    def start(self, request, flags, shares):
        """Sends a request."""
        worker, frames = self.worker, self.frames
        if worker.stage != "execute":
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        key = request._made
        if key is None:
            names = tuple(request.requested_output_names())
            key = (names, worker.model_name, worker.model_version)
        model = self.models.get(key) or self.model(key)
        text = b""
        if request._extra:
            flags |= EXTRA
            text = extra_text(request._more())
        heads, bodies, taken = self.packer.tensors(request._inputs, shares, key[1:])
        if text:
            bodies += (NUMBER.pack(len(text)), padded(text))
        head, body = b"".join((model, *heads)), b"".join(bodies)
        total = 40 + len(head) + len(body)
        if FRAME_LIMIT < total:
            self.packer.undo(taken)
            raise TritonModelException(
                f"The request is {total} bytes long without the tensors in shared memory, at most "
                f"{FRAME_LIMIT} can be sent."
            )
        frames.has_called = True
        call = frames.next_call()
        is_main = get_ident() == frames.main
        sequence, group = self.group(is_main)
        begin = CALL_HEAD.pack(total, CALL, call, sequence, group, flags, len(head))
        if is_main and frames.out:
            # Whom we call may wait for an answer that is held back.
            frames.flush()
        frames.send((begin, NUMBER.pack(len(request._inputs)), head, body))
        return call

    def group(self, is_main):
        """The group in work, for which the call is made. Only a thread of a decoupled model may
        as well work for a request of any other."""
        worker = self.worker
        group = worker.task_group.get() if worker.is_async else worker.group
        if group is None or not is_main and worker.is_decoupled:
            return NO_GROUP
        return group

    def model(self, key):
        """How calls of a model begin."""
        wanted, name, version = key
        if isinstance(version, bool) or not isinstance(version, int):
            raise TritonModelException(
                f"The model version must be an integer, found type '{type(version)}'."
            )
        model, *names = [str(it).encode("utf-8", "replace") for it in (name, *wanted)]
        if 0xFFFF < max(len(names), len(model), *map(len, names)):
            raise TritonModelException("The request has too long a name or too many outputs.")
        names = b"".join(LENGTH.pack(len(it)) + it for it in names)
        head = MODEL_HEAD.pack(version, len(model), len(wanted), len(names))
        if CACHE_LIMIT < len(self.models):
            self.models.clear()
        head = self.models[key] = head + padded(model) + padded(names)
        return head

    def forget(self, call):
        """Drops a call: nobody waits for its replies any more. May run in the garbage collector."""
        for frame in self.frames.forget(call):
            self.discard(frame)
        self.signal(CANCEL, call, 1)

    def discard(self, frame):
        """Gives back the memory that a reply nobody waits for lies in."""
        if frame[0] == RESPONSE:
            self.response(frame[1])

    def signal(self, kind, call, number):
        self.frames.orphans.append(SIGNAL.pack(24, kind, call, number))
        self.frames.send_orphans()

    def change(self, what, flags, texts):
        """Has a model loaded or unloaded, or asks whether it is ready."""
        worker, frames = self.worker, self.frames
        if worker.stage not in ("initialize", "execute"):
            raise TritonModelException(
                f"Models cannot be loaded, unloaded or asked for during '{worker.stage}'."
            )
        call = frames.next_call()
        parts = [NUMBERS.pack(call, what), NUMBERS.pack(flags, len(texts))]
        for text in texts:
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "replace")
            parts += (NUMBER.pack(len(data)), padded(data))
        total = 8 + sum(map(len, parts))
        if FRAME_LIMIT < total:
            raise TritonModelException(
                f"the config and the files have {total} bytes, at most {FRAME_LIMIT} can be sent"
            )
        frames.send((FRAME.pack(total, REPOSITORY), *parts))
        raw = frames.reply(call)[1]
        outcome, size = NUMBERS.unpack_from(raw, 16)
        if outcome == 0:
            raise TritonModelException(bytes(raw[32 : 32 + size]).decode("utf-8", "replace"))
        return outcome == 1


def extra_text(extra):
    """Id, flags, parameters and so on of a request, as JSON."""
    for key, limit in LIMITS.items():
        value = extra.get(key, 0)
        if not (isinstance(value, str) and key == "correlation_id"):
            if not isinstance(value, int) or not 0 <= value < limit:
                raise TritonModelException(
                    f"The {key} of a request must be a number from 0 to {limit - 1}, got {value!r}."
                )
    extra["id"] = str(extra.get("id", ""))
    return json.dumps(extra).encode("utf-8", "replace")


class Awaited:
    """A call that a coroutine awaits through a future."""

    __slots__ = ("calls", "call", "future")

    def __init__(self, calls, call, loop):
        self.calls = calls
        self.call = call
        self.future = loop.create_future()
        self.future.add_done_callback(self.done)
        calls.frames.notify(call, self.on_reply, loop)

    def on_reply(self):
        """Resolves the future; called in the loop's thread once there is a reply."""
        future, calls = self.future, self.calls
        if future.done():
            return
        frame = calls.frames.take_only(self.call)
        if frame is None:
            future.set_exception(ServerGone())
        else:
            future.set_result(calls.response(frame[1]))

    def done(self, future):
        if future.cancelled():
            self.calls.forget(self.call)


class ResponseIterator:
    """All responses of a call, as they come."""

    __slots__ = ("_calls", "_call", "_is_done", "_parts", "_bytes", "__weakref__")

    def __init__(self, calls, call):
        self._calls = calls
        self._call = call
        self._is_done = False
        # Responses and bytes that were taken and not reported yet.
        self._parts = 0
        self._bytes = 0

    def __iter__(self):
        return self

    def __next__(self):
        if not self._is_done:
            frames = self._calls.frames
            call = self._call
            frame = frames.take_reply(call)
            if frame is None:
                self._report_taken()
                frame = frames.wait(call, frames.replies[call])
            response = self._take(frame)
            if response is not None:
                return response
        raise StopIteration

    def __aiter__(self):
        return self

    async def __anext__(self):
        frames = self._calls.frames
        while not self._is_done:
            frame = frames.take_reply(self._call)
            if frame is None:
                if frames.is_gone:
                    raise ServerGone
                self._report_taken()
                await frames.notified(self._call)
                continue
            response = self._take(frame)
            if response is not None:
                return response
        raise StopAsyncIteration

    def _take(self, frame):
        raw = frame[1]
        flags = raw[16]
        response = self._calls.response(raw) if flags & (GIVEN | FAILED) else None
        if flags & LAST:
            self._is_done = True
            self._calls.frames.forget(self._call)
            return response
        self._parts += 1
        self._bytes += len(raw) + (held_bytes(response) if response is not None else 0)
        if TAKEN_REPORT_BYTES <= self._bytes:
            self._report_taken()
        return response

    def _report_taken(self):
        """Tells the server how many responses were taken: now and then, and always before waiting
        for more, because their maker may wait for that."""
        if self._parts:
            self._calls.signal(TAKEN, self._call, self._parts)
            self._parts = self._bytes = 0

    def cancel(self):
        """Tells the model that nobody needs the rest; what it still sends comes."""
        if not self._is_done:
            self._calls.signal(CANCEL, self._call, 0)

    def __del__(self):
        if not self._is_done:
            self._is_done = True
            self._calls.forget(self._call)
