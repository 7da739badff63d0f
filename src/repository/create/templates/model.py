"""NAME: a text in capitals. Write what your model does into `predict`."""

# Parameters are the inputs of the model, the result is its output `output`, and the hints say their
# types: str, int, float, bool, list[str], or an array such as Array["FP32", 16] (16 numbers, -1 for any
# number of them) by `from troupe import Array`. For several outputs return a dataclass: its fields are
# the outputs. For one call with the rows of all requests that wait: `from troupe import model`, and
# @model(max_batch_size=32) above `def predict(text: list[str]) -> list[str]`.
#
# What is written out here runs once, when the model is loaded: read weights here. Packages that it
# needs are listed in a requirements.txt beside this file.


def predict(text: str) -> str:
    return text.upper()
