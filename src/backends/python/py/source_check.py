"""Looks at a model's file without running it: it parses, and the modules it imports are there."""
import sys

# Nothing is imported from the current folder, which may be the one that is checked.
sys.path = [it for it in sys.path if it]

import ast
import json
import os
from importlib.util import find_spec

# What a worker has beside what is installed.
OURS = {"numpy", "triton_python_backend_utils", "troupe"}


def problem(path):
    """Why the file cannot be imported, or None, and its tree."""
    try:
        with open(path, "rb") as file:
            return None, ast.parse(file.read(), path)
    except SyntaxError as error:
        line = (error.text or "").strip()
        text = f"{type(error).__name__}: {error.msg} ({path}, line {error.lineno})"
        return text + (f": {line}" if line else ""), None
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}", None


def imports(tree):
    """Modules that are imported whatever happens, with their lines."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name.split(".")[0], node.lineno
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0], node.lineno


def is_there(name, folders):
    if name in OURS or name in sys.builtin_module_names:
        return True
    if any(os.path.exists(os.path.join(it, name + end)) for it in folders for end in ("", ".py")):
        return True
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def main(path, *folders):
    text, tree = problem(path)
    missing = []
    if tree is not None:
        known = {}
        for name, line in imports(tree):
            if name not in known:
                known[name] = is_there(name, folders)
                if not known[name]:
                    missing.append([name, line])
    print(json.dumps({"problem": text, "missing": missing}))


main(*sys.argv[1:])
