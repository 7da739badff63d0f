"""Pipelines: functions that call models by name, and the tensors that stand in while they are traced."""
import sys

from .errors import ModelError, did_you_mean, listed

MARK = "__troupe_pipeline__"
NOT_A_GRAPH = (
    "a pipeline is called once, when it loads, and becomes a graph of models: what depends on the "
    "values of a request belongs into a model of its own"
)

# The trace under way in this process.
current = None


def pipeline(function=None, *, max_batch_size=None):
    """Marks the function that is the pipeline of its file: parameters are the inputs, the dict it
    returns has the outputs, and between them it calls models: `models.name(input=tensor)`."""
    whole = isinstance(max_batch_size, int) and not isinstance(max_batch_size, bool)
    if max_batch_size is not None and not (whole and 0 <= max_batch_size):
        raise ModelError(f"max_batch_size is {max_batch_size!r}, expected a number")

    def mark(target):
        setattr(target, MARK, max_batch_size)
        return target

    return mark if function is None else mark(function)


class Models:
    """All models, by name: `models.clf(…)`, `models["text-prep"](…)`, `models["clf", 2](…)`."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Callee(name, -1)

    def __getitem__(self, key):
        name, version = key if isinstance(key, tuple) else (key, -1)
        return Callee(name, version)


models = Models()


class Callee:
    """A model that can be called."""

    def __init__(self, name, version):
        self.name = name
        self.version = version

    def __call__(self, *values, **inputs):
        if current is None:
            raise ModelError(
                f"models.{self.name}(…) is for functions marked with @pipeline, which the server "
                "calls when it loads them; to try one: troupe run-once, or troupe.testing.serve"
            )
        return current.call(self, values, inputs)


class Symbol:
    """Stands for a tensor of requests to come; has no value."""

    __slots__ = ("_what",)

    def __init__(self, what):
        self._what = what

    def _refuse(self, doing):
        raise ModelError(f"{place()}: {doing} needs the value of {self._what}: {NOT_A_GRAPH}")

    def __getattr__(self, name):
        if name.startswith("__"):
            # What numpy and others ask of an object to see what it is.
            if name.startswith("__array"):
                self._refuse("numpy")
            raise AttributeError(name)
        raise ModelError(f"{place()}: {self._what} is a tensor and has no `{name}`")

    def __bool__(self):
        self._refuse("`if`, `while`, `and`, `or` or `not`")

    def __iter__(self):
        self._refuse("a loop, or taking it apart,")

    def __len__(self):
        self._refuse("`len`")

    def __getitem__(self, key):
        self._refuse("an index")

    def __float__(self):
        self._refuse("a number")

    __int__ = __index__ = __complex__ = __float__

    def __format__(self, spec):
        self._refuse("a text")

    def __call__(self, *_, **__):
        self._refuse("a call")


def refuse_operators():
    """Arithmetic and comparisons."""
    words = (
        "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift "
        "radd rsub rmul rtruediv rfloordiv rmod rpow rmatmul rand ror rxor "
        "lt le gt ge eq ne neg pos abs invert contains"
    )
    for word in words.split():
        text = "a comparison" if word in ("lt", "le", "gt", "ge", "eq", "ne") else "arithmetic"
        setattr(Symbol, f"__{word}__", lambda self, *_, text=text: self._refuse(text))
    Symbol.__hash__ = object.__hash__


refuse_operators()


class Input(Symbol):
    """An input of the pipeline."""

    __slots__ = ("_name", "_uses")

    def __init__(self, name):
        super().__init__(f"input `{name}`")
        self._name = name
        # As (step, name of the step's input).
        self._uses = []


class Output(Symbol):
    """One output of a step; its name is `None` for the only one of a model not known yet."""

    __slots__ = ("_step", "_name", "_tensor")

    def __init__(self, step, name):
        super().__init__(f"output `{name or 'output'}` of model '{step._model}'")
        self._step = step
        self._name = name
        self._tensor = None


class Step(Symbol):
    """A call of a model, which stands for the output if there is one.

    Any name may be that of an output: its own begin with an underscore.
    """

    __slots__ = ("_model", "_version", "_line", "_inputs", "_outputs", "_known")

    def __init__(self, callee, line, known):
        super().__init__(f"the result of model '{callee.name}'")
        self._model = callee.name
        self._version = callee.version
        self._line = line
        # Tensors and lines by the names of the model's inputs.
        self._inputs = {}
        self._outputs = {}
        # The model's config, unless it is not known yet.
        self._known = known

    def _output(self, name):
        """The output of this name."""
        known = [it["name"] for it in self._known["output"]] if self._known else None
        if known is not None and name not in known:
            raise ModelError(
                f"{place()}: model '{self._model}' has no output `{name}`{did_you_mean(name, known)}; "
                f"its outputs are {listed(known)}"
            )
        if name not in self._outputs:
            self._outputs[name] = Output(self, name)
        return self._outputs[name]

    def _only(self, at):
        """The output of a model that has one."""
        if self._known is None:
            return self._outputs.setdefault(None, Output(self, None))
        known = [it["name"] for it in self._known["output"]]
        if len(known) != 1:
            sample = f'result["{known[0]}"]' if known else "…"
            raise ModelError(
                f"{at}: model '{self._model}' has the outputs {listed(known)}: say which, "
                f"as in `{sample}`"
            )
        return self._output(known[0])

    def __getitem__(self, name):
        if not isinstance(name, str):
            raise ModelError(
                f"{place()}: outputs of model '{self._model}' are known by name, not by {name!r}: "
                'write result["name"]'
            )
        return self._output(name)

    def __getattr__(self, name):
        if name.startswith("__"):
            return Symbol.__getattr__(self, name)
        return self._output(name)


def place():
    """The line of the pipeline's file that is at work."""
    frame = sys._getframe(1)
    file = current.file if current else None
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return f"{file}:{frame.f_lineno}" if frame else str(file)
