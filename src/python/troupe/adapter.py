"""Runs a plain function or class as a `TritonPythonModel`: joins batches, converts, streams."""
import inspect
import json

import numpy as np
import triton_python_backend_utils as pb

from .configuration import Completion
from .errors import Lines, ModelError, did_you_mean, listed
from .hints import HintError, fits
from .marks import Options, find
from .signature import Signature

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# Of an output, so many shapes are known to fit; more are looked at each time.
MAX_SHAPES = 1024


def adapt(module, config, model_dir):
    """What the worker runs for a file without `TritonPythonModel`; `config` is a dict."""
    target, options = find(module)
    is_class = isinstance(target, type)
    function = getattr(target, "predict", None) if is_class else target
    if is_class and not inspect.isfunction(function):
        raise ModelError(
            f"{module.__file__}: class `{target.__name__}` is the model, and has no method "
            "`predict(self, …)`: it is called for requests"
        )
    if not inspect.isfunction(function):
        raise ModelError(f"{module.__file__}: `{target!r}` is no function and no class")
    if options.max_batch_size is None:
        written = int(config.get("max_batch_size") or 0)
        options = Options(written, options.max_queue_delay_ms, options.instances)
    is_static = isinstance(inspect.getattr_static(target, "predict", None), staticmethod)
    signature = Signature(function, options, is_class and not is_static)
    takes_config = is_class and wants_config(module, target)
    base = BASES[signature.is_async, signature.is_stream, signature.is_batched]
    made = type("Adapter", (base,), {"signature": signature, "target": staticmethod(target)})
    made.model_dir, made.takes_config = model_dir, takes_config
    if is_class and callable(getattr(target, "is_ready", None)):
        made.is_ready = lambda self: self.instance.is_ready()
    return made


def wants_config(module, target):
    """Is the class made with `config`? Other parameters of its `__init__` need a default."""
    parameters = inspect.signature(target).parameters.values()
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    unknown = [
        it.name
        for it in parameters
        if it.name != "config" and it.default is it.empty and it.kind not in stars
    ]
    if unknown:
        lines = Lines(target.__init__)
        # One that a dataclass or another file has made has no line here.
        is_here = lines.file == module.__file__
        raise ModelError(
            f"{lines.parameter(unknown[0]) if is_here else module.__file__}: `__init__` of class "
            f"`{target.__name__}` wants {listed(unknown)}, which nobody gives it: write `def "
            '__init__(self, config: dict)`, or no parameter; `config["parameters"]` has the '
            'parameters of config.pbtxt, `config["model_repository"]` is the folder of the model'
        )
    return any(it.name == "config" for it in parameters)


