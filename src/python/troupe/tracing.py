"""Traces a pipeline: runs its function once on stand-ins, and writes the ensemble that it is."""
import inspect
import json
import typing

from . import pipelines
from .errors import Lines, ModelError, check_inputs, did_you_mean, listed
from .hints import HintError, kind_of
from .pipelines import MARK, Input, Output, Step, Symbol, place
from .signature import fields_of

# The output of a pipeline that returns one tensor.
ONE_OUTPUT = "output"
# Stands for the name of the only output of a model that is not known yet.
NOT_KNOWN = "?"


def trace(module, configs):
    """The ensemble as `{"text": config.pbtxt, "lines": […], "models": […]}`.

    `configs` is JSON: a list of the configs of the models it calls, or null while they are not
    known; then types are made up. `lines` has a line of the pipeline's file for each of the text.
    """
    function = find(module)
    known = json.loads(configs)
    traced = Trace(function, known and {it["name"]: it for it in known})
    pipelines.current = traced
    try:
        traced.run()
    finally:
        pipelines.current = None
    text = Text(traced)
    called = [[it._model, it._version] for it in traced.steps]
    return json.dumps({"text": text.text(), "lines": text.numbers, "models": called})


def find(module):
    """The function that is marked."""
    marked = {id(it): it for it in vars(module).values() if hasattr(it, MARK) and callable(it)}
    if len(marked) != 1:
        names = listed(it.__name__ for it in marked.values())
        found = f"{names} are marked with @pipeline" if marked else "nothing is marked with @pipeline"
        raise ModelError(f"{module.__file__}: {found}, expected one function")
    function, = marked.values()
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
        raise ModelError(f"{Lines(function).definition()}: a pipeline is a plain function, no coroutine")
    return function


class Trace:
    """What the function has done."""

    def __init__(self, function, configs):
        self.function = function
        self.configs = configs
        self.lines = Lines(function)
        self.file = self.lines.file
        self.steps = []
        self.inputs = {}
        self.outputs = {}
        self.optional = set()

    def run(self):
        """Calls the function."""
        self.hints = typing.get_type_hints(self.function)
        for it in inspect.signature(self.function).parameters.values():
            if it.kind not in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY):
                self.refuse(it.name, f"`*{it.name}` is no input: write one parameter for each")
            if it.default is None:
                self.optional.add(it.name)
            elif it.default is not it.empty:
                self.refuse(
                    it.name,
                    f"input `{it.name}` has the default {it.default!r}, and a graph has no values: "
                    "only None can be one, for an input that may be missing",
                )
            self.inputs[it.name] = Input(it.name)
        returned = self.function(**self.inputs)
        self.finish(returned)

    def refuse(self, parameter, text):
        """A mistake in a parameter."""
        raise ModelError(f"{self.lines.parameter(parameter)}: {text}")

    def call(self, callee, values, inputs):
        """A call of a model: a step."""
        at = place()
        name = callee.name
        if values:
            raise ModelError(
                f"{at}: inputs of model '{name}' are given by name: models.{name}(input=tensor)"
            )
        if not inputs:
            raise ModelError(f"{at}: model '{name}' is called without an input")
        known = None
        if self.configs is not None:
            known = self.configs.get(name)
            if known is None:
                raise ModelError(
                    f"{at}: there is no model '{name}'{did_you_mean(name, self.configs)}"
                )
            known_inputs = {it["name"]: it for it in known["input"]}
            check_inputs(f"{at}: model '{name}'", known_inputs, inputs)
        step = Step(callee, int(at.rsplit(":", 1)[1]), known)
        for key, value in inputs.items():
            step._inputs[key] = self.tensor(at, f"input `{key}` of model '{name}'", value)
            if isinstance(value, Input):
                value._uses.append((step, key))
        self.steps.append(step)
        return step

    def tensor(self, at, what, value):
        """The tensor that a value of the function stands for."""
        if isinstance(value, Step):
            return value._only(at)
        if isinstance(value, (Input, Output)):
            return value
        raise ModelError(
            f"{at}: {what} is {type(value).__name__} {str(value)[:40]!r}, expected an input of the "
            "pipeline or what a model answered; a constant belongs into the model or its config's "
            "parameters"
        )

    def finish(self, returned):
        """The outputs, and whether everything is used."""
        at = self.lines.result()
        if isinstance(returned, Symbol):
            returned = {ONE_OUTPUT: returned}
        if not isinstance(returned, dict) or not returned:
            raise ModelError(
                f"{at}: `{self.lines.name}` returned {type(returned).__name__}, expected a dict: "
                'return {"label": tensor}, or one tensor'
            )
        for name, value in returned.items():
            if not isinstance(name, str):
                raise ModelError(f"{at}: output {name!r} has no name: its key is a string")
            tensor = self.tensor(at, f"output `{name}`", value)
            if isinstance(tensor, Input):
                raise ModelError(f"{at}: output `{name}` is {tensor._what}, as it came: no model is asked")
            if tensor._tensor is not None:
                raise ModelError(
                    f"{at}: output `{name}` is {tensor._what}, as is output `{tensor._tensor}`: "
                    "one tensor has one name"
                )
            if name in self.inputs:
                raise ModelError(f"{at}: output `{name}` has the name of an input; give it another")
            tensor._tensor = name
            self.outputs[name] = tensor
        for name, it in self.inputs.items():
            if not it._uses:
                self.refuse(name, f"input `{name}` is given to no model")
        for step in self.steps:
            if not step._outputs:
                raise ModelError(
                    f"{self.file}:{step._line}: nobody uses the result of model '{step._model}'"
                )

    # Types, as the configs of the models say.

    def max_batch_size(self):
        """That of the pipeline: batches that every step takes, none if one step takes none."""
        wanted = getattr(self.function, MARK)
        if wanted is not None:
            return wanted
        if self.configs is None:
            return 0
        return min(int(step._known.get("max_batch_size") or 0) for step in self.steps)

    def type_of(self, step, key, kind, what):
        """Data type and dims of an input (`kind` is "input") or output of a step, from outside."""
        if step._known is None:
            return "TYPE_FP32", [-1]
        found = next(it for it in step._known[kind] if it["name"] == key)
        dims = [int(dim) for dim in found.get("dims", ())]
        if 0 < int(step._known.get("max_batch_size") or 0) and not self.max_batch_size():
            dims = [-1, *dims]
        hint = what and self.kind(*what)
        if hint and hint.config_type() != found["data_type"]:
            raise ModelError(
                f"{what[0]}: the hint of `{what[1]}` is {hint.text}, which is {hint.config_type()}, "
                f"but the {kind} `{key}` of model '{step._model}' is {found['data_type']}"
            )
        return found["data_type"], dims

    def kind(self, at, name, hint):
        """What a hint says; `None` without one."""
        if hint is None or hint in (dict, typing.Any):
            return None
        try:
            return kind_of(hint)
        except HintError as error:
            raise ModelError(f"{at}: the hint of `{name}`: {error}") from None

    def input_type(self, name):
        """Of an input of the pipeline: as of the first step that takes it; all must agree."""
        uses = self.inputs[name]._uses
        what = (self.lines.parameter(name), name, self.hints.get(name))
        types = [self.type_of(step, key, "input", what) for step, key in uses]
        for (step, key), (data_type, _) in zip(uses, types):
            if data_type != types[0][0]:
                raise ModelError(
                    f"{self.file}:{step._line}: input `{name}` is {types[0][0]} in model "
                    f"'{uses[0][0]._model}', and {data_type} as input `{key}` of model '{step._model}'"
                )
        return types[0]

    def output_type(self, name):
        """Of an output of the pipeline."""
        tensor = self.outputs[name]
        hint = self.hints.get("return")
        fields = fields_of(hint)
        one = hint if list(self.outputs) == [ONE_OUTPUT] and not is_mapping(hint) else None
        hint = fields.get(name) if fields is not None else one
        what = (self.lines.result(), name, hint)
        return self.type_of(tensor._step, tensor._name, "output", what)


