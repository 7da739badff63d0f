"""The signature of a model's function: its parameters as inputs, its result as outputs."""
import collections.abc
import dataclasses
import inspect
import typing

from .errors import Lines, ModelError
from .hints import SAMPLE, HintError, kind_of, without_none

STREAMS = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)
# The output of a function that returns one tensor.
ONE_OUTPUT = "output"
FIELDS_SAMPLE = (
    "for several outputs write a dataclass, NamedTuple or TypedDict whose fields are the outputs"
)


class Tensor:
    """An input or output."""

    def __init__(self, name, kind, is_optional=False):
        self.name = name
        self.kind = kind
        self.is_optional = is_optional


class Signature:
    """What a function takes and gives."""

    def __init__(self, function, options, is_method):
        self.function = function
        self.lines = Lines(function)
        self.name = function.__name__
        self.max_batch_size = options.max_batch_size or 0
        self.max_queue_delay_ms = options.max_queue_delay_ms
        self.instances = options.instances
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        hints = self._hints()
        self.inputs = self._inputs(hints, is_method)
        # Are the outputs the fields of what it returns?
        self.is_record = False
        self.is_stream = False
        self.outputs = self._outputs(hints)

    @property
    def is_batched(self):
        return 0 < self.max_batch_size

    def _hints(self):
        try:
            return typing.get_type_hints(self.function)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"{self.lines.definition()}: the type hints of `{self.name}` cannot be read: "
                f"{type(error).__name__}: {error}"
            ) from None

    def _inputs(self, hints, is_method):
        parameters = list(inspect.signature(self.function).parameters.values())[is_method:]
        if not parameters:
            raise ModelError(
                f"{self.lines.definition()}: `{self.name}` has no parameters; each is an input of "
                f"the model, as in `def {self.name}(text: str) -> str`"
            )
        inputs = []
        for it in parameters:
            if it.kind not in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY):
                stars = {it.VAR_POSITIONAL: "*", it.VAR_KEYWORD: "**"}.get(it.kind, "")
                self._refuse(
                    it.name,
                    f"parameter `{stars}{it.name}` of `{self.name}` is no input: write one "
                    "parameter by name for each input of the model",
                )
            if it.name not in hints:
                self._refuse(
                    it.name,
                    f"parameter `{it.name}` of `{self.name}` has no type hint, which says the data "
                    f"type and dims of the input: write `{it.name}: …` with {SAMPLE}",
                )
            is_optional = it.default is not it.empty
            inputs.append(Tensor(it.name, self._input_kind(it.name, hints[it.name]), is_optional))
            if not is_optional and without_none(hints[it.name]) is not hints[it.name]:
                self._refuse(
                    it.name,
                    f"parameter `{it.name}` of `{self.name}` may be None, but has no default: "
                    f"write `{it.name}: … = None` for an input that may be missing",
                )
        if self.is_batched and all(it.is_optional for it in inputs):
            self._refuse(
                inputs[0].name,
                f"all inputs of `{self.name}` may be missing, and then nobody knows how many rows "
                "to answer: at least one parameter without a default is needed for batches",
            )
        return inputs

    def _refuse(self, parameter, text):
        raise ModelError(f"{self.lines.parameter(parameter)}: {text}")

    def _input_kind(self, name, hint):
        fields = fields_of(hint)
        if fields is not None:
            self._refuse(
                name,
                f"parameter `{name}` of `{self.name}` is a {hint.__name__}: write its fields as "
                f"parameters of `{self.name}`, each is an input of its own",
            )
        try:
            kind = kind_of(hint)
        except HintError as error:
            self._refuse(name, f"the hint of parameter `{name}` of `{self.name}`: {error}")
        if self.is_batched and kind.form == "value":
            self._refuse(
                name,
                f"`{self.name}` is called with the rows of all requests at once "
                f"(max_batch_size is {self.max_batch_size}), and parameter `{name}: {kind.text}` "
                f"is one: write `{name}: list[{kind.text}]`, one for each row",
            )
        return kind

    def _outputs(self, hints):
        does_yield = inspect.isgeneratorfunction(self.function)
        does_yield |= inspect.isasyncgenfunction(self.function)
        kind = "AsyncIterator" if self.is_async else "Iterator"
        if hints.get("return", type(None)) is type(None):
            sample = f"{kind}[str]" if does_yield else "str"
            why = "has no type hint for its result, which says the model's outputs"
            if "return" in hints:
                why = "says `-> None`, and None is no output"
            self._refuse_result(
                f"`{self.name}` {why}: write `-> {sample}:`, or {SAMPLE}; {FIELDS_SAMPLE}"
            )
        hint = hints["return"]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in STREAMS and arguments:
            self.is_stream = True
            hint = arguments[0]
            if self.is_batched:
                self._refuse_result(
                    f"`{self.name}` is a stream (`{kind}`), which answers one request at a time: "
                    "leave out max_batch_size"
                )
        elif does_yield:
            self._refuse_result(
                f"`{self.name}` yields: write `-> {kind}[…]` with the type of what it yields"
            )
        fields = fields_of(hint)
        if fields is None:
            return [Tensor(ONE_OUTPUT, self._output_kind("the result", hint))]
        self.is_record = True
        return [
            Tensor(name, self._output_kind(f"field `{name}` of {hint.__name__}", it))
            for name, it in fields.items()
        ]

    def _output_kind(self, what, hint):
        text = None
        origin = typing.get_origin(hint) or hint
        if origin is tuple:
            text = f"a tuple has no names: {FIELDS_SAMPLE}"
        elif origin in (dict, typing.Dict, collections.abc.Mapping):
            text = f"a dict has no fixed outputs: {FIELDS_SAMPLE}"
        try:
            if text is None:
                kind = kind_of(hint)
        except HintError as error:
            text = f"{error}; {FIELDS_SAMPLE}"
        if text is not None:
            self._refuse_result(f"the hint of {what} of `{self.name}`: {text}")
        if self.is_batched and kind.form == "value":
            self._refuse_result(
                f"`{self.name}` answers the rows of all requests at once (max_batch_size is "
                f"{self.max_batch_size}), and {what} is one {kind.text}: write "
                f"`list[{kind.text}]`, one for each row"
            )
        return kind

    def _refuse_result(self, text):
        raise ModelError(f"{self.lines.result()}: {text}")


def is_dict(hint):
    """Is it a TypedDict?"""
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__total__")


def fields_of(hint):
    """Names and hints of a dataclass, NamedTuple, TypedDict or pydantic model; `None` of others."""
    if not isinstance(hint, type):
        return None
    is_record = dataclasses.is_dataclass(hint) or is_dict(hint)
    is_record |= issubclass(hint, tuple) and hasattr(hint, "_fields")
    is_record |= hasattr(hint, "model_fields")
    return typing.get_type_hints(hint) if is_record else None
