"""Races the ensemble `ocr` against a bare loop, and against an ensemble of Python steps."""
import contextlib
import glob
import os

import report
import repositories
import servers
import word_cases
from cases import ABOVE, BELOW, P50, RATE, Goal
from loops import Loop, LoopSide
from race import Race, Side, say

ROOT = repositories.ROOT
MODELS = os.path.join(ROOT, "model_repository")
PYTHON_STEPS = os.path.join(ROOT, "pipelines", "ocr_python", "model_repository")
CASES = ("alone", "crowded")
SIGNS = os.path.join(ROOT, "pipelines", "ocr", "images", "sign_*.jpg")


def run(options, launch):
    """One server holds both ensembles, which share the two ONNX models."""
    files = sorted(glob.glob(SIGNS))
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(bare_loop(options))
        server = stack.enter_context(launch("troupe", repository(options)))
        say(f"troupe is ready after {server.wait_ready(servers.LONG_PATIENCE):.1f} s")
        texts = [part(options, server, loop, files) for part in (alone, crowded)]
    return "\n".join(filter(None, texts))


def alone(options, server, loop, files):
    """One picture at a time: what does the server add to, or take from, the work itself?"""
    if not options.wants("alone", 1):
        return ""
    case = word_cases.pictures("alone", "ocr", files)
    pair = [Side("troupe", server, case), LoopSide(loop, case, "pictures", files=files)]
    result = Race(options).run(pair, "http", 1, (Goal(P50, BELOW, 1.0),))
    return report.races([result], options.out, "ocr-alone")


def crowded(options, server, loop, files):
    """Eight clients; square pictures, for the Python steps cut out the middle square."""
    if not options.wants("crowded", 8):
        return ""
    files = loop.ask("squares", files=files, folder=os.path.join(options.out, "squares"))
    sides = [Side("native steps", server, word_cases.pictures("crowded", "ocr", files)),
             Side("Python steps", server,
                  word_cases.pictures("crowded", "ensemble_model", files, batched=True))]
    result = Race(options).run(sides, "http", 8, (Goal(RATE, ABOVE, 2.0),))
    return report.races([result], options.out, "ocr-crowded")


def repository(options):
    ours = repositories.members(MODELS, "ocr")
    names = {os.path.basename(folder) for folder in ours}
    theirs = [folder for folder in repositories.members(PYTHON_STEPS, "ensemble_model")
              if os.path.basename(folder) not in names]
    return repositories.on_one_thread(os.path.join(options.out, "ocr"), ours + theirs)


def bare_loop(options):
    """With the packages that `setup` has installed."""
    python = servers.loop_python(options.triton)
    if not os.access(python, os.X_OK):
        raise servers.Failed(f"no onnxruntime in {options.triton}: run `compare.py setup` first")
    return Loop(python, MODELS, os.path.join(options.out, "loop.log"))
