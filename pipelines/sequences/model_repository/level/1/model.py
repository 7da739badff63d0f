"""What readings are above the mean of their sequence: the instance remembers."""

import numpy as np
import triton_python_backend_utils as pb_utils


def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()


class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        if not value(request, "READY"):
            # A row of the batch whose sequence has no request now. Nobody reads this answer.
            return level(0.0)
        name, reading = value(request, "CORRID"), value(request, "reading")
        count, mean = (0, 0.0) if value(request, "START") else self.seen[name]
        count, mean = count + 1, mean + (reading - mean) / (count + 1)
        self.seen[name] = count, mean
        if value(request, "END"):
            del self.seen[name]
        return level(reading - mean)


def level(number):
    return pb_utils.InferenceResponse([pb_utils.Tensor("level", np.array([[number]], np.float32))])
