"""Calls a model in this very process: a stand-in for the worker, with the worker's own modules."""
import asyncio
import json
import sys
import threading
from importlib.util import spec_from_file_location
from itertools import count
from pathlib import Path

import numpy as np

from . import config_text, tensors
from .errors import ModelError, listed

HERE = Path(__file__).resolve().parent
# As they are installed, and in a checkout.
FOLDERS = (HERE / "worker", HERE.parent.parent / "backends" / "python" / "py")
PB_UTILS = "triton_python_backend_utils"
# How long a model may take that answers from threads of its own.
ANSWER_SECONDS = 60
FINAL = 1
numbers = count(1)
SERVE = "`troupe.testing.serve` runs models of every kind, with their repository"


class WorkerModules:
    """Finds the modules of the server's workers under the names they have there."""

    def find_spec(self, name, path=None, target=None):
        if name != PB_UTILS and not name.startswith("troupe_"):
            return None
        file = f"{name if name == PB_UTILS else name[len('troupe_'):]}.py"
        found = next((it / file for it in FOLDERS if (it / file).is_file()), None)
        return found and spec_from_file_location(name, found)


def pb_utils():
    """What models import as `triton_python_backend_utils`."""
    if not any(isinstance(it, WorkerModules) for it in sys.meta_path):
        sys.meta_path.insert(0, WorkerModules())
    import triton_python_backend_utils

    return triton_python_backend_utils


class StandIn:
    """What `pb_utils` asks of its worker."""

    def __init__(self, name, version, folder, models):
        self.model_name = name
        self.model_version = version
        self.version_dir = str(folder)
        self.models = models
        self.frames = self.calls = self
        self.is_decoupled = False
        self.outputs = []

    def log(self, level, place, message):
        """What the model logs."""
        print(f"{place}] {message}", file=sys.stderr)

    def exec(self, request, decoupled=False):
        """A call of another model: what the test gave under its name."""
        pb = pb_utils()
        names, name, _ = request._made
        if name not in self.models:
            raise pb.TritonModelException(
                f"the model calls model '{name}', which the test has not: "
                f"load(…, models={{'{name}': function}}); it has {listed(self.models)}"
            )
        found = self.models[name](**{it.name(): it.as_numpy() for it in request.inputs()})
        wanted = set(names) or found.keys()
        found = [pb.Tensor(it, np.asarray(found[it])) for it in found if it in wanted]
        response = pb.InferenceResponse(found)
        return iter([response]) if decoupled else response

    async def async_exec(self, request, decoupled=False):
        """The same for coroutines."""
        return self.exec(request, decoupled)

    def change(self, *_):
        """Loads and unloads are for a server."""
        raise ModelError("only a server loads models: use troupe.testing.serve")


class Sender:
    """Keeps the responses to a request."""

    def __init__(self):
        self.responses = []
        self.is_over = threading.Event()

    def is_cancelled(self):
        return False

    def send(self, response=None, flags=0):
        if response is not None:
            self.responses.append(response)
        if flags == FINAL:
            self.is_over.set()


