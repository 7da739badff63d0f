"""Sends a picture to the ensemble `ocr`, lists its words and draws them into a copy of it."""

import argparse
import pathlib

import numpy as np
import tritonclient.grpc
import tritonclient.http
from PIL import Image, ImageDraw, ImageFont, ImageOps

SIGN = pathlib.Path(__file__).parent / "images" / "sign_menu.jpg"
EDGE, PAPER, INK = (80, 235, 170), (0, 84, 62), (255, 255, 255)


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
    """Draws every box, and beside it, where no other label is, its word."""
    canvas = ImageDraw.Draw(picture)
    for corners in boxes:
        outline = [tuple(corner) for corner in corners.tolist()]
        outline += outline[:2]
        line = int(max(2, min(height_of(corners) / 20, min(picture.size) / 240)))
        # A dark rim keeps the line visible on bright ground.
        canvas.line(outline, fill=PAPER, width=2 * line + 1, joint="curve")
        canvas.line(outline, fill=EDGE, width=line, joint="curve")
    placed = []
    # Labels come last, so that no outline runs through one.
    for word, corners in zip(words, boxes):
        size = int(max(14, min(height_of(corners) / 2, min(picture.size) / 28)))
        font, pad = ImageFont.load_default(size), max(3, size // 4)
        _, _, wide, high = canvas.textbbox((0, 0), word, font=font)
        size = wide + 2 * pad, high + pad
        place = find_place(size, corners, picture.size, placed)
        placed.append((*place, place[0] + size[0], place[1] + size[1]))
        canvas.rounded_rectangle(placed[-1], pad, fill=PAPER)
        canvas.text((place[0] + pad, place[1] + pad // 3), word, font=font, fill=INK)
    return picture


def height_of(corners):
    return np.linalg.norm(corners[3] - corners[0])


def find_place(size, corners, limits, placed):
    """Top left of a label: above its box, or below, or else where it is least in the way."""
    (wide, high), (left, top), (_, bottom) = size, corners.min(axis=0), corners.max(axis=0)
    gap = high // 6
    rows = [top - high - gap, bottom + gap, top - 2 * (high + gap), bottom + high + 2 * gap]
    places = [(min(max(0, left), max(0, limits[0] - wide)), row)
              for row in rows if 0 <= row <= limits[1] - high]
    for x, y in places:
        if not any(x < r and l < x + wide and y < b and t < y + high for l, t, r, b in placed):
            return x, y
    return places[0] if places else (0, 0)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("picture", nargs="?", default=SIGN, type=pathlib.Path)
    options.add_argument("--output", default="annotated.png", metavar="FILE")
    options.add_argument("--grpc", action="store_true", help="ask over gRPC instead of HTTP")
    options.add_argument("--server", metavar="HOST:PORT",
                         help="default localhost:8000, over gRPC localhost:8001")
    options = options.parse_args()

    triton, port = (tritonclient.grpc, 8001) if options.grpc else (tritonclient.http, 8000)
    file = options.picture.read_bytes()
    words, scores, boxes = ask(triton, options.server or f"localhost:{port}", file)
    print(table(words, scores, boxes))
    with Image.open(options.picture) as picture:
        # The server, too, turns a picture as its camera noted.
        upright = ImageOps.exif_transpose(picture).convert("RGB")
    annotate(upright, words, boxes).save(options.output)
    print(f"{len(words)} words drawn into {options.output}")


if __name__ == "__main__":
    main()
