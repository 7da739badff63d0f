"""Sends pictures to `ensemble_model` and prints their words: a request each, over gRPC."""

import argparse
import pathlib

import numpy as np
import tritonclient.grpc as triton

SIGN = pathlib.Path(__file__).parent.parent / "ocr" / "images" / "sign_menu.jpg"


def read(client, picture):
    # The file as it is, with a batch dimension in front; the server decodes it.
    file = np.fromfile(picture, dtype=np.uint8)[np.newaxis]
    image = triton.InferInput("input_image", list(file.shape), "UINT8")
    image.set_data_from_numpy(file)
    result = client.infer("ensemble_model", [image])
    return [word.decode() for word in result.as_numpy("recognized_text").ravel()]


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("picture", nargs="*", default=[SIGN], type=pathlib.Path)
    options.add_argument("--grpc", default="localhost:8001", metavar="HOST:PORT")
    options = options.parse_args()

    with triton.InferenceServerClient(options.grpc) as client:
        for picture in options.picture:
            print(f"{picture.name}: {' '.join(read(client, picture)) or 'no words'}")


if __name__ == "__main__":
    main()
