"""The fork server of one interpreter: imports numpy once, forks a worker per order.

Started with its control socket (SOCK_SEQPACKET) as standard input. It has no threads of its own,
and ends with the server: then the other end of that socket closes.
"""
import _socket
import gc
import json
import os
import sys
from importlib.machinery import ModuleSpec

HELLO = b"H"


class Sources:
    """Finds the backend's modules in memory: first of all finders, so that no file hides them."""

    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        is_package = any(it.startswith(f"{name}.") for it in self.sources)
        return ModuleSpec(name, self, origin=f"<troupe>/{name}.py", is_package=is_package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__file__ = module.__spec__.origin
        source = self.sources[module.__name__]
        exec(compile(source, module.__file__, "exec"), module.__dict__)


def main(sources):
    # `-c` puts the working directory first; a model must not import from there by accident.
    sys.path[:] = [path for path in sys.path if path]
    control = _socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    hello = {"version": sys.version, "prefix": sys.prefix, "executable": sys.executable}
    try:
        import numpy  # noqa: F401
    except BaseException as error:
        hello["error"] = f"{type(error).__name__}: {error}"
        control.send(HELLO + json.dumps(hello).encode())
        return
    sys.meta_path.insert(0, Sources(sources))
    import triton_python_backend_utils
    import troupe_children
    import troupe_worker
    from troupe_title import set_title

    set_title("fork server")
    sys.modules["c_python_backend_utils"] = triton_python_backend_utils
    control.send(HELLO + json.dumps(hello).encode())
    gc.collect()
    gc.freeze()
    troupe_children.Children(control, troupe_worker.main).serve()


main(SOURCES)  # noqa: F821  (given by whoever executes this file)
