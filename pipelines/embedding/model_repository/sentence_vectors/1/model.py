"""Vectors of pieces to one vector of length 1 for each text: their mean, without what was added."""

import numpy as np
from troupe import Array, model


@model(max_batch_size=32)
def predict(
    last_hidden_state: Array["FP32", -1, -1], attention_mask: Array["INT64", -1]
) -> Array["FP32", -1]:
    weight = attention_mask[:, :, np.newaxis].astype(np.float32)
    mean = (last_hidden_state * weight).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-9)
    return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
