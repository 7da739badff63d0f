"""Answers with its input."""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT0", values)])
