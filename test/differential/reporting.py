"""What was found, said once for each kind of difference: how often, where, and the calls that led to the first one."""

import json
import re
from collections import defaultdict

SEEDS_MAX = 8       # named for each kind
EXAMPLES_MAX = 2
UNREPEATED_MAX = 100
SLICE_MAX = 40      # lines of an example
LINE_CHARACTERS = 260
THREAD_STATE = re.compile(
    r"cuCtx(Set|Push|Pop|Create|Destroy|Attach|Detach)|cuDevicePrimaryCtx|cudaSetDevice|cuThreadExchange")


def names_of(line):
    return set(re.findall(r"(?:[$>]|digest |host )([a-z]+[0-9]*)", line))


def slice_of(lines, number):
    """The lines before a line, and itself, that share a name with it, directly or through others, or set what is
    current on its thread."""
    at = next((i for i, line in enumerate(lines) if line.split(" ", 1)[0] == number), len(lines) - 1)
    wanted, kept = names_of(lines[at]), [at]
    for i in range(at - 1, -1, -1):
        of_thread = lines[i].split()[1] == lines[at].split()[1] and THREAD_STATE.match(lines[i].split()[2])
        if names_of(lines[i]) & wanted or of_thread:
            wanted |= set() if of_thread else names_of(lines[i])
            kept.append(i)
    return [lines[i] for i in reversed(kept[:SLICE_MAX])]


class Report:
    """Differences by kind. add() is called once for each sequence."""

    def __init__(self):
        self.sequences, self.calls, self.differing = 0, 0, 0
        self.unrepeated = []  # what differed behind other sequences in one process, and not in a process of its own
        self.kinds = defaultdict(lambda: {"count": 0, "first": 0, "seeds": [], "examples": []})

    def add(self, seed, lines, found, logs, unrepeated=()):
        self.sequences += 1
        self.calls += len(lines)
        self.differing += bool(found)
        self.unrepeated += [
            f"seed {seed}: {difference}"[:LINE_CHARACTERS] for difference in unrepeated[:1]
            if len(self.unrepeated) < UNREPEATED_MAX
        ]
        for difference in found:
            kind = self.kinds[difference.kind]
            kind["count"] += 1
            kind["first"] += difference.first
            if difference.first and len(kind["seeds"]) < SEEDS_MAX:
                kind["seeds"].append(seed)
            wanted = len(kind["examples"]) < EXAMPLES_MAX if difference.first else not kind["examples"]
            if wanted:
                kind["examples"].append(self.example(seed, lines, difference, logs))

    def example(self, seed, lines, difference, logs):
        said = [{row.split(" ", 1)[0]: row.split(" ", 2)[-1] for row in log} for log in logs]
        shown = []
        for line in slice_of(lines, difference.number):
            answers = [side.get(line.split(" ", 1)[0], "?") for side in said]
            short = line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + "..."
            shown.append(f"{short}  => {answers[0]}" + ("" if answers[0] == answers[1] else f" | {answers[1]}"))
        return {"seed": seed, "difference": str(difference), "first": difference.first, "lines": shown}

    def ordered(self):
        """Kinds that were first in some sequence come first: the others may follow from them."""
        return sorted(self.kinds.items(), key=lambda row:
                      (row[1]["first"] == 0, -row[1]["first"], -row[1]["count"], row[0]))

    def write(self, path, settings):
        rows = [{"call": call, "direct": direct, "remote": remote, **row}
                for (call, direct, remote), row in self.ordered()]
        with open(path, "w", encoding="utf-8") as out:
            json.dump(
                {
                    "settings": settings, "sequences": self.sequences, "calls": self.calls, "differing": self.differing,
                    "unrepeated": self.unrepeated, "kinds": rows
                }, out, indent=1)

    def summary(self):
        yield (
            f"{self.sequences} sequences, {self.calls} calls, {self.differing} sequences with differences, of"
            f" {len(self.kinds)} kinds"
        )
        yield from (f"  in a batch only: {each}" for each in self.unrepeated)
        for (call, direct, remote), row in self.ordered():
            yield (
                f"  {call}: direct {direct}, remote {remote}: {row['count']} times, first in {row['first']} sequences,"
                f" seeds {row['seeds']}"
            )
