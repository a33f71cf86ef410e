#!/usr/bin/env python3
"""Draws the dashboard as an SVG for the documents: its panels where Grafana puts them, with their titles, units and
series. The figures are examples that the panels' names give, the same every time.

usage: draw_dashboard.py > docs/monitoring_dashboard.svg
"""

import hashlib
import itertools
import json
import math
import os
import re
import sys
from xml.sax.saxutils import escape

DASHBOARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "grafana_dashboard.json")
CELL_WIDTH, CELL_HEIGHT, GAP, MARGIN = 44, 26, 6, 10  # of Grafana's grid of 24 columns
POINTS, LEGEND_HEIGHT, TITLE_HEIGHT, AXIS_WIDTH = 49, 14, 20, 52
COLOURS = ("#3b7dd8", "#e0822f", "#3f9e4d", "#c23b3b", "#8160b8", "#7f6a5b")
# The example values of the labels in legends.
EXAMPLES = {
    "gpu": ("0", "1"),
    "tenant": ("anna", "ben", "batch"),
    "regime": ("free", "co-run", "lease"),
    "cause": ("finished", "cut", "stopped"),
    "reason": ("token", "queue_full", "expired"),
    "class": ("interactive", "batch"),
}
# The largest value of the example, and its format.
UNITS = {
    "percentunit": (1, lambda value: f"{100 * value:.0f} %"),
    "bytes": (80 * 2**30, lambda value: f"{value / 2**30:.0f} GiB"),
    "s": (40, lambda value: f"{value:.0f} s"),
    "Bps": (400e6, lambda value: f"{value / 1e6:.0f} MB/s"),
    "ops": (2, lambda value: f"{value:.1f}/s"),
    "short": (8, lambda value: f"{value:.0f}"),
}


def series_of(panel):
    """Returns the names of a panel's series, with example values of the labels."""
    names = []
    for target in panel["targets"]:
        legend = target["legendFormat"]
        labels = re.findall(r"{{\s*(\w+)\s*}}", legend)
        for values in itertools.product(*(EXAMPLES[label] for label in labels)):
            name = legend
            for label, value in zip(labels, values):
                name = re.sub(r"{{\s*%s\s*}}" % label, value, name)
            names.append(name)
    return names


def figures(panel, series):
    """Returns a value of a slow curve between 0 and 1, which depends on the names."""
    digest = hashlib.sha256(f"{panel['title']}/{series}".encode()).digest()
    level, swing, phase, turns = (byte / 255 for byte in digest[:4])
    return [
        min(1.0, max(0.0, 0.2 + 0.5 * level + 0.15 * (0.4 + swing) * math.sin(
            2 * math.pi * (phase + (1 + 2 * turns) * point / (POINTS - 1)))))
        for point in range(POINTS)
    ]


class Drawing:
    def __init__(self):
        self.parts = []

    def text(self, x, y, text, size=11, colour="#333", anchor="start"):
        self.parts.append(f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">'
                          f"{escape(text)}</text>")

    def line(self, points, colour, width=1.5):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')

    def box(self, x, y, width, height):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="#fff" stroke="#ccc"/>')

    def panel(self, panel):
        place = panel["gridPos"]
        x, y = MARGIN + place["x"] * CELL_WIDTH, MARGIN + place["y"] * CELL_HEIGHT
        width, height = place["w"] * CELL_WIDTH - GAP, place["h"] * CELL_HEIGHT - GAP
        if panel["type"] == "row":
            return self.text(x, y + 16, panel["title"], 14, "#111")
        self.box(x, y, width, height)
        self.text(x + 8, y + 15, panel["title"], 12, "#111")
        most, written = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
        if panel["type"] == "stat":
            value = figures(panel, "")[-1] * most
            return self.text(x + width / 2, y + height - 22, written(value), 26, COLOURS[0], "middle")
        return self.graph(panel, (x, y, width, height), most, written)

    def graph(self, panel, area, most, written):
        x, y, width, height = area
        names = series_of(panel)
        left, right, top = x + AXIS_WIDTH, x + width - 10, y + TITLE_HEIGHT + 8
        rows = self.legend(names, x + 8, y + height - 6, width - 16)
        bottom = y + height - 8 - rows * LEGEND_HEIGHT
        for part in (0, 0.5, 1):
            at = bottom - part * (bottom - top)
            self.line([(left, at), (right, at)], "#e4e4e4", 1)
            self.text(left - 5, at + 4, written(part * most), 9, "#666", "end")
        for name, colour in zip(names, itertools.cycle(COLOURS)):
            self.line([(left + i * (right - left) / (POINTS - 1), bottom - value * (bottom - top))
                       for i, value in enumerate(figures(panel, name))], colour)

    def legend(self, names, left, bottom, width):
        """Returns the number of rows; the last one is at the bottom."""
        rows, used = [[]], 0
        for name, colour in zip(names, itertools.cycle(COLOURS)):
            wide = 18 + 6 * len(name)
            if used + wide > width and rows[-1]:
                rows.append([])
                used = 0
            rows[-1].append((used, name, colour))
            used += wide
        for up, row in enumerate(reversed(rows)):
            y = bottom - up * LEGEND_HEIGHT
            for at, name, colour in row:
                self.line([(left + at, y - 4), (left + at + 9, y - 4)], colour, 3)
                self.text(left + at + 12, y, name, 10)
        return len(rows)


def draw():
    with open(DASHBOARD, encoding="utf-8") as file:
        dashboard = json.load(file)
    drawing = Drawing()
    for panel in dashboard["panels"]:
        drawing.panel(panel)
    width = 24 * CELL_WIDTH + 2 * MARGIN
    height = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in dashboard["panels"]) * CELL_HEIGHT + 2 * MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif">', f'<rect width="{width}" height="{height}" fill="#f6f6f6"/>', *drawing.parts,
        "</svg>", ""
    ])


if __name__ == "__main__":
    sys.stdout.write(draw())
