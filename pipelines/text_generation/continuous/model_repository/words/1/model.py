"""Writes a word in each iteration; the server keeps where each text is, and makes the batches anew."""
import numpy as np
import triton_python_backend_utils as pb_utils
from network import Network, length

BEGINS = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.network = Network()

    def execute(self, requests):
        words, rows = self.network.step(np.stack([self.hidden(it) for it in requests]))
        for request, word, row in zip(requests, words, rows):
            self.answer(request, word, row)

    def hidden(self, request):
        """Where the text is: at its beginning, or where the last iteration left it."""
        if request.flags() & BEGINS:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            return self.network.begin(text.reshape(-1)[0].decode("utf-8", "replace"))
        return pb_utils.get_input_tensor_by_name(request, "hidden").as_numpy()[0]

    def answer(self, request, word, row):
        """Sends a word, and the state with it."""
        written = pb_utils.get_input_tensor_by_name(request, "written").as_numpy() + 1
        sender = request.get_response_sender()
        if sender.is_cancelled():
            return sender.send(flags=FINAL)
        response = pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text_output", np.array([[word.encode()]], dtype=np.object_)),
                pb_utils.Tensor("hidden_out", row[None]),
                pb_utils.Tensor("written_out", written),
            ]
        )
        if written.item() < length(request):
            request.set_release_flags(AGAIN)
            sender.send(response)
        else:
            sender.send(response, flags=FINAL)
