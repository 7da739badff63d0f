"""Waiting for replies in coroutines: woken by the thread that reads the socket."""
from _thread import get_ident

# The key of the thread that reads for coroutines.
PUMP = "pump"


class ServerGone(Exception):
    """The server closed the socket."""


class Until:
    """A condition that is waited for like a queue of frames: it has an element once `is_so()`."""

    __slots__ = ("is_so",)

    def __init__(self, is_so):
        self.is_so = is_so

    def __bool__(self):
        return self.is_so()

    def popleft(self):
        return True


class Awaiting:
    """The part of `Frames` for coroutines, which must not block the thread of their loop."""

    def notify(self, call, callback, loop):
        """Calls `callback` in the loop of this thread once there is a reply, or none can come."""
        starts = False
        with self.mutex:
            waits = not self.replies.get(call) and not self.is_gone
            if waits:
                self.awaiting[call] = (loop, get_ident(), callback)
                starts = not (self.reader or self.is_pumping)
                self.is_pumping |= starts
                if not self.is_reading:
                    self.wake(PUMP)
        if not waits:
            loop.call_soon(callback)
        elif starts:
            loop.run_in_executor(None, self.pump)

    async def notified(self, call):
        """Waits until there is a reply, or none can come."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        future = loop.create_future()
        self.notify(call, lambda: future.done() or future.set_result(None), loop)
        await future

    def pump(self):
        """Reads for as long as coroutines wait."""

        def nobody_waits():
            if self.awaiting:
                return False
            self.is_pumping = False
            return True

        try:
            self.wait(PUMP, Until(nobody_waits))
        except ServerGone:
            self.is_pumping = False

    def wake_coroutine(self, call):
        """Calls the callback of a coroutine in its loop; under the mutex."""
        loop, thread, callback = self.awaiting.pop(call)
        if get_ident() == thread:
            loop.call_soon(callback)
        else:
            try:
                loop.call_soon_threadsafe(callback)
            except RuntimeError:
                # The loop has ended, and its coroutines with it.
                pass
        if not self.awaiting:
            self.wake(PUMP)
