"""Waiting for bytes: looking again and again where they usually come soon, sleeping otherwise."""
from os import sched_yield
from select import POLLIN, poll
from time import perf_counter_ns as now

# Read at once.
CHUNK = 1 << 16
# Nobody looks longer than this, and than twice what it usually takes and this much more.
MOST_NS = 600_000
MORE_NS = 50_000
# Whoever was let by held the processor this long: it is needed elsewhere.
CROWDED_NS = 500_000
# How long to sleep as others do after a look in vain: the longer the more of them there were.
LEAST_REST_NS = 10_000_000
MOST_REST_NS = 1_000_000_000


class Look:
    """Waits of one kind; one thread at a time.

    What usually comes sooner than `soon` is looked for: to be woken, perhaps on another core, takes
    about as long.
    """

    __slots__ = ("recv", "is_there", "soon", "usual", "rest", "rests_until")

    def __init__(self, control, soon):
        self.recv = control.recv
        poller = poll()
        poller.register(control.fileno(), POLLIN)
        self.is_there = poller.poll
        self.soon = soon
        # How long they took of late.
        self.usual = MOST_NS
        self.rest = LEAST_REST_NS
        self.rests_until = 0

    def bytes(self):
        """The next ones, at once if they come soon; none at the end."""
        begun = now()
        if self.soon < self.usual or begun < self.rests_until or not self.finds(begun):
            # Not by `recv`: that is woken, too, when the server reads what was sent.
            self.is_there()
        raw = self.recv(CHUNK)
        took = now() - begun
        self.usual += ((took if took < MOST_NS else MOST_NS) - self.usual) >> 3
        return raw

    def finds(self, time):
        is_there = self.is_there
        end = time + min(MOST_NS, 2 * self.usual + MORE_NS)
        while not is_there(0):
            # Perhaps it is the one who is to send them that needs this core.
            sched_yield()
            last, time = time, now()
            if end < time or CROWDED_NS < time - last:
                self.rests_until = time + self.rest
                self.rest = min(2 * self.rest, MOST_REST_NS)
                return False
        self.rest = max(LEAST_REST_NS, self.rest - (self.rest >> 6))
        return True
