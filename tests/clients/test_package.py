"""The package `troupe` outside a server: `troupe.testing`, and the reader of config.pbtxt."""

import os
import tempfile
import textwrap
import unittest
from pathlib import Path

import numpy as np
import troupe
import troupe.testing
from troupe import config_text

MODELS = Path(os.environ["TROUPE_MODELS"])

PLAIN = """
    from troupe import Array, model

    @model(max_batch_size=8)
    def predict(x: Array["FP32", 2], scale: list[float] = None) -> Array["FP32", 2]:
        return x * 2
"""
CALLS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_name"]

        def execute(self, requests):
            answers = []
            for it in requests:
                x = pb_utils.get_input_tensor_by_name(it, "x")
                call = pb_utils.InferenceRequest(
                    model_name="other", requested_output_names=["y"], inputs=[x]
                )
                response = call.exec()
                if response.has_error():
                    raise pb_utils.TritonModelException(response.error().message())
                pb_utils.Logger.log_info(self.name)
                answers.append(pb_utils.InferenceResponse(response.output_tensors()))
            return answers
"""
STREAM = """
    from typing import AsyncIterator

    async def predict(text: str) -> AsyncIterator[str]:
        for it in text.split():
            yield it
"""
SEQUENCE = """
    from typing import NamedTuple

    class Result(NamedTuple):
        mean: float
        sum_out: float

    def predict(x: float, sum: float, START: bool, number: int = 1) -> Result:
        total = x if START else x + sum
        return Result(total / number, total)
"""
SEQUENCE_CONFIG = """
    sequence_batching {
      control_input {
        name: "START" control { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] }
      }
      control_input {
        name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }
      }
      state { input_name: "sum" output_name: "sum_out" data_type: TYPE_FP64 dims: [ 1 ] }
    }
"""


class PackageTest(unittest.TestCase):
    def folder(self, name, source, config=""):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        folder = Path(home.name) / name
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(textwrap.dedent(source))
        if config:
            (folder / "config.pbtxt").write_text(config)
        return folder

    def test_a_model_of_sequences_is_given_its_control_inputs_and_states(self):
        with troupe.testing.load(self.folder("sums", SEQUENCE, SEQUENCE_CONFIG)) as model:
            self.assertEqual([it["name"] for it in model.config["input"]], ["x", "number"])
            self.assertEqual([it["name"] for it in model.config["output"]], ["mean"])
            first = model(x=4, sum=7, START=True, READY=1)
            self.assertEqual((first.mean.item(), first.sum_out.item()), (4, 4))
            second = model(x=2, sum=first.sum_out, START=False, number=2)
            self.assertEqual((second.mean.item(), second.sum_out.item()), (3, 6))

    def test_a_plain_function_is_called_with_lists_arrays_or_several_requests(self):
        with troupe.testing.load(self.folder("plain", PLAIN)) as model:
            self.assertEqual(model([1, 2]).output.tolist(), [[2, 4]])
            self.assertEqual(model(x=np.ones((3, 2), np.float32))["output"].shape, (3, 2))
            first, second = model.batch([{"x": [1, 2]}, {"x": [[3, 4], [5, 6]]}])
            self.assertEqual(first.output.tolist(), [[2, 4]])
            self.assertEqual(second.output.tolist(), [[6, 8], [10, 12]])
            self.assertEqual(model.config["max_batch_size"], 8)
            for inputs, text in [
                ({"y": [1, 2]}, "has no input `y`; its inputs are `x`, `scale`"),
                ({}, "is called without its input `x`"),
                ({"x": [1, 2, 3]}, "input `x` of model 'plain' has shape [3], expected [-1, 2]"),
                ({"x": np.ones((1, 2))}, "has data type float64, expected FP32"),
            ]:
                with self.assertRaises(troupe.ModelError) as raised:
                    model(**inputs)
                self.assertIn(text, str(raised.exception))

    def test_a_model_that_calls_others_gets_functions_in_their_place(self):
        tensors = 'input { name: "x" data_type: TYPE_FP32 dims: -1 }\n'
        tensors += 'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]  # one\n'
        folder = self.folder("calls", CALLS, tensors)
        model = troupe.testing.load(folder, models={"other": lambda x: {"y": x + 1, "z": x}})
        self.assertEqual(model(x=[1, 2]).y.tolist(), [2, 3])
        with self.assertRaisesRegex(Exception, "the model calls model 'other', which the test has not"):
            troupe.testing.load(folder)(x=[1, 2])

    def test_a_stream_gives_a_list(self):
        model = troupe.testing.load(self.folder("stream", STREAM))
        self.assertEqual([it.output.tolist() for it in model(text="a b")], [[b"a"], [b"b"]])
        model.close()

    def test_models_of_this_project(self):
        model = troupe.testing.load(MODELS / "add_sub")
        found = model(add_sub_input0=[5, 6, 7, 8], add_sub_input1=[1, 2, 3, 4])
        self.assertEqual(found.added_output.tolist(), [6, 8, 10, 12])

    def test_a_server_for_a_test_has_no_port(self):
        flags = ["--model-control-mode=explicit", "--load-model=ensemble"]
        flags.append(f"--backend-config=python,python={os.environ['TROUPE_PYTHON']}")
        with troupe.testing.serve(MODELS, flags=flags) as server:
            found = server.infer("ensemble", INPUT0=[5, 6, 7, 8], INPUT1=[1, 2, 3, 4])
            self.assertEqual(found.OUTPUT.tolist(), [24, 32, 40, 48])
            with self.assertRaisesRegex(troupe.ModelError, "Request for unknown model: 'nothing'"):
                server.infer("nothing", x=1)
        with self.assertRaisesRegex(troupe.ModelError, "the server ended:(.|\n)*no-such-flag"):
            troupe.testing.serve(MODELS, flags=["--no-such-flag"]).__enter__()

    def test_config_text(self):
        text = """
            name: "a" 'b'  # a comment
            max_batch_size: 4 input [ { name: "x", dims: [ -1, 3 ] }, { name: "y" dims: 1 dims: 2 } ]
            parameters { key: "k" value { string_value: "v\\"" } } version_policy: { all {} }
            instance_group < count: 2 kind: KIND_CPU >; dynamic_batching { preserve_ordering: true }
        """
        self.assertEqual(config_text.read(text, "config.pbtxt"), {
            "name": "ab",
            "max_batch_size": 4,
            "input": [{"name": "x", "dims": [-1, 3]}, {"name": "y", "dims": [1, 2]}],
            "parameters": {"k": {"string_value": 'v"'}},
            "version_policy": {"all": {}},
            "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
            "dynamic_batching": {"preserve_ordering": True},
        })
        with self.assertRaisesRegex(config_text.ConfigError, "config.pbtxt:2: expected a value"):
            config_text.read("input {\n name: }", "config.pbtxt")


if __name__ == "__main__":
    unittest.main()
