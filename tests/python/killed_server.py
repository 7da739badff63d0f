"""A server that is killed before it has read all that the parent of its workers told it: does what a
worker has forked end, too? The argument is the folder of the backend's modules."""
import _socket
import importlib.util
import os
import select
import signal
import socket
import sys
import time


class Modules:
    """Finds the backend's modules in their folder, under the names they import each other by."""

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("troupe_"):
            return None
        file = os.path.join(sys.argv[1], name.removeprefix("troupe_") + ".py")
        return importlib.util.spec_from_file_location(name, file)


sys.meta_path.insert(0, Modules())

import troupe_children  # noqa: E402


def work(forked):
    if os.fork() == 0:
        os.write(forked, str(os.getpid()).encode())
    time.sleep(100)
    os._exit(0)


ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
heard, forked = os.pipe()
parent = os.fork()
if parent == 0:
    ours.close()
    control = _socket.socket(fileno=theirs.detach())
    troupe_children.Children(control, lambda *_: work(forked)).serve()
    os._exit(0)
theirs.close()
os.close(forked)
order = troupe_children.ORDER.pack(troupe_children.SPAWN, 1)
pairs = socket.socketpair()
null = os.open(os.devnull, os.O_RDWR)
socket.send_fds(ours, [order], [pairs[0].fileno(), pairs[1].fileno(), 1, 2, null])
child = int(os.read(heard, 20))
# Until the end of the worker would be told after its begin.
while not ours.recv(64, socket.MSG_PEEK):
    pass
ours.close()
os.waitpid(parent, 0)
# It ends when all who could write to it have gone.
if select.select([heard], [], [], 30)[0]:
    print("all are gone")
else:
    os.kill(child, signal.SIGKILL)
