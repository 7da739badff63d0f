"""Looks at a model's file without running it: it parses, it holds a model, its imports are there."""
import sys

# Nothing is imported from the current folder, which may be the one that is checked.
sys.path = [it for it in sys.path if it]

import ast
import json
from importlib.util import find_spec
from os.path import basename, dirname, join

# What a worker has beside what is installed.
OURS = {"numpy", "triton_python_backend_utils", "troupe"}
# A file with one of these may find more modules than its first look tells.
MOVES_IMPORTS = ("sys.path", "addsitedir", "sys.modules", "meta_path")
# A file with one of these may have names that no statement binds.
BINDS_NAMES = ("globals(", "exec(", "setattr(", ".execute =", ".predict =")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


# Data types of hints that are names of Python.
PLAIN_TYPES = {"str": "STRING", "bytes": "STRING", "int": "INT64", "float": "FP64", "bool": "BOOL"}
DATA_TYPES = {"BOOL", "STRING", "FP16", "FP32", "FP64"} | {
    f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)
}
# Other words for them, in upper case.
SYNONYMS = {"BYTES": "STRING", "BOOL_": "BOOL", "FLOAT16": "FP16", "FLOAT32": "FP32", "FLOAT64": "FP64"}
# Hints that have the data type of what is in their brackets.
AROUND = {"list", "List", "Sequence", "Optional", "NDArray"}
STREAMS = {"Iterator", "Iterable", "Generator", "AsyncIterator", "AsyncIterable", "AsyncGenerator"}
# What a class of fields may inherit without having more of them.
RECORDS = {"NamedTuple", "TypedDict", "BaseModel"}


def main(path, *folders):
    # Inputs and outputs of the config, `{"name": ["TYPE_FP32", [4], "input"]}` each.
    config = json.load(sys.stdin)
    sys.path += folders
    report = {"problems": [], "missing": [], "is_broken": False, "is_sure": True}
    try:
        with open(path, "rb") as file:
            source = file.read()
        tree = ast.parse(source, path)
    except SyntaxError as error:
        line = (error.text or "").strip()
        text = f"{type(error).__name__}: {error.msg}" + (f": {line}" if line else "")
        report.update(is_broken=True, problems=[[error.lineno or 0, text]])
    except (OSError, ValueError) as error:
        report.update(is_broken=True, problems=[[0, f"{type(error).__name__}: {error}"]])
    else:
        text = source.decode(errors="replace")
        report["missing"] = list(missing(tree))
        report["is_sure"] = not any(it in text for it in MOVES_IMPORTS)
        if not any(it in text for it in BINDS_NAMES):
            report["problems"] = list(problems(tree, path, config))
    print(json.dumps(report))


def missing(tree):
    """Modules that are imported whatever happens and are not there, with their first lines."""
    known = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        else:
            continue
        for name in names:
            known.setdefault(name.split(".")[0], node.lineno)
    return ([name, line] for name, line in known.items() if not is_there(name))


def is_there(name):
    if name in OURS or name in sys.builtin_module_names:
        return True
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


# What a load would refuse before it calls the model. It says nothing where running the file could
# tell more: of what is inherited, decorated by others, or imported with `*`.


def problems(tree, path, config):
    """Why the file holds no model, or not that of the config, with lines."""
    names = dict(bound(tree.body))
    if "*" in names:
        return
    if "TritonPythonModel" in names:
        model = names["TritonPythonModel"]
        if is_whole(model) and "execute" not in dict(bound(model.body)):
            yield model.lineno, f"Python model {path} does not implement `execute` method."
        return
    marks = set(mark_names(tree.body))
    own = {name: it for name, it in names.items() if isinstance(it, (*FUNCTIONS, ast.ClassDef))}
    marked = [it for it in own.values() if any(is_mark(by, marks) for by in it.decorator_list)]
    if 1 < len(marked):
        both = ", ".join(f"`{it.name}`" for it in marked)
        yield marked[1].lineno, f"one model a file, but {both} are marked with @model"
        return
    for it in own.values() if not marked else ():
        if any(is_mark(by, ("pipeline",)) for by in it.decorator_list):
            yield it.lineno, (
                f"`{it.name}` is a pipeline, whose file is pipeline.py in the model's folder: call "
                f"it {pipeline_file(path)}"
            )
            return
    model = marked[0] if marked else names.get("predict", names.get("Model"))
    if model is None:
        # A mark that is imported and stands nowhere marks nothing.
        said = {last_name(it) for it in ast.walk(tree)}
        if marks.isdisjoint(said):
            yield nothing(own)
        return
    if isinstance(model, FUNCTIONS):
        yield from unhinted(model, marks, 0)
        yield from other_batch(model.decorator_list, config["max_batch_size"])
        yield from contradictions(model, marks, 0, names, config)
    elif isinstance(model, ast.ClassDef) and is_whole(model, marks):
        method = dict(bound(model.body)).get("predict")
        if method is None:
            yield model.lineno, (
                f"class `{model.name}` is the model, and has no method `predict(self, …)`: it is "
                "called for requests"
            )
        elif isinstance(method, FUNCTIONS):
            yield from unhinted(method, (), 1)
            yield from other_batch(model.decorator_list, config["max_batch_size"])
            yield from contradictions(method, (), 1, names, config)


