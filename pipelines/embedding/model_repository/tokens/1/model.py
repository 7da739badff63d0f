"""Texts to the numbers of their pieces, by the tokenizer.json beside this file."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from troupe import Array, model

MOST_PIECES = 256


class Tokens(NamedTuple):
    input_ids: Array["INT64", -1]
    attention_mask: Array["INT64", -1]
    token_type_ids: Array["INT64", -1]


@model(max_batch_size=32)
class Tokenize:
    def __init__(self):
        self.tokenizer = Tokenizer.from_file(str(Path(__file__).parent / "tokenizer.json"))
        self.tokenizer.enable_truncation(MOST_PIECES)
        # As long as the longest text of the call; what is added has an attention_mask of 0.
        self.tokenizer.enable_padding()

    def predict(self, text: list[str]) -> Tokens:
        found = self.tokenizer.encode_batch(text)
        return Tokens(
            np.array([it.ids for it in found], np.int64),
            np.array([it.attention_mask for it in found], np.int64),
            np.array([it.type_ids for it in found], np.int64),
        )
