"""Forks of a model's own: cuts the worker's sockets off in processes that its model forks."""
import os
import sys
from _thread import allocate_lock
from collections import deque

from troupe_frames import ServerGone

# The worker that lives in this process.
worker = None
# Is the fork under way one by the backend, not by a model?
is_ours = False


def fork():
    """Forks a worker, which closes its parent's sockets itself."""
    global is_ours
    is_ours = True
    try:
        return os.fork()
    finally:
        is_ours = False


class ClosedSocket:
    """Replaces a socket of the worker in its child: whatever is done with it raises."""

    def refuse(self, *_):
        raise ServerGone(
            "a process that the model has forked cannot talk to the server; only the worker can"
        )

    send = sendall = sendmsg = recv = recv_into = recvmsg = refuse


def cut_off():
    """Closes the sockets in the child of any `os.fork`: two processes on one socket would confuse
    the server."""
    if is_ours or worker is None:
        return
    frames, segments = worker.frames, worker.segments
    frames.is_gone = True
    # Another thread may have held them, and there is none here.
    frames.sending, frames.mutex = allocate_lock(), allocate_lock()
    frames.out, frames.orphans = [], deque()
    for socket in (frames.control, segments.passing):
        socket.close()
    frames.control = segments.passing = ClosedSocket()
    frames.send_orphans = frames.orphans.clear
    frames.log = print_log


def print_log(level, place, message):
    """What a child logs goes the way of what it prints."""
    print(f"{place}] {message}", file=sys.stderr, flush=True)


os.register_at_fork(after_in_child=cut_off)