class Adapter:
    """A model made of a function or class."""

    signature = target = model_dir = takes_config = None
    # Until it is initialised; that may fail.
    instance = None
    # Control inputs that the function has no parameter for.
    unread = frozenset()

    @classmethod
    def auto_complete_config(cls, config):
        """Fills in what the hints say."""
        Completion(config.as_dict(), cls.signature, cls.model_dir).complete()
        return config

    def initialize(self, args):
        """Makes the object of a class."""
        config = json.loads(args["model_config"])
        completion = Completion(config, self.signature, self.model_dir)
        completion.require()
        completion.complete()
        self.call = self.instance = self.target
        if isinstance(self.target, type):
            args = dict(args, parameters=parameters_of(config))
            self.instance = self.target(config=args) if self.takes_config else self.target()
            self.call = self.instance.predict
        # `None`: the function takes the array as it is.
        is_batched = self.signature.is_batched
        self.readers = {it.name: it.kind.reader(is_batched) for it in self.signature.inputs}
        self.unread = completion.controls.keys() - self.readers.keys()
        dims = {name: it.dims for name, it in completion.state_outputs.items()}
        dims.update((it["name"], [int(dim) for dim in it["dims"]]) for it in config["output"])
        # With shapes, without rows, that were found to fit.
        self.outputs = [(it.name, it.kind, dims[it.name], set()) for it in self.signature.outputs]

    def finalize(self):
        """Ends the object of a class, if it has a method for it."""
        for name in ("finalize", "close"):
            end = getattr(self.instance, name, None)
            if isinstance(self.target, type) and callable(end):
                return end()
        return None

    # Requests.

    def arguments(self, request):
        """The inputs of one request, by the names of parameters."""
        found = {}
        for tensor in request.inputs():
            name = tensor.name()
            if name not in self.unread:
                found[name] = self.read(name, tensor.as_numpy())
        return found

    def read(self, name, array):
        """An input as the function wants it."""
        reader = self.readers[name]
        if reader is None:
            return array
        try:
            return reader(array)
        except UnicodeDecodeError as error:
            raise BadInput(
                f"input '{name}' holds bytes that are no UTF-8 text: {error}"
            ) from None

    def readable(self, requests, answer):
        """Places and arguments of requests; those that cannot be read are answered, with their
        places."""
        for index, request in enumerate(requests):
            try:
                arguments = self.arguments(request)
            except BadInput as bad:
                answer(index, bad.response())
            else:
                yield index, arguments

    def tensors(self, value, rows=None):
        """A result as the tensors of a response, checked."""
        found = []
        is_record = self.signature.is_record
        # A record may also come as a plain tuple, in the order of its fields.
        if is_record and type(value) is tuple and len(value) == len(self.outputs):
            value = dict(zip((output[0] for output in self.outputs), value))
        for name, kind, dims, good in self.outputs:
            array = self.field(value, name) if is_record else value
            if type(array) is not np.ndarray or array.dtype is not kind.plain:
                try:
                    array = kind.write(array)
                except HintError as error:
                    raise self.wrong(name, f"{error}") from None
            shape = array.shape
            own = shape if rows is None else shape[1:]
            if own not in good or (rows is not None and shape[:1] != (rows,)):
                array = self.shaped(name, array, dims, rows)
                if len(good) < MAX_SHAPES and array.shape == shape:
                    good.add(own)
            found.append(pb.Tensor(name, array))
        return found

    def shaped(self, name, array, dims, rows):
        """An output whose shape fits; a batch of single values may lack its last dim."""
        expected = dims if rows is None else [rows, *dims]
        if rows is not None and dims == [1] and array.shape == (rows,):
            return array.reshape(rows, 1)
        if not fits(array.shape, expected):
            raise self.wrong(name, misfit(array.shape, expected, rows))
        return array

    def field(self, value, name):
        """One output of a record, which may also come as a dict."""
        try:
            return value[name] if isinstance(value, dict) else getattr(value, name)
        except (AttributeError, KeyError):
            fields = getattr(value, "_fields", None) or getattr(value, "__dict__", ())
            known = value if isinstance(value, dict) else fields
            got = type(value).__name__ + (f" with {listed(known)}" if known else "")
            if type(value) is tuple:
                got = f"tuple of {len(value)}, expected {len(self.outputs)}"
            text = f"is missing in its result ({got}){did_you_mean(name, known)}"
            raise self.wrong(name, text) from None

    def wrong(self, name, text):
        """What is wrong with an output."""
        signature = self.signature
        return ModelError(
            f"{signature.lines.definition()}: output `{name}` of `{signature.name}` {text}"
        )

    def response(self, value):
        """The answer to one request."""
        return pb.InferenceResponse(self.tensors(value))


class BadInput(Exception):
    """An input that this request's client has to mend."""

    def response(self):
        error = pb.TritonError(str(self), pb.TritonError.INVALID_ARG)
        return pb.InferenceResponse(error=error)


class Single(Adapter):
    """One call a request."""

    def execute(self, requests):
        answers = [None] * len(requests)
        for index, arguments in self.readable(requests, answers.__setitem__):
            answers[index] = self.response(self.call(**arguments))
        return answers


class AsyncSingle(Adapter):
    """One call a request, awaited."""

    async def execute(self, requests):
        answers = [None] * len(requests)
        for index, arguments in self.readable(requests, answers.__setitem__):
            answers[index] = self.response(await self.call(**arguments))
        return answers


