"""Frames on the socket of a worker. Any thread may send; of those that wait, one reads for all."""
import json
import struct
from _socket import MSG_DONTWAIT
from _thread import allocate_lock, get_ident
from collections import deque
from threading import Condition
from time import perf_counter_ns as now

# Kinds of frames, both ways.
INIT, EXECUTE, REPLY, CREDIT, RELEASED = b"I", b"E", b"c", b"k", b"r"
METRICS, METRICS_REPLY = b"M", b"m"
READY, FAILED, ANSWER, SEGMENT, DROPPED, LOG, CANCELLED = b"R", b"X", b"A", b"N", b"D", b"L", b"C"

FRAME = struct.Struct("<Ic3x")
NUMBER = struct.Struct("<Q")
NUMBERS = struct.Struct("<QQ")
CANCEL = struct.Struct("<Ic3xQIIII")
CREDITS = struct.Struct("<IIIIQ")
EVENTS = struct.Struct("<Ic3xQ")
# Of a metric: its number, what happened, how much.
EVENT = struct.Struct("<QQd")
# Not of a metric: so many bytes were copied out of shared memory.
COPIED = 4
DIMS = [struct.Struct(f"<{rank}q") for rank in range(65)]
PADDING = [b"\0" * (-size % 8) for size in range(8)]

# The server takes no larger frame.
FRAME_LIMIT = 1 << 30
# Read at once.
CHUNK = 1 << 16
# How long to look again for the next frame, where the last ones came that soon: to be woken on
# another core takes about as long.
LOOK_NS = 40_000


# Longer messages are cut.
MESSAGE_LIMIT = 8192


class ServerGone(Exception):
    """The server closed the socket."""


def padded(data):
    return data + PADDING[len(data) % 8]


def as_json(value):
    """Not escaped, so that what is no text becomes a question mark."""
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return body + b" " * (-len(body) % 8)


