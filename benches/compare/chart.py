"""Draws how many times faster, one bar a case, and requests over cores, one line a case, as SVG."""
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


COLOURS = ("#2c8c5a", "#5b7fa6", "#8a5ba6", "#c8553d", "#d08a1d", "#777777", "#aaaaaa")


def draw_over_cores(lines):
    """Lines of (cores, requests per second) by label, both scales logarithmic; dashed: in step."""
    points = [point for line in lines.values() for point in line]
    if not points:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="40"></svg>\n'
    cores = sorted({count for count, _ in points})
    low = math.floor(math.log2(min(rate for _, rate in points)))
    high = math.ceil(math.log2(max(rate for _, rate in points)))
    high = max(high, low + 1)
    left, right, bottom = 90, 560, TOP + 420

    def across(count):
        width = math.log2(cores[-1]) - math.log2(cores[0])
        return left + (math.log2(count / cores[0]) / width if width else 0.5) * (right - left)

    def up(rate):
        return bottom - (math.log2(rate) - low) / (high - low) * (bottom - TOP)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 50}">',
             f"<style>{STYLE}</style>", BACKGROUND,
             _text(12, 22, "Requests per second over cores of the server", 'class="title"'),
             _text((left + right) / 2, bottom + 38, "cores (dashed: twice the cores, twice the"
                   " requests)", 'text-anchor="middle"')]
    for power in range(low, high + 1):
        parts += [_across(left, right, up(2 ** power), "#ddd", 1),
                  _text(left - 8, up(2 ** power) + 4, f"{2 ** power:,}", 'text-anchor="end"')]
    for count in cores:
        parts += [_line(across(count), TOP, bottom, "#ddd", 1),
                  _text(across(count), bottom + 18, str(count), 'text-anchor="middle"')]
    for index, (label, line) in enumerate(lines.items()):
        parts += _curve(label, sorted(line), COLOURS[index % len(COLOURS)], (across, up, high))
        y = TOP + 14 + 22 * index
        parts += [_across(right + 20, right + 44, y, COLOURS[index % len(COLOURS)], 3),
                  _text(right + 52, y + 4, label)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _curve(label, line, colour, scales):
    across, up, high = scales
    places = [(across(count), up(rate)) for count, rate in line]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">'
              f"<title>{html.escape(label)}: {rate:,.0f}/s on {count}</title></circle>"
              for (x, y), (count, rate) in zip(places, line)]
    (first, rate), (last, _) = line[0], line[-1]
    # As far as the picture goes.
    last = min(last, first * 2 ** high / rate)
    if first < last:
        parts.append(f'<line x1="{across(first):.1f}" y1="{up(rate):.1f}" x2="{across(last):.1f}"'
                     f' y2="{up(rate * last / first):.1f}" stroke="{colour}"'
                     ' stroke-dasharray="3 4"/>')
    return parts


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
    return _straight((x, top), (x, bottom), colour, width)


def _across(left, right, y, colour, width):
    return _straight((left, y), (right, y), colour, width)


def _straight(start, end, colour, width):
    (x1, y1), (x2, y2) = start, end
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
            f' stroke="{colour}" stroke-width="{width}"/>')
