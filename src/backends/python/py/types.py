"""Element types under Triton's names, numpy's and the numbers of frames."""
import numpy as np

# Triton's name, numpy's type, number in a ModelConfig; BF16 has no numpy type of its own.
TYPES = (
    ("BOOL", np.bool_, 1),
    ("UINT8", np.uint8, 2),
    ("UINT16", np.uint16, 3),
    ("UINT32", np.uint32, 4),
    ("UINT64", np.uint64, 5),
    ("INT8", np.int8, 6),
    ("INT16", np.int16, 7),
    ("INT32", np.int32, 8),
    ("INT64", np.int64, 9),
    ("FP16", np.float16, 10),
    ("FP32", np.float32, 11),
    ("FP64", np.float64, 12),
    ("BYTES", np.object_, 13),
)
BYTES, BF16 = 13, 14
TO_NUMPY = {name: kind for name, kind, _ in TYPES}
TO_TRITON = {kind: name for name, kind, _ in TYPES}
DTYPES = {code: np.dtype(kind) for _, kind, code in TYPES}
DTYPES[BF16] = np.dtype(np.uint16)
CODES = {np.dtype(kind): code for _, kind, code in TYPES}
NAMES = {code: name for name, _, code in TYPES}
NAMES[BF16] = "BF16"


class TritonModelException(Exception):
    """What calls into the server raise."""


def code_of(array):
    """The number of an array's element type."""
    code = CODES.get(array.dtype)
    if code is not None and array.dtype.isnative:
        return code
    if array.dtype.kind in "SUO":
        return BYTES
    code = CODES.get(array.dtype.newbyteorder("="))
    if code is None:
        raise TritonModelException(f"Numpy dtype {array.dtype} is not supported by Triton.")
    return code
