"""The parent of all workers of one interpreter: imports numpy once, forks a worker per request.

Started with its control socket (SOCK_SEQPACKET) as standard input. It has no threads of its own,
dies with the server, and is the only one who reaps or kills its workers.
"""
import _socket
import ctypes
import gc
import json
import os
import select
import signal
import struct
import sys
from importlib.machinery import ModuleSpec

SPAWN, KILL, HELLO, SPAWNED, EXITED = b"S", b"K", b"H", b"P", b"X"
ORDER = struct.Struct("<cQ")
EXIT = struct.Struct("<cQqq")
DESCRIPTORS = struct.Struct("<4i")
PIDFD_OPEN = 434

libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent):
    """SIGKILL when the parent goes; a parent that went before is noticed by its pid."""
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Sources:
    """Finds the backend's modules in memory: first of all finders, so that no file hides them."""

    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        return ModuleSpec(name, self, origin=f"<troupe>/{name}.py")

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__file__ = module.__spec__.origin
        source = self.sources[module.__name__]
        exec(compile(source, module.__file__, "exec"), module.__dict__)


def main(control, sources):
    parent = os.getppid()
    # `-c` puts the working directory first; a model must not import from there by accident.
    sys.path[:] = [path for path in sys.path if path]
    control = _socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    die_with_parent(parent)
    hello = {"version": sys.version, "prefix": sys.prefix, "executable": sys.executable}
    try:
        import numpy  # noqa: F401
    except BaseException as error:
        hello["error"] = f"{type(error).__name__}: {error}"
        control.send(HELLO + json.dumps(hello).encode())
        return
    sys.meta_path.insert(0, Sources(sources))
    import triton_python_backend_utils
    import troupe_worker

    sys.modules["c_python_backend_utils"] = triton_python_backend_utils
    control.send(HELLO + json.dumps(hello).encode())
    gc.collect()
    gc.freeze()
    serve(control, troupe_worker)


def serve(control, worker):
    poller = select.poll()
    poller.register(control.fileno(), select.POLLIN)
    children = {}
    while True:
        for ready, _ in poller.poll():
            if ready != control.fileno():
                reap(control, poller, children, ready)
                continue
            order, ancillary, _, _ = control.recvmsg(64, 256)
            if not order:
                return
            kind, number = ORDER.unpack(order)
            if kind == KILL:
                kill(children, number)
                continue
            descriptors = DESCRIPTORS.unpack(ancillary[0][2])
            pid = os.fork()
            if pid == 0:
                control.close()
                for pidfd in children:
                    os.close(pidfd)
                run(worker, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            try:
                # So that a signal to the group reaches the worker's own children too.
                os.setpgid(pid, pid)
            except OSError:
                pass
            pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
            children[pidfd] = (number, pid)
            poller.register(pidfd, select.POLLIN)
            control.send(EXIT.pack(SPAWNED, number, pid, 0))


def kill(children, number):
    for child, pid in children.values():
        if child == number:
            signal_group(pid)


def signal_group(pid):
    """Not reaped yet, so the number is still this worker's."""
    for send in (os.killpg, os.kill):
        try:
            send(pid, signal.SIGKILL)
        except OSError:
            pass


def reap(control, poller, children, pidfd):
    number, pid = children.pop(pidfd)
    poller.unregister(pidfd)
    os.close(pidfd)
    signal_group(pid)
    _, status = os.waitpid(pid, 0)
    control.send(EXIT.pack(EXITED, number, pid, status))


def run(worker, descriptors):
    """In the worker: never returns."""
    status = 1
    try:
        parent = os.getppid()
        die_with_parent(parent)
        try:
            os.setpgid(0, 0)
        except OSError:
            pass
        main_socket, passing, out, err = descriptors
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        for descriptor in (main_socket, passing):
            os.set_inheritable(descriptor, False)
        import faulthandler

        faulthandler.enable()
        if "numpy.random" in sys.modules:
            # Else all workers would draw the same numbers.
            sys.modules["numpy.random"].seed()
        worker.main(_socket.socket(fileno=main_socket), _socket.socket(fileno=passing))
        status = 0
    except SystemExit:
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            import atexit

            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


main(None, SOURCES)  # noqa: F821  (given by whoever executes this file)
