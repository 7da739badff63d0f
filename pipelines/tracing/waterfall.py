"""Draws a trace as Jaeger's API tells it: prints its tree, and writes a picture. Needs no package."""

import argparse
import json
import sys
from urllib.parse import quote
from urllib.request import urlopen
from xml.sax.saxutils import escape

#: Parts of a model's work, left out unless `--all` is given: the picture has room for so much.
DETAILS = ("batch", "compute-input", "compute-infer", "compute-output")
COLOURS = {"queue": "#b8bfc9", "compute": "#3f7fbf", "InferRequest": "#24405c", "batch": "#c9a227"}
MODEL, FAILED = "#6aa84f", "#c0392b"
ROW, LEFT, WIDTH, MARGIN = 22, 270, 660, 12


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("trace", nargs="?", help="its identifier [default: the latest]")
    arguments.add_argument("--jaeger", default="http://localhost:16686", help="where its API listens")
    arguments.add_argument("--service", default="triton-inference-server", help="whose traces")
    arguments.add_argument("--model", help="the latest request that this model worked for")
    arguments.add_argument("--all", action="store_true", help="every span")
    arguments.add_argument("--output", help="the picture's file, SVG")
    given = arguments.parse_args()
    spans = latest(given) if given.trace is None else ask(given, f"traces/{given.trace}")[0]
    rows = list(tree([it for it in spans if given.all or it["operationName"] not in DETAILS]))
    begin = min(it["startTime"] for _, it in rows)
    for depth, span in rows:
        name = "  " * depth + span["operationName"]
        start, took = (span["startTime"] - begin) / 1000, span["duration"] / 1000
        print(f"{name:<36}{start:>10.3f} ms  +{took:.3f} ms{'  FAILED' if failed(span) else ''}")
    if given.output:
        with open(given.output, "w", encoding="utf-8") as file:
            file.write(picture(rows, begin))


def ask(given, path):
    """The spans of the traces it finds."""
    with urlopen(f"{given.jaeger}/api/{path}") as answer:
        return [trace["spans"] for trace in json.load(answer)["data"]]


def latest(given):
    found = ask(given, f"traces?service={quote(given.service)}&operation=InferRequest&limit=100")
    model = given.model
    found = [it for it in found if not model or any(s["operationName"] == model for s in it)]
    if not found:
        sys.exit("there is no such trace yet; spans are sent every few seconds")
    return max(found, key=lambda it: min(span["startTime"] for span in it))


def tree(spans):
    """Depth and span, every span below its parent, in the order they begin."""
    known = {it["spanID"] for it in spans}
    below = {}
    for span in sorted(spans, key=lambda it: (it["startTime"], -it["duration"])):
        # Links come as references too, in older versions before the parent.
        references = sorted(span.get("references", ()), key=lambda it: it["refType"] != "CHILD_OF")
        parents = [it["spanID"] for it in references if it["spanID"] in known]
        below.setdefault(parents[0] if parents else None, []).append(span)

    def walk(parent, depth):
        for span in below.get(parent, ()):
            yield depth, span
            yield from walk(span["spanID"], depth + 1)

    return walk(None, 0)


def failed(span):
    return any(it["key"] == "error" and it["value"] for it in span["tags"])


def picture(rows, begin):
    whole = max(it["startTime"] + it["duration"] for _, it in rows) - begin or 1
    height = ROW * (len(rows) + 1) + 2 * MARGIN
    width = LEFT + WIDTH + 90
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for quarter in range(5):
        x = LEFT + WIDTH * quarter / 4
        parts.append(
            f'<path d="M{x} {MARGIN + ROW - 4}V{height - MARGIN}" stroke="#e3e6ea"/>'
            f'<text x="{x}" y="{MARGIN + 10}" fill="#66707c" text-anchor="middle" '
            f'font-size="11">{whole * quarter / 4000:.1f} ms</text>'
        )
    for index, (depth, span) in enumerate(rows, 1):
        name = span["operationName"]
        colour = FAILED if failed(span) else COLOURS.get(name, MODEL)
        y = MARGIN + ROW * index
        x = LEFT + WIDTH * (span["startTime"] - begin) / whole
        wide = max(WIDTH * span["duration"] / whole, 1.5)
        parts.append(
            f'<text x="{MARGIN + 14 * depth}" y="{y + 14}" fill="#1d2733">{escape(name)}</text>'
            f'<rect x="{x:.1f}" y="{y + 3}" width="{wide:.1f}" height="{ROW - 7}" rx="2" '
            f'fill="{colour}"/>'
            f'<text x="{x + wide + 5:.1f}" y="{y + 14}" fill="#66707c" font-size="11">'
            f"{span['duration'] / 1000:.2f} ms</text>"
        )
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    main()
