"""A model's template: imports the model and runs `preload` once, then forks the instances."""
import gc
import os
import threading

import troupe_forked
from troupe_children import Children

# How often, and how long each time, to look again for threads that are just ending.
RETRIES, RETRY_SECONDS = 50, 0.01


def preload(model, args):
    """Fills the memory that the instances share."""
    if callable(getattr(model, "preload", None)):
        model.preload(args)
    gc.collect()
    # The collector must not write to what is shared.
    gc.freeze()


def serve(worker, main):
    """Forks instances until the server wants no more."""
    frames, control = worker.frames, worker.segments.passing
    # It is no worker any more, and what it forks are its own children.
    troupe_forked.worker = None
    Children(control, main, find_threads, (frames.control,)).serve()


def find_threads():
    """Why this process cannot be forked; None if it can.

    A fork has one thread only: what the others held stays locked in it for ever.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    others = other_tasks()
    if others and not any(task in names for task in others):
        # Those of a library that ends them before a fork, as OpenBLAS does, are no threads then.
        pid = troupe_forked.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        others = other_tasks()
    for _ in range(RETRIES):
        if not others:
            return None
        threading.Event().wait(RETRY_SECONDS)
        others = other_tasks()
    described = [
        f"'{names[task]}'" if task in names else f"'{command_of(task)}' (thread {task} of a library)"
        for task in others
    ]
    return (
        "PRELOAD: the model cannot be forked, because importing it and its `preload` left threads "
        f"behind: {', '.join(described)}. Start threads in `initialize`, or end them in `preload`."
    )


def other_tasks():
    return [int(task) for task in os.listdir("/proc/self/task") if int(task) != os.getpid()]


def command_of(task):
    try:
        with open(f"/proc/self/task/{task}/comm") as file:
            return file.read().strip()
    except OSError:
        return "?"
