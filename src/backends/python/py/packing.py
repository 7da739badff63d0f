"""Encodes inputs of calls into frames. Names, types and shapes repeat, so heads are cached."""
import struct

import numpy as np
from troupe_encode import HELD, INLINE, INLINE_LIMIT, OWN, THEIRS
from troupe_frames import DIMS, NUMBERS, PADDING, padded
from troupe_replies import Output, hold_of
from troupe_strings import as_bytes, pack_strings
from troupe_tensors import Input, Tensor
from troupe_types import BYTES

TENSOR_HEAD = struct.Struct("<HBBIQ")
# How many heads are kept.
CACHE_LIMIT = 1024
# What a tensor may refer to instead of being copied: nothing, since somebody could write to it
# before the call is answered; outputs of earlier calls; and inputs of the group in work.
COPIES, HOLDS, INPUTS = 0, 1, 2


class Packer:
    """Writes tensors: a head that says what, and a body or a place that says where."""

    def __init__(self, segments):
        self.segments = segments
        self.heads = {}
        # By name, dtype, shape and type of a small tensor: its head and padding.
        self.plain = {}

    def tensors(self, tensors, shares, called):
        """All heads, all bodies, and the segments taken for them, which the model that is called
        will know."""
        heads, bodies, taken = [], [], []
        plain = self.plain
        try:
            for tensor in tensors:
                if type(tensor) is Tensor:
                    array = tensor._array
                    found = plain.get((tensor._name, array.dtype, array.shape, tensor._code))
                    if found is not None:
                        heads.append(found[0])
                        bodies += (array.tobytes(), found[1])
                        continue
                self.tensor((heads, bodies, taken, called), tensor, shares)
        except BaseException:
            self.undo(taken)
            raise
        return heads, bodies, taken

    def undo(self, taken):
        """Takes back these segments, which are not sent."""
        for number in taken:
            self.segments.release(number)

    def tensor(self, parts, tensor, shares):
        if isinstance(tensor, Input) and tensor._array is None:
            # The model has not made an array of it: its bytes go on as they came.
            return self.untouched(parts, tensor, shares)
        array, code, name = tensor._raw(), tensor._type(), tensor.name()
        if code == BYTES:
            packed = pack_strings(as_bytes(array.ravel().tolist()))
            return self.bytes(parts, (name, code, array.shape), packed)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        what, size = (name, code, array.shape), array.nbytes
        if size <= INLINE_LIMIT:
            self.bytes(parts, what, array.tobytes())
            if type(tensor) is Tensor and tensor._array is array:
                if CACHE_LIMIT < len(self.plain):
                    self.plain.clear()
                key = (name, array.dtype, array.shape, tensor._code)
                self.plain[key] = (self.head(what, INLINE, size), PADDING[size % 8])
            return None
        hold = hold_of(array) if shares else None
        if hold is not None:
            return self.place(parts, what, (HELD, size), (hold.number, hold.offset(array)))
        if shares == INPUTS:
            found = self.segments.find(self.segments.used, array, False)
            if found is not None:
                return self.place(parts, what, (THEIRS, size), found)
        number, mapping = self.take(parts, size)
        np.ndarray(array.shape, array.dtype, mapping)[...] = array
        return self.place(parts, what, (OWN, size), (number, 0))

    def untouched(self, parts, tensor, shares):
        """A tensor as it came, which the model has not made an array of."""
        name, code, _, shape, _, size, in_segment = tensor._spec
        what = (name, code, shape)
        at = tensor._at
        if in_segment:
            size = tensor._size
            if type(tensor) is Output:
                if shares:
                    return self.place(parts, what, (HELD, size), (tensor._hold.number, 0))
            elif shares == INPUTS:
                found = self.segments.find_mapping(self.segments.used, tensor._data)
                if found is not None:
                    return self.place(parts, what, (THEIRS, size), (found, at))
        with memoryview(tensor._data) as view, view[at : at + size] as data:
            return self.bytes(parts, what, data)

    def bytes(self, parts, what, data):
        """Small ones in the frame, large ones copied once into a segment of ours."""
        size = len(data)
        if size <= INLINE_LIMIT:
            parts[0].append(self.head(what, INLINE, size))
            parts[1].append(padded(bytes(data)))
        else:
            number, mapping = self.take(parts, size)
            mapping[:size] = data
            self.place(parts, what, (OWN, size), (number, 0))

    def place(self, parts, what, kind, where):
        parts[0].append(self.head(what, *kind))
        parts[1].append(NUMBERS.pack(*where))

    def take(self, parts, size):
        number, mapping = self.segments.take(size, parts[3])
        parts[2].append(number)
        return number, mapping

    def head(self, what, place, size):
        """How a tensor of this name, type and shape begins."""
        key = (what, place, size)
        found = self.heads.get(key)
        if found is None:
            name, code, shape = what
            data = str(name).encode("utf-8", "replace")
            found = TENSOR_HEAD.pack(len(data), code, len(shape), place, size)
            found += DIMS[len(shape)].pack(*shape) + padded(data)
            if CACHE_LIMIT < len(self.heads):
                self.heads.clear()
            self.heads[key] = found
        return found