class Frames:
    """Both directions of the socket.

    A waiter is known by its key: `None` for the main thread, which waits for executions, else the
    number of a call or the group and index of a request whose sender waits for credit.
    """

    def __init__(self, control):
        self.control = control
        self.main = get_ident()
        self.sending = allocate_lock()
        self.mutex = allocate_lock()
        self.is_reading = False
        self.is_gone = False
        # What came, for whom: frames of executions in order, replies by number of call.
        self.executions = deque()
        self.replies = {}
        # Whoever waits while another reads.
        self.waiting = {}
        # By group and index: what is on its way to the client of a request with a sender.
        self.accounts = {}
        self.orphans = deque()
        # Events of metrics, which go before whatever is sent next.
        self.events = deque()
        # Takes back a segment of ours; set by the segments.
        self.release = None
        self.calls = 0
        self.rest = b""
        self.out = []
        self.is_eager = False

    # Sending.

    def send(self, parts):
        with self.sending:
            if self.events:
                parts = (self.take_events(), *parts)
            self.control.sendall(b"".join(parts))
        if self.orphans:
            self.send_orphans()

    def send_orphans(self):
        """The last words of senders that were dropped open, unless some thread is sending: that may
        be this one, the collector having come in between, and it looks after it has sent."""
        if self.sending.acquire(False):
            try:
                while self.orphans:
                    self.control.sendall(self.orphans.popleft())
            finally:
                self.sending.release()

    def take_events(self):
        """What was counted since the last frame, as a frame; only under `sending`."""
        take = self.events.popleft
        body = b"".join([take() for _ in range(len(self.events))])
        return EVENTS.pack(16 + len(body), METRICS, 0) + body

    def ask(self, kind, question):
        """Sends a question as JSON and waits for the reply."""
        call = self.next_call()
        body = as_json(question)
        self.send([EVENTS.pack(16 + len(body), kind, call), body])
        return self.reply(call)[1]

    def send_json(self, kind, value):
        body = as_json(value)
        self.send([FRAME.pack(8 + len(body), kind), body])

    def flush(self):
        """Sends what the main thread held back; only it may call this."""
        if self.out:
            out, self.out = self.out, []
            self.send(out)

    def log(self, level, place, message):
        cut = len(message) - MESSAGE_LIMIT
        if 0 < cut:
            message = f"{message[:MESSAGE_LIMIT]} … {cut} characters cut"
        self.send_json(LOG, {"level": level, "place": place, "message": message})

    def copied(self, size):
        self.events.append(EVENT.pack(0, COPIED, size))

    # Waiting.

    def execution(self):
        """The next frame of executions; main thread only."""
        found = self.next_execution()
        if found is not None:
            return found
        # Whoever waits for more must have said what it has.
        return self.wait(None, self.next_execution)

    def next_execution(self):
        return self.executions.popleft() if self.executions else None

    def next_call(self):
        """The number of a new call to the server."""
        with self.mutex:
            self.calls += 1
            return self.calls

    def reply(self, call):
        """Waits for the next reply to a call."""
        return self.wait(call, lambda: self.take_reply(call))

    def take_reply(self, call):
        found = self.replies.get(call)
        if not found:
            return None
        frame = found.popleft()
        if not found:
            del self.replies[call]
        return frame

    def wait(self, key, take):
        """Waits until `take` gives something; reads for all while nobody else does."""
        if self.out and get_ident() == self.main:
            self.flush()
        mutex = self.mutex
        mutex.acquire()
        try:
            while True:
                found = take()
                if found is not None:
                    return found
                if self.is_gone:
                    raise ServerGone
                if self.is_reading:
                    turn = self.waiting.get(key)
                    if turn is None:
                        turn = self.waiting[key] = Condition(mutex)
                    turn.wait()
                    continue
                self.is_reading = True
                mutex.release()
                try:
                    frame = self.receive(key is None)
                except BaseException:
                    self.is_gone = True
                    raise
                finally:
                    mutex.acquire()
                    self.is_reading = False
                self.deliver(frame)
        finally:
            # Somebody else reads now; whoever it is passes on what is not its own.
            if self.waiting and not self.is_reading:
                self.hand_over()
            mutex.release()

    def hand_over(self):
        """Wakes somebody who waits, the main thread by choice; all of them at the end."""
        if self.is_gone:
            for key in list(self.waiting):
                self.wake(key)
        else:
            self.wake(None if None in self.waiting else next(iter(self.waiting)))

    def deliver(self, frame):
        """Gives a frame to whom it is for; under the mutex."""
        kind, raw = frame
        if kind == EXECUTE:
            self.executions.append(frame)
            self.wake(None)
        elif kind == RELEASED:
            for at in range(8, len(raw), 8):
                self.release(NUMBER.unpack_from(raw, at)[0])
        elif kind == CREDIT:
            for at in range(8, len(raw), CREDITS.size):
                sequence, group, index, _, size = CREDITS.unpack_from(raw, at)
                key = (sequence, group, index)
                account = self.accounts.get(key)
                if account is not None:
                    account[0] -= size
                    self.wake(key)
        else:
            (call,) = NUMBER.unpack_from(raw, 8)
            self.replies.setdefault(call, deque()).append(frame)
            self.wake(call)

    def wake(self, key):
        """Whoever is woken takes what is there, or reads, or waits anew."""
        turn = self.waiting.pop(key, None)
        if turn is not None:
            turn.notify_all()

    # Reading; only by whoever has set `is_reading`.

    def receive(self, is_main):
        """The next frame as it comes."""
        raw = self.rest
        if not raw:
            raw = self.look() if is_main else self.control.recv(CHUNK)
            if not raw:
                raise ServerGone
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

    def look(self):
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
        have = len(begun)
        begun += bytes(size - have)
        with memoryview(begun) as view:
            while have < size:
                got = self.control.recv_into(view[have:])
                if not got:
                    raise ServerGone
                have += got
        return begun

    # Questions.

    def is_cancelled(self, group, index):
        call = self.next_call()
        self.send([CANCEL.pack(32, CANCELLED, call, group[0], group[1], index, 0)])
        return self.reply(call)[1][16] != 0
