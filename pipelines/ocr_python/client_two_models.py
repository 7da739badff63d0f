"""Reads the words in pictures with two requests each: `text_detection`, then `text_recognition`.

What lies between the models (scaling, boxes, crops, letters) happens here, with OpenCV. Over HTTP.
"""

import argparse
import pathlib
import sys

import cv2
import numpy as np
import tritonclient.http as triton

SIGN = pathlib.Path(__file__).parent.parent / "ocr" / "images" / "sign_menu.jpg"
#: The size at which text_detection sees every picture.
SEEN = (640, 480)
#: What it is used to being subtracted: the means of red, green and blue.
MEANS = np.array([123.68, 116.78, 103.94], dtype=np.float32)
#: Boxes below this score are none; of two that overlap more than this, the better one stays.
SCORE, OVERLAP = 0.5, 0.4
#: The size of a crop, and its corners: bottom left, top left, top right, bottom right.
CROP = (100, 32)
CORNERS = np.array([[0, 31], [0, 0], [99, 0], [99, 31]], dtype=np.float32)
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


def ask(client, model, name, array, outputs):
    tensor = triton.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    result = client.infer(model, [tensor])
    return [result.as_numpy(output) for output in outputs]


def detect(client, picture):
    """Rotated rectangles, the surest first."""
    pixels = (picture.astype(np.float32) - MEANS)[np.newaxis]
    outputs = ["feature_fusion/Conv_7/Sigmoid:0", "feature_fusion/concat_3:0"]
    score, geometry = ask(client, "text_detection", "input_images:0", pixels, outputs)
    rectangles, scores = [], []
    # Every fourth pixel says how sure it is to be on a word, and how far away the word's edges are.
    for row, column in np.argwhere(score[0, :, :, 0] >= SCORE):
        top, right, bottom, left, angle = map(float, geometry[0, row, column])
        # From the pixel to the middle of its box, along the text and across it.
        along, across = (right - left) / 2, (bottom - top) / 2
        middle = (
            4 * float(column) + along * np.cos(angle) + across * np.sin(angle),
            4 * float(row) - along * np.sin(angle) + across * np.cos(angle),
        )
        rectangles.append((middle, (right + left, bottom + top), float(-np.degrees(angle))))
        scores.append(float(score[0, row, column, 0]))
    if not rectangles:
        return []
    kept = cv2.dnn.NMSBoxesRotated(rectangles, scores, SCORE, OVERLAP)
    return [rectangles[index] for index in np.ravel(kept)]


def crop(picture, rectangle):
    """A word, straight and grey, FP32 [1, 32, 100] of -1..1."""
    straighten = cv2.getPerspectiveTransform(cv2.boxPoints(rectangle), CORNERS)
    straight = cv2.warpPerspective(picture, straighten, CROP)
    return cv2.cvtColor(straight, cv2.COLOR_RGB2GRAY)[np.newaxis].astype(np.float32) / 127.5 - 1


def spell(logits):
    """The word of logits [places, characters]: runs count once, and character 0 is a blank."""
    best, word = logits.argmax(axis=1), ""
    for place, character in enumerate(best):
        if character != 0 and (place == 0 or character != best[place - 1]):
            word += CHARACTERS[character - 1]
    return word


def read(client, path):
    picture = cv2.imread(str(path))
    if picture is None:
        sys.exit(f"{path} is no picture that OpenCV can read")
    picture = cv2.cvtColor(cv2.resize(picture, SEEN), cv2.COLOR_BGR2RGB)
    rectangles = detect(client, picture)
    if not rectangles:
        return []
    # All words of the picture in one request: they are the rows of a batch.
    crops = np.stack([crop(picture, rectangle) for rectangle in rectangles])
    (logits,) = ask(client, "text_recognition", "input.1", crops, ["308"])
    return [spell(row) for row in logits]


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("picture", nargs="*", default=[SIGN], type=pathlib.Path)
    options.add_argument("--http", default="localhost:8000", metavar="HOST:PORT")
    options = options.parse_args()

    with triton.InferenceServerClient(options.http) as client:
        for picture in options.picture:
            print(f"{picture.name}: {' '.join(read(client, picture)) or 'no words'}")


if __name__ == "__main__":
    main()
