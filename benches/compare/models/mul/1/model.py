"""Multiplies two tensors, request by request."""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    left = pb_utils.get_input_tensor_by_name(request, "mul_input0").as_numpy()
    right = pb_utils.get_input_tensor_by_name(request, "mul_input1").as_numpy()
    product = pb_utils.Tensor("mul_output", left * right)
    return pb_utils.InferenceResponse(output_tensors=[product])
