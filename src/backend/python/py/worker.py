"""Runs one model: reads frames of requests, calls `execute`, writes frames of answers."""
import gc
import json
import mmap
import os
import struct
import sys
from _thread import allocate_lock
from time import perf_counter_ns as now

import numpy as np
import triton_python_backend_utils as pb

# Kinds of frames, both ways.
INIT, EXECUTE, REPLY = b"I", b"E", b"c"
READY, FAILED, ANSWER, SEGMENT, DROPPED, LOG, CANCELLED = b"R", b"X", b"A", b"N", b"D", b"L", b"C"

FRAME = struct.Struct("<Ic3x")
PAIR = struct.Struct("<II")
EXECUTE_HEAD = struct.Struct("<IIHHHH")
NUMBER = struct.Struct("<Q")
NUMBERS = struct.Struct("<QQ")
PLACE = struct.Struct("<QQQQ")
REQUEST_HEAD = struct.Struct("<IHHII")
INPUT_HEAD = struct.Struct("<HBBI")
ANSWER_HEAD = struct.Struct("<Ic3xIIQQQIHBB")
RESULT_HEAD = struct.Struct("<BBHI")
OUTPUT_HEAD = struct.Struct("<HBBIQ")
CANCEL = struct.Struct("<Ic3xIIII")
DIMS = [struct.Struct(f"<{rank}q") for rank in range(65)]
WANTED, EXTRA = 1, 2
INLINE, OWN, THEIRS = 0, 1, 2
TRIM = 1

# Tensors above this many bytes travel in shared segments.
INLINE_LIMIT = 16 << 10
# Answers are held back for at most this long while there is more to execute.
HOLD_NS = 100_000
HOLD_BYTES = 1 << 20
CHUNK = 1 << 16
# Unused segments kept for reuse.
IDLE_LIMIT = 256 << 20
CACHE_LIMIT = 1024
GOOD = [RESULT_HEAD.pack(0, 0, count, 0) for count in range(16)]
PADDING = [b"\0" * (-size % 8) for size in range(8)]


class ServerGone(Exception):
    """The server closed the socket."""


def padded(data):
    return data + PADDING[len(data) % 8]


def describe(error):
    """The exception as Triton prints it: type, text, and the model's frames, innermost first."""
    if isinstance(error, PlainError):
        return str(error)
    lines = []
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(("<troupe>", "<frozen ")):
            lines.append(f"  {name}({trace.tb_lineno}): {trace.tb_frame.f_code.co_name}\n")
        trace = trace.tb_next
    text = f"{type(error).__name__}: {error}"[:16384]
    return f"{text}\n\nAt:\n{''.join(reversed(lines[-50:]))}"


