"""Frames on the socket of a worker. Any thread may send; of those that wait, one reads for all."""
import json
import struct
from _thread import allocate_lock, get_ident
from collections import deque
from itertools import count
from threading import Condition

from troupe_awaiting import PUMP, Awaiting, ServerGone
from troupe_spin import CHUNK, AdaptiveSpin

# Kinds of frames, both ways; `kinds.rs` says what they are.
INIT, EXECUTE, REPLY, CREDIT, RELEASED = b"I", b"E", b"c", b"k", b"r"
CHECK, RESPONSE = b"h", b"b"
METRICS, METRICS_REPLY = b"M", b"m"
READY, FAILED, ANSWER, SEGMENT, DROPPED, LOG, CANCELLED = b"R", b"X", b"A", b"N", b"D", b"L", b"C"
CHECKED = b"H"

FRAME = struct.Struct("<Ic3x")
NUMBER = struct.Struct("<Q")
NUMBERS = struct.Struct("<QQ")
UPDATE_COUNTS = struct.Struct("<IHHHH")
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

# Longer messages are cut.
MESSAGE_LIMIT = 8192


def padded(data):
    return data + PADDING[len(data) % 8]


def as_json(value):
    """Not escaped, so that what is no text becomes a question mark."""
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return body + b" " * (-len(body) % 8)


