"""Writes inference requests and reads their answers, as HTTP bodies and as gRPC messages."""
import json
import struct

OCTETS = "application/octet-stream"


def http_request(tensors):
    """Body and headers of a request whose tensors, (name, type, shape, bytes), are binary."""
    inputs = [{"name": name, "datatype": kind, "shape": shape,
               "parameters": {"binary_data_size": len(raw)}} for name, kind, shape, raw in tensors]
    document = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    head = json.dumps(document, separators=(",", ":")).encode()
    headers = {"Content-Type": OCTETS, "Inference-Header-Content-Length": str(len(head))}
    return head + b"".join(raw for *_, raw in tensors), headers


def http_answer(body, head_size):
    """The tensors of a binary answer by name."""
    head, at = json.loads(body[:head_size]), head_size
    found = {}
    for output in head["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found[output["name"]] = (output["datatype"], tuple(output["shape"]), body[at:at + size])
        at += size
    return found


def agree(first, second, tolerance):
    """Whether two answers hold the same tensors; FP32 may differ by a part of 1 or of itself."""
    kinds = [{name: it[:2] for name, it in answer.items()} for answer in (first, second)]
    if kinds[0] != kinds[1]:
        return False
    for name, (kind, _, raw) in first.items():
        other = second[name][2]
        if raw == other:
            continue
        if not tolerance or kind != "FP32" or len(raw) != len(other):
            return False
        pairs = zip(floats(raw), floats(other))
        if any(not abs(a - b) <= tolerance * max(1, abs(a)) for a, b in pairs):
            return False
    return True


def floats(raw):
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def texts(raw):
    """The elements of a BYTES tensor."""
    found, at = [], 0
    while at < len(raw):
        size = struct.unpack_from("<I", raw, at)[0]
        found.append(raw[at + 4:at + 4 + size].decode())
        at += 4 + size
    return found


def grpc_request(model, tensors):
    """A ModelInferRequest in the five-byte frame of gRPC."""
    message = _bytes_field(1, model.encode())
    for name, kind, shape, _ in tensors:
        dims = b"".join(_varint(dim) for dim in shape)
        tensor = _bytes_field(1, name.encode()) + _bytes_field(2, kind.encode())
        message += _bytes_field(5, tensor + _bytes_field(3, dims))
    message += b"".join(_bytes_field(7, raw) for *_, raw in tensors)
    return struct.pack(">BI", 0, len(message)) + message


def grpc_request_in_region(model, tensor, output, region):
    """A framed ModelInferRequest whose tensor, (name, type, shape, size), and output lie in a region."""
    name, kind, shape, size = tensor
    dims = b"".join(_varint(dim) for dim in shape)
    told = (_bytes_field(1, name.encode()) + _bytes_field(2, kind.encode())
            + _bytes_field(3, dims) + _place(4, region, 0, size))
    wanted = _bytes_field(1, output.encode()) + _place(2, region, size, size)
    message = _bytes_field(1, model.encode()) + _bytes_field(5, told) + _bytes_field(6, wanted)
    return struct.pack(">BI", 0, len(message)) + message


def _place(field, region, offset, size):
    """The parameters that say where in shared memory a tensor is."""
    number = lambda value: _varint(2 << 3) + _varint(value)
    values = {"shared_memory_region": _bytes_field(3, region.encode()),
              "shared_memory_offset": number(offset), "shared_memory_byte_size": number(size)}
    return b"".join(_bytes_field(field, _bytes_field(1, key.encode()) + _bytes_field(2, value))
                    for key, value in values.items())


def grpc_answer(body):
    """The tensors of a framed ModelInferResponse by name."""
    return _tensors(next(_messages(body)))


def stream_answers(body):
    """The tensors of every framed ModelStreamInferResponse, by name."""
    answers = []
    for message in _messages(body):
        for number, value in _fields(message):
            if number == 1:
                raise ValueError(f"an error came back: {value.decode()}")
            answers.append(_tensors(value))
    return answers


def _messages(body):
    """The messages in the frames of a gRPC answer, of which there is at least one."""
    at = 0
    while at < len(body) or at == 0:
        if len(body) < at + 5 or body[at] != 0:
            raise ValueError("no uncompressed gRPC message came back")
        size = struct.unpack_from(">I", body, at + 1)[0]
        yield body[at + 5:at + 5 + size]
        at += 5 + size


def _tensors(message):
    """The tensors of a ModelInferResponse by name."""
    fields = list(_fields(message))
    raws = [value for number, value in fields if number == 6]
    found = {}
    for index, tensor in enumerate(value for number, value in fields if number == 5):
        parts = list(_fields(tensor))
        name, kind = (next(v for n, v in parts if n == wanted).decode() for wanted in (1, 2))
        # What lies in shared memory is not in the message.
        found[name] = (kind, tuple(_dims(parts)), raws[index] if index < len(raws) else b"")
    return found


def _dims(parts):
    for number, value in parts:
        if number == 3 and isinstance(value, int):
            yield value
        elif number == 3:
            at = 0
            while at < len(value):
                dim, at = _read_varint(value, at)
                yield dim


def _fields(data):
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        if key & 7 == 0:
            value, at = _read_varint(data, at)
        elif key & 7 == 2:
            size, at = _read_varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            raise ValueError(f"wire type {key & 7} is not used in answers")
        yield key >> 3, value


def _read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def _bytes_field(number, value):
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
