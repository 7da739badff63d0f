"""Marks a function or class as the model of its file, and finds the one that a file holds."""
import os

from .errors import ModelError, caller_place, listed
from .pipelines import MARK as PIPELINE_MARK

MARK = "__troupe_model__"


class Options:
    """What the mark says."""

    def __init__(self, max_batch_size=None, max_queue_delay_ms=None, instances=None):
        self.max_batch_size = max_batch_size
        self.max_queue_delay_ms = max_queue_delay_ms
        self.instances = instances


def model(target=None, *, max_batch_size=None, max_queue_delay_ms=None, instances=None):
    """Marks the model of a file: a function, or a class with a method `predict`.

    With `max_batch_size` one call gets the rows of all requests that wait, joined, and returns as
    many rows; `max_queue_delay_ms` is how long a request may wait for others to join it.
    `instances` is how many processes run the model.
    """
    at = caller_place()
    if not is_count(max_batch_size):
        raise ModelError(
            f"{at}: max_batch_size is {max_batch_size!r}, expected a number from 1 on; leave it "
            "out for a model that takes one request at a time"
        )
    if not is_count(instances):
        raise ModelError(f"{at}: instances is {instances!r}, expected a number from 1 on")
    if max_queue_delay_ms is not None:
        if not isinstance(max_queue_delay_ms, (int, float)) or max_queue_delay_ms < 0:
            raise ModelError(
                f"{at}: max_queue_delay_ms is {max_queue_delay_ms!r}, expected milliseconds"
            )
        if max_batch_size is None:
            raise ModelError(f"{at}: max_queue_delay_ms is of use only with max_batch_size=…")
    options = Options(max_batch_size, max_queue_delay_ms, instances)

    def mark(target):
        if not callable(target):
            raise ModelError(
                f"{at}: @model marks a function or a class; it has only named arguments, as in "
                "@model(max_batch_size=32)"
            )
        setattr(target, MARK, options)
        return target

    return mark if target is None else mark(target)


def is_count(number):
    """Is it a number from 1 on, or not given?"""
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    return number is None or (is_whole and 1 <= number)


def find(module):
    """The function or class that is the model of a module, and its options."""
    mine = vars(module)
    marked = {}
    for name, value in mine.items():
        if callable(value) and MARK in getattr(value, "__dict__", ()):
            marked.setdefault(id(value), (name, value))
    if 1 < len(marked):
        raise ModelError(
            f"{module.__file__}: one model a file, but {listed(it for it, _ in marked.values())} "
            "are marked with @model: give each a folder of its own"
        )
    if marked:
        (_, target), = marked.values()
        return target, vars(target)[MARK]
    for name, value in mine.items():
        if PIPELINE_MARK in getattr(value, "__dict__", ()):
            raise ModelError(
                f"{module.__file__}: `{name}` is a pipeline, whose file is pipeline.py in the "
                f"model's folder: call it {pipeline_file(module.__file__)}"
            )
    for name in ("predict", "Model"):
        if callable(mine.get(name)):
            return mine[name], Options()
    own = [
        name
        for name, it in mine.items()
        if callable(it) and getattr(it, "__module__", "") == module.__name__
    ]
    runs = [it for it in own if callable(getattr(mine[it], "execute", None))]
    hint = f"; mark one of {listed(own)}" if own else ""
    if runs:
        hint = f"; class `{runs[0]}` has an `execute`: name it `TritonPythonModel`"
    raise ModelError(
        f"AttributeError: module '{module.__name__}' has no attribute 'TritonPythonModel', and "
        "nothing else that is a model: expected a function `predict`, a class `Model` with a "
        f"method `predict`, or one of them marked with @model, in {module.__file__}{hint}"
    )


def pipeline_file(file):
    """Where the pipeline in `file` belongs: in the folder of its model."""
    folder = os.path.dirname(file)
    if os.path.basename(folder).isdigit():
        folder = os.path.dirname(folder)
    return os.path.join(folder, "pipeline.py")
