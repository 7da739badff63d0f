"""Answers every request a thousand times: its input plus 0, 1, 2, …"""
import triton_python_backend_utils as pb_utils

RESPONSES = 1000


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            sender = request.get_response_sender()
            for number in range(RESPONSES):
                output = pb_utils.Tensor("OUTPUT0", values + number)
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
