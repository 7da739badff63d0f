"""Adds up the numbers of each sequence."""
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value, start, end, of = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
            for name in ("INPUT", "START", "END", "CORRID"))
        total = value if start else self.sums.get(of, 0) + value
        self.sums[of] = total
        if end:
            del self.sums[of]
        tensor = pb_utils.Tensor("OUTPUT", numpy.array([[total]], numpy.int32))
        return pb_utils.InferenceResponse(output_tensors=[tensor])
