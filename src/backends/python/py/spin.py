"""Adaptive spin: polls for bytes where they usually come soon, sleeps otherwise."""
from os import sched_yield
from select import POLLIN, poll
from time import perf_counter_ns as now

# Read at once.
CHUNK = 1 << 16
# Where the page of progress has the most microseconds that a spin may last; 0: none may. `progress.rs`
# has the same.
SPIN = 3
# What takes longer is as good as never.
NEVER_NS = 600_000
# A spin lasts no longer than twice what it usually takes and this margin.
SPIN_MARGIN_NS = 50_000
# If `sched_yield` does not return within this, the core is contended: back off.
CONTENDED_YIELD_NS = 500_000
# How long not to spin after a spin in vain: doubled by each one, up to the longest. `spin.rs` has the
# same.
MIN_BACKOFF_NS = 250_000
MAX_BACKOFF_NS = 1_000_000_000


class AdaptiveSpin:
    """Waits of one kind; one thread at a time.

    What usually comes within `soon` nanoseconds is polled for: to be woken, perhaps on another core,
    takes about as long.
    """

    __slots__ = ("recv", "is_there", "page", "soon", "usual", "backoff", "backs_off_until")

    def __init__(self, control, page, soon):
        self.recv = control.recv
        poller = poll()
        poller.register(control.fileno(), POLLIN)
        self.is_there = poller.poll
        self.page = page
        self.soon = soon
        # How long they took of late.
        self.usual = NEVER_NS
        self.backoff = MIN_BACKOFF_NS
        self.backs_off_until = 0

    def receive(self):
        """The next ones, at once if they come soon; none at the end."""
        begun = now()
        longest = self.page[SPIN] * 1000
        is_soon = longest and self.usual <= self.soon and self.backs_off_until <= begun
        if not is_soon or not self.spin(begun, longest):
            # Not by `recv`: that is woken, too, when the server reads what was sent.
            self.is_there()
        raw = self.recv(CHUNK)
        took = now() - begun
        self.usual += ((took if took < NEVER_NS else NEVER_NS) - self.usual) >> 3
        return raw

    def spin(self, time, longest):
        """Polls until there is something; False if that was in vain."""
        is_there = self.is_there
        end = time + min(longest, 2 * self.usual + SPIN_MARGIN_NS)
        while not is_there(0):
            # Perhaps it is the one who is to send them that needs this core.
            sched_yield()
            last, time = time, now()
            if end < time or CONTENDED_YIELD_NS < time - last:
                self.backs_off_until = time + self.backoff
                self.backoff = min(2 * self.backoff, MAX_BACKOFF_NS)
                return False
        self.backoff = max(MIN_BACKOFF_NS, self.backoff - (self.backoff >> 6))
        return True