def is_mapping(hint):
    """Is it `dict` in any form?"""
    return (typing.get_origin(hint) or hint) in (dict, typing.Dict)


class Text:
    """The config.pbtxt of a traced pipeline, line by line."""

    def __init__(self, traced):
        self.traced = traced
        self.written = []
        # For each line, the one of the pipeline's file that it comes from.
        self.numbers = []
        self.names = {*traced.inputs, *traced.outputs}
        definition = number_of(traced.lines.definition())
        self.add(definition, 'platform: "ensemble"')
        if traced.max_batch_size():
            self.add(definition, f"max_batch_size: {traced.max_batch_size()}")
        for name in traced.inputs:
            at = number_of(traced.lines.parameter(name))
            more = ["  optional: true"] if name in traced.optional else []
            self.tensor(at, "input", name, traced.input_type(name), more)
        for name in traced.outputs:
            at = number_of(traced.lines.result())
            self.tensor(at, "output", name, traced.output_type(name), [])
        self.add(definition, "ensemble_scheduling {")
        for step in traced.steps:
            self.step(step)
        self.add(definition, "}")

    def text(self):
        return "\n".join(self.written) + "\n"

    def add(self, number, *lines):
        for line in lines:
            self.written.append(line)
            self.numbers.append(number)

    def tensor(self, at, kind, name, typed, more):
        data_type, dims = typed
        dims = ", ".join(str(dim) for dim in dims)
        self.add(at, f"{kind} {{", f"  name: {quoted(name)}", f"  data_type: {data_type}")
        self.add(at, f"  dims: [ {dims} ]", *more, "}")

    def step(self, step):
        line = step._line
        self.add(line, "  step {", f"    model_name: {quoted(step._model)}")
        self.add(line, f"    model_version: {step._version}")
        for key, tensor in step._inputs.items():
            self.add(line, f"    input_map {{ key: {quoted(key)} value: {quoted(self.name(tensor))} }}")
        for key, tensor in step._outputs.items():
            # Not known yet which the only one is.
            key = quoted(key or NOT_KNOWN)
            self.add(line, f"    output_map {{ key: {key} value: {quoted(self.name(tensor))} }}")
        self.add(line, "  }")

    def name(self, tensor):
        """The name of a tensor in the ensemble."""
        if isinstance(tensor, Input):
            return tensor._name
        if tensor._tensor is None:
            wanted = name = f"{tensor._step._model}_{tensor._name or ONE_OUTPUT}"
            number = 2
            while name in self.names:
                name, number = f"{wanted}_{number}", number + 1
            self.names.add(name)
            tensor._tensor = name
        return tensor._tensor


def number_of(at):
    """The line of a place."""
    return int(at.rsplit(":", 1)[1])


def quoted(text):
    """A string of the config."""
    return json.dumps(text, ensure_ascii=False)
