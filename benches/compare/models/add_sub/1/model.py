"""Adds and subtracts two tensors, request by request."""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    left = pb_utils.get_input_tensor_by_name(request, "add_sub_input0").as_numpy()
    right = pb_utils.get_input_tensor_by_name(request, "add_sub_input1").as_numpy()
    added = pb_utils.Tensor("added_output", left + right)
    subbed = pb_utils.Tensor("subbed_output", left - right)
    return pb_utils.InferenceResponse(output_tensors=[added, subbed])
