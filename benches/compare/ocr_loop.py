#!/usr/bin/env python3
"""Reads words, or rows of text_recognition, in a bare loop on one thread, without a server.

Takes one JSON object a line on stdin and answers each with one line; `compare.py` starts it.
The steps between the two models are those of pipelines/ocr_python.
"""
import importlib.util
import json
import os
import shutil
import sys
import time
import types

import cv2
import numpy as np
import onnxruntime

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STEPS = os.path.join(ROOT, "pipelines", "ocr_python", "model_repository")
SCORE, GEOMETRY = "feature_fusion/Conv_7/Sigmoid:0", "feature_fusion/concat_3:0"
#: Rows in one run of text_recognition.
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Loop:
    """Both networks, and what lies between them, in one thread."""

    def __init__(self, models):
        self.detection, self.recognition = (
            session(os.path.join(models, name, "1", "model.onnx"))
            for name in ("text_detection", "text_recognition"))
        self.between = step("detection_postprocessing")
        self.after = step("recognition_postprocessing")
        self.size = 0

    def read(self, file):
        """Words, boxes [n, 4, 2] and crops [n, 1, 32, 100] of a picture's file, at full size."""
        picture = cv2.cvtColor(cv2.imdecode(file, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        height, width = (max(32, edge // 32 * 32) for edge in picture.shape[:2])
        if picture.shape[:2] != (height, width):
            picture = cv2.resize(picture, (width, height))
        pixels = picture.astype(np.float32)
        score, geometry = self.detection.run([SCORE, GEOMETRY], {"input_images:0": pixels[None]})
        boxes = self.between.boxes(score[0, :, :, 0], geometry[0])
        crops = self.between.cut_out(pixels, boxes)
        if not len(crops):
            return [], boxes, crops
        logits = self.recognition.run(["308"], {"input.1": crops})[0]
        return [word.decode() for word in self.after.read(logits)], boxes, crops

    def squares(self, files, folder):
        """Writes the middle square of every picture, and the labels; gives back where."""
        os.makedirs(folder, exist_ok=True)
        written = []
        for file in files:
            picture = cv2.imread(file)
            height, width = picture.shape[:2]
            side = min(height, width) // 32 * 32
            top, left = (height - side) // 2, (width - side) // 2
            written.append(os.path.join(folder, os.path.basename(file)))
            square = picture[top:top + side, left:left + side]
            cv2.imwrite(written[-1], square, [cv2.IMWRITE_JPEG_QUALITY, 95])
        labels = os.path.join(os.path.dirname(files[0]), "labels.json")
        shutil.copy(labels, os.path.join(folder, "labels.json"))
        return written

    def words(self, files):
        return [self.read(np.fromfile(file, np.uint8))[0] for file in files]

    def crop(self, file):
        """The first crop of a picture, as hexadecimal bytes of a row for text_recognition."""
        words, _, crops = self.read(np.fromfile(file, np.uint8))
        return {"word": words[0], "crop": crops[0].astype("<f4").tobytes().hex()}

    def pictures(self, files, seconds):
        """One picture after the other, in turn."""
        files = [np.fromfile(file, np.uint8) for file in files]
        turn = iter(range(sys.maxsize))
        return timed(lambda: self.read(files[next(turn) % len(files)]), seconds)

    def word(self, crop):
        logits = self.recognition.run(["308"], {"input.1": row_of(crop)})[0]
        return self.after.read(logits)[0].decode()

    def rows(self, crop, seconds):
        """Rows of text_recognition, so many in a run as is best here."""
        row = row_of(crop)
        run = lambda size: lambda batch=np.repeat(row, size, axis=0): self.recognition.run(
            ["308"], {"input.1": batch})
        if not self.size:
            self.size = max(SIZES, key=lambda size: size / cost(run(size)))
        report = timed(run(self.size), seconds)
        return {**report, "answers": report["answers"] * self.size, "size": self.size}


def row_of(crop):
    return np.frombuffer(bytes.fromhex(crop), "<f4").reshape(1, 1, 32, 100)


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])


def step(name):
    """A Python step of the pipeline as a module; what is called here needs no server's module."""
    sys.modules.setdefault("triton_python_backend_utils", types.ModuleType("no_server"))
    path = os.path.join(STEPS, name, "1", "model.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(work, seconds):
    """What a load generator reports, in microseconds, after one call that is not counted."""
    work()
    waits, begun = [], time.perf_counter()
    while not waits or time.perf_counter() - begun < seconds:
        then = time.perf_counter()
        work()
        waits.append(1e6 * (time.perf_counter() - then))
    micros = 1e6 * (time.perf_counter() - begun)
    p50, p99 = np.percentile(waits, [50, 99])
    return {"answers": len(waits), "micros": micros, "errors": 0, "p50": p50, "p99": p99}


def cost(work, seconds=0.5):
    """Seconds of CPU time that a call takes."""
    begun = time.process_time()
    report = timed(work, seconds)
    return (time.process_time() - begun) / (report["answers"] + 1)


def main():
    # OpenCV would take all cores for itself otherwise.
    cv2.setNumThreads(1)
    loop = Loop(sys.argv[1])
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(loop, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
