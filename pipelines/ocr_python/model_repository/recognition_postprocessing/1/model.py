"""Turns the logits of text_recognition into words."""

import numpy as np
import triton_python_backend_utils as pb_utils

#: What the classes stand for; 0 is the blank between characters.
CHARACTERS = np.array(["", *"0123456789abcdefghijklmnopqrstuvwxyz"])


class TritonPythonModel:
    def execute(self, requests):
        # All rows of all requests at once; then each request gets its own words.
        name = "recognition_postprocessing_input"
        logits = [pb_utils.get_input_tensor_by_name(it, name).as_numpy() for it in requests]
        words = iter(read(logits[0] if len(logits) == 1 else np.concatenate(logits)))
        return [answer([next(words) for _ in rows]) for rows in logits]


def answer(words):
    words = np.array(words, dtype=np.object_)
    # [n], not [n, 1]: the clients of the tutorial expect a flat list.
    return pb_utils.InferenceResponse([pb_utils.Tensor("recognition_postprocessing_output", words)])


def read(logits):
    """One word a row of logits [n, places, characters]: runs count once, blanks not at all."""
    best = logits.argmax(axis=2)
    starts = np.diff(best, axis=1, prepend=-1) != 0
    return ["".join(CHARACTERS[row[start]]).encode() for row, start in zip(best, starts)]
