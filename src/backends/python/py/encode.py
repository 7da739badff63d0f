"""Encodes responses into frames. Names, types and shapes repeat, so their heads are cached."""
import json
import struct
from threading import Lock

import numpy as np
from troupe_decode import NOTHING
from troupe_failures import PlainError
from troupe_frames import DIMS, FRAME_LIMIT, NUMBERS, PADDING, padded
from troupe_replies import Output, hold_of
from troupe_requests import InferenceResponse, TritonError
from troupe_strings import as_bytes, pack_strings
from troupe_tensors import Tensor
from troupe_types import BYTES, TritonModelException

RESULT_HEAD = struct.Struct("<BBHI")
OUTPUT_HEAD = struct.Struct("<HBBIQ")
# Where a tensor lies: in the frame; in a segment of ours, of an input, of a reply.
INLINE, OWN, THEIRS, HELD = 0, 1, 2, 3
# Tensors above this many bytes travel in shared segments.
INLINE_LIMIT = 16 << 10
# How many heads are kept.
CACHE_LIMIT = 1024
# Unknown names of outputs that are told.
UNKNOWN_LIMIT = 20
# Where `Logger` writes warnings.
WARNING = 1
# Results of requests that are answered apart from their group, or are to be executed anew.
LATER, AGAIN = RESULT_HEAD.pack(2, 0, 0, 0), RESULT_HEAD.pack(3, 0, 0, 0)
# Results of requests that failed: on purpose, or by a mistake of the model, which is logged.
FAILED, MISTAKE = 1, 4
RESCHEDULE = 2
# The outputs that are asked for in a row of a batch in which no sequence has a request.
NOBODY = frozenset()
GOOD = [RESULT_HEAD.pack(0, 0, count, 0) for count in range(16)]


class ResponseError(Exception):
    """A response that holds a `TritonError`."""


