"""Strings as they travel: each after its length, in 4 bytes with the lowest first."""
import marshal
import struct

import numpy as np

LENGTH = struct.Struct("<I")
# How marshal writes lists of bytes, as every CPython so far; each element begins like ours, but for
# the letter.
LIST, ELEMENT = b"[", ord("s")
IS_MARSHAL_KNOWN = marshal.loads(b"[\1\0\0\0s\2\0\0\0ab") == [b"ab"]
# Lengths kept as bytes.
CACHE_LIMIT = 1 << 16


class Lengths(dict):
    """Lengths as bytes; few different ones repeat."""

    def __missing__(self, length):
        if CACHE_LIMIT < len(self):
            self.clear()
        packed = self[length] = LENGTH.pack(length)
        return packed


lengths = Lengths()


def unpack_strings(data, at, size, lengths=None):
    """The elements as a list of bytes; faster with their lengths."""
    found = None
    if lengths is not None and IS_MARSHAL_KNOWN:
        found = sized_strings(np.ndarray((size,), np.uint8, data, at), lengths)
    if found is None:
        # Slices of bytes are the fastest; a view, so that it is one copy.
        data = bytes(memoryview(data)[at : at + size])
        found = equal_strings(data)
    if found is not None:
        return found
    found = []
    push, unpack = found.append, LENGTH.unpack_from
    at = 0
    while at < size:
        start = at + 4
        at = start + unpack(data, at)[0]
        push(data[start:at])
    return found


def sized_strings(data, lengths):
    """The elements, made at once from a copy with a letter before each; None if the lengths are
    not those in the data."""
    count = len(lengths)
    sizes = lengths.astype(np.int64) + 5
    starts = np.cumsum(sizes) - sizes
    total = data.size + count
    if count == 0 or starts[-1] + sizes[-1] != total:
        return None
    text = np.empty(5 + total, np.uint8)
    text[:5] = np.frombuffer(LIST + LENGTH.pack(count), np.uint8)
    body = text[5:]
    is_data = np.ones(total, np.bool_)
    is_data[starts] = False
    body[is_data] = data
    body[starts] = ELEMENT
    heads = body[starts[:, None] + np.arange(1, 5)].view("<u4")[:, 0]
    if (heads != lengths).any():
        return None
    return marshal.loads(text)


def equal_strings(data):
    """The elements if all are of one length, as identifiers and fixed records are."""
    if len(data) < 8:
        return None
    (length,) = LENGTH.unpack_from(data)
    if len(data) % (4 + length):
        return None
    heads = np.ndarray((len(data) // (4 + length),), "<u4", data, 0, (4 + length,))
    if (heads != length).any():
        return None
    return [element for element, in struct.iter_unpack(f"4x{length}s", data)]


def object_array(elements):
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def as_bytes(elements):
    """Elements as they are sent: what is no bytes as its text."""
    if set(map(type, elements)) <= {bytes}:
        return elements
    return [it if isinstance(it, bytes) else str(it).encode() for it in elements]


def pack_strings(elements):
    """The elements, which are bytes, each after its length."""
    parts = [b""] * (2 * len(elements))
    parts[::2] = map(lengths.__getitem__, map(len, elements))
    parts[1::2] = elements
    return b"".join(parts)
