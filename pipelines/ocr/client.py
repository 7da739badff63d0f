"""Sends a picture to the ensemble `ocr`, lists the words it finds and draws them into a copy of the picture."""

import argparse
import pathlib

import numpy as np
import tritonclient.grpc
import tritonclient.http
from PIL import Image, ImageDraw, ImageFont

SIGN = pathlib.Path(__file__).parent / "images" / "sign_menu.jpg"
EDGE, PAPER, INK = (0, 158, 115), (0, 110, 80), (255, 255, 255)


def ask(triton, address, file):
    """The words, their scores [n] and their corners [n, 4, 2] in pixels of the picture."""
    image = triton.InferInput("input_image", [len(file)], "UINT8")
    image.set_data_from_numpy(np.frombuffer(file, dtype=np.uint8))
    with triton.InferenceServerClient(address) as client:
        result = client.infer("ocr", [image])
    words = [word.decode() for word in result.as_numpy("recognized_text")]
    return words, result.as_numpy("scores"), result.as_numpy("boxes")


def table(words, scores, boxes):
    """A line for every word: how sure, what, and where (top left to bottom left, clockwise)."""
    if not words:
        return "no words"
    width = max(len("word"), *map(len, words))
    lines = [f"score  {'word':{width}}  corners"]
    for word, score, corners in zip(words, scores, boxes):
        where = " ".join(f"{x:.0f},{y:.0f}" for x, y in corners)
        lines.append(f"{score:5.3f}  {word:{width}}  {where}")
    return "\n".join(lines)


def annotate(picture, words, boxes):
    """Draws every box with its word above it, or below where there is no room above."""
    canvas = ImageDraw.Draw(picture)
    size = max(14, min(picture.size) // 28)
    font, line = ImageFont.load_default(size), max(2, size // 7)
    for corners in boxes:
        outline = [tuple(corner) for corner in corners.tolist()]
        canvas.line([*outline, *outline[:2]], fill=EDGE, width=line, joint="curve")
    # Labels come last, so that no outline runs through one.
    for word, corners in zip(words, boxes):
        text = canvas.textbbox((0, 0), word, font=font)
        wide, high = text[2] + size // 2, text[3] + size // 4
        left = min(max(0, corners[:, 0].min()), max(0, picture.width - wide))
        top = corners[:, 1].min() - high - line
        if top < 0:
            top = min(corners[:, 1].max() + line, picture.height - high)
        canvas.rounded_rectangle([left, top, left + wide, top + high], size // 5, fill=PAPER)
        canvas.text((left + size // 4, top + size // 16), word, font=font, fill=INK)
    return picture


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("picture", nargs="?", default=SIGN, type=pathlib.Path)
    options.add_argument("--output", default="annotated.png", metavar="FILE")
    options.add_argument("--http", default="localhost:8000", metavar="HOST:PORT")
    options.add_argument("--grpc", nargs="?", const="localhost:8001", metavar="HOST:PORT",
                         help="ask over gRPC instead of HTTP")
    options = options.parse_args()

    file = options.picture.read_bytes()
    if options.grpc:
        words, scores, boxes = ask(tritonclient.grpc, options.grpc, file)
    else:
        words, scores, boxes = ask(tritonclient.http, options.http, file)
    print(table(words, scores, boxes))
    # The server does not turn pictures by what the camera noted either, so boxes and pixels agree.
    with Image.open(options.picture) as picture:
        annotate(picture.convert("RGB"), words, boxes).save(options.output)
    print(f"{len(words)} words drawn into {options.output}")


if __name__ == "__main__":
    main()