class Encoder:
    """Knows the model's outputs by number, and the heads it has written."""

    # What must live until the frame is sent.
    kept = None
    # Writes a line in the server's log: level, place, text.
    log = None

    def __init__(self, outputs, segments):
        self.indexes = {name: index for index, name in enumerate(outputs)}
        self.segments = segments
        self.shapes = {}
        # Names of outputs that the config does not have, and that were told.
        self.unknown = set()
        # The segments of the group in work: outputs may refer to them.
        self.used = NOTHING
        # Segments taken for the group in work: where in its parts, and which.
        self.taken = []
        # Bytes in them.
        self.large_bytes = 0
        # Whose request is answered.
        self.owner = 0

    def responses(self, requests, responses, used=NOTHING):
        """What `execute` returned, as bytes; `used` are the segments of the requests' inputs."""
        if len(requests) != len(responses):
            raise PlainError(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) "
                f"size is:{len(responses)}"
            )
        parts = []
        shapes = self.shapes
        self.used = used
        for request, response in zip(requests, responses):
            if type(response) is not InferenceResponse or request._release == RESCHEDULE:
                if response is None:
                    parts.append(unanswered(request, requests))
                    continue
                self.check(request, response)
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
                    count += self.output(parts, tensor, request._head)
            except ResponseError as error:
                self.undo(place)
                parts[place:] = (result(FAILED, error.args[0]._code, 0, error.args[0]._message),)
            except TritonModelException as error:
                self.undo(place)
                parts[place:] = (result(MISTAKE, TritonError.INTERNAL, 0, str(error)),)
            else:
                if response._parameters is not None:
                    parts[place] = result(0, 0, count, json.dumps(response._parameters, ensure_ascii=False))
                else:
                    parts[place] = GOOD[count] if count < 16 else RESULT_HEAD.pack(0, 0, count, 0)
        body = b"".join(parts)
        if FRAME_LIMIT < len(body) + 4096:
            raise PlainError(
                f"The answers are {len(body)} bytes long without the tensors in shared memory, at "
                f"most {FRAME_LIMIT} can be sent."
            )
        if self.taken:
            self.taken.clear()
        return body

    def check(self, request, response):
        """Refuses what is no response, or one to a request that is to be executed once more."""
        if request._release == RESCHEDULE:
            raise PlainError(
                "Expected a None object in the execute function return list for reschduled "
                f"request, found type '{type(response)}'."
            )
        check_type(response)

    def undo(self, place):
        """Takes back the segments of the parts from `place` on, which are not sent."""
        for index, number in self.taken:
            if place <= index:
                self.segments.release(number)
        self.taken = [it for it in self.taken if it[0] < place]

    def output(self, parts, tensor, head):
        """Appends a tensor unless nobody asked for it; says how many it appended."""
        wanted, self.owner = head[1], head[5]
        is_plain = type(tensor) is Tensor
        name = tensor._name if is_plain else tensor.name()
        if wanted is not None and name not in wanted:
            return 0
        if type(tensor) is Output and tensor._array is None:
            return self.untouched(parts, tensor)
        array = tensor._raw()
        key = (name, array.dtype, array.shape, tensor._code if is_plain else tensor._type())
        head, padding, code, index = self.shapes.get(key) or self.shape(key, tensor)
        if padding is not None:
            parts += (head, array.tobytes(), padding)
        elif index is None:
            return 0
        elif code == BYTES:
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
            self.tell_unknown(name)
            found = (b"", None, code, None)
        elif code == BYTES or INLINE_LIMIT < size or not dtype.isnative:
            found = (b"", None, code, index)
        else:
            head = OUTPUT_HEAD.pack(index, code, len(dims), INLINE, size)
            found = (head + DIMS[len(dims)].pack(*dims), PADDING[size % 8], code, index)
        if CACHE_LIMIT < len(self.shapes):
            self.shapes.clear()
        self.shapes[key] = found
        return found

    def tell_unknown(self, name):
        """Once for each name that the config does not have: Triton drops such outputs silently."""
        if self.log and name not in self.unknown and len(self.unknown) < UNKNOWN_LIMIT:
            self.unknown.add(name)
            known = ", ".join(f"'{it}'" for it in self.indexes) or "none"
            text = f"the model returned output '{name}', which is dropped: its config has {known}"
            self.log(WARNING, "outputs", text)

    def strings(self, parts, index, array):
        elements = array.ravel().tolist()
        known = self.used and self.segments.find_strings(self.used.texts, elements)
        if known:
            number, offset, size = known
            parts.append(OUTPUT_HEAD.pack(index, BYTES, array.ndim, THEIRS, size))
            parts.append(DIMS[array.ndim].pack(*array.shape))
            parts.append(NUMBERS.pack(number, offset))
            return
        data = pack_strings(as_bytes(elements))
        size = len(data)
        place = INLINE if size <= INLINE_LIMIT else OWN
        parts.append(OUTPUT_HEAD.pack(index, BYTES, array.ndim, place, size))
        parts.append(DIMS[array.ndim].pack(*array.shape))
        if place == INLINE:
            parts.append(padded(data))
        else:
            number, mapping = self.take(parts, size)
            mapping[:size] = data
            parts.append(NUMBERS.pack(number, 0))

    def large(self, parts, index, code, array):
        """By reference if the memory is an input's, else copied once into a segment of ours."""
        size = array.nbytes
        hold = hold_of(array) if INLINE_LIMIT < size else None
        found = hold is None and self.used and self.segments.find(self.used, array, True)
        if hold is not None:
            place, number, offset = HELD, self.keep(hold), hold.offset(array)
        elif found:
            place, (number, offset) = THEIRS, found
        elif size <= INLINE_LIMIT:
            place = INLINE
        else:
            place, offset = OWN, 0
            number, mapping = self.take(parts, size)
            np.ndarray(array.shape, array.dtype, mapping)[...] = array
        parts.append(OUTPUT_HEAD.pack(index, code, array.ndim, place, size))
        parts.append(DIMS[array.ndim].pack(*array.shape))
        if place == INLINE:
            parts.append(padded(array.tobytes()))
        else:
            parts.append(NUMBERS.pack(number, offset))

    def untouched(self, parts, tensor):
        """By reference: what another model answered, and this one has not looked at."""
        name, code, _, shape, *_ = tensor._spec
        index = self.indexes.get(name)
        if index is None:
            self.tell_unknown(name)
            return 0
        parts.append(OUTPUT_HEAD.pack(index, code, len(shape), HELD, tensor._size))
        parts.append(DIMS[len(shape)].pack(*shape))
        parts.append(NUMBERS.pack(self.keep(tensor._hold), 0))
        return 1

    def keep(self, hold):
        if self.kept is not None:
            self.kept.append(hold)
        return hold.number

    def take(self, parts, size):
        number, mapping = self.segments.take(size, self.owner)
        self.taken.append((len(parts), number))
        self.large_bytes += size
        return number, mapping


class PartEncoder(Encoder):
    """Writes single responses for whatever thread sends them."""

    def __init__(self, outputs, segments):
        super().__init__(outputs, segments)
        self.lock = Lock()

    def check(self, request, response):
        """A sender may send something before the request is executed once more."""
        check_type(response)

    def response(self, request, response):
        """The response as bytes, and how many bytes of it lie in segments."""
        with self.lock:
            self.large_bytes = 0
            try:
                return self.responses((request,), (response,)), self.large_bytes
            except PlainError as error:
                raise TritonModelException(str(error)) from None
            finally:
                # Empty unless something was raised: then they are not sent.
                self.undo(0)


def check_type(response):
    if not isinstance(response, InferenceResponse):
        raise PlainError(
            "Expected an 'InferenceResponse' object in the execute function return list, "
            f"found type '{type(response)}'."
        )


def unanswered(request, requests):
    """What is said of a request without a response in the list."""
    if request._release == RESCHEDULE:
        return AGAIN
    if request._is_abandoned:
        text = "The response sender of the request was dropped without a response."
        return result(MISTAKE, TritonError.INTERNAL, 0, text)
    if request._has_sender or request._answers_later:
        request._is_later = True
        return LATER
    if request._head[1] == NOBODY:
        return GOOD[0]
    number = next(number for number, it in enumerate(requests, 1) if it is request)
    raise PlainError(
        "Expected an 'InferenceResponse' object in the execute function return list, found type "
        f"'{type(None)}'. It is that of request {number} of {len(requests)}."
    )


def result(tag, code, count, text):
    data = text.encode("utf-8", "replace")
    return RESULT_HEAD.pack(tag, code & 255, count, len(data)) + padded(data)
