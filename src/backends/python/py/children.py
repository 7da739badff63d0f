"""Child processes: forks workers on order, reaps them, and ends whatever they leave behind."""
import _socket
import ctypes
import json
import os
import select
import signal
import struct
import sys

import troupe_forked

SPAWN, KILL, ABORT, SPAWNED, EXITED = b"S", b"K", b"A", b"P", b"X"
ORDER = struct.Struct("<cQ")
EXIT = struct.Struct("<cQqq")
# Frames, descriptors of segments, standard output and error, and the page of progress.
DESCRIPTORS = struct.Struct("<5i")
FAILED = struct.Struct("<Ic3x")
PIDFD_OPEN = 434
PARENT_DEATH_SIGNAL, CHILD_SUBREAPER = 1, 36
# Standing in for the exit of a worker that was not forked.
NOT_FORKED = 1 << 8
# How long all processes may take to go at the end.
KILL_GRACE_MS = 1000

libc = ctypes.CDLL(None, use_errno=True)


class Children:
    """A process whose children are workers, or the instances of a model it has preloaded."""

    def __init__(self, control, main, find_threads=None, hidden=()):
        """`find_threads` names what forbids a fork; `hidden` are sockets that no child may have."""
        self.control = control
        self.main = main
        self.find_threads = find_threads
        self.hidden = hidden
        # By pidfd: the server's number, `None` for a process that a worker left behind, and the pid.
        self.children = {}
        self.poller = select.poll()
        # What workers leave behind becomes our child, and not that of some distant init.
        libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0)

    def serve(self):
        """Handles orders until the server has gone or needs no more workers."""
        self.poller.register(self.control.fileno(), select.POLLIN)
        while True:
            for ready, _ in self.poller.poll():
                if ready != self.control.fileno():
                    self.reap(ready)
                elif not self.handle_order(*self.receive()):
                    self.end()
                    return

    def receive(self):
        try:
            return self.control.recvmsg(64, 256)[:2]
        except ConnectionError:
            # The server was killed before it had read all that it was told: no order will come.
            return b"", ()

    def handle_order(self, order, ancillary):
        """False at the end of all orders."""
        if not order:
            return False
        kind, number = ORDER.unpack(order)
        if kind == SPAWN:
            self.spawn(number, b"".join(data for _, _, data in ancillary))
            return True
        for child, pid in self.children.values():
            if child == number and kind == KILL:
                signal_group(pid)
            elif child == number and kind == ABORT:
                abort(pid)
        return True

    def spawn(self, number, data):
        descriptors = struct.unpack(f"<{len(data) // 4}i", data)
        if len(data) != DESCRIPTORS.size:
            return self.refuse(number, descriptors, "too many open files")
        threads = self.find_threads and self.find_threads()
        if threads:
            return self.refuse(number, descriptors, threads)
        try:
            pid = troupe_forked.fork()
        except OSError as error:
            return self.refuse(number, descriptors, f"cannot fork a worker: {error}")
        if pid == 0:
            self.control.close()
            for hidden in self.hidden:
                hidden.close()
            for pidfd in self.children:
                os.close(pidfd)
            run(self.main, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            # So that a signal to the group reaches the worker's own children too.
            os.setpgid(pid, pid)
        except OSError:
            pass
        self.watch(number, pid)
        return None

    def refuse(self, number, descriptors, text):
        """Sends the frame that a worker sends which cannot start: the server knows no other."""
        body = json.dumps({"error": text, "is_import": False}).encode()
        body += b" " * (-len(body) % 8)
        if descriptors:
            try:
                os.write(descriptors[0], FAILED.pack(8 + len(body), b"X") + body)
            except OSError:
                pass
        for descriptor in descriptors:
            os.close(descriptor)
        self.tell(EXITED, number, 0, NOT_FORKED)

    def watch(self, number, pid):
        pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
        if pidfd < 0:
            # Without a descriptor left its end could not be seen.
            signal_group(pid)
            self.ended(number, pid, os.waitpid(pid, 0)[1])
            return
        self.children[pidfd] = (number, pid)
        self.poller.register(pidfd, select.POLLIN)
        if number is not None:
            self.tell(SPAWNED, number, pid, 0)

    def reap(self, pidfd):
        number, pid = self.children.pop(pidfd)
        self.poller.unregister(pidfd)
        os.close(pidfd)
        # Not reaped yet, so that the number is still this worker's.
        signal_group(pid)
        self.ended(number, pid, os.waitpid(pid, 0)[1])
        self.end_strays()

    def ended(self, number, pid, status):
        if number is not None:
            self.tell(EXITED, number, pid, status)

    def tell(self, *message):
        try:
            self.control.send(EXIT.pack(*message))
        except OSError:
            # The server has gone: that is the end of all orders.
            pass

    def end_strays(self):
        """Ends the orphans of workers that have ended. Those of a living worker are its own."""
        known = {pid for _, pid in self.children.values()}
        for pid in children_of(os.getpid()):
            if pid not in known:
                signal_group(pid)
                self.watch(None, pid)

    def end(self):
        """Kills all children and waits for them."""
        self.poller.unregister(self.control.fileno())
        for _, pid in self.children.values():
            signal_group(pid)
        self.end_strays()
        while self.children:
            ready = self.poller.poll(KILL_GRACE_MS)
            if not ready:
                return
            for pidfd, _ in ready:
                _, pid = self.children.pop(pidfd)
                self.poller.unregister(pidfd)
                os.waitpid(pid, 0)
            self.end_strays()


def children_of(parent):
    """Its children, also those it did not fork."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name stands in parentheses and may hold anything.
                    if int(file.read().rpartition(b") ")[2].split()[1]) == parent:
                        found.append(int(name))
            except (OSError, ValueError, IndexError):
                # It has just gone.
                pass
    return found


def signal_group(pid):
    for send in (os.killpg, os.kill):
        try:
            send(pid, signal.SIGKILL)
        except OSError:
            pass


def abort(pid):
    """Ends it with SIGABRT, on which `faulthandler` prints where it is; without a core file."""
    try:
        import resource

        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass
    try:
        os.kill(pid, signal.SIGABRT)
    except OSError:
        pass


def die_with_parent(parent):
    """SIGKILL when the parent goes; a parent that went before is noticed by its pid."""
    libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def run(main, descriptors):
    """In the worker: never returns."""
    status = 1
    try:
        die_with_parent(os.getppid())
        libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            os.setpgid(0, 0)
        except OSError:
            pass
        control, passing, out, err, progress = descriptors
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        for descriptor in (control, passing):
            os.set_inheritable(descriptor, False)
        import faulthandler

        faulthandler.enable()
        if "numpy.random" in sys.modules:
            # Else all workers would draw the same numbers.
            sys.modules["numpy.random"].seed()
        main(_socket.socket(fileno=control), _socket.socket(fileno=passing), progress)
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
