"""What is measured: models with fixed inputs, clients, and the ratios to reach."""
import dataclasses
import math
import random
import struct

import wire

MIB = 1 << 20
ABOVE, BELOW = "≥", "≤"
RATE, P50, CPU, ROWS = "req/s", "p50", "CPU/req", "rows/CPU-s"


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and the shape of what it is asked."""
    name: str
    model: str
    inputs: tuple  # of (name, type, shape)
    #: By how much FP32 answers of two sides may differ; 0: not at all.
    tolerance: float = 0
    #: Tensors with their bytes; made up when there are none.
    given: tuple = ()
    #: Responses to one request; rates and CPU times are by response, p50 and p99 by request.
    parts: int = 1

    def with_tensors(self, tensors):
        return dataclasses.replace(self, given=tuple(tensors))

    def requests(self):
        """The tensors of every request that is sent, in turn, the same in every run."""
        if self.given:
            return [list(self.given)]
        chance = random.Random(7)
        return [[(name, kind, list(shape), _content(chance, kind, math.prod(shape)))
                 for name, kind, shape in self.inputs]]

    def bodies(self):
        return [wire.http_request(tensors) for tensors in self.requests()]

    def grpc(self):
        return wire.grpc_request(self.model, self.requests()[0])

    def understand(self, answers):
        """What is compared of the answers to all requests, which are tensors by name."""
        return answers[0]

    def agree(self, first, second):
        """Whether two answers, by output (type, shape, bytes), are the same."""
        return wire.agree(first, second, self.tolerance)


@dataclasses.dataclass(frozen=True)
class Goal:
    """A ratio to reach, of one thing that is measured."""
    metric: str
    side: str
    ratio: float

    def is_met(self, ratio):
        return self.ratio <= ratio if self.side == ABOVE else ratio <= self.ratio

    def __str__(self):
        return f"{self.metric} {self.side} {self.ratio:g}×"


@dataclasses.dataclass(frozen=True)
class Row:
    """A case at a number of clients, and what it has to reach beside the other side."""
    case: Case
    clients: int
    goals: tuple


def _content(chance, kind, count):
    if kind == "BYTES":
        words = [b"word %011d" % chance.randrange(10 ** 11) for _ in range(count)]
        return b"".join(struct.pack("<I", len(word)) + word for word in words)
    # Quarters: sums and products of them are exact, so answers can be compared bit by bit.
    block = struct.pack("<256f", *(chance.randrange(-32, 32) / 4 for _ in range(256)))
    return (block * (count // 256 + 1))[:4 * count]


def _pair(first, second, *shape):
    return ((first, "FP32", shape), (second, "FP32", shape))


def _one(count, kind="FP32"):
    return (("INPUT0", kind, (count,)),)


CASES = {case.name: case for case in [
    Case("add_sub", "add_sub", _pair("add_sub_input0", "add_sub_input1", 4)),
    Case("mul", "mul", _pair("mul_input0", "mul_input1", 4)),
    Case("ensemble", "ensemble", _pair("INPUT0", "INPUT1", 4)),
    Case("diamond", "diamond", _pair("INPUT0", "INPUT1", 4)),
    Case("identity", "identity_fp32", _one(4)),
    Case("chain8", "chain8", _one(4)),
    Case("bytes", "identity_bytes", _one(64, "BYTES")),
    Case("chain8_bytes", "chain8_bytes", _one(64, "BYTES")),
    Case("add_sub_batch", "add_sub_batch", _pair("add_sub_input0", "add_sub_input1", 1, 4)),
    Case("ensemble_batch", "ensemble_batch", _pair("INPUT0", "INPUT1", 1, 4)),
    Case("sleep_ms", "sleep_ms", _one(4)),
    Case("identity_1m", "identity_fp32", _one(MIB // 4)),
    Case("chain8_1m", "chain8", _one(MIB // 4)),
    Case("identity_16m", "identity_fp32", _one(4 * MIB)),
    Case("chain8_16m", "chain8", _one(4 * MIB)),
    Case("identity2", "identity2", _one(4)),
    Case("delay5", "delay5", _one(4)),
    Case("delay2_delay5", "delay2_delay5", _one(4)),
]}


def _rows(name, clients, *goals):
    return [Row(CASES[name], count, goals) for count in clients]


def _faster(times):
    return Goal(RATE, ABOVE, times)


#: Python models, the same files on both servers.
TARGETS = [
    *_rows("ensemble", [1], Goal(P50, BELOW, 0.4)),
    *_rows("ensemble", [16, 64], _faster(5), Goal(CPU, BELOW, 0.2)),
    *_rows("add_sub", [1], _faster(2)),
    *_rows("add_sub", [16, 64], _faster(4)),
    *_rows("chain8", [1], _faster(2)),
    *_rows("chain8", [16, 64], _faster(5)),
    *_rows("identity_1m", [1, 16], _faster(2)),
    *_rows("chain8_1m", [1, 16], _faster(5)),
    *_rows("identity_16m", [1, 4], _faster(2)),
    *_rows("chain8_16m", [1, 4], _faster(5)),
]
#: Without a target, for the whole picture.
OTHERS = [row for name in ("mul", "diamond", "identity", "bytes", "chain8_bytes",
                           "add_sub_batch", "ensemble_batch", "sleep_ms")
          for row in _rows(name, [1, 16, 64])]
#: Native steps here, Python steps there.
NATIVE = [row for name in ("add_sub", "ensemble", "chain8", "diamond")
          for row in _rows(name, [64], _faster(20))]
#: (measured, beside, clients, goal), both on troupe with native steps.
ALONE = [
    *((CASES["identity2"], CASES["identity"], count, _faster(0.85)) for count in (1, 8, 64, 256)),
    (CASES["delay2_delay5"], CASES["delay5"], 64, _faster(0.95)),
]
