"""Tests of models and ensembles: `load` calls a model in this process, `serve` starts a server.

    model = troupe.testing.load("model_repository/add_sub")
    assert model(INPUT0=[1, 2], INPUT1=[3, 4]).OUTPUT0.tolist() == [4, 6]

    with troupe.testing.serve("model_repository") as server:
        server.infer("ensemble", INPUT0=[5, 6, 7, 8], INPUT1=[1, 2, 3, 4])

Neither opens a port.
"""
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time

import numpy as np

from .errors import ModelError
from .hints import numpy_type
from .in_process import Model
from .tensors import Outputs, datatype, inputs

__all__ = ["ModelError", "Outputs", "load", "serve"]

# Lines of the log that an error about the server shows.
LOG_LINES = 15
STOP_SECONDS = 30
HEADER = "Inference-Header-Content-Length"


def load(folder, version=None, models=None, parameters=None):
    """A Python model, plain or a `TritonPythonModel`, to be called in this process.

    `folder` is the model's: `model_repository/add_sub`. The result is called with inputs by name
    and gives outputs by name, a list of them if the model streams. `models` stands in for the
    models that it calls: functions by name, which get arrays and give a dict of arrays.
    `parameters` are added to those of its config.
    """
    return Model(folder, version, models, parameters)


class serve:
    """A server over model repositories, on a Unix socket of its own; for `with`.

    `binary` is the program: the default is `TROUPE_BIN` in the environment, else `troupe` on the
    PATH. `flags` are added to its command line. `load_seconds` is how long it may take to load.
    """

    def __init__(self, *repositories, flags=(), binary=None, load_seconds=600):
        self.repositories = repositories
        self.flags = flags
        self.binary = binary or os.environ.get("TROUPE_BIN") or shutil.which("troupe")
        self.load_seconds = load_seconds
        self.configs = {}

    def __enter__(self):
        if not self.binary:
            raise ModelError("no program `troupe` on the PATH: set TROUPE_BIN to where it is")
        self.folder = tempfile.mkdtemp(prefix="troupe-")
        self.socket = os.path.join(self.folder, "http")
        self.log = os.path.join(self.folder, "log")
        command = [self.binary, f"--http-address=unix:{self.socket}"]
        command += ["--allow-grpc=false", "--allow-metrics=false"]
        command += [f"--model-repository={it}" for it in self.repositories]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, *self.flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def infer(self, model, **values):
        """Outputs by name; an error of the server is raised as `ModelError`."""
        arrays = inputs(self.config(model), values)
        types = {it["name"]: datatype(it) for it in self.configs[model]["input"]}
        bodies = {name: packed(types[name], array) for name, array in arrays.items()}
        described = [
            {
                "name": name,
                "datatype": types[name],
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(bodies[name])},
            }
            for name, array in arrays.items()
        ]
        head = {"inputs": described, "parameters": {"binary_data_output": True}}
        head = json.dumps(head).encode()
        answer, body = self._ask(
            "POST", f"/v2/models/{model}/infer", head + b"".join(bodies.values()),
            {HEADER: str(len(head))},
        )
        size = int(answer.getheader(HEADER, len(body)))
        return unpacked(json.loads(body[:size]), body[size:])

    def config(self, model):
        """The config of a model, as the server has it."""
        if model not in self.configs:
            self.configs[model] = json.loads(self._ask("GET", f"/v2/models/{model}/config")[1])
        return self.configs[model]

    def _ask(self, method, path, body=b"", headers=None):
        connection = UnixConnection(self.socket)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            try:
                text = json.loads(data)["error"]
            except (ValueError, KeyError, TypeError):
                text = data.decode(errors="replace") or f"status {answer.status}"
            raise ModelError(text)
        return answer, data

    def _wait(self):
        deadline = time.monotonic() + self.load_seconds
        while True:
            if self.process.poll() is not None:
                raise ModelError(f"the server ended:\n{self._log()}")
            try:
                self._ask("GET", "/v2/health/ready")
                return
            except (OSError, ModelError, http.client.HTTPException):
                pass
            if deadline < time.monotonic():
                raise ModelError(f"not ready after {self.load_seconds} seconds:\n{self._log()}")
            time.sleep(0.02)

    def _log(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-LOG_LINES:])


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost")
        self.socket_path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.socket_path)


def packed(kind, array):
    """The bytes of a tensor on the wire."""
    if kind != "BYTES":
        return np.ascontiguousarray(array).tobytes()
    return b"".join(struct.pack("<I", len(it)) + it for it in array.ravel().tolist())


def unpacked(answer, data):
    """The tensors of an answer."""
    found = Outputs()
    for output in answer["outputs"]:
        size = output["parameters"]["binary_data_size"]
        one, data = data[:size], data[size:]
        if output["datatype"] == "BYTES":
            elements = []
            while one:
                end = 4 + struct.unpack_from("<I", one)[0]
                elements.append(one[4:end])
                one = one[end:]
            array = np.empty(len(elements), dtype=np.object_)
            array[:] = elements
        else:
            dtype = numpy_type(output["datatype"], f"output `{output['name']}`")
            array = np.frombuffer(one, dtype)
        found[output["name"]] = array.reshape(output["shape"])
    return found
