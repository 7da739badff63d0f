"""What models import: tensors, requests, responses and helpers, under Triton's names."""
import numpy as np
import troupe_requests as _requests
import troupe_strings as _strings
import troupe_types as _types
from troupe_calls import IS_READY as _IS_READY
from troupe_calls import LOAD as _LOAD
from troupe_calls import UNLOAD as _UNLOAD
from troupe_calls import ResponseIterator
from troupe_logger import Logger
from troupe_metrics import MetricFamily
from troupe_requests import (
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    PreferredMemory,
    TritonError,
)
from troupe_senders import InferenceResponseSender
from troupe_tensors import Input as _Input
from troupe_tensors import Tensor
from troupe_types import TritonModelException

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_CPU_PINNED = 1
TRITONSERVER_MEMORY_GPU = 2

# Where models know them from: in messages, and when pickled.
for _it in (
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    Logger,
    MetricFamily,
    PreferredMemory,
    ResponseIterator,
    Tensor,
    TritonError,
    TritonModelException,
):
    _it.__module__ = __name__


def get_input_tensor_by_name(inference_request, name):
    for tensor in inference_request._inputs:
        if (tensor._spec[0] if type(tensor) is _Input else tensor.name()) == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response, name):
    for tensor in inference_response._outputs:
        if tensor.name() == name:
            return tensor
    return None


def _config_by_name(model_config, key, name):
    for properties in model_config.get(key, ()):
        if properties["name"] == name:
            return properties
    return None


def get_input_config_by_name(model_config, name):
    return _config_by_name(model_config, "input", name)


def get_output_config_by_name(model_config, name):
    return _config_by_name(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config):
    return model_config.get("model_transaction_policy", {}).get("decoupled", False)


def triton_to_numpy_type(data_type):
    return _types.TO_NUMPY[_types.TYPES[int(data_type) - 1][0]]


def numpy_to_triton_type(data_type):
    name = _types.TO_TRITON[np.dtype(data_type).type]
    return next(code for known, _, code in _types.TYPES if known == name)


def triton_string_to_numpy(triton_type_string):
    name = triton_type_string[5:] if triton_type_string.startswith("TYPE_") else triton_type_string
    return _types.TO_NUMPY["BYTES" if name == "STRING" else name]


def serialize_byte_tensor(input_tensor):
    if input_tensor.size == 0:
        return np.empty([0], dtype=np.object_)
    if input_tensor.dtype.kind not in "OSU":
        return None
    packed = _strings.pack_strings(_strings.as_bytes(input_tensor.ravel().tolist()))
    return np.asarray(packed, dtype=np.object_)


def deserialize_bytes_tensor(encoded_tensor):
    found = _strings.unpack_strings(encoded_tensor, 0, len(encoded_tensor))
    return _strings.object_array(found)


def get_model_dir():
    return _requests.worker.version_dir


def load_model(model_name, config="", files=None):
    """Loads or reloads a model and waits until it is ready; in explicit mode only."""
    failed = f"failed to load model '{model_name}',"
    if files is None:
        files = {}
    if not isinstance(files, dict):
        raise TritonModelException(
            f"{failed} files should be a dictionary of file paths and file contents"
        )
    texts = [model_name, config or ""]
    for path, contents in files.items():
        if not isinstance(path, str) or not path.startswith("file:"):
            raise TritonModelException(
                f"{failed} the path of a file must begin with 'file:', got {path!r}"
            )
        if not isinstance(contents, bytes):
            raise TritonModelException(
                f"{failed} the contents of '{path}' must be bytes, found type '{type(contents)}'"
            )
        texts += (path[len("file:") :], contents)
    _change("load", _LOAD, 0, texts)


def unload_model(model_name, unload_dependents=False):
    """Takes a model out, perhaps with the steps only it had loaded; in explicit mode only."""
    _change("unload", _UNLOAD, int(bool(unload_dependents)), [model_name])


def _change(verb, what, flags, texts):
    try:
        _requests.worker.calls.change(what, flags, texts)
    except TritonModelException as error:
        raise TritonModelException(f"Failed to {verb} model: {error}") from None


def is_model_ready(model_name, model_version=""):
    """Can the model be called now, in this version or in any?"""
    return _requests.worker.calls.change(_IS_READY, 0, [model_name, model_version])


def __getattr__(name):
    if name == "ModelConfig":
        # Few models need it.
        from troupe_model_config import ModelConfig

        return ModelConfig
    raise AttributeError(f"module 'triton_python_backend_utils' has no attribute '{name}'")
