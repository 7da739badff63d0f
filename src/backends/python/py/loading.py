"""Loading a model: imports its file, limits memory, completes its configuration."""
import json
import os
import resource
import signal
import sys
from importlib.util import module_from_spec, spec_from_file_location

import triton_python_backend_utils as pb
from troupe_failures import PlainError

# How long the function of a pipeline may run; the server ends a worker that does not come to this.
TRACE_SECONDS = 5


def load_module(path, model_dir, version, snapshot=()):
    """Imports the file as `<version>.<stem>`, so that imports of its siblings work; those of the
    snapshot as they are there."""
    folder, file = os.path.split(path)
    name = f"{version}.{file[:-3]}"
    if name in sys.modules:
        # This process was forked from the model's template.
        return sys.modules[name]
    sys.path += [folder, model_dir]
    package = type(sys)(version)
    package.__path__ = [folder]
    sys.modules[version] = package
    loader = None
    if snapshot:
        import troupe_snapshot

        troupe_snapshot.install(snapshot)
        loader = troupe_snapshot.Loader(name, path)
    spec = spec_from_file_location(name, path, loader=loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    # A cached .pyc is trusted by its time in seconds: a quick reload would run the old file.
    is_writing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = is_writing
    return module


def model_class(module, config, model_dir):
    """`TritonPythonModel` of the file, or one made of its function or class."""
    if hasattr(module, "TritonPythonModel"):
        return module.TritonPythonModel
    from troupe.adapter import adapt

    return adapt(module, json.loads(config), model_dir)


def trace_pipeline(module, configs):
    """The ensemble that a pipeline's function is, as JSON."""
    from troupe.pipelines import place
    from troupe.tracing import trace

    def is_late(*_):
        raise PlainError(
            f"{place()}: the pipeline has not returned after {TRACE_SECONDS} s; it only calls models "
            "and wires their outputs, and models do the work"
        )

    signal.signal(signal.SIGALRM, is_late)
    signal.alarm(TRACE_SECONDS)
    try:
        return trace(module, configs)
    finally:
        signal.alarm(0)


def limit_memory(limit):
    """No more address space than `limit` bytes; what the interpreter has counts."""
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    if limit <= taken:
        raise PlainError(
            f"MEMORY_LIMIT_BYTES is {limit}, and the interpreter with numpy alone has {taken} bytes "
            "of address space."
        )
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def complete(model, name, config):
    """The completed configuration as JSON; None if the model does not complete it."""
    if not hasattr(model, "auto_complete_config"):
        return None
    completed = model.auto_complete_config(pb.ModelConfig(config))
    if not isinstance(completed, pb.ModelConfig):
        raise PlainError(
            f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig "
            "object."
        )
    return completed.to_json()
