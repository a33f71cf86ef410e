"""A chart of lines with logarithmic axes as SVG, readable on light and on dark pages. Needs nothing."""

import dataclasses
import html
import math

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 62, 60
LABEL_HEIGHT = 16
# Okabe and Ito's colours, which people with colour blindness can tell apart, somewhat darker for white pages.
LIGHT = ["#0072b2", "#b34f00", "#007a57", "#a3498b", "#8a6d00", "#2f7fae", "#555555"]
DARK = ["#56b4e9", "#ff9f4a", "#33c79a", "#e6a1cc", "#f0e442", "#9fd3f2", "#bbbbbb"]


@dataclasses.dataclass
class Line:
    """Points (x, y), both above zero. Lines of one `colour` belong together; `dashed`: what others are compared to."""

    name: str
    points: list
    colour: int = 0
    dashed: bool = False


class Axis:
    """A logarithmic scale from values to positions."""

    def __init__(self, values, first, last):
        low, high = min(values), max(values)
        if low == high:
            low, high = low / 2, high * 2
        self.low, self.high, self.first, self.last = math.log10(low), math.log10(high), first, last

    def place(self, value):
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return self.first + part * (self.last - self.first)

    def ticks(self):
        """Returns the values of a grid: decades, and also 2 and 5 if there are few decades."""
        steps = (1, 2, 5) if self.high - self.low < 3 else (1, )
        out = [
            step * 10.0**decade for decade in range(math.floor(self.low), math.ceil(self.high) + 1) for step in steps
        ]
        slack = 1e-9
        return [value for value in out if self.low - slack <= math.log10(value) <= self.high + slack]


def widened(values):
    """Extends the range, so that a curve does not run along the frame."""
    return [min(values) / 1.15, max(values) * 1.15]


def style():
    light = "".join(f".c{i}{{stroke:{colour}}}.t{i}{{fill:{colour}}}" for i, colour in enumerate(LIGHT))
    dark = "".join(f".c{i}{{stroke:{colour}}}.t{i}{{fill:{colour}}}" for i, colour in enumerate(DARK))
    return ("text{font:13px sans-serif;fill:#222}.title{font-size:16px;font-weight:bold}.page{fill:#fff}"
            ".grid{stroke:#ddd}.frame{stroke:#888;fill:none}.line{fill:none;stroke-width:2}"
            f".dashed{{stroke-dasharray:5 4}}{light}"
            "@media(prefers-color-scheme:dark){text{fill:#ddd}.page{fill:#161b22}.grid{stroke:#333b45}"
            f".frame{{stroke:#777}}{dark}}}")


def spread(places, lowest):
    """Returns positions for overlapping labels: from the top down, then up again from the lowest position."""
    order = sorted(range(len(places)), key=places.__getitem__)
    out, last = list(places), -math.inf
    for index in order:
        last = out[index] = max(places[index], last + LABEL_HEIGHT)
    last = lowest + LABEL_HEIGHT
    for index in reversed(order):
        last = out[index] = min(out[index], last - LABEL_HEIGHT)
    return out


def chart(title, subtitle, x_title, y_title, lines, x_text="{:g}".format, y_text="{:g}".format, x_ticks=None):
    """The SVG of lines, each labelled at its end. `x_text`, `y_text`: a value as the axis shows it; `x_ticks`: the only
    values shown there. ValueError: there is nothing to draw."""
    lines = [line for line in lines if line.points]
    if not lines:
        raise ValueError(f"{title}: no points")
    x_axis = Axis(widened([x for line in lines for x, _ in line.points]), LEFT, WIDTH - RIGHT)
    y_axis = Axis(widened([y for line in lines for _, y in line.points]), HEIGHT - BOTTOM, TOP)
    text = html.escape
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{text(title)}, {text(subtitle)}</title><style>{style()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="26">{text(title)}</text>',
        f'<text x="{LEFT}" y="48">{text(subtitle)}</text>'
    ]
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in x_ticks or x_axis.ticks():
        x = x_axis.place(value)
        out.append(f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>'
                   f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{text(x_text(value))}</text>')
    for value in y_axis.ticks():
        y = y_axis.place(value)
        out.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>'
                   f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text(y_text(value))}</text>')
    out.append(f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>'
               f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 16}" text-anchor="middle">{text(x_title)}</text>'
               f'<text transform="translate(18 {(TOP + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">'
               f"{text(y_title)}</text>")
    ends = spread([y_axis.place(line.points[-1][1]) for line in lines], bottom)
    for line, end in zip(lines, ends):
        colour = line.colour % len(LIGHT)
        places = [(x_axis.place(x), y_axis.place(y)) for x, y in line.points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        out.append(f'<path class="line c{colour}{" dashed" if line.dashed else ""}" d="{path}"/>')
        if not line.dashed:
            out += [f'<circle class="t{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places]
        out.append(f'<text class="t{colour}" x="{right + 8}" y="{end + 4:.1f}">{text(line.name)}</text>')
    return "\n".join(out) + "\n</svg>\n"
