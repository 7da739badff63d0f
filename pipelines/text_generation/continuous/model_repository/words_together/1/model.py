"""The same texts the usual way: a batch is done when its longest text is."""
import numpy as np
import triton_python_backend_utils as pb_utils
from network import Network, length

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.network = Network()

    def execute(self, requests):
        get = pb_utils.get_input_tensor_by_name
        texts = [get(it, "text_input").as_numpy().reshape(-1)[0].decode() for it in requests]
        hidden = np.stack([self.network.begin(text) for text in texts])
        left = [length(it) for it in requests]
        senders = [it.get_response_sender() for it in requests]
        while any(left):
            words, hidden = self.network.step(hidden)
            for index, word in enumerate(words):
                if left[index]:
                    left[index] -= 1
                    output = np.array([[word.encode()]], dtype=np.object_)
                    response = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", output)])
                    senders[index].send(response, flags=0 if left[index] else FINAL)
