"""Flow control for coroutines: one that is ahead of its client waits at its next `await`."""
from asyncio import Task
from collections.abc import Coroutine


class Paced(Coroutine):
    """A coroutine of the model, as a task sees it: it goes on only where its senders have room."""

    # The one that runs right now.
    running = None

    __slots__ = ("inner", "full")

    def __init__(self, inner):
        self.inner = inner
        # Senders that sent more than they should have: (sender, bytes of its last response).
        self.full = []

    def send(self, value):
        while self.full:
            future = self.full[-1][0]._room_future(self.full[-1][1])
            if future is not None:
                # As if it stood in the coroutine: `await future`.
                return next(future.__await__())
            self.full.pop()
        return self.step(self.inner.send, value)

    def throw(self, *error):
        return self.step(self.inner.throw, *error)

    def close(self):
        self.inner.close()

    def step(self, go_on, *value):
        outer, Paced.running = Paced.running, self
        try:
            return go_on(*value)
        finally:
            Paced.running = outer

    def __await__(self):
        return self.inner.__await__()

    def __getattr__(self, name):
        # Those who look into tasks want to see the model's own frames.
        return getattr(self.inner, name)


def task(loop, coroutine, **options):
    """Makes the tasks of a loop."""
    return Task(Paced(coroutine), loop=loop, **options)
