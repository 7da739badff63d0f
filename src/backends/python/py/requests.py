"""Requests, responses and their errors, as models see and make them."""
import json
import weakref

from troupe_frames import NUMBER
from troupe_senders import InferenceResponseSender, abandon
from troupe_tensors import Tensor
from troupe_types import TritonModelException

RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2

# The running worker; set by it.
worker = None


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
    """Where a request is traced, if it is."""

    __slots__ = ("_span", "_context")

    def __init__(self, span=None, context=None):
        self._span = span
        self._context = context

    def get_context(self):
        """Headers that continue the trace, as a JSON object; `None` if nobody outside knows it."""
        return self._context


class PreferredMemory:
    """Where a model would like the outputs of its own calls. A wish: they come in host memory."""

    __slots__ = ("type", "device_id")

    def __init__(self, preferred_memory_type=0, preferred_device_id=0):
        self.type = preferred_memory_type
        self.device_id = preferred_device_id


class InferenceRequest:
    """What a client asks of the model, or what the model will ask of another."""

    _answers_later = False

    __slots__ = (
        "_inputs",
        "_head",
        "_extra",
        "_group",
        "_index",
        "_made",
        "_sender",
        "_has_sender",
        "_is_later",
        "_is_abandoned",
        "_release",
        "_trace",
        "__weakref__",
    )

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
        inputs = list(inputs) if inputs else []
        for tensor in inputs:
            if not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException(
                        f"Input tensor for request with id '{request_id}' and model name "
                        f"'{model_name}' should not be empty."
                    )
                raise TypeError(
                    f"Input tensors must be pb_utils.Tensor, found type '{type(tensor)}'."
                )
        names = tuple(requested_output_names) if requested_output_names else ()
        if not all(names):
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model name "
                f"'{model_name}' should not be empty."
            )
        self._inputs = inputs
        self._head = self._extra = self._group = self._sender = None
        self._has_sender = self._is_later = self._is_abandoned = False
        self._release = RELEASE_ALL
        self._trace = trace
        self._made = (names, model_name, model_version)
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        if trace is not None and not isinstance(trace, InferenceTrace):
            raise TypeError(f"trace must be a pb_utils.InferenceTrace, found type '{type(trace)}'.")
        if preferred_memory is not None and not isinstance(preferred_memory, PreferredMemory):
            raise TypeError(
                "preferred_memory must be a pb_utils.PreferredMemory, found type "
                f"'{type(preferred_memory)}'."
            )
        if parameters:
            check_parameters(parameters)
        span = None if trace is None else trace._span
        if request_id or correlation_id or flags or timeout or parameters or span:
            self._extra = {
                "id": request_id,
                "correlation_id": correlation_id,
                "flags": flags,
                "timeout": timeout,
                "parameters": json.dumps(parameters) if parameters else "{}",
            }
            if span:
                self._extra["under"] = span

    def inputs(self):
        return self._inputs

    def _more(self):
        extra = self._extra
        if type(extra) is not dict:
            extra = self._extra = json.loads(sized_text(*extra)) if extra else {}
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
        trace = self._trace
        if trace is None:
            trace = self._trace = InferenceTrace(*self._more().get("trace", ()))
        return trace

    def model_name(self):
        return worker.model_name if self._made is None else self._made[1]

    def model_version(self):
        return worker.model_version if self._made is None else self._made[2]

    def requested_output_names(self):
        if self._made is not None:
            return list(self._made[0])
        wanted = self._head[1]
        return [name for name in worker.outputs if wanted is None or name in wanted]

    def is_cancelled(self):
        return self._group is not None and worker.frames.is_cancelled(self._group, self._index)

    def get_response_sender(self):
        """The same sender every time; the request does not keep it alive."""
        sender = self._sender and self._sender()
        if sender is None:
            if self._group is None or self._has_sender:
                raise TritonModelException(
                    "Only a request that the server sent has a response sender, until it is closed."
                )
            sender = InferenceResponseSender(worker, self)
            self._sender = weakref.ref(sender)
            self._has_sender = True
        return sender

    def set_release_flags(self, flags):
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException(
                "Unable to set release flags. Unsupported flag provided."
            )
        self._release = flags

    def exec(self, decoupled=False):
        """Asks the model and waits: for its response, or for one after the other."""
        return worker.calls.exec(self, decoupled)

    def async_exec(self, decoupled=False):
        """Asks the model at once; to be awaited."""
        return worker.calls.async_exec(self, decoupled)


class Request(InferenceRequest):
    """A request that came from the server, made by the decoder; `_extra` says where its JSON is in
    the frame, until somebody asks."""

    __slots__ = ()


class DecoupledRequest(Request):
    """A request that may be answered after `execute` has returned."""

    __slots__ = ()
    _answers_later = True

    def __del__(self):
        if not self._has_sender and self._release == RELEASE_ALL:
            abandon(worker.frames, (*self._group, self._index))


class InferenceResponse:
    """What the model answers to one request."""

    __slots__ = ("_outputs", "_error", "_parameters", "__weakref__")

    def __init__(self, output_tensors=(), error=None, parameters=None):
        for tensor in output_tensors:
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):
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
            check_parameters(parameters)
            self._parameters = dict(parameters)

    def output_tensors(self):
        return list(self._outputs)

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error

    def parameters(self):
        return json.dumps(self._parameters or {})


def sized_text(data, at):
    """A text in a frame, behind its length."""
    (length,) = NUMBER.unpack_from(data, at)
    return data[at + 8 : at + 8 + length]


def check_parameters(parameters):
    if not isinstance(parameters, dict):
        raise TritonModelException(
            f"Expect dict, got {type(parameters)}"
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
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise TritonModelException(
                f"Expect parameters values of type int between -2^63 and 2^64 - 1, found {value}"
            )
