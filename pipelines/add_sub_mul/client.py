"""Asks `ensemble` in three ways and checks the answers: HTTP with binary tensors, HTTP with JSON, gRPC."""

import argparse
import sys

import numpy as np
import tritonclient.grpc
import tritonclient.http

LEFT = np.array([5, 6, 7, 8], dtype=np.float32)
RIGHT = np.array([1, 2, 3, 4], dtype=np.float32)
EXPECTED = (LEFT + RIGHT) * (LEFT - RIGHT)


def http(address, binary):
    triton = tritonclient.http
    inputs = [triton.InferInput(name, [4], "FP32") for name in ("INPUT0", "INPUT1")]
    for tensor, data in zip(inputs, (LEFT, RIGHT)):
        tensor.set_data_from_numpy(data, binary_data=binary)
    outputs = [triton.InferRequestedOutput("OUTPUT", binary_data=binary)]
    with triton.InferenceServerClient(address) as client:
        return client.infer("ensemble", inputs, outputs=outputs).as_numpy("OUTPUT")


def grpc(address):
    triton = tritonclient.grpc
    inputs = [triton.InferInput(name, [4], "FP32") for name in ("INPUT0", "INPUT1")]
    for tensor, data in zip(inputs, (LEFT, RIGHT)):
        tensor.set_data_from_numpy(data)
    with triton.InferenceServerClient(address) as client:
        return client.infer("ensemble", inputs).as_numpy("OUTPUT")


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--http", default="localhost:8000", metavar="HOST:PORT")
    options.add_argument("--grpc", default="localhost:8001", metavar="HOST:PORT")
    options = options.parse_args()

    answers = {
        "HTTP, binary": http(options.http, binary=True),
        "HTTP, JSON": http(options.http, binary=False),
        "gRPC": grpc(options.grpc),
    }
    print(f"(a + b) * (a - b) for a = {LEFT}, b = {RIGHT}")
    for way, answer in answers.items():
        print(f"{way:13} {answer}")
    wrong = [way for way, answer in answers.items() if not np.array_equal(answer, EXPECTED)]
    if wrong:
        sys.exit(f"expected {EXPECTED}, got something else over {', '.join(wrong)}")


if __name__ == "__main__":
    main()
