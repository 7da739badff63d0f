"""Core sharing: waits for frames on the core that the server works on, so that neither wakes another."""
from os import sched_getaffinity, sched_setaffinity
from select import POLLIN, poll

# Read at once.
CHUNK = 1 << 16
# Where the page of progress has the number of that core plus one; 0: any. `progress.rs` has the same.
HOME = 3


class Waiter:
    """Waits until the server has sent something; one thread at a time.

    A core that sleeps takes longer to wake than a small model to execute. While requests come one
    after the other the server spins, and says where: a thread that waits is to be woken there, and
    may run anywhere again before it does anything else.
    """

    __slots__ = ("recv", "is_there", "page")

    def __init__(self, control, page):
        self.recv = control.recv
        poller = poll()
        poller.register(control.fileno(), POLLIN)
        self.is_there = poller.poll
        # `None` once this process may not choose.
        self.page = page

    def receive(self):
        """The next bytes; none at the end."""
        # Not by `recv`: that is woken, too, when the server reads what was sent.
        if self.page is not None and self.page[HOME]:
            self.wait_at(self.page[HOME] - 1)
        else:
            self.is_there()
        return self.recv(CHUNK)

    def wait_at(self, core):
        # Each time, because the model may have set it.
        allowed = sched_getaffinity(0)
        if core not in allowed:
            self.is_there()
            return
        try:
            sched_setaffinity(0, (core,))
        except OSError:
            self.page = None
        try:
            self.is_there()
        finally:
            if self.page is not None:
                sched_setaffinity(0, allowed)
