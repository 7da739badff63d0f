"""Runs the model.onnx beside this file on one thread, for a server without an ONNX backend."""

import json
import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.inputs = [it["name"] for it in config["input"]]
        self.outputs = [it["name"] for it in config["output"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def execute(self, requests):
        """One run for all requests, whose rows the batcher has seen to it fit together."""
        arrays = [[pb_utils.get_input_tensor_by_name(request, name).as_numpy()
                   for name in self.inputs] for request in requests]
        if len(requests) == 1:
            return [self.response(self.run(arrays[0]))]
        outputs = self.run([np.concatenate(columns) for columns in zip(*arrays)])
        ends = np.cumsum([len(columns[0]) for columns in arrays])[:-1]
        shares = zip(*(np.split(output, ends) for output in outputs))
        return [self.response(share) for share in shares]

    def run(self, arrays):
        return self.session.run(self.outputs, dict(zip(self.inputs, arrays)))

    def response(self, arrays):
        tensors = [pb_utils.Tensor(name, array) for name, array in zip(self.outputs, arrays)]
        return pb_utils.InferenceResponse(tensors)
