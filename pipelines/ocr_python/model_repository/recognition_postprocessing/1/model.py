"""Turns the logits of text_recognition into words."""

import numpy as np
import triton_python_backend_utils as pb_utils

#: What the classes stand for; 0 is the blank between characters.
CHARACTERS = np.array(["", *"0123456789abcdefghijklmnopqrstuvwxyz"])


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    logits = pb_utils.get_input_tensor_by_name(request, "recognition_postprocessing_input")
    words = np.array(read(logits.as_numpy()), dtype=np.object_)
    # [n], not [n, 1]: the clients of the tutorial expect a flat list.
    return pb_utils.InferenceResponse([pb_utils.Tensor("recognition_postprocessing_output", words)])


def read(logits):
    """One word a row of logits [n, places, characters]: runs count once, blanks not at all."""
    best = logits.argmax(axis=2)
    starts = np.diff(best, axis=1, prepend=-1) != 0
    return ["".join(CHARACTERS[row[start]]).encode() for row, start in zip(best, starts)]
