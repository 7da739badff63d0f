"""The best labels of a picture and how sure the network is, by the config.json beside this file."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from troupe import Array, model

MOST_LABELS = 5


class Labels(NamedTuple):
    label: Array["BYTES", -1]
    score: Array["FP32", -1]


@model(max_batch_size=16)
class BestLabels:
    def __init__(self):
        names = json.loads((Path(__file__).parent / "config.json").read_text())["id2label"]
        self.names = np.array([names[str(it)].encode() for it in range(len(names))], dtype=object)

    def predict(self, logits: Array["FP32", -1]) -> Labels:
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        best = np.argsort(-shares, axis=1, kind="stable")[:, :MOST_LABELS]
        return Labels(self.names[best], np.take_along_axis(shares, best, axis=1))
