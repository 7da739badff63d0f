"""Runs a model whose `execute` is a coroutine: every group of requests is a task of one event loop."""
import asyncio
from contextvars import ContextVar
from time import perf_counter_ns as now

from troupe_decode import is_left_out
from troupe_failures import describe
from troupe_frames import CHECK, ServerGone
from troupe_reader import Reader
from troupe_senders import InferenceResponseSender
from troupe_worker import CHECK_FAILED, answer

# How long tasks may take to end, in seconds, once the model is unloaded.
CANCEL_GRACE_SECONDS = 1


class Coroutines:
    """The tasks of one worker."""

    def __init__(self, worker):
        self.worker = worker
        self.task_group = worker.task_group = ContextVar("group", default=None)
        self.loop = worker.loop
        # The loop itself holds tasks only weakly.
        self.tasks = set()
        # Why the worker cannot go on.
        self.broken = None
        self.is_over = False

    def serve(self):
        """Until the server has gone."""
        if self.worker.is_decoupled:
            import troupe_pacing

            self.loop.set_task_factory(troupe_pacing.task)
            InferenceResponseSender.paced = troupe_pacing.Paced
        reader = Reader(self.worker.frames, self.loop, self.begin)
        while not self.is_over:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # Of a task that the model made; whoever awaits that task hears of it.
                pass
        self.loop.remove_reader(self.worker.frames.control.fileno())
        broken = self.broken or reader.broken
        if broken is not None:
            raise broken
        self.cancel()

    def cancel(self):
        """Ends all tasks, the model's own among them."""
        loop = self.loop
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            ended, _ = loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_GRACE_SECONDS))
            for task in ended:
                # Looked at, so that nothing is logged of tasks that raised because they were ended.
                task.cancelled() or task.exception()

    def begin(self):
        """Starts a task for every group and check that has come."""
        frames = self.worker.frames
        try:
            while frames.executions:
                kind, raw = frames.executions.popleft()
                if kind == CHECK:
                    self.start(self.check())
                else:
                    self.begin_groups(raw)
        except BaseException as error:
            self.broken = error
        if self.broken is not None or frames.is_gone:
            self.is_over = True
            self.loop.stop()

    def begin_groups(self, raw):
        worker = self.worker
        data = raw if type(raw) is bytearray else bytearray(raw)
        sequence, groups, at = worker.begin(raw)
        for number in range(groups):
            time = now()
            group = (sequence, number)
            worker.count()
            start = at
            requests, used, at = worker.decode(raw, data, at, group)
            if requests or not is_left_out(raw, start):
                self.start(self.execute(group, requests, used, time))

    def start(self, coroutine):
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def execute(self, group, requests, used, time):
        """One group of requests, and its answer."""
        worker = self.worker
        # Calls that this task makes are made for its group.
        self.task_group.set(group)
        count = len(requests)
        started = now()
        try:
            responses = await worker.execute(requests)
            ended = now()
            if type(responses) is not list or worker.is_decoupled:
                responses = worker.settle(responses, requests)
            body = worker.encode(requests, responses, used)
        except BaseException as error:
            ended = now()
            if self.is_over:
                raise
            body, count = worker.failure(requests, error), None
        requests = responses = None
        held = worker.segments.held(used) if used else b""
        times = (started - time, ended - started, now() - ended)
        self.send(answer(group, times, count, (held, body)))

    async def check(self):
        worker = self.worker
        try:
            verdict = worker.model.is_ready()
            if hasattr(verdict, "__await__"):
                verdict = await verdict
            worker.send_verdict(verdict)
        except BaseException as error:
            if self.is_over:
                raise
            worker.send_check(CHECK_FAILED, describe(error))

    def send(self, parts):
        try:
            self.worker.frames.send(parts)
            self.worker.frames.kept.clear()
        except ConnectionError:
            # The server has gone; the reader finds that out.
            pass