class Batch(Adapter):
    """One call for the rows of all requests that have the same inputs of the same dims."""

    def execute(self, requests):
        answers = [None] * len(requests)
        for batch in self.batches(requests, answers):
            self.split(batch, self.call(**batch.arguments), answers)
        return answers

    def batches(self, requests, answers):
        """Requests joined; those whose inputs cannot be read are answered."""
        if len(requests) == 1:
            groups = [[0]]
        else:
            found = {}
            for index, request in enumerate(requests):
                key = tuple((it.name(), *it.shape()[1:]) for it in request.inputs())
                found.setdefault(key, []).append(index)
            groups = found.values()
        for indexes in groups:
            try:
                yield Joined(self, requests, indexes)
            except BadInput as bad:
                if len(indexes) == 1:
                    answers[indexes[0]] = bad.response()
                else:
                    yield from self.one_by_one(requests, indexes, answers)

    def one_by_one(self, requests, indexes, answers):
        """Where one of the requests cannot be read, only that one fails."""
        good = []
        for index in indexes:
            try:
                Joined(self, requests, [index])
                good.append(index)
            except BadInput as bad:
                answers[index] = bad.response()
        if good:
            yield Joined(self, requests, good)

    def split(self, batch, value, answers):
        """Each request gets its rows, which are views."""
        found = self.tensors(value, batch.rows)
        if len(batch.indexes) == 1:
            answers[batch.indexes[0]] = pb.InferenceResponse(found)
            return
        arrays = [(it.name(), it.as_numpy()) for it in found]
        start = 0
        for index, rows in zip(batch.indexes, batch.sizes):
            end = start + rows
            mine = [pb.Tensor(name, array[start:end]) for name, array in arrays]
            answers[index] = pb.InferenceResponse(mine)
            start = end


class AsyncBatch(Batch):
    """The same, awaited."""

    async def execute(self, requests):
        answers = [None] * len(requests)
        for batch in self.batches(requests, answers):
            self.split(batch, await self.call(**batch.arguments), answers)
        return answers


class Joined:
    """The inputs of some requests, one behind the other."""

    def __init__(self, adapter, requests, indexes):
        self.indexes = indexes
        if len(indexes) == 1:
            request = requests[indexes[0]]
            self.rows = request.inputs()[0].shape()[0]
            self.arguments = adapter.arguments(request)
            return
        inputs = [requests[index].inputs() for index in indexes]
        self.sizes = [tensors[0].shape()[0] for tensors in inputs]
        self.rows = sum(self.sizes)
        self.arguments = {}
        for place, tensor in enumerate(inputs[0]):
            name = tensor.name()
            if name in adapter.unread:
                continue
            array = np.concatenate([tensors[place].as_numpy() for tensors in inputs])
            self.arguments[name] = adapter.read(name, array)


class Streaming(Adapter):
    """Any number of answers a request."""

    def begun(self, requests):
        """Response senders and arguments of requests; those that cannot be read are answered."""

        def answer(index, response):
            requests[index].get_response_sender().send(response, FINAL)

        for index, arguments in self.readable(requests, answer):
            yield requests[index].get_response_sender(), arguments


class Stream(Streaming):
    """One generator after the other."""

    def execute(self, requests):
        for sender, arguments in self.begun(requests):
            values = self.call(**arguments)
            try:
                for value in values:
                    if sender.is_cancelled():
                        break
                    sender.send(self.response(value))
            finally:
                getattr(values, "close", int)()
            sender.send(flags=FINAL)


class AsyncStream(Streaming):
    """The same, with other requests in work meanwhile."""

    async def execute(self, requests):
        # Here, as other models do not need it.
        from asyncio import sleep

        for sender, arguments in self.begun(requests):
            values = self.call(**arguments)
            if inspect.isawaitable(values):
                values = await values
            try:
                async for value in values:
                    if sender.is_cancelled():
                        break
                    sender.send(self.response(value))
                    # Others get their turn, and the client may catch up.
                    await sleep(0)
            finally:
                if hasattr(values, "aclose"):
                    await values.aclose()
            sender.send(flags=FINAL)


# By: is it async, a stream, batched?
BASES = {
    (False, False, False): Single,
    (False, False, True): Batch,
    (False, True, False): Stream,
    (True, False, False): AsyncSingle,
    (True, False, True): AsyncBatch,
    (True, True, False): AsyncStream,
}


def parameters_of(config):
    """The entries of `parameters` in config.pbtxt, as strings."""
    written = config.get("parameters") or {}
    return {key: value.get("string_value", "") for key, value in written.items()}


def misfit(shape, expected, rows):
    """The text for a shape that does not fit."""
    text = f"has shape {list(shape)}, expected {expected}"
    if rows is not None and (not shape or shape[0] != rows):
        text += f": one row for each of the {rows} rows of this call"
    return text
