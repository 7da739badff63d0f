"""Races ONNX models on troupe against a bare loop, their own steps, and Python on Triton."""
import contextlib
import os
import statistics

import ocr
import report
import repositories
import servers
import word_cases
from cases import ABOVE, BELOW, P50, RATE, ROWS, Case, Goal
from loops import LoopSide, StepsSide
from race import Race, Side, say

MODELS = os.path.join(repositories.HERE, "models_onnx")
PAIR = (("INPUT0", "FP32", (1, 16)), ("INPUT1", "FP32", (1, 16)))
ADD_SUB = Case("add_sub_fp32", "add_sub_fp32", PAIR)
MUL = Case("mul_fp32", "mul_fp32", PAIR)
CHAIN = Case("add_sub → mul", "add_sub_mul_fp32", PAIR)
#: Two builds of ONNX Runtime do not add up in the same order.
MLP = Case("mlp_batch", "mlp_batch", (("INPUT", "FP32", (1, 128)),), tolerance=1e-4)
CASES = ("rows", "cost", "chain", "peer-add_sub_fp32", "peer-mlp_batch", "peer-text_recognition")
#: CPU time of the server for one answer, with 64 clients.
MICROSECONDS = 15


def run(options, launch):
    """Everything that a case or number of clients was not left out of."""
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(ocr.bare_loop(options))
        sign = os.path.join(os.path.dirname(ocr.SIGNS), "sign_stop.jpg")
        crop = word_cases.crop("text_recognition", loop.ask("crop", file=sign))
        ours = stack.enter_context(launch("troupe", repository(options)))
        say(f"troupe is ready after {ours.wait_ready():.1f} s")
        texts = [rows(options, ours, loop, crop), cost(options, ours), chain(options, ours)]
        asked = [(case, clients) for case in (ADD_SUB, MLP, crop) for clients in (1, 16, 64)
                 if options.wants(f"peer-{case.model}", clients)]
        if asked:
            peers = repositories.with_python(os.path.join(options.out, "onnx-peer"), folders())
            theirs = stack.enter_context(launch("triton", peers))
            say(f"triton is ready after {theirs.wait_ready():.1f} s")
            texts.append(beside(options, (ours, theirs), asked))
    return "\n".join(filter(None, texts))


def rows(options, server, loop, crop):
    """Rows of many callers, joined by the batcher, against a loop that has them joined already."""
    if not options.wants("rows", 16):
        return ""
    row = crop.given[0][3].hex()
    pair = [Side("troupe", server, crop), LoopSide(loop, crop, "rows", crop=row)]
    result = Race(options).run(pair, "grpc", 16, (Goal(ROWS, ABOVE, 0.9),))
    return report.races([result], options.out, "onnx-rows")


def cost(options, server):
    """What a small model costs the server's CPU."""
    if not options.wants("cost", 64):
        return ""
    side, race = Side("troupe", server, ADD_SUB), Race(options)
    side.answer("http")
    runs = [race.measure(side, "http", 64) for _ in range(options.rounds)]
    if any(it.errors for it in runs):
        raise servers.Failed(f"{sum(it.errors for it in runs)} requests failed, see {server.log}")
    spent = statistics.median(it.cpu for it in runs)
    figure = report.Figure("add_sub_fp32 over HTTP, 64 clients: CPU of the server per request",
                           "µs", spent, at_most=MICROSECONDS)
    return report.figures([figure], options.out, "onnx-cost")


def chain(options, server):
    """An ensemble of two ONNX models against what its steps alone allow."""
    counts = [clients for clients in (1, 8, 64, 256) if options.wants("chain", clients)]
    pair = [Side("ensemble", server, CHAIN), StepsSide(server, CHAIN, (ADD_SUB, MUL))]
    goals = (Goal(RATE, ABOVE, 0.9),)
    results = [Race(options).run(pair, "http", clients, goals) for clients in counts]
    return report.races(results, options.out, "onnx-chain") if results else ""


def beside(options, servers_of_both, asked):
    """The ONNX backend against a Python model that calls onnxruntime on the real Triton."""
    goals = (Goal(RATE, ABOVE, 2.0), Goal(P50, BELOW, 0.5))
    results = []
    for case, clients in asked:
        pair = [Side(it.name, it, case) for it in servers_of_both]
        results.append(Race(options).run(pair, "http", clients, goals))
    return report.races(results, options.out, "onnx-peer")


def repository(options):
    ensemble = os.path.join(MODELS, CHAIN.model)
    return repositories.on_one_thread(os.path.join(options.out, "onnx"), [*folders(), ensemble])


def folders():
    """The models that both servers get."""
    names = (ADD_SUB.model, MUL.model, MLP.model)
    return [os.path.join(MODELS, name) for name in names] + [
        os.path.join(ocr.MODELS, "text_recognition")]
