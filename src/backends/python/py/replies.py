"""Decodes replies to calls. Large outputs stay in shared memory, which their arrays hold."""
import json
import struct

import numpy as np
import troupe_requests
from troupe_frames import DIMS, FRAME, NUMBER
from troupe_requests import InferenceResponse, TritonError
from troupe_strings import object_array, unpack_strings
from troupe_tensors import Input
from troupe_types import BYTES, DTYPES

REPLY_HEAD = struct.Struct("<BBHIQ")
OUTPUT_HEAD = struct.Struct("<HBBI")
PLACE = struct.Struct("<QQQQQ")
FREED = b"F"
# Beside the number of a hold: the model has written to its view of the memory.
SPOILED = 1 << 63
# Flags of a reply; `replies.rs` has the same.
LAST, FAILED, GIVEN = 1, 2, 4
# How many heads are kept.
CACHE_LIMIT = 1024


class Hold:
    """Memory of the server that an output lies in. Arrays over it keep it alive, and when the last
    of them has gone, the server may use the memory anew."""

    __slots__ = ("number", "address", "mapping", "size", "is_open", "__array_interface__")

    def __init__(self, number, place, spec, size):
        (self.mapping, base), offset = place
        self.number = number
        self.address = base + offset
        self.size = size
        # The model was given an array over it.
        self.is_open = False
        self.__array_interface__ = {
            "shape": spec[3],
            "typestr": spec[2].str,
            "data": (self.address, False),
            "version": 3,
        }

    def offset(self, array):
        """Where in it the array begins."""
        return array.__array_interface__["data"][0] - self.address

    def is_written(self):
        """Has the model written to it? That is to its own view, which nobody else can see."""
        segments = troupe_requests.worker.segments
        return self.is_open and segments.is_written(self.address, self.size)

    def __del__(self):
        frames = troupe_requests.worker.frames
        number = self.number | SPOILED if self.is_written() else self.number
        frames.orphans.append(FRAME.pack(16, FREED) + NUMBER.pack(number))
        frames.send_orphans()


def hold_of(array):
    """What keeps the memory of an array, if a reply brought it; `None` unless it is in C order and
    others see in that memory what the model sees."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    if type(base) is not Hold or not array.flags.c_contiguous or base.is_written():
        return None
    return base


class Output(Input):
    """An output that lies in memory of the server."""

    __slots__ = ("_hold",)

    def _raw(self):
        array = self._array
        if array is None:
            if self._spec[1] == BYTES:
                elements = unpack_strings(self._data, self._at, self._size)
                array = object_array(elements).reshape(self._spec[3])
            elif not self._is_ours:
                # Others read this memory, and a model may write to what it is given.
                array = self._shared.copy(np.asarray(self._hold))
            else:
                self._hold.is_open = True
                array = np.asarray(self._hold)
            # From now on only the array keeps that memory alive.
            self._hold = None
            self._array = array
        return array


class Response(InferenceResponse):
    """What another model answered."""

    __slots__ = ("_text",)

    def __init__(self, outputs, error, text):
        self._outputs = outputs
        self._error = error
        self._text = text

    @property
    def _parameters(self):
        return json.loads(self._text) if self._text else None

    def parameters(self):
        return self._text or "{}"


class Replies:
    """Knows the heads it has seen."""

    def __init__(self, segments):
        self.segments = segments
        self.heads = {}

    def response(self, raw):
        """What a reply says."""
        flags, code, count, head_size, text_size = REPLY_HEAD.unpack_from(raw, 16)
        at = 32 + head_size
        text = ""
        if text_size:
            text = bytes(raw[at : at + text_size]).decode("utf-8", "replace")
            at += (text_size + 7) // 8 * 8
        if flags & FAILED:
            return Response((), TritonError(text, code), "")
        if not count:
            return Response((), None, text)
        key = bytes(raw[32 : 32 + head_size])
        specs, is_plain = self.heads.get(key) or self.learn(key, count)
        data = raw if type(raw) is bytearray else bytearray(raw)
        if is_plain:
            outputs = [Input(spec, data, at + spec[4]) for spec in specs]
        else:
            outputs = [self.output(spec, data, at + spec[4]) for spec in specs]
        return Response(outputs, None, text)

    def output(self, spec, data, at):
        """An output of a response that has some in segments."""
        if not spec[6]:
            return Input(spec, data, at)
        number, offset, size, is_ours, hold = PLACE.unpack_from(data, at)
        place = self.segments.theirs[number]
        output = Output(spec, place[0], offset)
        output._size = size
        output._shared = self.segments
        output._is_ours = is_ours
        output._hold = Hold(hold, (place, offset), spec, size)
        return output

    def learn(self, key, count):
        """Decodes the head of a reply; heads repeat, so it is kept."""
        specs = []
        at = offset = 0
        for _ in range(count):
            length, code, rank, size = OUTPUT_HEAD.unpack_from(key, at)
            at += 8
            shape = DIMS[rank].unpack_from(key, at)
            at += 8 * rank
            name = key[at : at + length].decode("utf-8", "replace")
            at += (length + 7) // 8 * 8
            in_segment = bool(code & 128)
            code &= 127
            specs.append((name, code, DTYPES[code], shape, offset, size, in_segment))
            offset += PLACE.size if in_segment else (size + 7) // 8 * 8
        found = (specs, not any(spec[6] for spec in specs))
        if CACHE_LIMIT < len(self.heads):
            self.heads.clear()
        self.heads[key] = found
        return found


def held_bytes(response):
    """How many bytes of a response lie in memory of the server."""
    return sum(it._size for it in response._outputs if type(it) is Output)
