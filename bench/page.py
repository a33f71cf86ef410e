"""The page of ratios at the end of `bench/run`: each figure against the native one and against the raw link of its own
run, and what became better or worse since the page that was recorded of the same card.

A ratio says how many times as long something takes; of a rate it is the other way round, so that more is always worse.
A page is {road: {figure: Row}}; recorded ones lie in bench/recorded/, a file for each card.
"""

import dataclasses
import json
import os
import re
import statistics

import goals

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded")
# Two runs of the same build on one machine differ by this much, even if the rounds of each run agree well.
SPREAD_MIN = 0.10
BETTER, SAME, WORSE, NEW = "better", "same", "worse", "new"


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure over a transport: as a multiple of the native value, in round trips of the raw link (0: a rate), and the
    spread of its rounds relative to its median."""

    native: float
    round_trips: float
    spread: float


@dataclasses.dataclass(frozen=True)
class Change:
    road: str
    figure: str
    was: Row  # None: the recorded page has no such row
    now: Row
    verdict: str


def is_rate(figure):
    return figure.endswith("gb_s")


def in_us(figure, value):
    """Returns a duration in microseconds, whatever the unit at the end of the figure's name."""
    unit = figure.rsplit("_", 1)[-1]
    return value * {"us": 1, "ms": 1e3, "s": 1e6}[unit]


def row_of(figure, native, remote, round_trip_us):
    """Returns the row of a figure; each argument has a value for each round."""
    if is_rate(figure):
        ratios, trips = [near / far for near, far in zip(native, remote)], [0]
    else:
        ratios = [far / near for near, far in zip(native, remote)]
        trips = [in_us(figure, far) / raw for far, raw in zip(remote, round_trip_us)]
    middle = statistics.median(ratios)
    return Row(middle, statistics.median(trips), (max(ratios) - min(ratios)) / middle if middle else 0)


def page_of(native, columns, round_trips_us):
    """The page of a run. `native`: the figures of each round; `columns`: {road: the same of that road};
    `round_trips_us`: {road: the raw link's round trip in each round}."""
    page = {}
    for road, rounds in columns.items():
        names = [name for name in rounds[0] if all(of.get(name, 0) > 0 for of in native + rounds)]
        page[road] = {
            name: row_of(name, [of[name] for of in native], [of[name] for of in rounds], round_trips_us[road])
            for name in names
        }
    return page


def verdict(was, now):
    """Returns whether a row got better or worse by more than the spread of both.

    A change of the product changes both ratios; a machine with another link, or a slower moment of the native side,
    changes one. So both ratios have to exceed the spread, if a row has both.
    """
    margin = 1 + max(SPREAD_MIN, was.spread, now.spread)
    pairs = [(was.native, now.native)] + ([(was.round_trips, now.round_trips)] if was.round_trips else [])
    if all(after > before * margin for before, after in pairs):
        return WORSE
    if all(after * margin < before for before, after in pairs):
        return BETTER
    return SAME


def compare(was, now):
    """A Change for each row of the page `now`; rows that only the other has were not measured this time."""
    changes = []
    for road, rows in now.items():
        for figure, row in rows.items():
            before = was.get(road, {}).get(figure)
            changes.append(Change(road, figure, before, row, verdict(before, row) if before else NEW))
    return changes


def steps_down(curve, spread=SPREAD_MIN):
    """The sizes that take longer than the next larger one, as pairs of both. `curve`: (bytes, microseconds) each."""
    curve = sorted(curve)
    return [(size, larger) for (size, took), (larger, larger_took) in zip(curve, curve[1:])
            if took > larger_took * (1 + spread)]


def curves(figures):
    """{name: [(bytes, us)...]} of the copies by size among the medians of a road."""
    return {
        name: [(bytes_, figures[figure]) for figure, bytes_ in sizes.items() if figure in figures]
        for name, sizes in goals.CURVES.items()
    }


def file_of(device, folder=FOLDER):
    """Returns the path of a card's recorded page; `device`: the server's name of it ("1 x NVIDIA H200, driver 580")."""
    name = re.sub(r"^\d+ x ", "", device).split(",")[0]
    return os.path.join(folder, re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") + ".json")


def read(path):
    """Returns the record as {"device", "when", "page"}; None: there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            recorded = json.load(file)
    except FileNotFoundError:
        return None
    pages = {road: {name: Row(*row) for name, row in rows.items()} for road, rows in recorded["roads"].items()}
    return {"device": recorded["device"], "when": recorded["when"], "page": pages}


def write(path, device, when, page):
    """Records a page, with a line for each row, so that people and diffs can read it. Rows that only the previously
    recorded page has stay."""
    before = read(path)
    merged = dict(before["page"]) if before else {}
    for road, rows in page.items():
        merged[road] = {**merged.get(road, {}), **rows}
    roads = []
    for road, rows in merged.items():
        lines = [f"   {json.dumps(name)}: [{row.native:.4g}, {row.round_trips:.4g}, {row.spread:.2g}]"
                 for name, row in rows.items()]
        roads.append(f"  {json.dumps(road)}: {{\n" + ",\n".join(lines) + "\n  }")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(f'{{\n "device": {json.dumps(device)},\n "when": {json.dumps(when)},\n'
                  ' "columns": ["times the native value", "round trips of the raw link", "spread of the rounds"],\n'
                  ' "roads": {\n' + ",\n".join(roads) + "\n }\n}\n")


def text_of(figure):
    return goals.FIGURES.get(figure, figure)


def lines_of(changes, against):
    """Returns the page as text; `against`: the page of the comparison."""
    counts = {kind: sum(change.verdict == kind for change in changes) for kind in (BETTER, SAME, WORSE, NEW)}
    said = [f"ratios against {against}: {counts[BETTER]} better, {counts[SAME]} the same, {counts[WORSE]} worse"
            + (f", {counts[NEW]} new" if counts[NEW] else ""),
            f"{'':52}{'road':10}{'of native':>18}{'round trips':>20}"]
    for change in sorted(changes, key=lambda change: [WORSE, BETTER, SAME, NEW].index(change.verdict)):
        was = change.was
        native = f"{was.native:.2f} -> " if was else ""
        trips = f"{was.round_trips:.1f} -> " if was and change.now.round_trips else ""
        native, trips = f"{native}{change.now.native:.2f}", f"{trips}{change.now.round_trips:.1f}"
        spread = f" (spread {100 * change.now.spread:.0f} %)" if change.verdict in (BETTER, WORSE) else ""
        said.append(f"{text_of(change.figure):52}{change.road:10}{native:>18}"
                    f"{trips if change.now.round_trips else '':>20}  {change.verdict}{spread}")
    return said


def lines_of_curves(road, figures):
    """Returns the text about copies that take longer than larger ones."""
    said = []
    for name, curve in curves(figures).items():
        took = dict(curve)
        for size, larger in steps_down(curve):
            said.append(f"{road}, {name}: {goals.size_text(size)} takes {took[size]:.0f} us, longer than "
                        f"{goals.size_text(larger)} with {took[larger]:.0f}")
    measured = any(curves(figures).values())
    return said or ([f"{road}: no size of a copy takes longer than the next larger one"] if measured else [])
