"""Gives text back as it came."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
    echo = pb_utils.Tensor("text_output", text)
    return pb_utils.InferenceResponse(output_tensors=[echo])
