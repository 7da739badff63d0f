"""Answers a batch with its inputs after a pause of `milliseconds`, a parameter of the configuration."""
import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.pause = float(parameters["milliseconds"]["string_value"]) / 1000

    def execute(self, requests):
        time.sleep(self.pause)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT0", values)])
