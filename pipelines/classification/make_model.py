"""Makes the small network of this pipeline, in the form of a hub's: it names the colour of a sign.

Each pixel votes for the colour that it is nearest to, and pixels without much colour hardly count.
Run it with numpy and onnx installed; what it writes is committed.
"""

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

HERE = Path(__file__).parent / "model_repository"
COLOURS = {
    "red": (190, 45, 40),
    "green": (35, 130, 75),
    "blue": (40, 95, 180),
    "yellow": (235, 195, 40),
    "brown": (110, 70, 45),
}
# What `pixels` does to every picture.
MEAN, STD = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
SHARPNESS = 4.0


def constants():
    """The nearest colour has the largest vote: -|x - c|^2 without |x|^2, which all have."""
    colours = (np.array(list(COLOURS.values())) - MEAN) / STD
    votes = {
        "weights": (2 * SHARPNESS * colours)[:, :, np.newaxis, np.newaxis],
        "bias": -SHARPNESS * (colours**2).sum(axis=1),
        # Back to 0 to 1, where a gray pixel has three equal values.
        "std": (STD / 255).reshape(1, 3, 1, 1),
        "mean": (MEAN / 255).reshape(1, 3, 1, 1),
        "six": np.array(6.0),
        "least": np.array(1e-6),
    }
    arrays = [numpy_helper.from_array(it.astype(np.float32), name) for name, it in votes.items()]
    return [*arrays, numpy_helper.from_array(np.array([2, 3], np.int64), "sides")]


def nodes():
    def node(kind, inputs, output, **attributes):
        return helper.make_node(kind, inputs.split(), [output], **attributes)

    return [
        node("Conv", "pixel_values weights bias", "nearness"),
        node("Softmax", "nearness", "votes", axis=1),
        node("Mul", "pixel_values std", "scaled"),
        node("Add", "scaled mean", "rgb"),
        node("ReduceMax", "rgb", "most", axes=[1]),
        node("ReduceMin", "rgb", "least_rgb", axes=[1]),
        node("Sub", "most least_rgb", "colourfulness"),
        node("Pow", "colourfulness six", "weight"),
        node("Mul", "votes weight", "weighted"),
        node("ReduceSum", "weighted sides", "sums", keepdims=0),
        node("ReduceSum", "weight sides", "all", keepdims=0),
        node("Add", "all least", "some"),
        node("Div", "sums some", "shares"),
        node("Add", "shares least", "positive"),
        node("Log", "positive", "logits"),
    ]


def main():
    tensor = helper.make_tensor_value_info
    inputs = [tensor("pixel_values", TensorProto.FLOAT, ["batch", 3, "height", "width"])]
    outputs = [tensor("logits", TensorProto.FLOAT, ["batch", len(COLOURS)])]
    graph = helper.make_graph(nodes(), "colour", inputs, outputs, constants())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    checker.check_model(model)
    save(model, HERE / "classifier/1/model.onnx")
    names = {"id2label": {str(index): name for index, name in enumerate(COLOURS)}}
    (HERE / "best_labels/1/config.json").write_text(json.dumps(names, indent=2) + "\n")


if __name__ == "__main__":
    main()
