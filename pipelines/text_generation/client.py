"""Has a text continued: at once over HTTP, at once as tensors, and word by word over gRPC."""

import argparse
import json
import queue
import urllib.error
import urllib.request

import numpy as np
import tritonclient.grpc
import tritonclient.http


def generate(options):
    """POST /v2/models/text_generation/generate: plain JSON, no tensors."""
    body = {"text_input": options.prompt, **options.parameters}
    url = f"http://{options.http}/v2/models/text_generation/generate"
    try:
        with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:
            yield json.load(answer)["text_output"]
    except urllib.error.HTTPError as refused:
        raise SystemExit(f"{url}: {refused}: {refused.read().decode()}") from None


def infer(options):
    """POST /v2/models/text_generation/infer: a batch of prompts as a tensor, [1, 1] here."""
    triton = tritonclient.http
    prompts = triton.InferInput("text_input", [1, 1], "BYTES")
    prompts.set_data_from_numpy(np.array([[options.prompt.encode()]], dtype=np.object_))
    with triton.InferenceServerClient(options.http, network_timeout=600) as client:
        answer = client.infer("text_generation", [prompts], parameters=options.parameters)
    yield answer.as_numpy("text_output")[0, 0].decode()


def stream(options):
    """ModelStreamInfer of text_generation_stream: what follows the prompt, as it comes."""
    triton, answers = tritonclient.grpc, queue.Queue()
    prompt = triton.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([options.prompt.encode()], dtype=np.object_))
    with triton.InferenceServerClient(options.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("text_generation_stream", [prompt],
                                  parameters=options.parameters,
                                  enable_empty_final_response=True)
        while True:
            answer, error = answers.get()
            if error:
                raise SystemExit(f"text_generation_stream: {error}")
            if answer.get_response().parameters["triton_final_response"].bool_param:
                return
            yield answer.as_numpy("text_output")[0].decode()


def value(text):
    """`name=value` with a number or true or false for what looks like one."""
    name, _, given = text.partition("=")
    try:
        return name, json.loads(given)
    except ValueError:
        return name, given


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("prompt", nargs="?", default="How can you be")
    options.add_argument("parameters", nargs="*", type=value, metavar="NAME=VALUE",
                         help="such as max_new_tokens=40 temperature=0.7")
    options.add_argument("--http", default="localhost:8000", metavar="HOST:PORT")
    options.add_argument("--grpc", default="localhost:8001", metavar="HOST:PORT")
    options.add_argument("--only", choices=["generate", "infer", "stream"], help="one of the three")
    options = options.parse_args()
    options.parameters = dict(options.parameters)

    for way in (generate, infer, stream):
        if options.only not in (None, way.__name__):
            continue
        print(f"{way.__name__:9}", end="", flush=True)
        for piece in way(options):
            print(piece, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
