"""Metrics of a model's own: counted here, kept by the server, shared by all workers."""
import struct
from _thread import allocate_lock, start_new_thread
from enum import IntEnum
from time import sleep

import troupe_requests as _requests
from troupe_frames import EVENT, METRICS, NUMBERS, ServerGone
from troupe_types import TritonModelException

# What happens to a metric; the server has the same.
ADD, SET, OBSERVE, DROP = range(4)
FLOAT = struct.Struct("<d")
# Counted events are sent with the next frame, and at the latest after so many seconds.
HOLD_SECONDS = 0.01
# More events than this are sent at once.
HELD_EVENTS = 4096
DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
    "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been "
    "deleted."
)


class MetricKind(IntEnum):
    """What a family counts."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricFamily:
    """Metrics of one name; they end with it."""

    MetricKind = MetricKind
    COUNTER, GAUGE, HISTOGRAM = MetricKind

    __slots__ = ("_number", "_kind", "_metrics", "_lock", "__weakref__")

    def __init__(self, name, description, kind):
        for argument, value in (("name", name), ("description", description)):
            if not isinstance(value, str):
                raise TypeError(f"MetricFamily's {argument} must be a str, got {type(value)}")
        if not isinstance(kind, MetricKind):
            raise TypeError(f"MetricFamily's kind must be a MetricFamily.MetricKind, got {kind!r}")
        self._kind = kind
        # By labels: metrics live as long as their family, whoever else holds them.
        self._metrics = {}
        self._lock = allocate_lock()
        self._number = 0
        question = {"do": "family", "name": name, "description": description, "kind": int(kind)}
        self._number = number(ask(question, "Error when creating MetricFamily: "))

    def Metric(self, labels=None, buckets=None):
        """The metric under these labels; the same one if there is one already."""
        labels = checked_labels(labels)
        buckets = checked_buckets(self._kind, buckets)
        key = tuple(sorted(labels.items()))
        with self._lock:
            metric = self._metrics.get(key)
            if metric is None:
                question = {
                    "do": "metric", "family": self._number, "labels": labels, "buckets": buckets
                }
                made = number(ask(question, "Error when creating Metric: "))
                metric = self._metrics[key] = Metric(made, self._kind)
        return metric

    def __del__(self):
        # Called while objects are collected: it must not wait for anything.
        if getattr(self, "_number", 0):
            for metric in self._metrics.values():
                metric._is_deleted = True
                drop(metric._number)
            drop(self._number)


class Metric:
    """One metric of a family, made by it."""

    __slots__ = ("_number", "_kind", "_is_deleted", "__weakref__")

    def __init__(self, number, kind):
        self._number = number
        self._kind = kind
        self._is_deleted = False

    def increment(self, value):
        self._count(ADD, value, "increment", (MetricKind.COUNTER, MetricKind.GAUGE))

    def set(self, value):
        self._count(SET, value, "set", (MetricKind.GAUGE,))

    def observe(self, value):
        self._count(OBSERVE, value, "observe", (MetricKind.HISTOGRAM,))

    def value(self):
        """The number of a counter or a gauge, with what all other workers counted."""
        self._check("get", "value", (MetricKind.COUNTER, MetricKind.GAUGE))
        question = {"do": "value", "metric": self._number}
        return FLOAT.unpack_from(ask(question, "Failed to get metric value: "), 24)[0]

    def _check(self, what, does, kinds):
        if self._is_deleted:
            raise TritonModelException(f"Failed to {what} metric value: {DELETED}")
        if self._kind not in kinds:
            raise TritonModelException(
                f"Failed to {what} metric value: TRITONSERVER_METRIC_KIND_{self._kind.name} does "
                f"not support {does.capitalize()}"
            )

    def _count(self, event, value, what, kinds):
        self._check(what, what, kinds)
        if isinstance(value, (str, bytes)):
            raise TypeError(f"a metric counts numbers, got {type(value)}")
        value = float(value)
        if self._kind is MetricKind.COUNTER and not value >= 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be "
                "incremented monotonically by non-negative values."
            )
        events = _requests.worker.frames.events
        events.append(EVENT.pack(self._number, event, value))
        schedule_flush()
        if HELD_EVENTS < len(events):
            flush()


def checked_labels(labels):
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TritonModelException(
                "Failed to create metric. Labels must have names and values of type str, found "
                f"{name!r}: {value!r}"
            )
    return labels


def checked_buckets(kind, buckets):
    if buckets is None:
        if kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        return None
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    if kind is not MetricKind.HISTOGRAM:
        raise TritonModelException("Failed to create metric. Unexpected buckets found.")
    buckets = [float(bound) for bound in buckets]
    is_rising = all(a < b for a, b in zip(buckets, buckets[1:]))
    if not is_rising or any(bound != bound for bound in buckets):
        raise TritonModelException(
            "Error when creating Metric: Bucket Boundaries must be strictly sorted"
        )
    # JSON has no infinity, and above all others there is one anyway.
    return [bound for bound in buckets if abs(bound) < float("inf")]


def ask(question, prefix):
    """The server's reply, which holds a number."""
    try:
        raw = _requests.worker.frames.ask(METRICS, question)
    except (ServerGone, OSError):
        raise TritonModelException(f"{prefix}the model is being unloaded") from None
    is_error, size = NUMBERS.unpack_from(raw, 16)
    if is_error:
        raise TritonModelException(prefix + bytes(raw[32 : 32 + size]).decode())
    return raw


def number(raw):
    return NUMBERS.unpack_from(raw, 16)[1]


# Whoever counts releases this lock; the flusher, a thread, waits for it, and for a moment more, and
# then sends what was counted.
flush_lock = allocate_lock()
flush_lock.acquire()
is_scheduled = False
has_flusher = False


def schedule_flush():
    """Never waits, and may be called while objects are collected."""
    global is_scheduled
    if not is_scheduled:
        is_scheduled = True
        if not has_flusher:
            start_flusher()
        try:
            flush_lock.release()
        except RuntimeError:
            # Another thread has released it at the same time.
            pass


def start_flusher():
    global has_flusher
    has_flusher = True
    start_new_thread(flush_scheduled, ())


def flush_scheduled():
    global is_scheduled
    while True:
        flush_lock.acquire()
        sleep(HOLD_SECONDS)
        is_scheduled = False
        try:
            flush()
        except OSError:
            # The server is gone, and the main thread leaves.
            return


def flush():
    frames = _requests.worker.frames
    if frames.events:
        frames.send(())


def drop(number):
    _requests.worker.frames.events.append(EVENT.pack(number, DROP, 0.0))
    schedule_flush()
