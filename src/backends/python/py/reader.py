"""The socket of a worker whose main thread runs an event loop: the loop reads it, without waiting."""
from _socket import MSG_DONTWAIT
from _thread import allocate_lock, get_ident
from select import POLLIN, poll
from threading import Condition

from troupe_frames import CHUNK, FRAME, ServerGone

# How long a thread waits for the loop to read: later it reads itself, because the loop may be blocked
# by what waits for this very thread.
MAX_LOOP_DELAY_SECONDS = 0.05


class Reader:
    """Reads for the loop, and for threads that wait.

    `begin` is called in the loop, outside of any task, after something was read: to begin
    executions, or to end once the server has gone.
    """

    def __init__(self, frames, loop, begin):
        self.frames = frames
        self.loop = loop
        self.begin = begin
        self.is_scheduled = False
        # Why nothing can be read any more, unless the server has gone.
        self.broken = None
        # Held by whoever reads.
        self.reading = allocate_lock()
        # A frame of which some has come, and how much.
        self.begun = None
        self.have = 0
        self.socket = frames.control
        self.readable = poll()
        self.readable.register(self.socket.fileno(), POLLIN)
        loop.add_reader(self.socket.fileno(), self.loop_reads)
        frames.loop, frames.reader = loop, self
        self.parse(frames.rest)
        self.schedule_begin()

    def loop_reads(self):
        """Called by the loop while there is something to read."""
        self.read_unless_read()
        self.begin()

    def schedule_begin(self):
        """Lets the loop begin what a task or a thread has read."""
        if not self.is_scheduled and (self.frames.executions or self.frames.is_gone):
            self.is_scheduled = True
            self.loop.call_soon_threadsafe(self.run_begin)

    def run_begin(self):
        self.is_scheduled = False
        self.begin()

    # Waiting.

    def wait(self, key, queue):
        """Takes the next element of `queue`, waits if there is none, in a thread or in a task."""
        frames = self.frames
        is_loop_thread = get_ident() == frames.main
        while True:
            if is_loop_thread:
                found = self.wait_in_loop(queue)
            else:
                found = self.wait_in_thread(key, queue)
            if found is not None:
                return found
            if frames.is_gone:
                raise ServerGone

    def wait_in_loop(self, queue):
        """One look in the loop's own thread, which holds up the loop: nobody else reads."""
        with self.reading:
            with self.frames.mutex:
                if queue:
                    return queue.popleft()
            if not self.frames.is_gone:
                # Not for ever: what is waited for may come from another thread.
                self.readable.poll(1000 * MAX_LOOP_DELAY_SECONDS)
                self.read()
                self.schedule_begin()
            return None

    def wait_in_thread(self, key, queue):
        """One look in a thread; it reads itself where the loop does not."""
        frames = self.frames
        with frames.mutex:
            if queue:
                return queue.popleft()
            if frames.is_gone:
                return None
            condition = frames.waiting.get(key)
            if condition is None:
                condition = frames.waiting[key] = Condition(frames.mutex)
            is_woken = condition.wait(MAX_LOOP_DELAY_SECONDS)
        if not is_woken:
            self.read_unless_read()
            self.schedule_begin()
        return None

    # Reading.

    def read_unless_read(self):
        """Reads unless a thread is at it; the loop then calls again."""
        if self.reading.acquire(False):
            try:
                self.read()
            finally:
                self.reading.release()

    def read(self):
        """Gives what has come to whom it is for; only while `reading` is held."""
        try:
            if self.begun is not None:
                self.fill()
            else:
                raw = self.socket.recv(CHUNK, MSG_DONTWAIT)
                if not raw:
                    raise ServerGone
                self.parse(self.frames.rest + raw)
        except BlockingIOError:
            pass
        except (ServerGone, ConnectionError):
            self.end()
        except BaseException as error:
            # Without what was lost nothing that follows makes sense.
            self.broken = error
            self.end()

    def fill(self):
        with memoryview(self.begun) as view:
            got = self.socket.recv_into(view[self.have :], 0, MSG_DONTWAIT)
        if not got:
            raise ServerGone
        self.have += got
        if self.have == len(self.begun):
            frame, self.begun = self.begun, None
            self.deliver([(bytes(frame[4:5]), frame)])

    def parse(self, raw):
        """All frames in there, the last one perhaps not whole."""
        at, end, found = 0, len(raw), []
        self.frames.rest = b""
        while at < end:
            if end - at < 8:
                self.frames.rest = raw[at:]
                break
            size, kind = FRAME.unpack_from(raw, at)
            if end - at < size:
                self.have = end - at
                self.begun = bytearray(size)
                self.begun[: self.have] = raw[at:]
                break
            found.append((kind, raw[at : at + size]))
            at += size
        self.deliver(found)

    def deliver(self, found):
        frames = self.frames
        with frames.mutex:
            for frame in found:
                frames.deliver(frame)

    def end(self):
        """The socket has ended: wakes all who wait."""
        frames = self.frames
        with frames.mutex:
            frames.is_gone = True
            frames.hand_over()
