"""Writes the small ONNX models of the tests, each as <name>/1/model.onnx beside this script.

Run it with onnx and numpy installed; the files are committed, so tests do not need it.
Models with a config.pbtxt beside them are the project's shared fixtures and are not made here.
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto as T
from onnx import checker, helper, numpy_helper, save

HERE = Path(__file__).parent
OPSET = 13
FUTURE = 999
TYPES = {
    "bool": T.BOOL,
    "uint8": T.UINT8,
    "uint16": T.UINT16,
    "uint32": T.UINT32,
    "uint64": T.UINT64,
    "int8": T.INT8,
    "int16": T.INT16,
    "int32": T.INT32,
    "int64": T.INT64,
    "fp16": T.FLOAT16,
    "bf16": T.BFLOAT16,
    "fp32": T.FLOAT,
    "fp64": T.DOUBLE,
    "string": T.STRING,
}


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def constant(name, values, dtype=np.int64):
    return numpy_helper.from_array(np.array(values, dtype), name)


def tensor(name, dtype, dims):
    return helper.make_tensor_value_info(name, dtype, dims)


def model(name, nodes, inputs, outputs, initializers=(), path="1/model.onnx", opset=OPSET, **how):
    """Inputs and outputs are tensors, or (name, type, dims)."""

    def infos(all):
        return [tensor(*it) if isinstance(it, tuple) else it for it in all]

    graph = helper.make_graph(nodes, name, infos(inputs), infos(outputs), list(initializers))
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="troupe-tests"
    )
    made.ir_version = 8 if opset == OPSET else 9
    if opset != FUTURE:
        checker.check_model(made)
    file = HERE / name / path
    file.parent.mkdir(parents=True, exist_ok=True)
    for old in file.parent.glob("*"):
        old.unlink()
    save(made, file, **how)


identity = [node("Identity", "INPUT0", "OUTPUT0")]

# Every type in and out: a batch of rows of any length.
model(
    "every_type",
    [node("Identity", f"in_{it}", f"out_{it}") for it in TYPES],
    [(f"in_{it}", dtype, ["N", "D"]) for it, dtype in TYPES.items()],
    [(f"out_{it}", dtype, ["N", "D"]) for it, dtype in TYPES.items()],
)

# Whole shapes, one of them symbolic: no batching.
model("symbolic", identity, [("INPUT0", T.FLOAT, [2, "width"])], [("OUTPUT0", T.FLOAT, [2, "width"])])

# No dimension at all.
model(
    "scalar",
    [node("Add", "INPUT0 one", "OUTPUT0")],
    [("INPUT0", T.FLOAT, [])],
    [("OUTPUT0", T.FLOAT, [])],
    [constant("one", 1, np.float32)],
)

# Nothing but a batch: the config needs a reshape.
model(
    "only_rows",
    [node("Add", "INPUT0 INPUT0", "OUTPUT0")],
    [("INPUT0", T.FLOAT, ["N"])],
    [("OUTPUT0", T.FLOAT, ["N"])],
)

# As many rows as the input says, also none.
model(
    "repeat",
    [node("Expand", "value count", "OUTPUT0")],
    [("count", T.INT64, [1])],
    [("OUTPUT0", T.FLOAT, ["rows"])],
    [constant("value", [1.5], np.float32)],
)

# Requests of any lengths behind each other, and where each begins and the last one ends: their sums.
model(
    "ragged_sums",
    [
        node("CumSum", "INPUT axis", "sums"),
        node("Concat", "nothing sums", "before", axis=0),
        node("Gather", "before BOUNDS", "at"),
        node("Slice", "at one end", "ends"),
        node("Slice", "at zero minus_one", "begins"),
        node("Sub", "ends begins", "OUTPUT"),
    ],
    [("INPUT", T.FLOAT, ["total"]), ("BOUNDS", T.INT32, ["bounds"])],
    [("OUTPUT", T.FLOAT, ["N"])],
    [
        constant("axis", 0),
        constant("nothing", [0], np.float32),
        constant("one", [1]),
        constant("end", [2**62]),
        constant("zero", [0]),
        constant("minus_one", [-1]),
    ],
)

# One tensor has a batch and the other has none.
model(
    "mixed",
    [node("Add", "INPUT0 INPUT1", "OUTPUT0")],
    [("INPUT0", T.FLOAT, ["N", 4]), ("INPUT1", T.FLOAT, [1, 4])],
    [("OUTPUT0", T.FLOAT, ["N", 4])],
)

# Says it keeps the rows of a batch, and doubles them.
model(
    "doubles_rows",
    [node("Concat", "INPUT0 INPUT0", "OUTPUT0", axis=0)],
    [("INPUT0", T.FLOAT, ["N", 4])],
    [("OUTPUT0", T.FLOAT, ["M", 4])],
)

# Says its rows are of any length, and they depend on the input.
model(
    "shape_of_input",
    [node("Shape", "INPUT0", "shape"), node("ConstantOfShape", "shape", "OUTPUT0")],
    [("INPUT0", T.FLOAT, ["a", "b"])],
    [("OUTPUT0", T.FLOAT, ["c", "d"])],
)

# An input with a value in the file: it may be left out.
model(
    "optional",
    [node("Mul", "INPUT0 scale", "OUTPUT0")],
    [("INPUT0", T.FLOAT, [4]), ("scale", T.FLOAT, [4])],
    [("OUTPUT0", T.FLOAT, [4])],
    [constant("scale", [2, 2, 2, 2], np.float32)],
)

# An input given back as it is, and a constant.
model(
    "given_back",
    [node("Relu", "INPUT0", "OUTPUT0")],
    [("INPUT0", T.FLOAT, ["n"])],
    [("INPUT0", T.FLOAT, ["n"]), ("OUTPUT0", T.FLOAT, ["n"]), ("constant", T.FLOAT, [2])],
    [constant("constant", [3, 4], np.float32)],
)

# An output that requests cannot carry, beside one they can.
model(
    "sequence",
    [node("Identity", "INPUT0", "OUTPUT0"), node("SequenceConstruct", "INPUT0 INPUT0", "pair")],
    [("INPUT0", T.FLOAT, [4])],
    [("OUTPUT0", T.FLOAT, [4]), helper.make_tensor_sequence_value_info("pair", T.FLOAT, [4])],
)

# A type that requests cannot carry.
model(
    "float8",
    [node("Cast", "INPUT0", "OUTPUT0", to=T.FLOAT8E4M3FN)],
    [("INPUT0", T.FLOAT, [4])],
    [("OUTPUT0", T.FLOAT8E4M3FN, [4])],
    opset=19,
)

# A folder as a model, its weights in a file beside it.
model(
    "external",
    [node("Add", "INPUT0 weights", "OUTPUT0")],
    [("INPUT0", T.FLOAT, ["N", 64])],
    [("OUTPUT0", T.FLOAT, ["N", 64])],
    [constant("weights", np.arange(64), np.float32)],
    path="1/model.onnx/model.onnx",
    save_as_external_data=True,
    location="weights.bin",
    size_threshold=0,
)

# Of a future that the library does not know.
model(
    "future_opset",
    identity,
    [("INPUT0", T.FLOAT, [4])],
    [("OUTPUT0", T.FLOAT, [4])],
    opset=FUTURE,
)

# Fails when it runs, for some inputs only.
model(
    "gather",
    [node("Gather", "table INPUT0", "OUTPUT0")],
    [("INPUT0", T.INT64, ["N", 1])],
    [("OUTPUT0", T.FLOAT, ["N", 1])],
    [constant("table", [10, 20, 30], np.float32)],
)
