"""Response senders: answers to one request at any time, from any thread."""
import struct
from _thread import get_ident
from threading import Lock

from troupe_awaiting import Until
from troupe_types import TritonModelException

PART_HEAD = struct.Struct("<Ic3xIIIIQ")
PART = b"P"
FINAL, HAS_RESPONSE = 1, 2
COMPLETE_FINAL = 1
RESCHEDULE = 2
# Bytes a request may have on their way to its client; then `send` waits.
WINDOW = 1 << 20
# A coroutine waits at its next `await` instead; one that has none by then waits in `send`.
MAX_AHEAD = 2 * WINDOW
# What a response costs beside its bytes.
OVERHEAD = 256


class InferenceResponseSender:
    """Sends the responses to one request; for models that are not decoupled, exactly one.

    A sender may be about 1 MiB ahead of its client. `send` then waits until the client has taken
    more, in whatever thread it is called; other senders go on. Called by a coroutine of the model's
    event loop, it does not wait and hold up all others: the coroutine does, at its next `await`. Only
    if that does not come before the sender is 2 MiB ahead, `send` waits here too, and the loop with
    it.
    """

    # Set by the worker where `execute` is a coroutine: says which coroutine runs right now.
    paced = None

    def __init__(self, worker, request):
        self._worker = worker
        self._request = request
        self._key = (*request._group, request._index)
        self._lock = Lock()
        self._is_closed = False
        self._sent = 0
        # Bytes on their way; changed under the mutex of the frames.
        self._account = worker.frames.accounts[self._key] = [0]
        # Futures of coroutines that wait for room in the window.
        self._waiters = []

    def is_cancelled(self):
        return self._worker.frames.is_cancelled(self._key[:2], self._key[2])

    def send(self, response=None, flags=0):
        """Sends a response, or says that it was the last one; waits as described above."""
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        is_final = flags == COMPLETE_FINAL
        with self._lock:
            self._check(response, is_final)
            size = self._write(response, is_final)
            self._sent += response is not None
            if is_final:
                self._close()
        if not is_final and WINDOW < self._account[0]:
            paced = self._coroutine()
            if paced is not None and self._account[0] - size <= MAX_AHEAD:
                paced.full.append((self, size))
            else:
                self._wait(size)

    def _check(self, response, is_final):
        if not self._worker.is_decoupled:
            if response is not None and self._sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one "
                    "response."
                )
            if response is None and not self._sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final "
                    "before sending a response."
                )
        if self._is_closed:
            raise TritonModelException(
                "Unable to send response. Response sender has been closed."
            )

    def _write(self, response, is_final):
        """One frame. Says how many bytes wait for credit because of it."""
        worker = self._worker
        flags = FINAL if is_final else 0
        body, large = b"", 0
        if response is not None:
            flags |= HAS_RESPONSE
            body, large = worker.parts.response(self._request, response)
        total = PART_HEAD.size + len(body)
        size = total + large + OVERHEAD
        with worker.frames.mutex:
            self._account[0] += size
        worker.frames.send([PART_HEAD.pack(total, PART, *self._key, flags, size), body])
        return size

    def _coroutine(self):
        """The coroutine that sends, if one does."""
        is_here = self.paced is not None and get_ident() == self._worker.frames.main
        return self.paced.running if is_here else None

    def _has_room(self, size):
        """Has the client taken enough? A response larger than the window waits alone."""
        return self._account[0] < max(WINDOW, size) or self._is_closed

    def _wait(self, size):
        self._worker.frames.wait(self._key, Until(lambda: self._has_room(size)))

    def _room_future(self, size):
        """What a coroutine awaits until there is room; `None` if there is."""
        frames = self._worker.frames
        with frames.mutex:
            if self._has_room(size) or frames.is_gone:
                return None
            future = frames.loop.create_future()
            self._waiters.append(future)
            # Called when there is credit, and at the end.
            frames.awaiting[self._key] = (frames.loop, frames.main, self._wake_waiters)
        return future

    def _wake_waiters(self):
        """In the loop: those who wait look again."""
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def _close(self):
        """No more responses; the request's memory can go."""
        self._is_closed = True
        frames = self._worker.frames
        frames.accounts.pop(self._key, None)
        self._request = None
        if self._key in frames.waiting or self._waiters:
            with frames.mutex:
                frames.wake_sender(self._key)

    def _fail(self):
        """`execute` raised, and the server has answered."""
        with self._lock:
            self._close()

    def __del__(self):
        if self._is_closed:
            return
        if self._request._release == RESCHEDULE:
            # Executed once more, with another sender.
            self._worker.frames.accounts.pop(self._key, None)
        elif self._worker.is_decoupled or self._request._is_later:
            abandon(self._worker.frames, self._key)
        else:
            # `execute` may still return a response.
            self._worker.frames.accounts.pop(self._key, None)
            self._request._is_abandoned = True


def abandon(frames, key):
    """Ends a request that nobody can answer any more; called while objects are collected."""
    frames.accounts.pop(key, None)
    frames.orphans.append(PART_HEAD.pack(PART_HEAD.size, PART, *key, FINAL, 0))
    frames.send_orphans()
