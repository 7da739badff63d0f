"""Sequences over gRPC, each client with a stream of its own: HTTP/2 by hand, for wrk and h2load have none."""
import json
import selectors
import socket
import struct
import sys
import time

import wire

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
ACK, END_HEADERS, END_STREAM = 1, 4, 1
PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
#: What may be sent unless the other side says more, and the most it can say.
WINDOW_SIZE, MAX_WINDOW = 65535, (1 << 31) - 1


def main():
    """streams.py ADDRESS MODEL CLIENTS SECONDS LENGTH FIRST: prints one line of JSON as wrk's script does."""
    address, model, *numbers = sys.argv[1:]
    clients, seconds, length, first = map(int, numbers)
    host, port = address.split(":")
    requests = [prepared(model, step, length) for step in range(1, length + 1)]
    poll, waits = selectors.DefaultSelector(), []
    begun = time.perf_counter()
    for index in range(clients):
        client = Client(socket.create_connection((host, int(port))), requests, first + (index << 24))
        poll.register(client.socket, selectors.EVENT_READ, client)
        client.ask()
    while time.perf_counter() < begun + seconds:
        for key, _ in poll.select(1):
            key.data.read(waits)
    micros = (time.perf_counter() - begun) * 1e6
    waits.sort()
    at = lambda part: waits[min(len(waits) - 1, int(part * len(waits)))] * 1e6 if waits else 0
    print(json.dumps({"answers": len(waits), "micros": micros, "errors": 0, "p50": at(0.5), "p99": at(0.99)}))


def prepared(model, step, length):
    """A step without the number of its sequence; the step is also what it brings."""
    shape, number = (1, 1), struct.pack("<i", step)
    framed = wire.grpc_request(model, [("INPUT", "INT32", shape, number)])
    message = framed[5:]
    for flag, value in (("sequence_start", step == 1), ("sequence_end", step == length)):
        message += parameter(flag, bytes([1 << 3, value]))
    return message


def parameter(key, value):
    entry = field(1, key.encode()) + field(2, value)
    return field(4, entry)


def field(number, content):
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(number):
    parts = bytearray()
    while 127 < number:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def frame(kind, flags, stream, content):
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def literal(name, value):
    """A header that no table is needed for."""
    text = lambda it: bytes([len(it)]) + it.encode()
    return b"\0" + text(name) + text(value)


class Client:
    """One stream, on which one sequence follows another; a request follows an answer."""

    def __init__(self, connection, requests, id):
        self.socket, self.requests, self.id = connection, requests, id
        self.step, self.asked, self.windows = 0, 0.0, [WINDOW_SIZE, WINDOW_SIZE]
        self.unread, self.message, self.held = bytearray(), bytearray(), b""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        headers = [(":method", "POST"), (":scheme", "http"), (":path", PATH), (":authority", "compare"),
                   ("te", "trailers"), ("content-type", "application/grpc")]
        connection.sendall(
            PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, MAX_WINDOW))
            + frame(WINDOW, 0, 0, struct.pack(">I", MAX_WINDOW - WINDOW_SIZE))
            + frame(HEADERS, END_HEADERS, 1, b"".join(literal(*header) for header in headers)))

    def ask(self):
        """The next step."""
        if self.step == 0:
            self.id += 1
            self.number = parameter("sequence_id", bytes([2 << 3]) + varint(self.id))
        message = self.requests[self.step] + self.number
        self.step = (self.step + 1) % len(self.requests)
        self.asked = time.perf_counter()
        self.send(struct.pack(">BI", 0, len(message)) + message)

    def send(self, content):
        """Now, or when the other side takes as much again."""
        if min(self.windows) < len(content):
            self.held = content
            return
        self.held = b""
        self.windows = [window - len(content) for window in self.windows]
        self.socket.sendall(frame(DATA, 0, 1, content))

    def read(self, waits):
        received = self.socket.recv(65536)
        if not received:
            raise SystemExit("the server has closed a connection")
        self.unread += received
        while 9 <= len(self.unread):
            size = int.from_bytes(self.unread[:3], "big")
            if len(self.unread) < 9 + size:
                break
            kind, flags, stream = struct.unpack(">BBI", self.unread[3:9])
            content = bytes(self.unread[9:9 + size])
            del self.unread[:9 + size]
            self.take(kind, flags, stream, content, waits)

    def take(self, kind, flags, stream, content, waits):
        if kind == DATA:
            self.message += content
            self.answers(waits)
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(content), 6):
                name, value = struct.unpack_from(">HI", content, at)
                if name == 4:
                    self.windows[1] += value - WINDOW_SIZE
            self.socket.sendall(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, content))
        elif kind == WINDOW:
            self.windows[stream != 0] += struct.unpack(">I", content)[0]
            if self.held:
                self.send(self.held)
        elif kind in (RESET, GOAWAY) or (kind == HEADERS and flags & END_STREAM):
            raise SystemExit("the server has ended a stream")

    def answers(self, waits):
        while 5 <= len(self.message):
            size = int.from_bytes(self.message[1:5], "big")
            if len(self.message) < 5 + size:
                break
            # Field 1 is an error.
            if self.message[5] == 1 << 3 | 2 and self.message[6]:
                raise SystemExit(f"a step failed: {bytes(self.message[7:5 + size])}")
            del self.message[:5 + size]
            waits.append(time.perf_counter() - self.asked)
            self.ask()


if __name__ == "__main__":
    main()