def nothing(own):
    """What stands there instead of a model."""
    runs = [
        it
        for it in own.values()
        if isinstance(it, ast.ClassDef) and "execute" in dict(bound(it.body))
    ]
    hint, line = "", 0
    if runs:
        line = runs[0].lineno
        hint = f"; class `{runs[0].name}` has an `execute`: name it `TritonPythonModel`"
    elif own:
        line = next(iter(own.values())).lineno
        hint = "; mark one of " + ", ".join(f"`{it}`" for it in own)
    return line, (
        "nothing in this file is a model: expected a class `TritonPythonModel`, a function "
        "`predict`, a class `Model` with a method `predict`, or one of them marked with @model"
        + hint
    )


def pipeline_file(path):
    """Where the pipeline in `path` belongs: in the folder of its model."""
    folder = dirname(path)
    return join(dirname(folder) if basename(folder).isdigit() else folder, "pipeline.py")


def unhinted(function, marks, skipped):
    """Parameters and a result without the hints that say data types and dims."""
    if not all(is_mark(it, marks) for it in function.decorator_list):
        return
    name, of = function.name, function.args
    for stars, it in (("*", of.vararg), ("**", of.kwarg)):
        if it:
            yield it.lineno, (
                f"parameter `{stars}{it.arg}` of `{name}` is no input: write one parameter by name "
                "for each input of the model"
            )
    for it in (of.posonlyargs + of.args)[skipped:] + of.kwonlyargs:
        if it.annotation is None:
            yield it.lineno, (
                f"parameter `{it.arg}` of `{name}` has no type hint, which says the data type and "
                f'dims of the input: write `{it.arg}: str`, `{it.arg}: Array["FP32", 16]` or another'
            )
    why = None
    if function.returns is None:
        why = "has no type hint for its result, which says the model's outputs"
    elif isinstance(function.returns, ast.Constant) and function.returns.value is None:
        why = "says `-> None`, and None is no output"
    if why is not None:
        yield (function.returns or function).lineno, (
            f'`{name}` {why}: write `-> str:`, `-> Array["FP32", 2]:` or another'
        )


def contradictions(function, marks, skipped, names, config):
    """Where hints are not what the config says; `names` are bound in the file."""
    if not all(is_mark(it, marks) for it in function.decorator_list):
        return
    of = function.args
    given = {it.arg: it.annotation for it in (of.posonlyargs + of.args)[skipped:] + of.kwonlyargs}
    results, is_all = result_fields(function.returns, names)
    for known, written, is_closed, kind in (
        (given, config["inputs"], not (of.vararg or of.kwarg), "parameter"),
        (results, config["outputs"], is_all, "output"),
    ):
        for name, (wanted, dims, what) in written.items():
            if name not in known:
                # A control input need not be read.
                if is_closed and what != "control input":
                    yield function.lineno, (
                        f"`{function.name}` has no {kind} `{name}`, which the config has as {what}"
                    )
                continue
            hint = known[name]
            said = hint and data_type(hint, names)
            if said and f"TYPE_{said}" != wanted:
                yield hint.lineno, (
                    f"the hint of `{name}` is {ast.unparse(hint)}, which is TYPE_{said}, but the "
                    f"config says that {what} `{name}` is {wanted}"
                )
                continue
            ours = known_dims(hint) if said else None
            if ours and dims and not fits(dims, ours):
                yield hint.lineno, (
                    f"the hint of `{name}` is {ast.unparse(hint)}, which has dims {ours}, but the "
                    f"config says that {what} `{name}` has dims {dims}"
                )


