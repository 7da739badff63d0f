"""What the doors are raced in: large tensors over gRPC, TLS, and tensors in shared memory."""
import contextlib
import dataclasses
import json
import mmap
import os
import subprocess
import tempfile

import cases
import report
import wire
from race import Race, Side

MIB = 1 << 20
#: Large tensors over gRPC, whose client is h2load: (case, clients, goals).
LARGE = [
    *((name, clients, (cases.Goal(cases.CPU, cases.BELOW, 0.33),))
      for name in ("identity_1m", "identity_16m") for clients in (1, 4)),
    *((name, clients, (cases.Goal(cases.RATE, cases.ABOVE, times),))
      for name, times in (("chain8_1m", 4), ("chain8_16m", 6)) for clients in (1, 4)),
]
#: troupe's gRPC beside its HTTP.
BY_DOOR = (cases.Goal(cases.CPU, cases.BELOW, 1.2),)
TLS = [("ensemble", clients, (cases.Goal(cases.RATE, cases.ABOVE, 4),)) for clients in (16, 64)]
SHM = (cases.Goal(cases.RATE, cases.ABOVE, 10),)


class Over(Side):
    """A side that is asked over one protocol, whatever the race says."""

    protocol = "http"

    def measure(self, protocol, clients, seconds):
        return super().measure(self.protocol, clients, seconds)

    def answer(self, protocol):
        return super().answer(self.protocol)


@dataclasses.dataclass(frozen=True)
class Region(cases.Case):
    """A case whose one input and output lie in a region of shared memory, one behind the other."""
    region: str = ""

    def grpc(self):
        (name, kind, shape, raw), = self.requests()[0]
        return wire.grpc_request_in_region(self.model, (name, kind, shape, len(raw)), "OUTPUT0",
                                           self.region)

    def understand(self, answers):
        """What the server wrote into the region; it is gone then, for whoever comes next."""
        (_, kind, shape, raw), = self.requests()[0]
        with open(f"/dev/shm/{self.region}", "r+b") as file, mmap.mmap(file.fileno(), 0) as region:
            written = region[len(raw):]
            region[len(raw):] = bytes(len(raw))
        return {"OUTPUT0": (kind, tuple(shape), written)}


def run(options, start):
    """`start` starts a server by name and flags; `options.wants` says which rows."""
    results = []
    with contextlib.ExitStack() as stack:
        sides = [(name, stack.enter_context(start(name, ()))) for name in ("troupe", "triton")]
        for _, server in sides:
            server.wait_ready()
        race, wanted = Race(options), [row for row in LARGE if options.wants(row[0], row[1])]
        for name, clients, goals in wanted:
            pair = [Side(side, server, cases.CASES[name]) for side, server in sides]
            results.append(race.run(pair, "grpc", clients, goals))
            ours = sides[0][1]
            pair = [Side("gRPC", ours, cases.CASES[name]), Over("HTTP", ours, cases.CASES[name])]
            results.append(race.run(pair, "grpc", clients, BY_DOOR))
    results += encrypted(options, start) + shared(options, start)
    return report.races(results, options.out, "doors") if results else ""


def encrypted(options, start):
    """Small tensors over gRPC with TLS, a connection for each client."""
    wanted = [row for row in TLS if options.wants(f"tls_{row[0]}", row[1])]
    if not wanted:
        return []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="troupe-bench-"))
        cert, key = certificate(folder)
        flags = ("--grpc-use-ssl=true", f"--grpc-server-cert={cert}", f"--grpc-server-key={key}")
        sides = [(name, stack.enter_context(start(name, flags))) for name in ("troupe", "triton")]
        for _, server in sides:
            server.grpc_scheme = "https"
            server.wait_ready()
        race, results = Race(options), []
        for name, clients, goals in wanted:
            pair = [Side(side, server, cases.CASES[name]) for side, server in sides]
            result = race.run(pair, "grpc", clients, goals)
            results.append(dataclasses.replace(result, case=f"tls_{name}"))
        return results


def shared(options, start):
    """16 MiB in a region of shared memory, which the request only names."""
    wanted = [clients for clients in (1, 4) if options.wants("shm_identity_16m", clients)]
    if not wanted:
        return []
    plain, region = cases.CASES["identity_16m"], f"troupe-bench-{os.getpid()}"
    case = Region(plain.name, plain.model, plain.inputs, region=region)
    (*_, raw), = case.requests()[0]
    with contextlib.ExitStack() as stack:
        with open(f"/dev/shm/{region}", "wb") as file:
            file.write(raw + bytes(len(raw)))
        stack.callback(os.unlink, f"/dev/shm/{region}")
        flags = {"troupe": ("--allow-client-shm=true",), "triton": ()}
        sides = [(name, stack.enter_context(start(name, flags[name]))) for name in flags]
        for _, server in sides:
            server.wait_ready()
            register(server, region, 2 * len(raw))
        race, results = Race(options), []
        for clients in wanted:
            pair = [Side(side, server, case) for side, server in sides]
            result = race.run(pair, "grpc", clients, SHM)
            results.append(dataclasses.replace(result, case="shm_identity_16m"))
        return results


def register(server, region, size):
    """Tells a server of a region."""
    body = json.dumps({"key": f"/{region}", "offset": 0, "byte_size": size})
    path = f"/v2/systemsharedmemory/region/{region}/register"
    status, answer, _ = server.ask("POST", path, body)
    if status != 200:
        raise ValueError(f"{server.name} does not take the region: {status} {answer[:200]}")


def certificate(folder):
    """A certificate of localhost that nobody vouches for, and its key."""
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
                    "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return cert, key
