"""Writes what OpenCV and plain Python answer where the server has ops of its own: boxes, crops, text.

usage: make_boxes.py DETECTOR.onnx RECOGNIZER.onnx PICTURE OUT_DIR (needs numpy, opencv-python, onnxruntime)

boxes.json: maps with the boxes OpenCV keeps, quads for crops.bin, texts for logits.bin.
crops.bin: 32x100 bytes a quad, then 3x32x100 for the last quad in RGB. logits.bin: int8, logit * 8, [n,26,37].
"""
import itertools
import json
import math
import os
import sys

import cv2
import numpy as np
import onnxruntime

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
SCORE, NMS = 0.5, 0.4
# Cells are written as whole numbers of these steps, so that both sides compute with the same values.
STEPS = np.array([1 / 1000, 1 / 4, 1 / 4, 1 / 4, 1 / 4, 1 / 1000], np.float32)


def corners(row, column, top, right, bottom, left, angle):
    """Top left, top right, bottom right, bottom left of the box of one cell."""
    along = np.array([math.cos(angle), -math.sin(angle)])
    down = np.array([math.sin(angle), math.cos(angle)])
    at = np.array([column * 4.0, row * 4.0])
    sides = [(-left, -top), (right, -top), (right, bottom), (-left, bottom)]
    return np.array([at + x * along + y * down for x, y in sides])


def keep(quads, scores, angles, threshold):
    """OpenCV's own suppression of turned boxes."""
    boxes = []
    for quad, angle in zip(quads, angles):
        size = np.linalg.norm(quad[1] - quad[0]), np.linalg.norm(quad[3] - quad[0])
        center = quad.mean(0)
        boxes.append((tuple(map(float, center)), tuple(map(float, size)), -math.degrees(angle)))
    kept = cv2.dnn.NMSBoxesRotated(boxes, [float(it) for it in scores], SCORE, threshold)
    return [int(it) for it in np.asarray(kept).reshape(-1)]


def answer(height, width, cells):
    """One map and what stays of it; `None` when rounding could decide."""
    cells = np.array(sorted(cells), int)
    values = cells[:, 2:].astype(np.float32) * STEPS
    quads = [corners(r, c, *v[1:].astype(float)) for (r, c), v in zip(cells[:, :2], values)]
    kept, less, more = (keep(quads, values[:, 0], values[:, 5], NMS + it) for it in (0, -0.002, 0.002))
    if kept != less or kept != more:
        return None
    rounded = [[round(float(it), 3) for it in quads[index].ravel()] for index in kept]
    scores = [round(float(values[index, 0]), 4) for index in kept]
    return {"height": height, "width": width, "cells": cells.tolist(), "boxes": rounded, "scores": scores}


