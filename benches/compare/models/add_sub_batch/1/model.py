"""Adds and subtracts two tensors, all requests of a batch at once."""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        left, right = joined(requests, "add_sub_input0"), joined(requests, "add_sub_input1")
        ends = np.cumsum([rows(request) for request in requests])[:-1]
        parts = zip(np.split(left + right, ends), np.split(left - right, ends))
        return [response(added, subbed) for added, subbed in parts]


def joined(requests, name):
    return np.concatenate([pb_utils.get_input_tensor_by_name(it, name).as_numpy() for it in requests])


def rows(request):
    return pb_utils.get_input_tensor_by_name(request, "add_sub_input0").as_numpy().shape[0]


def response(added, subbed):
    tensors = [pb_utils.Tensor("added_output", added), pb_utils.Tensor("subbed_output", subbed)]
    return pb_utils.InferenceResponse(output_tensors=tensors)
