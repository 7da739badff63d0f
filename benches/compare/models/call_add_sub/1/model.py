"""Asks `add_sub`, one call for each request, and gives its answer back under other names."""
import triton_python_backend_utils as pb_utils

INPUTS = (("INPUT0", "add_sub_input0"), ("INPUT1", "add_sub_input1"))
OUTPUTS = (("SUM", "added_output"), ("DIFF", "subbed_output"))


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    inputs = [renamed(pb_utils.get_input_tensor_by_name(request, mine), theirs)
              for mine, theirs in INPUTS]
    call = pb_utils.InferenceRequest(model_name="add_sub", inputs=inputs,
                                     requested_output_names=[theirs for _, theirs in OUTPUTS])
    said = call.exec()
    if said.has_error():
        return pb_utils.InferenceResponse(error=said.error())
    return pb_utils.InferenceResponse([
        renamed(pb_utils.get_output_tensor_by_name(said, theirs), mine) for mine, theirs in OUTPUTS])


def renamed(tensor, name):
    return pb_utils.Tensor(name, tensor.as_numpy())
