"""Sorts texts by how near they are to the first one.

    python client.py "a cat and a dog" "my kitten has fur" "the train to the station"
"""

import argparse

import numpy as np
import tritonclient.http as triton


def embed(client, texts):
    """One row of length 1 for each text."""
    rows = np.array([[it.encode()] for it in texts], dtype=object)
    text = triton.InferInput("text", rows.shape, "BYTES")
    text.set_data_from_numpy(rows)
    return client.infer("embedding", [text]).as_numpy("embedding")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="localhost:8000")
    parser.add_argument("query")
    parser.add_argument("texts", nargs="+")
    arguments = parser.parse_args()
    client = triton.InferenceServerClient(arguments.server)
    query, *others = embed(client, [arguments.query, *arguments.texts])
    scored = sorted(((float(query @ it), text) for it, text in zip(others, arguments.texts)), reverse=True)
    for score, text in scored:
        print(f"{score:.3f}  {text}")


if __name__ == "__main__":
    main()
