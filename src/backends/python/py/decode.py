"""Decodes frames into requests. Heads repeat, so what they hold is cached."""
import struct

from troupe_frames import DIMS
from troupe_requests import RELEASE_ALL
from troupe_tensors import Input
from troupe_types import DTYPES

PAIR = struct.Struct("<II")
PLACE = struct.Struct("<QQQQ")
REQUEST_HEAD = struct.Struct("<IHHII")
INPUT_HEAD = struct.Struct("<HBBI")
WANTED, EXTRA = 1, 2
new = object.__new__
# How many heads are kept.
CACHE_LIMIT = 1024


def is_left_out(raw, at):
    """Has the server answered a group itself, which is empty therefore?"""
    return raw[at + 4] != 0


def skip(raw, at):
    """How many requests a group has, and where the next one starts."""
    (count, _) = PAIR.unpack_from(raw, at)
    at += 8
    for _ in range(count):
        head_size, data_size = PAIR.unpack_from(raw, at)
        at += 8 + head_size + data_size
    return count, at


class Used(dict):
    """The segments that the inputs of a group lie in, by number: their addresses."""

    __slots__ = ("texts", "made", "verdicts")

    def __init__(self):
        # Inputs that are strings in them: elements, segment, offset, bytes.
        self.texts = []
        # Those over which the model was given arrays, and whether it has written to them.
        self.made = set()
        self.verdicts = {}


# Those of a group without large inputs.
NOTHING = Used()


class Decoder:
    """Knows the model's inputs and outputs by number, and the heads it has seen."""

    def __init__(self, inputs, outputs, segments, kind):
        self.kind = kind
        self.inputs = inputs
        self.outputs = outputs
        self.segments = segments
        self.heads = {}
        # How the last request began, with both sizes and its head; what the head says; and the size
        # of what follows. No request begins like this one.
        self.last = (b"\xff" * 8, None, 0)

    def requests(self, raw, data, at, group):
        """The requests of one group, the segments they lie in, and where the next one starts.

        A group's segments are known by their addresses: `used[number] = address`.
        """
        (count, _) = PAIR.unpack_from(raw, at)
        at += 8
        requests = []
        used = NOTHING
        kind = self.kind
        prefix, head, size = self.last
        for index in range(count):
            if raw.startswith(prefix, at):
                # Most requests begin like the one before: then nothing is unpacked.
                start = at + len(prefix)
            else:
                start = at + 8 + PAIR.unpack_from(raw, at)[0]
                prefix, head, size = self.last = self.find(bytes(raw[at:start]))
            at = start + size
            specs, _, _, is_plain, extra_at, _ = head
            inputs = []
            if is_plain:
                for spec in specs:
                    # As `Input(spec, data, start + spec[4])`, without the call of `__init__`.
                    tensor = new(Input)
                    tensor._spec = spec
                    tensor._data = data
                    tensor._at = start + spec[4]
                    tensor._array = None
                    inputs.append(tensor)
            else:
                if used is NOTHING:
                    used = Used()
                inputs = [self.input(spec, data, start, used) for spec in specs]
            # As `kind(…)`, without the call of `__init__`.
            request = new(kind)
            request._inputs = inputs
            request._head = head
            request._extra = None if extra_at is None else (data, start + extra_at)
            request._group = group
            request._index = index
            request._made = request._sender = request._trace = None
            request._has_sender = request._is_later = request._is_abandoned = False
            request._release = RELEASE_ALL
            requests.append(request)
        return requests, used, at

    def find(self, prefix):
        """What `last` is to be after a request that begins like this."""
        key = prefix[8:]
        head = self.heads.get(key)
        if head is None:
            head = self.learn(key)
        return prefix, head, PAIR.unpack_from(prefix, 0)[1]

    def input(self, spec, data, start, used):
        """An input of a request that has some in segments."""
        if not spec[6]:
            return Input(spec, data, start + spec[4])
        number, offset, size, is_ours = PLACE.unpack_from(data, start + spec[4])
        mapping, used[number] = self.segments.theirs[number]
        tensor = Input(spec, mapping, offset)
        tensor._size = size
        tensor._number = number
        tensor._shared = self.segments
        tensor._used = used
        tensor._is_ours = is_ours
        # For strings: where their lengths are, if they are told.
        tensor._lengths = (data, start + spec[4] + PLACE.size) if spec[5] else None
        return tensor

    def learn(self, key):
        """Decodes the head of a request; heads repeat, so it is kept."""
        batch, inputs, wanted, flags, owner = REQUEST_HEAD.unpack_from(key, 0)
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
            specs.append((name, code, DTYPES[code], shape, offset, size, in_segment))
            is_plain &= not in_segment
            # In a segment: how many lengths of strings are told.
            size_here = PLACE.size + 4 * size if in_segment else size
            offset += (size_here + 7) // 8 * 8
        extra_at = offset if flags & EXTRA else None
        head = (tuple(specs), names, batch, is_plain, extra_at, owner)
        if CACHE_LIMIT < len(self.heads):
            self.heads.clear()
        self.heads[key] = head
        return head
