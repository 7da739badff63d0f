"""Waiting for bytes: looking again and again where they usually come soon, sleeping otherwise."""
from os import sched_yield
from select import POLLIN, poll
from time import perf_counter_ns as now

# Read at once.
CHUNK = 1 << 16
# Bytes that usually come this soon are looked for: to be woken, perhaps on another core, takes about
# as long.
SOON_NS = 400_000
# Nobody looks longer for them.
MOST_NS = 600_000
# Whoever was let by held the processor this long: it is needed elsewhere, for a while.
CROWDED_NS = 500_000
REST_NS = 20_000_000


class Look:
    """Waits of one kind; one thread at a time."""

    __slots__ = ("recv", "is_there", "usual", "rests_until")

    def __init__(self, control):
        self.recv = control.recv
        self.is_there = poll()
        self.is_there.register(control.fileno(), POLLIN)
        self.is_there = self.is_there.poll
        # How long they took of late.
        self.usual = MOST_NS
        self.rests_until = 0

    def bytes(self):
        """The next ones, at once if they come soon; none at the end."""
        begun = time = now()
        if self.usual < SOON_NS and self.rests_until < begun:
            is_there = self.is_there
            end = begun + MOST_NS
            while not is_there(0):
                if end < time:
                    break
                # Perhaps it is the one who is to send them that needs this core.
                sched_yield()
                last, time = time, now()
                if CROWDED_NS < time - last:
                    self.rests_until = time + REST_NS
                    break
        # Not by `recv`: that is woken, too, when the server reads what was sent.
        self.is_there()
        raw = self.recv(CHUNK)
        took = now() - begun
        self.usual += ((took if took < MOST_NS else MOST_NS) - self.usual) >> 3
        return raw
