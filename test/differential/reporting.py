"""The report: each kind of difference once, with its count, its seeds, and the calls that led to the first one."""

import json
import re
from collections import Counter

from comparing import HUNG

SEEDS_MAX = 8       # named for each kind
EXAMPLES_MAX = 2
UNREPEATED_MAX = 100
SERVER_LINES_MAX = 1000
SLICE_MAX = 40      # lines of an example
LINE_CHARACTERS = 260
THREAD_STATE = re.compile(
    r"cuCtx(Set|Push|Pop|Create|Destroy|Attach|Detach)|cuDevicePrimaryCtx|cudaSetDevice|cuThreadExchange")


def names_of(line):
    return set(re.findall(r"(?:[$>]|digest |host )([a-z]+[0-9]*)", line))


def slice_of(lines, number):
    """Returns the line and the earlier lines that share a name with it, directly or through others, or set its thread's
    current context."""
    at = next((i for i, line in enumerate(lines) if line.split(" ", 1)[0] == number), len(lines) - 1)
    wanted, kept = names_of(lines[at]), [at]
    for i in range(at - 1, -1, -1):
        of_thread = lines[i].split()[1] == lines[at].split()[1] and THREAD_STATE.match(lines[i].split()[2])
        if names_of(lines[i]) & wanted or of_thread:
            wanted |= set() if of_thread else names_of(lines[i])
            kept.append(i)
    return [lines[i] for i in reversed(kept[:SLICE_MAX])]


def calls_of(logs):
    """Returns the number of CUDA calls that both sides made."""
    return min(sum(words[1].lstrip("~").startswith("cu") and words[2] != "skipped"
                   for words in (row.split(" ", 3) for row in log) if len(words) > 2) for log in logs)


class Report:
    """Differences by kind. count() is called once for each sequence, add() for each that differs."""

    def __init__(self):
        self.sequences, self.calls, self.differing = 0, 0, 0
        self.threads = self.contexts = 0  # of all sequences
        self.ended_alike = 0  # sequences that ended their process on both sides alike
        # Started processes; the number of times that contexts were ended between sequences.
        self.processes = self.renewals = 0
        self.explained = Counter()  # lines that differ, by the reasons of explained.toml
        self.hung = []  # seeds, with the side
        # Differences that occurred after other sequences in one process, and not alone; with both processes' error
        # output until then.
        self.unrepeated = []
        self.server_said = []  # warnings and errors in the server's log
        self.kinds = {}

    def count(self, seed, lines, logs, explained=()):
        """Counts a sequence, with or without a difference."""
        self.sequences += 1
        self.calls += calls_of(logs)
        self.threads += len({line.split(" ", 2)[1] for line in lines})
        self.contexts += 1 + sum(" cuCtxCreate" in line for line in lines)
        self.ended_alike += logs[0] == logs[1] and logs[0][-1] != "end"
        self.hung += [f"seed {seed}, {side}" for side, log in zip(("direct", "remote"), logs) if log[-1] == HUNG]
        self.explained.update(rule.reason for rule in explained)

    def add(self, seed, lines, found, logs, unrepeated=(), said=()):
        """Adds the differences of a sequence. `said`: both sides' error output."""
        self.differing += bool(found)
        self.unrepeated += [
            {"difference": f"seed {seed}: {difference}"[:LINE_CHARACTERS], "said": [*said]}
            for difference in unrepeated[:1]
        ]
        for difference in found:
            kind = self.kind(difference.kind)
            kind["count"] += 1
            kind["first"] += difference.first
            if difference.first and len(kind["seeds"]) < SEEDS_MAX:
                kind["seeds"].append(seed)
            wanted = len(kind["examples"]) < EXAMPLES_MAX if difference.first else not kind["examples"]
            if wanted:
                kind["examples"].append(self.example(seed, lines, difference, logs))

    def kind(self, name):
        return self.kinds.setdefault(name, {"count": 0, "first": 0, "seeds": [], "examples": []})

    def merge(self, other):
        """Merges another report."""
        for name in ("sequences", "calls", "differing", "threads", "contexts", "ended_alike", "processes", "renewals"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.explained.update(other.explained)
        self.hung += other.hung
        self.unrepeated += other.unrepeated
        for name, row in other.kinds.items():
            kind = self.kind(name)
            kind["count"] += row["count"]
            kind["first"] += row["first"]
            kind["seeds"] = (kind["seeds"] + row["seeds"])[:SEEDS_MAX]
            kind["examples"] = (kind["examples"] + row["examples"])[:EXAMPLES_MAX]

    def example(self, seed, lines, difference, logs):
        said = [{row.split(" ", 1)[0]: row.split(" ", 2)[-1] for row in log} for log in logs]
        shown = []
        for line in slice_of(lines, difference.number):
            answers = [side.get(line.split(" ", 1)[0], "?") for side in said]
            short = line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + "..."
            shown.append(f"{short}  => {answers[0]}" + ("" if answers[0] == answers[1] else f" | {answers[1]}"))
        return {"seed": seed, "difference": str(difference), "first": difference.first, "lines": shown}

    def ordered(self):
        """Returns the kinds, those that were first in some sequence first: the others may follow from them."""
        return sorted(self.kinds.items(), key=lambda row:
                      (row[1]["first"] == 0, -row[1]["first"], -row[1]["count"], row[0]))

    def write(self, path, settings):
        rows = [{"call": call, "direct": direct, "remote": remote, **row}
                for (call, direct, remote), row in self.ordered()]
        explained = [{"reason": reason, "count": count} for reason, count in self.explained.most_common()]
        with open(path, "w", encoding="utf-8") as out:
            json.dump(
                {
                    "settings": settings, "sequences": self.sequences, "calls": self.calls, "threads": self.threads,
                    "contexts": self.contexts, "processes": self.processes, "renewals": self.renewals,
                    "differing": self.differing, "ended_alike": self.ended_alike, "hung": self.hung,
                    "explained": explained, "unrepeated": self.unrepeated[:UNREPEATED_MAX],
                    "unrepeated_count": len(self.unrepeated), "server_said": self.server_said[:SERVER_LINES_MAX],
                    "kinds": rows
                }, out, indent=1)

    def summary(self, seconds):
        """Yields the report's lines; `seconds`: the run time."""
        yield (
            f"{self.sequences} sequences, {self.calls} calls, {self.differing} sequences with differences, of"
            f" {len(self.kinds)} kinds"
        )
        yield (
            f"  {self.calls / seconds:.0f} calls a second for {seconds:.0f} s; {self.threads} threads and"
            f" {self.contexts} contexts of sequences, {self.processes} processes of the machine, contexts ended"
            f" {self.renewals} times between sequences"
        )
        yield f"  {sum(self.explained.values())} lines that differ are explained, by {len(self.explained)} reasons"
        if self.ended_alike:
            yield f"  {self.ended_alike} sequences ended the process on both sides alike"
        yield from (f"  hung: {each}" for each in self.hung)
        yield from (f"  in a batch only: {each['difference']}" for each in self.unrepeated[:UNREPEATED_MAX])
        for (call, direct, remote), row in self.ordered():
            yield (
                f"  {call}: direct {direct}, remote {remote}: {row['count']} times, first in {row['first']} sequences,"
                f" seeds {row['seeds']}"
            )
