"""Says what is on pictures: JPEG, PNG or WebP.

    python client.py picture.jpg …
"""

import argparse

import numpy as np
import tritonclient.http as triton


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="localhost:8000")
    parser.add_argument("pictures", nargs="+")
    arguments = parser.parse_args()
    client = triton.InferenceServerClient(arguments.server)
    for path in arguments.pictures:
        content = np.fromfile(path, dtype=np.uint8)
        file = triton.InferInput("file", content.shape, "UINT8")
        file.set_data_from_numpy(content)
        answer = client.infer("classification", [file])
        labels, scores = (answer.as_numpy(it)[0] for it in ("label", "score"))
        best = ", ".join(f"{label.decode()} {score:.2f}" for label, score in zip(labels[:3], scores))
        print(f"{path}: {best}")


if __name__ == "__main__":
    main()
