"""Starts and stops the servers, and asks them what only they know."""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import processes

TRITON_WHEEL = "nvidia-pytriton==0.7.0"  # holds the tritonserver of release 24.10
LOOP_PACKAGES = ("numpy", "onnxruntime==1.31.1", "opencv-python-headless")
PATIENCE = 60
#: For a server that makes a Python environment first.
LONG_PATIENCE = 600


class Failed(Exception):
    """A server did not do what is needed; the text says which and what."""


class Server:
    """A running server. Stops its own process only, and that for certain."""

    grpc_scheme = "http"

    def __init__(self, name, command, environment, log):
        self.name, self.log = name, log
        self.http, self.grpc, self.metrics = ports = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        for flag, address in zip(("http", "grpc", "metrics"), ports):
            host, port = address.split(":")
            command = [*command, f"--{flag}-address={host}", f"--{flag}-port={port}"]
        self.begun = time.perf_counter()
        with open(log, "ab") as output:
            # A group of its own: Ctrl-C is for this script, which then stops its servers.
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                            stdout=output, stderr=output, start_new_session=True)

    @property
    def pid(self):
        return self.process.pid

    def wait_ready(self, seconds=PATIENCE):
        """Seconds from start to ready."""
        while time.perf_counter() - self.begun < seconds:
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended with {self.process.returncode}, see {self.log}")
            try:
                if self.get("/v2/health/ready")[0] == 200:
                    return time.perf_counter() - self.begun
            except OSError:
                pass
            time.sleep(0.002)
        raise Failed(f"{self.name} was not ready after {seconds} s, see {self.log}")

    def get(self, path):
        return self.ask("GET", path)[:2]

    def ask(self, method, path, body=None, headers=()):
        """Status, body and headers of one answer."""
        connection = http.client.HTTPConnection(self.http, timeout=PATIENCE)
        try:
            connection.request(method, path, body, dict(headers))
            reply = connection.getresponse()
            return reply.status, reply.read(), reply.headers
        finally:
            connection.close()

    def successes(self, model):
        """How many requests of a model went well, by the server's own count."""
        status, body = self.get(f"/v2/models/{model}/stats")
        if status != 200:
            raise Failed(f"{self.name} has no statistics of {model}: {body[:200]}")
        versions = json.loads(body)["model_stats"]
        return sum(int(it["inference_stats"]["success"].get("count", 0)) for it in versions)

    def ask_metrics(self):
        """The page of metrics."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=PATIENCE) as page:
            return page.read().decode()

    def stop(self):
        if self.process.poll() is None:
            # Workers of a server that has to be killed do not all notice.
            pids = processes.tree(self.pid)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                for pid in pids:
                    _kill(pid)
                self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def start_troupe(binary, repository, how, log):
    """troupe with an interpreter for Python models, the same as Triton's, and more flags."""
    python, flags = how
    if not os.access(binary, os.X_OK):
        raise Failed(f"{binary} is missing: cargo build --profile=dist, or --troupe=PATH")
    command = [binary, f"--model-repository={repository}", *flags]
    if python:
        command.append(f"--backend-config=python,python={python}")
    return Server("troupe", command, dict(os.environ), log)


def start_triton(home, repository, log, flags=()):
    """The real Triton out of its wheel."""
    packages, root = triton_paths(home)
    environment = dict(os.environ)
    # Its stub embeds libpython and takes its packages from the python3 on PATH.
    for key, value in (("PATH", f"{home}/venv/bin"), ("PYTHONPATH", packages),
                       ("LD_LIBRARY_PATH", f"{packages}/nvidia_pytriton.libs")):
        environment[key] = ":".join(filter(None, [value, environment.get(key)]))
    command = [f"{root}/bin/tritonserver", f"--model-repository={repository}",
               f"--backend-directory={root}/backends", f"--cache-directory={root}/caches",
               "--allow-gpu-metrics=false", *flags]
    return Server("triton", command, environment, log)


def triton_python(home):
    return os.path.join(home, "venv", "bin", "python")


def triton_paths(home):
    """Where the packages of its environment are, and where the server itself is."""
    if not os.access(triton_python(home), os.X_OK):
        raise Failed(f"no Triton in {home}: run `compare.py setup --triton={home}` first")
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    done = subprocess.run([triton_python(home), "-c", ask], stdout=subprocess.PIPE, text=True,
                          check=True)
    packages = done.stdout.strip()
    return packages, os.path.join(packages, "pytriton", "tritonserver")


def loop_python(home):
    """The interpreter of the bare loops, which Triton's packages would be too old for."""
    return os.path.join(home, "loop", "bin", "python")


def set_up_loop(home):
    """The packages of the bare loops, and onnxruntime for Triton's Python models."""
    if not os.path.exists(loop_python(home)):
        subprocess.run([sys.executable, "-m", "venv", f"{home}/loop"], check=True)
    _install(loop_python(home), *LOOP_PACKAGES)
    _install(triton_python(home), LOOP_PACKAGES[1])


def set_up_triton(home):
    """Downloads the wheel into an environment of its own and puts its Python stub in place."""
    if not os.path.exists(triton_python(home)):
        print(f"making an environment in {home}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", f"{home}/venv"], check=True)
    _install(triton_python(home), TRITON_WHEEL)
    _, root = triton_paths(home)
    version = "%d.%d" % sys.version_info[:2]
    stub = f"{root}/python_backend_stubs/{version}/triton_python_backend_stub"
    if not os.path.exists(stub):
        known = ", ".join(sorted(os.listdir(f"{root}/python_backend_stubs")))
        raise Failed(f"the wheel has no stub for Python {version}, only for {known}")
    place = f"{root}/backends/python/triton_python_backend_stub"
    if os.path.lexists(place):
        os.unlink(place)
    # The stub finds its libraries by a relative path that is right in both folders.
    os.symlink(os.path.relpath(stub, os.path.dirname(place)), place)
    libraries = subprocess.run(["ldd", stub], stdout=subprocess.PIPE, text=True, check=True)
    if "libpython" in libraries.stdout and "not found" in libraries.stdout:
        raise Failed(f"the stub needs libpython{version}: install it with the system's packages")
    for tool in ("wrk", "h2load", "nghttp"):
        if not shutil.which(tool):
            print(f"{tool} is missing: install wrk and nghttp2-client", file=sys.stderr)


def _install(python, *packages):
    print(f"installing {', '.join(packages)}", file=sys.stderr)
    subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
