"""Mistakes in models and pipelines: what is wrong, in which line, and what to write instead."""
import inspect
import sys


class ModelError(Exception):
    """A mistake of a model or a pipeline, told with its place in the user's file."""

    # Whoever prints it leaves out the traceback: the text names the line.
    is_plain = True


def caller_place(depth=2):
    """File and line of the caller's caller."""
    frame = sys._getframe(depth)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def did_you_mean(name, known):
    """`, did you mean …?` if another name that is known is close."""
    import difflib

    others = [str(it) for it in known if str(it) != str(name)]
    close = difflib.get_close_matches(str(name), others, 1)
    return f", did you mean `{close[0]}`?" if close else ""


def listed(names):
    """Names for a text, each as code."""
    return ", ".join(f"`{name}`" for name in names) or "none"


def check_inputs(model, known, given):
    """Has the model the inputs that are given, and needs no other?

    `model` is how the text names it, `known` are the inputs of its config by name.
    """
    for name in given:
        if name not in known:
            raise ModelError(
                f"{model} has no input `{name}`{did_you_mean(name, known)}; its inputs are "
                f"{listed(known)}"
            )
    missing = [name for name, it in known.items() if name not in given and not it.get("optional")]
    if missing:
        raise ModelError(f"{model} is called without its input {listed(missing)}")


class Lines:
    """Lines of one function in its file, read only when there is a mistake to tell."""

    def __init__(self, function):
        # Below decorators of others, which have files of their own.
        function = inspect.unwrap(function)
        code = getattr(function, "__code__", None)
        self.file = code.co_filename if code else getattr(function, "__module__", "?")
        self.first = code.co_firstlineno if code else 1
        self.name = getattr(function, "__name__", "?")

    def _definition(self):
        import ast

        try:
            with open(self.file, encoding="utf-8") as file:
                tree = ast.parse(file.read())
        except (OSError, SyntaxError, ValueError):
            return None
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(tree):
            if not isinstance(node, kinds) or node.name != self.name:
                continue
            lines = [node.lineno, *(it.lineno for it in node.decorator_list)]
            if self.first in lines:
                return node
        return None

    def definition(self):
        """Where the function is defined."""
        node = self._definition()
        return f"{self.file}:{node.lineno if node else self.first}"

    def parameter(self, name):
        """Where one of its parameters is."""
        node = self._definition()
        found = node.args if node else None
        every = [*found.args, *found.kwonlyargs, *found.posonlyargs] if found else []
        every += [it for it in (found.vararg, found.kwarg) if it] if found else []
        line = next((it.lineno for it in every if it.arg == name), None)
        return f"{self.file}:{line or (node.lineno if node else self.first)}"

    def result(self):
        """Where the hint of its result is, or would be."""
        node = self._definition()
        at = node.returns if node and node.returns else node
        return f"{self.file}:{at.lineno if at else self.first}"
