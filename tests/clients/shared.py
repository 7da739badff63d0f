"""What the client tests share: the server's addresses, and a tensor of every type."""

import os

import numpy as np
from tritonclient.utils import InferenceServerException

HTTP = os.environ["TROUPE_HTTP"]
GRPC = os.environ["TROUPE_GRPC"]

#: Type, model and data.
TYPES = {
    "BOOL": np.array([[True, False], [False, True]]),
    "UINT8": np.array([[0, 255], [1, 2]], np.uint8),
    "UINT16": np.array([[0, 65535], [1, 2]], np.uint16),
    "UINT32": np.array([[0, 2**32 - 1], [1, 2]], np.uint32),
    "UINT64": np.array([[0, 2**64 - 1], [1, 2]], np.uint64),
    "INT8": np.array([[-128, 127], [0, 1]], np.int8),
    "INT16": np.array([[-(2**15), 2**15 - 1], [0, 1]], np.int16),
    "INT32": np.array([[-(2**31), 2**31 - 1], [0, 1]], np.int32),
    "INT64": np.array([[-(2**63), 2**63 - 1], [0, 1]], np.int64),
    "FP16": np.array([[0.5, -2.0], [65504.0, 1.0]], np.float16),
    "FP32": np.array([[0.5, -1.25], [1e20, 16777216.0]], np.float32),
    "FP64": np.array([[0.1, -1e300], [3.0, 4.0]], np.float64),
    "BYTES": np.array([[b"", "h\u00e9llo".encode()], [b"a\nb", b"x" * 1000]], np.object_),
}

#: Types that JSON can carry; bytes in JSON must be text, which those above are.
JSON_TYPES = [dtype for dtype in TYPES if dtype != "FP16"]

LEFT = np.array([5, 6, 7, 8], np.float32)
RIGHT = np.array([1, 2, 3, 4], np.float32)
PRODUCT = (LEFT + RIGHT) * (LEFT - RIGHT)


def pipeline_inputs(triton):
    inputs = [triton.InferInput(name, [4], "FP32") for name in ("INPUT0", "INPUT1")]
    for tensor, data in zip(inputs, (LEFT, RIGHT)):
        tensor.set_data_from_numpy(data)
    return inputs


def bf16_tensor(triton, data):
    """Newer clients want a type of their own for BF16, older ones cut FP32 short."""
    try:
        import ml_dtypes

        return tensor(triton, "BF16", data.astype(ml_dtypes.bfloat16))
    except (ImportError, InferenceServerException):
        return tensor(triton, "BF16", data)


def tensor(triton, dtype, data, name="x", **how):
    it = triton.InferInput(name, list(data.shape), dtype)
    it.set_data_from_numpy(data, **how)
    return it
