"""Frames on the socket of a worker: read one by one, answers held back for a moment."""
import json
import struct
from _socket import MSG_DONTWAIT
from _thread import allocate_lock
from time import perf_counter_ns as now

# Kinds of frames, both ways.
INIT, EXECUTE, REPLY = b"I", b"E", b"c"
READY, FAILED, ANSWER, SEGMENT, DROPPED, LOG, CANCELLED = b"R", b"X", b"A", b"N", b"D", b"L", b"C"

FRAME = struct.Struct("<Ic3x")
NUMBER = struct.Struct("<Q")
NUMBERS = struct.Struct("<QQ")
CANCEL = struct.Struct("<Ic3xIIII")
DIMS = [struct.Struct(f"<{rank}q") for rank in range(65)]
PADDING = [b"\0" * (-size % 8) for size in range(8)]

# The server takes no larger frame.
FRAME_LIMIT = 1 << 30
# Read at once.
CHUNK = 1 << 16
# How long to look again for the next frame, where the last ones came that soon: to be woken on
# another core takes about as long.
LOOK_NS = 40_000


class ServerGone(Exception):
    """The server closed the socket."""


def padded(data):
    return data + PADDING[len(data) % 8]


class Frames:
    """Both directions of the socket. Only the main thread reads, or whoever holds `asking`."""

    def __init__(self, control):
        self.control = control
        self.sending = allocate_lock()
        self.asking = allocate_lock()
        self.is_executing = False
        self.rest = b""
        self.backlog = []
        self.out = []
        self.is_eager = False

    def send(self, parts):
        with self.sending:
            self.control.sendall(b"".join(parts))

    def send_json(self, kind, value):
        body = json.dumps(value).encode("utf-8", "replace")
        body += b" " * (-len(body) % 8)
        self.send([FRAME.pack(8 + len(body), kind), body])

    def flush(self):
        """Sends what was held back."""
        if self.out:
            out, self.out = self.out, []
            self.send(out)

    def read(self):
        """The next frame, the answers first: whoever waits for more must have said what it has."""
        if self.backlog:
            return self.backlog.pop(0)
        return self.receive()

    def receive(self):
        """The next frame as it comes. Answers are never sent for a thread that asks something: the
        main thread may be adding one."""
        raw = self.rest
        if not raw:
            if self.out and not self.is_executing:
                self.flush()
            raw = self.wait()
        if len(raw) < 8:
            raw = self.fill(bytearray(raw), 8)
        size, kind = FRAME.unpack_from(raw, 0)
        have = len(raw)
        if have == size:
            self.rest = b""
            return kind, raw
        if size < have:
            self.rest = raw[size:]
            return kind, raw[:size]
        self.rest = b""
        return kind, self.fill(bytearray(raw), size)

    def wait(self):
        """The next bytes, at once if they come soon."""
        recv = self.control.recv
        begun = now()
        if self.is_eager:
            end = begun + LOOK_NS
            while now() < end:
                try:
                    return recv(CHUNK, MSG_DONTWAIT)
                except BlockingIOError:
                    pass
        raw = recv(CHUNK)
        self.is_eager = now() - begun < 2 * LOOK_NS
        return raw

    def fill(self, begun, size):
        """Reads until there are `size` bytes."""
        if not self.is_executing:
            self.flush()
        have = len(begun)
        begun += bytes(size - have)
        with memoryview(begun) as view:
            while have < size:
                got = self.control.recv_into(view[have:])
                if not got:
                    raise ServerGone
                have += got
        return begun

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