class Frames(Awaiting):
    """Both directions of the socket.

    A waiter is known by its key: `None` for the main thread, which waits for executions, `PUMP`, the
    number of a call, or the group and index of a request whose sender waits for credit.
    """

    def __init__(self, control, page):
        self.control = control
        self.main = get_ident()
        self.sending = allocate_lock()
        self.mutex = allocate_lock()
        self.is_reading = False
        self.is_gone = False
        # Of a model whose `execute` is a coroutine: the event loop of the main thread, and who
        # reads for it.
        self.loop = None
        self.reader = None
        # What has come, for whom: executions and checks in order, replies by number of call.
        self.executions = deque()
        self.replies = {}
        # By key: conditions of threads that wait while another reads.
        self.waiting = {}
        # Coroutines that wait for replies, by number of call: (loop, its thread, what to call).
        self.awaiting = {}
        # A thread reads for coroutines whose loop does not.
        self.is_pumping = False
        # By group and index: what is on its way to the client of a request with a sender.
        self.accounts = {}
        # Frames made while objects were collected, when this thread may hold any lock.
        self.orphans = deque()
        # Takes in what the server did to segments; set by the worker, as the next two.
        self.update_segments = None
        # Events of metrics, which go before whatever is sent next.
        self.events = deque()
        # Takes back a segment of ours.
        self.release = None
        # Gives back the memory that a reply nobody waits for lies in.
        self.discard = None
        self.calls = count(1)
        # This model asks others.
        self.has_called = False
        self.rest = b""
        self.out = []
        self.kept = []
        # Frames that usually come within so many nanoseconds are polled for.
        self.executions_spin = AdaptiveSpin(control, page, 400_000)
        self.replies_spin = AdaptiveSpin(control, page, 200_000)

    # Sending.

    def send(self, parts):
        with self.sending:
            if self.events:
                parts = (self.take_events(), *parts)
            self.control.sendall(b"".join(parts))
        if self.orphans:
            self.send_orphans()

    def send_orphans(self):
        """Sends the frames that were made in the garbage collector, unless some thread is sending:
        that may be this one, interrupted by the collector, and it looks after it has sent."""
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
            # The server knows what these frames refer to until it has read them.
            self.kept.clear()

    def log(self, level, place, message):
        cut = len(message) - MESSAGE_LIMIT
        if 0 < cut:
            message = f"{message[:MESSAGE_LIMIT]} … {cut} characters cut"
        self.send_json(LOG, {"level": level, "place": place, "message": message})

    def copied(self, size):
        self.events.append(EVENT.pack(0, COPIED, size))

    # Waiting.

    def execution(self):
        """The next frame of executions, or check; main thread only."""
        if self.executions:
            return self.executions.popleft()
        # The server may wait for what is held back.
        return self.wait(None, self.executions)

    def next_call(self):
        """The number of a new call to the server."""
        call = next(self.calls)
        self.replies[call] = deque()
        return call

    def reply(self, call):
        """Waits for the only reply to a call."""
        frame = self.wait(call, self.replies[call])
        del self.replies[call]
        return frame

    def take_reply(self, call):
        """The next reply to a call, if it has come."""
        found = self.replies[call]
        return found.popleft() if found else None

    def take_only(self, call):
        """The only reply to a call, if it has come."""
        found = self.forget(call)
        return found[0] if found else None

    def forget(self, call):
        """Takes all replies that have come; none is kept from now on."""
        self.awaiting.pop(call, None)
        found = self.replies.pop(call, None)
        taken = []
        while found:
            taken.append(found.popleft())
        return taken

    def wait(self, key, queue):
        """Takes the next element of `queue`, waits if there is none; reads for all while nobody else
        does."""
        if self.reader is not None:
            return self.reader.wait(key, queue)
        if self.out and get_ident() == self.main:
            self.flush()
        mutex = self.mutex
        spin = self.executions_spin if key is None else self.replies_spin
        mutex.acquire()
        try:
            while True:
                if queue:
                    return queue.popleft()
                if self.is_gone:
                    raise ServerGone
                if self.is_reading:
                    condition = self.waiting.get(key)
                    if condition is None:
                        condition = self.waiting[key] = Condition(mutex)
                    try:
                        condition.wait()
                    except BaseException:
                        self.wake(key)
                        raise
                    continue
                self.is_reading = True
                mutex.release()
                try:
                    frame = self.receive(spin)
                except (ServerGone, ConnectionError):
                    # Anything else is an alarm of the model's, and nothing was lost.
                    self.is_gone = True
                    raise
                finally:
                    mutex.acquire()
                    self.is_reading = False
                if frame[0] == RESPONSE and NUMBER.unpack_from(frame[1], 8)[0] == key:
                    # The next one for this call: nobody else has read.
                    return frame
                try:
                    self.deliver(frame)
                except BaseException:
                    # Without what this frame said nothing that follows makes sense.
                    self.is_gone = True
                    raise
        finally:
            # Somebody else reads now; whoever it is passes on what is not its own.
            if (self.waiting or self.is_gone) and not self.is_reading:
                self.hand_over()
            mutex.release()

    def hand_over(self):
        """Wakes somebody who waits, the main thread by choice; all of them at the end."""
        if self.is_gone:
            for key in list(self.waiting):
                self.wake(key)
            for call in list(self.awaiting):
                self.wake_coroutine(call)
        else:
            self.wake(None if None in self.waiting else next(iter(self.waiting)))

    def deliver(self, frame):
        """Gives a frame to whom it is for; under the mutex."""
        kind, raw = frame
        if kind == CHECK:
            self.executions.append(frame)
            self.wake(None)
        elif kind == EXECUTE:
            groups, new, forgotten, released, flags = UPDATE_COUNTS.unpack_from(raw, 12)
            if new or forgotten or released or flags:
                # At once: the next frame may be a reply that lies in a new segment.
                self.update_segments(raw, (new, forgotten, released), flags)
            if groups:
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
                    self.wake_sender(key)
        else:
            (call,) = NUMBER.unpack_from(raw, 8)
            found = self.replies.get(call)
            if found is None:
                return self.discard(frame)
            found.append(frame)
            if call in self.awaiting:
                self.wake_coroutine(call)
            else:
                self.wake(call)
            if self.replies.get(call) is not found:
                # Forgotten a moment ago, perhaps by somebody who did not see this one.
                try:
                    found.remove(frame)
                except ValueError:
                    return
                self.discard(frame)

    def wake_sender(self, key):
        """Threads and coroutines that wait for credit; under the mutex."""
        self.wake(key)
        if key in self.awaiting:
            self.wake_coroutine(key)

    def wake(self, key):
        """Whoever is woken takes what is there, or reads, or waits anew."""
        condition = self.waiting.pop(key, None)
        if condition is not None:
            condition.notify_all()

    # Reading; only by whoever has set `is_reading`.

    def receive(self, spin):
        """The next frame as it comes."""
        raw = self.rest
        if not raw:
            raw = spin.receive()
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

    def fill(self, begun, size):
        """Reads until there are `size` bytes."""
        have = len(begun)
        begun += bytes(size - have)
        try:
            with memoryview(begun) as view:
                while have < size:
                    got = self.control.recv_into(view[have:])
                    if not got:
                        raise ServerGone
                    have += got
        except BaseException:
            # The next one to read goes on from here.
            self.rest = bytes(begun[:have])
            raise
        return begun

    # Questions.

    def is_cancelled(self, group, index):
        call = self.next_call()
        self.send([CANCEL.pack(32, CANCELLED, call, group[0], group[1], index, 0)])
        return self.reply(call)[1][16] != 0