class Memory:
    """Segments: mappings of the server's, and our own for large outputs."""

    def __init__(self, passing, send):
        self.passing = passing
        self.send = send
        # Server's segments by id: (mapping, address).
        self.theirs = {}
        self.own = {}
        self.idle = {}
        self.idle_bytes = 0
        self.next = 1
        probe = mmap.mmap(-1, 4096)
        self.theirs[0] = (probe, 0)
        del probe
        self.unheld = self.references(0)
        del self.theirs[0]

    def references(self, number):
        return sys.getrefcount(self.theirs[number][0])

    def is_held(self, number):
        """Does the model still hold arrays over this segment?"""
        return number in self.theirs and self.unheld < self.references(number)

    def news(self, raw, at, counts):
        """The segments the server sent, freed and gave back."""
        new, forgotten, released = counts
        for _ in range(new):
            number, size = NUMBERS.unpack_from(raw, at)
            at += 16
            _, ancillary, _, _ = self.passing.recvmsg(1, 64)
            descriptor = struct.unpack("i", ancillary[0][2][:4])[0]
            mapping = mmap.mmap(descriptor, size)
            os.close(descriptor)
            self.theirs[number] = (mapping, address_of(mapping))
        for _ in range(forgotten):
            self.theirs.pop(NUMBER.unpack_from(raw, at)[0], None)
            at += 8
        for _ in range(released):
            self.release(NUMBER.unpack_from(raw, at)[0])
            at += 8
        return at

    def take(self, size):
        """A segment of our own with room for `size` bytes: (id, mapping)."""
        size = max(size, 1 << 16)
        step = (1 << (size - 1).bit_length()) // 8
        size = -(-size // step) * step
        waiting = self.idle.get(size)
        if waiting:
            number = waiting.pop()
            self.idle_bytes -= size
            return number, self.own[number]
        descriptor = os.memfd_create("troupe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        mapping = mmap.mmap(descriptor, size)
        number = self.next
        self.next += 1
        self.own[number] = mapping
        rights = [(1, 1, struct.pack("i", descriptor))]
        # The server looks for the descriptor when it sees the frame.
        self.passing.sendmsg([b"s"], rights)
        self.send([FRAME.pack(24, SEGMENT), NUMBERS.pack(number, size)])
        os.close(descriptor)
        return number, mapping

    def release(self, number):
        mapping = self.own.get(number)
        if mapping is None:
            return
        size = len(mapping)
        if IDLE_LIMIT < self.idle_bytes + size:
            self.drop([number])
            return
        self.idle.setdefault(size, []).append(number)
        self.idle_bytes += size

    def trim(self):
        """Frees everything unused."""
        self.drop([number for waiting in self.idle.values() for number in waiting])
        self.idle.clear()
        self.idle_bytes = 0

    def drop(self, numbers):
        for number in numbers:
            del self.own[number]
        if numbers:
            body = b"".join(NUMBER.pack(number) for number in numbers)
            self.send([FRAME.pack(8 + len(body), DROPPED), body])


def address_of(mapping):
    return np.ndarray((1,), np.uint8, mapping).__array_interface__["data"][0]


class Worker:
    """One model instance and its sockets."""

    def __init__(self, control, passing):
        self.control = control
        self.sending = allocate_lock()
        self.asking = allocate_lock()
        self.is_executing = False
        self.rest = b""
        self.backlog = []
        self.out = []
        self.memory = Memory(passing, self.send)
        self.heads = {}
        self.shapes = {}
        self.loop = None
        self.model = None
        self.used = {}

    # Frames.

    def send(self, parts):
        with self.sending:
            self.control.sendall(b"".join(parts))

    def send_json(self, kind, value):
        body = json.dumps(value).encode("utf-8", "replace")
        body += b" " * (-len(body) % 8)
        self.send([FRAME.pack(8 + len(body), kind), body])

    def flush(self):
        if self.out:
            out, self.out = self.out, []
            self.send(out)

    def read(self):
        """The next frame, the answers first: whoever waits for more must have said what it has."""
        if self.backlog:
            return self.backlog.pop(0)
        return self.receive()

    def receive(self):
        raw = self.rest
        if not raw:
            self.flush()
            raw = self.control.recv(CHUNK)
        while len(raw) < 8:
            self.flush()
            more = self.control.recv(CHUNK)
            if not more:
                raise ServerGone
            raw += more
        size, kind = FRAME.unpack_from(raw, 0)
        have = len(raw)
        if have == size:
            self.rest = b""
            return kind, raw
        if size < have:
            self.rest = raw[size:]
            return kind, raw[:size]
        self.flush()
        whole = bytearray(size)
        whole[:have] = raw
        view = memoryview(whole)
        while have < size:
            got = self.control.recv_into(view[have:])
            if not got:
                raise ServerGone
            have += got
        self.rest = b""
        return kind, whole

    def log(self, level, place, message):
        self.send_json(LOG, {"level": level, "place": place, "message": str(message)[:8192]})

    def is_cancelled(self, group, index):
        with self.asking:
            # Only while the main thread is in the model: else it would read our reply.
            if not self.is_executing:
                return False
            self.send([CANCEL.pack(24, CANCELLED, group[0], group[1], index, 0)])
            while True:
                frame = self.receive()
                if frame[0] == REPLY:
                    return frame[1][8] != 0
                self.backlog.append(frame)

    # Loading.

    def start(self):
        """Obeys the first frame; False if there is nothing to serve."""
        kind, raw = self.read()
        args = json.loads(bytes(raw[8:]))
        pb._worker = self
        self.model_name = args["model_name"]
        self.model_version = int(args["model_version"])
        self.version_dir = os.path.dirname(args["path"])
        try:
            made = self.load(args)
        except ServerGone:
            raise
        except BaseException as error:
            is_import = isinstance(error, ImportError)
            self.send_json(FAILED, {"error": describe(error), "is_import": is_import})
            return False
        self.send_json(READY, made)
        return not args["complete"]

    def load(self, args):
        module = load_module(args["path"], args["model_dir"], args["model_version"])
        model = module.TritonPythonModel
        if args["complete"]:
            return {"config": complete(model, args["model_name"], args["model_config"])}
        if not callable(getattr(model, "execute", None)):
            raise pb.TritonModelException(
                f"Python model {args['path']} does not implement `execute` method."
            )
        config = json.loads(args["model_config"])
        self.inputs = [tensor["name"] for tensor in config.get("input", ())]
        self.outputs = [tensor["name"] for tensor in config.get("output", ())]
        self.indexes = {name: index for index, name in enumerate(self.outputs)}
        self.model = model()
        if hasattr(self.model, "initialize"):
            self.model.initialize(args["args"])
        self.execute = self.model.execute
        gc.collect()
        gc.freeze()
        return {}

    def finalize(self):
        self.out = []
        if hasattr(self.model, "finalize"):
            self.model.finalize()

    # Requests.

    def serve(self):
        while True:
            self.is_executing = False
            # Whoever asks the server right now has its reply before we read.
            self.asking.acquire()
            self.asking.release()
            kind, raw = self.read()
            if kind == EXECUTE:
                self.is_executing = True
                self.run(raw)

    def run(self, raw):
        """All groups of a frame, each one call of `execute` and one frame of answers."""
        data = raw if type(raw) is bytearray else bytearray(raw)
        sequence, groups, new, forgotten, released, flags = EXECUTE_HEAD.unpack_from(raw, 8)
        at = 24
        if new or forgotten or released:
            at = self.memory.news(raw, at, (new, forgotten, released))
        if flags & TRIM:
            self.memory.trim()
        decode, execute, encode = self.requests, self.execute, self.responses
        time = last = now()
        size = 0
        for number in range(groups):
            requests, at = decode(raw, data, at, (sequence, number))
            count, failed = len(requests), 0
            started = now()
            try:
                responses = execute(requests)
                if type(responses) is not list:
                    responses = self.settle(responses)
                ended = now()
                body = encode(requests, responses)
            except ServerGone:
                raise
            except BaseException as error:
                ended = now()
                body, count, failed = padded_text(describe(error)), 0, 1
                # Its traceback holds the model's locals, and these hold arrays.
                error.__traceback__ = None
            requests = responses = None
            held = self.held() if self.used else b""
            total = 48 + len(held) + len(body)
            after = now()
            self.out += (
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
                self.flush()
                time = last = now()
                size = 0

    def held(self):
        """The segments of a group that the model still has arrays over."""
        used, self.used = self.used, {}
        return b"".join(NUMBER.pack(number) for number in used if self.memory.is_held(number))

    def requests(self, raw, data, at, group):
        (count, _) = PAIR.unpack_from(raw, at)
        at += 8
        requests = []
        heads = self.heads
        Input, Request, pair = pb._Input, pb._Request, PAIR.unpack_from
        for index in range(count):
            head_size, data_size = pair(raw, at)
            at += 8
            start = at + head_size
            key = bytes(raw[at:start])
            head = heads.get(key)
            if head is None:
                head = self.learn(key)
            specs, _, _, is_plain, extra_at = head
            if is_plain:
                inputs = [Input(spec, data, start + spec[4]) for spec in specs]
            else:
                inputs = [self.input(spec, raw, data, start) for spec in specs]
            extra = None
            if extra_at is not None:
                (length,) = NUMBER.unpack_from(raw, start + extra_at)
                extra = bytes(raw[start + extra_at + 8 : start + extra_at + 8 + length])
            requests.append(Request(inputs, head, extra, group, index))
            at = start + data_size
        return requests, at

    def input(self, spec, raw, data, start):
        if not spec[6]:
            return pb._Input(spec, data, start + spec[4])
        number, offset, size, is_ours = PLACE.unpack_from(raw, start + spec[4])
        mapping, address = self.memory.theirs[number]
        self.used[number] = address
        tensor = pb._Input(spec, mapping, offset)
        tensor._size = size
        tensor._copies = not is_ours
        return tensor

    def learn(self, key):
        """Decodes the head of a request; heads repeat, so it is kept."""
        batch, inputs, wanted, flags, _ = REQUEST_HEAD.unpack_from(key, 0)
        at = 16
        names = None
        if flags & WANTED:
            indexes = struct.unpack_from(f"<{wanted}H", key, at)
            names = frozenset(self.outputs[index] for index in indexes)
            at += (2 * wanted + 7) // 8 * 8
        specs = []
        offset = 0
        is_plain = True
        for _ in range(inputs):
            index, code, rank, size = INPUT_HEAD.unpack_from(key, at)
            at += 8
            shape = DIMS[rank].unpack_from(key, at)
            at += 8 * rank
            in_segment = bool(code & 128)
            code &= 127
            name = self.inputs[index]
            specs.append((name, code, pb._DTYPES[code], shape, offset, size, in_segment))
            is_plain &= not in_segment
            offset += 32 if in_segment else (size + 7) // 8 * 8
        head = (tuple(specs), names, batch, is_plain, offset if flags & EXTRA else None)
        if CACHE_LIMIT < len(self.heads):
            self.heads.clear()
        self.heads[key] = head
        return head

    # Responses.

    def settle(self, responses):
        """What `execute` returned, if not a list: a coroutine, or a mistake."""
        if hasattr(responses, "__await__"):
            if self.loop is None:
                import asyncio

                self.loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self.loop)
            responses = self.loop.run_until_complete(responses)
        if not isinstance(responses, list):
            raise PlainError(
                f"Expected a list in the execute return, found type '{type(responses)}'."
            )
        return responses

    def responses(self, requests, responses):
        """What `execute` returned, as bytes. Names, types and shapes repeat: their heads are kept."""
        if len(requests) != len(responses):
            raise PlainError(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) "
                f"size is:{len(responses)}"
            )
        parts = []
        shapes, Response, Tensor = self.shapes, pb.InferenceResponse, pb.Tensor
        for request, response in zip(requests, responses):
            if type(response) is not Response and not isinstance(response, Response):
                raise PlainError(
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    f"found type '{type(response)}'."
                )
            wanted = request._head[1]
            place = len(parts)
            parts.append(b"")
            count = 0
            try:
                if response._error is not None:
                    raise ResponseError(response._error)
                for tensor in response._outputs:
                    if wanted is None and type(tensor) is Tensor:
                        array = tensor._array
                        shape = shapes.get((tensor._name, array.dtype, array.shape, tensor._code))
                        if shape is not None and shape[1] is not None:
                            parts += (shape[0], array.tobytes(), shape[1])
                            count += 1
                            continue
                    count += self.output(parts, tensor, wanted)
            except ResponseError as error:
                parts[place:] = (result(1, error.args[0]._code, 0, error.args[0]._message),)
            except pb.TritonModelException as error:
                parts[place:] = (result(1, pb.TritonError.INTERNAL, 0, str(error)),)
            else:
                if response._parameters is not None:
                    parts[place] = result(0, 0, count, json.dumps(response._parameters))
                else:
                    parts[place] = GOOD[count] if count < 16 else RESULT_HEAD.pack(0, 0, count, 0)
        return b"".join(parts)

    def output(self, parts, tensor, wanted):
        """Appends a tensor unless nobody asked for it; says how many it appended."""
        is_plain = type(tensor) is pb.Tensor
        name = tensor._name if is_plain else tensor.name()
        if wanted is not None and name not in wanted:
            return 0
        array = tensor._raw()
        key = (name, array.dtype, array.shape, tensor._code if is_plain else tensor._type())
        head, padding, code, index = self.shapes.get(key) or self.shape(key, tensor)
        if padding is not None:
            parts += (head, array.tobytes(), padding)
        elif index is None:
            return 0
        elif code == pb.BYTES:
            self.strings(parts, index, array)
        else:
            if not array.dtype.isnative:
                array = array.astype(array.dtype.newbyteorder("="))
            self.large(parts, index, code, array)
        return 1

    def shape(self, key, tensor):
        """How tensors of this name, type and shape are written: (head, padding, code, index)."""
        name, dtype, dims, _ = key
        index = self.indexes.get(name)
        code = tensor._type()
        size = tensor._raw().nbytes
        if index is None:
            found = (b"", None, code, None)
        elif code == pb.BYTES or INLINE_LIMIT < size or not dtype.isnative:
            found = (b"", None, code, index)
        else:
            head = OUTPUT_HEAD.pack(index, code, len(dims), INLINE, size)
            found = (head + DIMS[len(dims)].pack(*dims), PADDING[size % 8], code, index)
        if CACHE_LIMIT < len(self.shapes):
            self.shapes.clear()
        self.shapes[key] = found
        return found

    def strings(self, parts, index, array):
        data = pb._pack_strings(array)
        size = len(data)
        place = INLINE if size <= INLINE_LIMIT else OWN
        parts.append(OUTPUT_HEAD.pack(index, pb.BYTES, array.ndim, place, size))
        parts.append(DIMS[array.ndim].pack(*array.shape))
        if place == INLINE:
            parts.append(padded(data))
        else:
            number, mapping = self.memory.take(size)
            mapping[:size] = data
            parts.append(NUMBERS.pack(number, 0))

    def large(self, parts, index, code, array):
        """By reference if the memory is an input's, else copied once into a segment of ours."""
        size = array.nbytes
        found = self.used and self.find(array)
        if found:
            place, (number, offset) = THEIRS, found
        elif size <= INLINE_LIMIT:
            place = INLINE
        else:
            place, offset = OWN, 0
            number, mapping = self.memory.take(size)
            np.ndarray(array.shape, array.dtype, mapping)[...] = array
        parts.append(OUTPUT_HEAD.pack(index, code, array.ndim, place, size))
        parts.append(DIMS[array.ndim].pack(*array.shape))
        if place == INLINE:
            parts.append(padded(array.tobytes()))
        else:
            parts.append(NUMBERS.pack(number, offset))

    def find(self, array):
        """The segment of this group's inputs the array lies in, and where."""
        base = array
        while isinstance(base, np.ndarray):
            base = base.base
        if type(base) is not mmap.mmap or not array.flags.c_contiguous:
            return None
        start = array.__array_interface__["data"][0]
        for number, address in self.used.items():
            if self.memory.theirs[number][0] is base:
                return number, start - address
        return None


class ResponseError(Exception):
    """A response that holds a `TritonError`."""


class PlainError(Exception):
    """A mistake of the model that has no traceback of its own."""


def result(tag, code, count, text):
    data = text.encode("utf-8", "replace")
    return RESULT_HEAD.pack(tag, code & 255, count, len(data)) + padded(data)


def padded_text(text):
    data = text.encode("utf-8", "replace")
    return NUMBER.pack(len(data)) + padded(data)


def load_module(path, model_dir, version):
    """Imports the file as `<version>.<stem>`, so that imports of its siblings work."""
    from importlib.util import module_from_spec, spec_from_file_location

    folder, file = os.path.split(path)
    sys.path += [folder, model_dir]
    package = type(sys)(version)
    package.__path__ = [folder]
    sys.modules[version] = package
    name = f"{version}.{file[:-3]}"
    spec = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    sys.modules[name] = module
    # A cached .pyc is trusted by its time in seconds: a quick reload would run the old file.
    is_writing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = is_writing
    return module


def complete(model, name, config):
    """The completed configuration as JSON; None if the model does not complete it."""
    if not hasattr(model, "auto_complete_config"):
        return None
    completed = model.auto_complete_config(pb.ModelConfig(config))
    if not isinstance(completed, pb.ModelConfig):
        raise PlainError(
            f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig "
            "object."
        )
    return completed.to_json()


def main(control, passing):
    worker = Worker(control, passing)
    try:
        if worker.start():
            worker.serve()
    except (ServerGone, BrokenPipeError, ConnectionResetError):
        pass
    if worker.model is not None:
        worker.finalize()
