"""The sum of the readings of a sequence: the server keeps it and hands it back."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        reading = pb_utils.get_input_tensor_by_name(request, "reading").as_numpy()
        before = pb_utils.get_input_tensor_by_name(request, "before").as_numpy()
        total = before + reading
        tensors = [pb_utils.Tensor(name, total) for name in ("total", "after")]
        return pb_utils.InferenceResponse(tensors)