def other_batch(decorators, written):
    """Where `@model` and the config say how large a batch may be, and not the same."""
    for mark in decorators:
        for it in getattr(mark, "keywords", ()):
            is_number = isinstance(it.value, ast.Constant) and it.arg == "max_batch_size"
            if is_number and written and it.value.value != written:
                yield mark.lineno, (
                    f"@model says max_batch_size={it.value.value}, but the config says "
                    f"`max_batch_size: {written}`"
                )


def result_fields(hint, names):
    """Outputs that the hint of a result says, by name, and whether these are all."""
    if isinstance(hint, ast.Subscript) and last_name(hint.value) in STREAMS:
        hint = hint.slice.elts[0] if isinstance(hint.slice, ast.Tuple) else hint.slice
    if hint is not None and data_type(hint, names):
        return {"output": hint}, True
    record = names.get(hint.id) if isinstance(hint, ast.Name) else None
    if not isinstance(record, ast.ClassDef):
        return {}, False
    fields = [it for it in record.body if isinstance(it, ast.AnnAssign)]
    is_all = all(last_name(it) in RECORDS for it in record.bases)
    return {it.target.id: it.annotation for it in fields if isinstance(it.target, ast.Name)}, is_all


def data_type(hint, names):
    """The data type that a hint says, as FP32; `None` where only running the file tells."""
    if isinstance(hint, ast.Constant) and isinstance(hint.value, str):
        try:
            hint = ast.parse(hint.value, mode="eval").body
        except SyntaxError:
            return None
    if isinstance(hint, ast.Name):
        return None if hint.id in names else PLAIN_TYPES.get(hint.id)
    if isinstance(hint, ast.Attribute):
        return named_type(hint.attr) if last_name(hint.value) in ("np", "numpy") else None
    if isinstance(hint, ast.BinOp):
        # `T | None`.
        sides = [it for it in (hint.left, hint.right) if getattr(it, "value", it) is not None]
        return data_type(sides[0], names) if len(sides) == 1 else None
    if not isinstance(hint, ast.Subscript):
        return None
    if last_name(hint.value) in AROUND:
        return data_type(hint.slice, names)
    if last_name(hint.value) != "Array":
        return None
    first = hint.slice.elts[0] if isinstance(hint.slice, ast.Tuple) else hint.slice
    is_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
    return named_type(first.value) if is_text else data_type(first, names)


def known_dims(hint):
    """The dims of a hint that is a value or an array with its dims; `None` of others."""
    if isinstance(hint, (ast.Name, ast.Attribute)):
        return [1]
    if not isinstance(hint, ast.Subscript) or last_name(hint.value) != "Array":
        return None
    dims = getattr(hint.slice, "elts", ())[1:]
    if not all(isinstance(it, ast.Constant) or ast.unparse(it) == "-1" for it in dims):
        return None
    return [getattr(it, "value", None) or -1 for it in dims]


def fits(dims, hint):
    """Is what the config has among the sizes that a hint allows?"""
    return len(dims) == len(hint) and all(it in (-1, got) for got, it in zip(dims, hint))


def named_type(name):
    """FP32 of `FP32`, `TYPE_FP32` and `float32`."""
    name = name.upper().removeprefix("TYPE_")
    name = SYNONYMS.get(name, name)
    return name if name in DATA_TYPES else None


def last_name(node):
    """`b` of `a.b` and of `b`."""
    return getattr(node, "attr", getattr(node, "id", None))


def is_whole(node, marks=()):
    """Is it a class of which everything is written in it?"""
    is_plain = isinstance(node, ast.ClassDef) and not node.bases and not node.keywords
    return is_plain and all(is_mark(it, marks) for it in node.decorator_list)


def mark_names(body):
    """What `@model` is called in this file; empty where troupe is not imported for it."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from ("model" for it in node.names if it.name.split(".")[0] == "troupe")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "troupe":
            yield from (it.asname or it.name for it in node.names if it.name == "model")


def is_mark(decorator, marks):
    """Is it `@model`, `@model(…)` or `@troupe.model`?"""
    made = decorator.func if isinstance(decorator, ast.Call) else decorator
    return last_name(made) in marks


def bound(body):
    """Names that statements bind, with the statement; also below `if`, `try`, `with` and loops."""
    for node in body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name, node
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((it.asname or it.name.split(".")[0], node) for it in node.names)
            continue
        for it in ast.walk(node):
            if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store):
                yield it.id, it
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            for inner in getattr(node, part, ()):
                is_part = part in ("handlers", "cases")
                yield from bound(inner.body if is_part else [inner])


main(*sys.argv[1:])
