"""Writes mood.onnx: numbers of a text in, how likely it is a cheerful one out. Needs `pip install onnx`."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

# How much each of words, letters and exclamation marks says, and where it begins.
WEIGHTS, START = [[-0.1], [0.0], [2.0]], [-1.0]

graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["features", "weights", "start"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["mood"]),
    ],
    "mood",
    [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", 3])],
    [helper.make_tensor_value_info("mood", TensorProto.FLOAT, ["rows", 1])],
    [
        numpy_helper.from_array(np.array(WEIGHTS, np.float32), "weights"),
        numpy_helper.from_array(np.array(START, np.float32), "start"),
    ],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
model.ir_version = 8
checker.check_model(model)
save(model, Path(__file__).parent / "mood.onnx")
