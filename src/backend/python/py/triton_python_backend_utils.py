"""What models import: tensors, requests, responses and helpers, under Triton's names."""
import json
import struct
import sys

import numpy as np

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_CPU_PINNED = 1
TRITONSERVER_MEMORY_GPU = 2

# Triton's name, numpy's type, number in a ModelConfig; BF16 has no numpy type of its own.
_TYPES = (
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
_TO_NUMPY = {name: kind for name, kind, _ in _TYPES}
_TO_TRITON = {kind: name for name, kind, _ in _TYPES}
_DTYPES = {code: np.dtype(kind) for _, kind, code in _TYPES}
_DTYPES[BF16] = np.dtype(np.uint16)
_CODES = {np.dtype(kind): code for _, kind, code in _TYPES}
_NAMES = {code: name for name, _, code in _TYPES}
_NAMES[BF16] = "BF16"
_LENGTH = struct.Struct("<I")
_BF16_TEXT = (
    "Tensor dtype is BF16 and cannot be converted to NumPy. "
    "Use to_dlpack() and from_dlpack() instead."
)

# The running worker; set by it.
_worker = None


class TritonModelException(Exception):
    """What calls into the server raise."""


def _unsupported(what):
    return TritonModelException(f"{what} is not supported yet")


def _code_of(array):
    """The number of an array's element type."""
    code = _CODES.get(array.dtype)
    if code is not None and array.dtype.isnative:
        return code
    if array.dtype.kind in "SUO":
        return BYTES
    code = _CODES.get(array.dtype.newbyteorder("="))
    if code is None:
        raise TritonModelException(f"Numpy dtype {array.dtype} is not supported by Triton.")
    return code


class Tensor:
    """A name and an array."""

    __slots__ = ("_name", "_array", "_code", "__weakref__")

    def __init__(self, name, numpy_array):
        if not name:
            if name == "":
                raise TritonModelException("Tensor name cannot be an empty string.")
            raise TypeError(f"Tensor name must be a string, got {type(name).__name__}")
        if not isinstance(numpy_array, np.ndarray):
            # Scalars and lists, as the C++ constructor would convert them.
            if numpy_array is None:
                raise TritonModelException("Tensor data must be a numpy array, got None.")
            numpy_array = np.asarray(numpy_array)
        self._name = name
        self._array = numpy_array
        self._code = 0

    def name(self):
        return self._name

    def as_numpy(self):
        if self._code == BF16:
            raise TritonModelException(_BF16_TEXT)
        return self._array

    def _raw(self):
        """The elements as numpy can hold them: BF16 as its 16 bits."""
        return self._array

    def _type(self):
        return self._code or _code_of(self._array)

    def triton_dtype(self):
        return _NAMES[self._type()]

    def shape(self):
        return list(self._raw().shape)

    def is_cpu(self):
        return True

    def to_dlpack(self):
        return self.__dlpack__()

    def __dlpack__(self, *, stream=None, **_):
        if self._type() == BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        return _dlpack().export(self._raw(), self._type())

    def __dlpack_device__(self):
        return (1, 0)

    @staticmethod
    def from_dlpack(name, tensor):
        if name == "":
            raise TritonModelException("Tensor name cannot be an empty string.")
        array, code = _dlpack().adopt(tensor)
        made = Tensor(name, array)
        if code == BF16:
            made._code = code
        return made


class _Input(Tensor):
    """A tensor that came in a frame or lies in a segment; its array is made when asked for.

    `_spec` is (name, code, dtype, shape, offset in the frame, bytes, lies in a segment).
    """

    __slots__ = ("_spec", "_data", "_at", "_size", "_copies")

    def __init__(self, spec, data, at):
        self._spec = spec
        self._data = data
        self._at = at
        self._array = None

    def name(self):
        return self._spec[0]

    def _raw(self):
        array = self._array
        if array is None:
            _, code, dtype, shape, _, size, in_segment = self._spec
            if code == BYTES:
                size = self._size if in_segment else size
                array = _strings(self._data, self._at, size).reshape(shape)
            else:
                array = np.ndarray(shape, dtype, self._data, self._at)
                if in_segment and self._copies:
                    # Others read this memory, and a model may write to its inputs.
                    array = array.copy()
            self._array = array
        return array

    def as_numpy(self):
        array = self._array
        if array is None:
            if self._spec[1] == BF16:
                raise TritonModelException(_BF16_TEXT)
            array = self._raw()
        elif self._spec[1] == BF16:
            raise TritonModelException(_BF16_TEXT)
        return array

    def _type(self):
        return self._spec[1]

    def shape(self):
        return list(self._spec[3])


def _dlpack():
    return _lazy("troupe_dlpack")


def _lazy(name):
    """A part few models need, made on first use."""
    module = sys.modules.get(name)
    if module is None:
        module = type(sys)(name)
        exec(compile(troupe_sources[name], f"<troupe>/{name}.py", "exec"), module.__dict__)  # noqa: F821
        sys.modules[name] = module
    return module


def _strings(data, at, size):
    """Length-prefixed elements as a flat object array."""
    found = []
    end = at + size
    unpack = _LENGTH.unpack_from
    while at < end:
        (length,) = unpack(data, at)
        at += 4
        found.append(bytes(data[at : at + length]))
        at += length
    array = np.empty(len(found), dtype=np.object_)
    array[:] = found
    return array


def _pack_strings(array):
    """The elements in C order, each after its length."""
    pack = _LENGTH.pack
    parts = []
    for element in array.ravel().tolist():
        if type(element) is not bytes:
            element = element if isinstance(element, bytes) else str(element).encode()
        parts.append(pack(len(element)))
        parts.append(element)
    return b"".join(parts)


class TritonError:
    """Why one request failed."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG = 0, 1, 2, 3
    UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = 4, 5, 6, 7
    __slots__ = ("_message", "_code")

    def __init__(self, message, code=1):
        self._message = str(message)
        self._code = int(code)

    def message(self):
        return self._message

    def code(self):
        return self._code

    def __str__(self):
        return self._message


class InferenceTrace:
    """Where a request comes from; tracing is not built yet, so it knows nothing."""

    __slots__ = ()

    def get_context(self):
        return None


class PreferredMemory:
    """Where a model wants the outputs of its own calls."""

    __slots__ = ("type", "device_id")

    def __init__(self, preferred_memory_type=TRITONSERVER_MEMORY_CPU, preferred_device_id=0):
        self.type = preferred_memory_type
        self.device_id = preferred_device_id


class InferenceRequest:
    """What a client asks of the model, or what the model will ask of another."""

    __slots__ = ("_inputs", "_head", "_extra", "_group", "_index", "_made", "__weakref__")

    def __init__(
        self,
        request_id="",
        correlation_id=0,
        inputs=None,
        requested_output_names=None,
        model_name="",
        model_version=-1,
        flags=0,
        timeout=0,
        preferred_memory=None,
        trace=None,
        parameters=None,
    ):
        tag = f"Input tensor for request with id '{request_id}' and model name '{model_name}'"
        for tensor in inputs or ():
            if tensor is None:
                raise TritonModelException(f"{tag} should not be empty.")
        for name in requested_output_names or ():
            if not name:
                raise TritonModelException(
                    f"Requested output name for request with id '{request_id}' and model name "
                    f"'{model_name}' should not be empty."
                )
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        self._inputs = list(inputs or ())
        self._head = None
        self._extra = {
            "id": request_id,
            "correlation_id": correlation_id,
            "flags": flags,
            "timeout": timeout,
            "parameters": json.dumps(parameters or {}),
        }
        self._group = None
        self._made = (list(requested_output_names or ()), model_name, model_version)

    def inputs(self):
        return self._inputs

    def _more(self):
        extra = self._extra
        if type(extra) is not dict:
            extra = self._extra = json.loads(extra) if extra else {}
        return extra

    def request_id(self):
        return self._more().get("id", "")

    def correlation_id(self):
        return self._more().get("correlation_id", 0)

    def flags(self):
        return self._more().get("flags", 0)

    def set_flags(self, flags):
        self._more()["flags"] = flags

    def timeout(self):
        return self._more().get("timeout", 0)

    def priority(self):
        return self._more().get("priority", 0)

    def parameters(self):
        return self._more().get("parameters", "{}")

    def trace(self):
        return InferenceTrace()

    def model_name(self):
        return _worker.model_name if self._made is None else self._made[1]

    def model_version(self):
        return _worker.model_version if self._made is None else self._made[2]

    def requested_output_names(self):
        if self._made is not None:
            return list(self._made[0])
        wanted = self._head[1]
        return [name for name in _worker.outputs if wanted is None or name in wanted]

    def is_cancelled(self):
        return self._group is not None and _worker.is_cancelled(self._group, self._index)

    def get_response_sender(self):
        raise _unsupported("InferenceRequest.get_response_sender")

    def set_release_flags(self, flags):
        if flags != TRITONSERVER_REQUEST_RELEASE_ALL:
            raise _unsupported("rescheduling a request")

    def exec(self, decoupled=False):
        raise _unsupported("InferenceRequest.exec")

    def async_exec(self, decoupled=False):
        raise _unsupported("InferenceRequest.async_exec")


class _Request(InferenceRequest):
    """A request that came from the server; `_extra` is JSON until somebody asks."""

    __slots__ = ()

    def __init__(self, inputs, head, extra, group, index):
        self._inputs = inputs
        self._head = head
        self._extra = extra
        self._group = group
        self._index = index
        self._made = None


class InferenceResponse:
    """What the model answers to one request."""

    __slots__ = ("_outputs", "_error", "_parameters", "__weakref__")

    def __init__(self, output_tensors=(), error=None, parameters=None):
        for tensor in output_tensors:
            if not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException(
                        "Output tensor for inference response should not be empty."
                    )
                raise TypeError(
                    f"Output tensors must be pb_utils.Tensor, found type '{type(tensor)}'."
                )
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a pb_utils.TritonError, found type '{type(error)}'.")
        self._outputs = output_tensors
        self._error = error
        self._parameters = None
        if parameters is not None:
            _check_parameters(parameters)
            self._parameters = dict(parameters)

    def output_tensors(self):
        return list(self._outputs)

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error

    def parameters(self):
        return json.dumps(self._parameters or {})


def _check_parameters(parameters):
    if not isinstance(parameters, dict):
        raise TritonModelException(
            f"Expect parameters to have type dict, found type {type(parameters)}"
        )
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )


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
    return _TO_NUMPY[_TYPES[int(data_type) - 1][0]]


def numpy_to_triton_type(data_type):
    name = _TO_TRITON[np.dtype(data_type).type]
    return next(code for known, _, code in _TYPES if known == name)


def triton_string_to_numpy(triton_type_string):
    name = triton_type_string[5:] if triton_type_string.startswith("TYPE_") else triton_type_string
    return _TO_NUMPY["BYTES" if name == "STRING" else name]


def serialize_byte_tensor(input_tensor):
    if input_tensor.size == 0:
        return np.empty([0], dtype=np.object_)
    if input_tensor.dtype.kind not in "OSU":
        return None
    flat = np.asarray(_pack_strings(input_tensor), dtype=np.object_)
    return flat


def deserialize_bytes_tensor(encoded_tensor):
    return _strings(encoded_tensor, 0, len(encoded_tensor))


def get_model_dir():
    return _worker.version_dir


class Logger:
    """Lines in the server's log, with the place that wrote them."""

    INFO, WARNING, ERROR, VERBOSE = 0, 1, 2, 3

    @staticmethod
    def _write(message, level, depth=2):
        frame = sys._getframe(depth)
        place = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        _worker.log(level, place, message)

    @staticmethod
    def log(message, level=0):
        if message is None or not isinstance(level, int):
            raise TritonModelException("Logger.log needs a message and a level.")
        Logger._write(message, level)

    @staticmethod
    def log_info(message):
        Logger._write(message, 0)

    @staticmethod
    def log_warn(message):
        Logger._write(message, 1)

    @staticmethod
    def log_error(message):
        Logger._write(message, 2)

    @staticmethod
    def log_verbose(message):
        Logger._write(message, 3)


class MetricFamily:
    """Metrics of a model's own."""

    COUNTER, GAUGE, HISTOGRAM = 0, 1, 2

    def __init__(self, *_, **__):
        raise _unsupported("MetricFamily")


class InferenceResponseSender:
    """Answers at any time."""

    def __init__(self, *_, **__):
        raise _unsupported("InferenceResponseSender")


def load_model(*_, **__):
    raise _unsupported("load_model")


def unload_model(*_, **__):
    raise _unsupported("unload_model")


def is_model_ready(*_, **__):
    raise _unsupported("is_model_ready")


def __getattr__(name):
    if name == "ModelConfig":
        return _lazy("troupe_model_config").ModelConfig
    raise AttributeError(f"module 'triton_python_backend_utils' has no attribute '{name}'")