class Model:
    """A loaded model; call it with its inputs by name."""

    def __init__(self, folder, version=None, models=None, parameters=None):
        pb = pb_utils()
        import troupe_loading as loading

        folder = Path(folder).resolve()
        config_file = folder / "config.pbtxt"
        text = config_file.read_text(encoding="utf-8") if config_file.is_file() else ""
        config = config_text.read(text, config_file)
        config.update(name=folder.name, backend="python")
        for key, value in (parameters or {}).items():
            config.setdefault("parameters", {})[key] = {"string_value": str(value)}
        version = version or newest(folder)
        file = folder / str(version) / config.get("default_model_filename", "model.py")
        if not file.is_file():
            raise ModelError(f"{file} does not exist, and only Python models run in this process: {SERVE}")
        self.worker = StandIn(folder.name, version, file.parent, models or {})
        self.become_current()
        # A package of its own: many tests load many models, whose files have one name.
        module = loading.load_module(str(file), str(folder), f"{folder.name}_{next(numbers)}")
        model = loading.model_class(module, json.dumps(config), str(folder))
        completed = loading.complete(model, folder.name, json.dumps(config))
        self.config = json.loads(completed) if completed else config
        policy = self.config.get("model_transaction_policy") or {}
        self.worker.is_decoupled = bool(policy.get("decoupled"))
        self.worker.outputs = [it["name"] for it in self.config.get("output", ())]
        self.loop = None
        self.pb = pb
        self.model = model()
        if hasattr(self.model, "initialize"):
            self.awaited(self.model.initialize(self.arguments(folder, version)))

    def arguments(self, folder, version):
        """What `initialize` is told, as a server tells it."""
        return {
            "model_config": json.dumps(self.config),
            "model_instance_kind": "CPU",
            "model_instance_name": f"{folder.name}_0",
            "model_instance_device_id": "0",
            "model_repository": str(folder),
            "model_version": str(version),
            "model_name": folder.name,
        }

    def become_current(self):
        """Requests made from here on are of this model."""
        import troupe_requests

        troupe_requests.worker = self.worker

    def __call__(self, *only, **inputs):
        """Outputs by name; of a model that streams a list of them."""
        if only:
            every = self.config.get("input", ())
            names = [it["name"] for it in every if len(every) == 1 or not it.get("optional")]
            if inputs or len(only) != 1 or len(names) != 1:
                raise ModelError(f"give inputs by name; they are {listed(names)}")
            inputs = {names[0]: only[0]}
        return self.batch([inputs])[0]

    def batch(self, requests):
        """Calls `execute` once with several requests, as a server does that joins them."""
        self.become_current()
        made = [self.request(inputs) for inputs in requests]
        responses = self.awaited(self.model.execute(made))
        if self.worker.is_decoupled:
            return [self.stream(it.sender) for it in made]
        if not isinstance(responses, list) or len(responses) != len(made):
            raise ModelError(f"`execute` returned {responses!r}, expected {len(made)} responses")
        return [self.outputs(it) for it in responses]

    def request(self, inputs):
        """A request, as `execute` gets it."""
        pb = self.pb

        class Request(pb.InferenceRequest):
            sender = None

            def get_response_sender(self):
                self.sender = self.sender or Sender()
                return self.sender

        arrays = tensors.inputs(self.config, inputs)
        made = [pb.Tensor(name, array) for name, array in arrays.items()]
        names = self.worker.outputs
        return Request(inputs=made, model_name=self.worker.model_name, requested_output_names=names)

    def stream(self, sender):
        """What a stream has sent, once it has ended."""
        if sender is None or not sender.is_over.wait(ANSWER_SECONDS):
            raise ModelError("the stream was not ended: send flags=TRITONSERVER_RESPONSE_COMPLETE_FINAL")
        return [self.outputs(it) for it in sender.responses]

    def outputs(self, response):
        """Arrays by name; raises what the model answered as an error."""
        if response.has_error():
            raise ModelError(response.error().message())
        found = {it.name(): it.as_numpy() for it in response.output_tensors()}
        missing = [it for it in self.worker.outputs if it not in found]
        if missing:
            raise ModelError(f"the response has no output {listed(missing)}; it has {listed(found)}")
        return tensors.Outputs(found)

    def awaited(self, result):
        """The result of a coroutine."""
        if not hasattr(result, "__await__"):
            return result
        self.loop = self.loop or asyncio.new_event_loop()
        return self.loop.run_until_complete(result)

    def close(self):
        """Ends the model, as an unload does."""
        if hasattr(self.model, "finalize"):
            self.awaited(self.model.finalize())
        if self.loop is not None:
            self.loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def newest(folder):
    """The highest version in a model's folder."""
    found = [int(it.name) for it in folder.iterdir() if it.name.isdigit() and it.is_dir()]
    if (folder / "pipeline.py").is_file():
        raise ModelError(f"{folder} is a pipeline, which needs its models: {SERVE}")
    if not found:
        raise ModelError(f"{folder} has no folder of a version: make {folder / '1'}")
    return max(found)
