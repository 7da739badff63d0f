"""Draws how many times faster, one bar a case, as SVG."""
import html
import math

import cases

LEFT, BAR, GAP, WIDTH, TOP = 230, 16, 6, 900, 54
GOOD, BAD, PLAIN = "#2c8c5a", "#c8553d", "#5b7fa6"
STYLE = "text{font:12px sans-serif;fill:#222}.title{font-size:15px;font-weight:bold}"
BACKGROUND = '<rect width="100%" height="100%" fill="#fff"/>'


def draw(results, first, second):
    """Bars on a logarithmic scale; a black line across a bar is its target."""
    targets = [goal.ratio for it in results for goal in it.goals if goal.metric == cases.RATE]
    largest = max([2.0, *targets, *(it.ratio(cases.RATE) for it in results)])
    lowest = min([1.0, *targets, *(it.ratio(cases.RATE) for it in results)])
    low, high = math.log2(max(lowest, 1 / 64)), math.log2(largest)
    low = min(low, 0) - 0.3

    def across(ratio):
        part = (math.log2(max(ratio, 2 ** low)) - low) / (high - low)
        return LEFT + part * (WIDTH - LEFT - 70)

    bottom = TOP + len(results) * (BAR + GAP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 24}">',
             f"<style>{STYLE}</style>", BACKGROUND,
             _text(12, 22, f"Requests per second: {first} ÷ {second}", 'class="title"')]
    for power in range(math.ceil(low), math.floor(high) + 1):
        x = across(2.0 ** power)
        shade = "#888" if power == 0 else "#ddd"
        parts += [_line(x, TOP - 6, bottom, shade, 1),
                  _text(x, TOP - 10, f"{2.0 ** power:g}×", 'text-anchor="middle"')]
    for index, result in enumerate(results):
        parts += _bar(result, TOP + index * (BAR + GAP), across)
    return "\n".join([*parts, _text(12, bottom + 16, "black line: target"), "</svg>"]) + "\n"


def _bar(result, y, across):
    ratio = result.ratio(cases.RATE)
    goals = [(goal, met) for goal, met in result.verdicts() if goal.metric == cases.RATE]
    colour = PLAIN if not goals else GOOD if all(met for _, met in goals) else BAD
    label = f"{result.case} {result.protocol}, {result.clients} clients"
    start, end = sorted((across(1), across(ratio)))
    parts = [_text(LEFT - 8, y + BAR - 4, label, 'text-anchor="end"'),
             f'<rect x="{start:.1f}" y="{y}" width="{max(1, end - start):.1f}" height="{BAR}"'
             f' fill="{colour}"/>',
             _text(end + 5, y + BAR - 4, f"{ratio:.2f}")]
    return parts + [_line(across(goal.ratio), y - 2, y + BAR + 2, "#000", 2) for goal, _ in goals]


def _text(x, y, text, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{html.escape(text)}</text>'


def _line(x, top, bottom, colour, width):
    return (f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}"'
            f' stroke="{colour}" stroke-width="{width}"/>')
