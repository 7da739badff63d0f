"""Sends readings of two meters, a sequence each, to an ensemble of two sequence models."""

import argparse
import queue

import numpy as np
import tritonclient.grpc
import tritonclient.http

METERS = {"cellar": [20.0, 22.0, 21.0, 25.0], "roof": [5.0, 4.0, 9.0]}


def steps(readings):
    """Each reading, and whether it is the first and the last of its sequence."""
    last = len(readings) - 1
    return [(reading, at == 0, at == last) for at, reading in enumerate(readings)]


def tensors(client, reading):
    tensor = client.InferInput("reading", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[reading]], np.float32))
    return [tensor]


def show(meter, reading, answer):
    level, total = (answer.as_numpy(name).item() for name in ("level", "total"))
    print(f"{meter}: {reading} is {level:+.2f} from the mean, {total} in all")


def over_http(url):
    """A request after the other: an id, and flags at both ends."""
    http = tritonclient.http
    with http.InferenceServerClient(url) as client:
        for meter, readings in METERS.items():
            for reading, is_first, is_last in steps(readings):
                answer = client.infer(
                    "meter",
                    tensors(http, reading),
                    sequence_id=meter,
                    sequence_start=is_first,
                    sequence_end=is_last,
                )
                show(meter, reading, answer)


def over_a_stream(url):
    """All at once over a gRPC stream, which keeps their order: nothing waits for an answer."""
    grpc, answers, sent = tritonclient.grpc, queue.Queue(), {}
    with grpc.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for meter, readings in METERS.items():
            for reading, is_first, is_last in steps(readings):
                number = str(len(sent))
                sent[number] = meter, reading
                client.async_stream_infer(
                    "meter",
                    tensors(grpc, reading),
                    request_id=number,
                    sequence_id=meter,
                    sequence_start=is_first,
                    sequence_end=is_last,
                )
        told = {}
        for _ in sent:
            answer, error = answers.get(timeout=60)
            if error:
                raise SystemExit(error)
            told[answer.get_response().id] = answer
        client.stop_stream()
    for number, (meter, reading) in sent.items():
        show(meter, reading, told[number])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", default="localhost:8000", help="HOST:PORT of HTTP")
    parser.add_argument("--grpc", default="localhost:8001", help="HOST:PORT of gRPC")
    parser.add_argument("--stream", action="store_true", help="over a gRPC stream instead of HTTP")
    options = parser.parse_args()
    if options.stream:
        over_a_stream(options.grpc)
    else:
        over_http(options.http)


if __name__ == "__main__":
    main()