def random_map(rng):
    """Boxes of all sizes and angles, so that pairs overlap in every way."""
    height, width, count = 24, 32, 60
    places = rng.choice(height * width, count, replace=False)
    distances = rng.integers(8, 120, (count, 4))
    angles = rng.integers(-785, 785, count)
    scores = rng.integers(300, 1000, count)
    return answer(height, width, [
        [int(p) // width, int(p) % width, int(s), *map(int, d), int(a)]
        for p, s, d, a in zip(places, scores, distances, angles)])


def real_map(score, geometry):
    """What the detector says of a picture, the cells above 0.45."""
    rows, columns = np.nonzero(score > 0.45)
    values = np.concatenate([score[rows, columns, None], geometry[rows, columns]], 1)
    cells = np.rint(values / STEPS).astype(int)
    height, width = score.shape
    return answer(height, width, [[int(r), int(c), *v.tolist()] for r, c, v in zip(rows, columns, cells)])


def picture():
    """A smooth picture that the tests can draw, too: 240x320, RGB."""
    y, x = np.mgrid[0:240, 0:320]
    wave = [abs(it % 510 - 255) for it in (3 * x + y, 2 * y + x, x + 4 * y)]
    return np.stack(wave, 2).astype(np.uint8)


QUADS = [
    [[40, 50], [139, 50], [139, 81], [40, 81]],  # as large as the crop
    [[100.5, 60.25], [140.5, 60.25], [140.5, 72.25], [100.5, 72.25]],  # enlarged
    [[60, 120], [150.6, 94.5], [159.2, 125.3], [68.6, 150.8]],  # turned
    [[200, 150], [60, 160], [55, 110], [195, 100]],  # upside down
    [[80, 40], [250, 20], [240, 120], [90, 90]],  # seen from the side
    [[-30, -20], [90, -20], [90, 40], [-30, 40]],  # partly outside
    [[400, 300], [500, 300], [500, 330], [400, 330]],  # outside
    [[5, 5], [302, 5], [302, 191], [5, 191]],  # shrunk, 3 by 6
    [[20, 10], [310, 40], [290, 230], [10, 180]],  # shrunk and seen from the side, in RGB
]


def crop(image, quad):
    """OpenCV's warp; where it shrinks, a warp that does not, and then the mean of each area."""
    quad = np.array(quad, np.float32)
    length = lambda a, b: np.linalg.norm(quad[a] - quad[b])  # noqa: E731
    times = [max(1, round(max(length(0, 1), length(3, 2)) / 99)), max(1, round(max(length(0, 3), length(1, 2)) / 31))]
    goal = (np.array([[0, 0], [99, 0], [99, 31], [0, 31]]) + 0.5) * times - 0.5
    warp = cv2.getPerspectiveTransform(quad, goal.astype(np.float32))
    large = cv2.warpPerspective(image, warp, (100 * times[0], 32 * times[1]), flags=cv2.INTER_LINEAR,
                                borderMode=cv2.BORDER_REPLICATE)
    return cv2.resize(large, (100, 32), interpolation=cv2.INTER_AREA)


def text(logits):
    """Greedy CTC: the text, and the mean of its symbols' best probabilities."""
    odds = np.exp(logits - logits.max(1, keepdims=True))
    odds /= odds.sum(1, keepdims=True)
    runs = itertools.groupby(range(len(logits)), key=lambda step: int(logits[step].argmax()))
    symbols = [(ALPHABET[c - 1], max(odds[step, c] for step in steps)) for c, steps in runs if c != 0]
    return "".join(it for it, _ in symbols), float(np.mean([it for _, it in symbols])) if symbols else 0.0


def main():
    detector, recognizer, path, out = sys.argv[1:]
    image = cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)
    detector = onnxruntime.InferenceSession(detector, providers=["CPUExecutionProvider"])
    score, geometry = detector.run(
        ["feature_fusion/Conv_7/Sigmoid:0", "feature_fusion/concat_3:0"],
        {"input_images:0": image[None].astype(np.float32)})
    real = real_map(score[0, ..., 0], geometry[0])
    assert real, "the picture's boxes overlap by about the threshold"
    rng = np.random.default_rng(7)
    maps = list(itertools.islice(filter(None, (random_map(rng) for _ in itertools.count())), 6)) + [real]

    drawn = picture()
    crops = [cv2.cvtColor(crop(drawn, it), cv2.COLOR_RGB2GRAY).tobytes() for it in QUADS]
    crops.append(crop(drawn, QUADS[-1]).transpose(2, 0, 1).tobytes())

    grey = np.stack([cv2.cvtColor(crop(image, np.reshape(it, (4, 2))), cv2.COLOR_RGB2GRAY) for it in real["boxes"]])
    recognizer = onnxruntime.InferenceSession(recognizer, providers=["CPUExecutionProvider"])
    (logits,) = recognizer.run(None, {"input.1": ((grey[:, None] / 255 - 0.5) * 2).astype(np.float32)})
    logits = np.concatenate([logits, rng.normal(0, 3, (3, 26, 37))])
    logits = np.clip(np.rint(logits * 8), -128, 127).astype(np.int8)
    texts = [text(it.astype(np.float64) / 8) for it in logits]

    answers = {"maps": maps, "quads": QUADS, "texts": [[it, round(odds, 5)] for it, odds in texts]}
    with open(os.path.join(out, "boxes.json"), "w") as file:
        json.dump(answers, file, separators=(",", ":"))
        file.write("\n")
    for name, data in [("crops.bin", b"".join(crops)), ("logits.bin", logits.tobytes())]:
        with open(os.path.join(out, name), "wb") as file:
            file.write(data)


if __name__ == "__main__":
    main()
