"""Runs built programs of a suite natively and through gpuwire (or on the software device alone), one at a time or
several, within bounds of time and output, and compares how they end."""

import concurrent.futures
import json
import os
import random
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "cuda_samples")]
from gpuwire_server import Server  # noqa: E402
import outcomes  # noqa: E402

WITHOUT_GPU = os.path.join(ROOT, "test", "gpu", "without_gpu")
ORDER_SEED = 1
# The native time from which on the ratio of both times is meaningful.
SLOW_SECONDS = 0.5
# Outcomes of a single side that are no fault: the program is right, reports that it cannot run here, or gets the name
# of a missing feature.
FAULTLESS = ("right", "waived", "refused by name")


class Suite:
    """`chosen`: name and path of each program; `arguments`: a function of both."""

    def __init__(self, options, ways, arguments):
        self.options, self.ways, self.arguments = options, ways, arguments
        self.end = time.monotonic() + options.seconds

    def result(self, program):
        """None: the time was over before its turn."""
        if time.monotonic() >= self.end:
            return None
        name, path = program
        row = {"program": name}
        for way, prefix in self.ways.items():
            command = prefix + [path, *self.arguments(name, path)]
            row[way] = outcomes.run(command, os.path.dirname(path), self.options.limit)
        kinds = [row[way]["outcome"] for way in self.ways]
        row["same"] = len(set(kinds)) == 1 if len(kinds) > 1 else kinds[0] in FAULTLESS
        return row

    def run(self, chosen):
        rows = []
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for done in concurrent.futures.as_completed(pool.submit(self.result, program) for program in chosen):
                row = done.result()
                if row is None:
                    continue
                rows.append(row)
                self.show(row, len(rows), len(chosen))
                with open(self.options.json, "w", encoding="utf-8") as out:
                    json.dump(sorted(rows, key=lambda each: each["program"]), out, indent=1)
        return rows

    def show(self, row, number, count):
        columns = "".join(f"{row[way]['outcome']:24}{row[way]['seconds']:8.1f} s  " for way in self.ways)
        print(f"{number:3}/{count} {row['program']:52}{columns}{'' if row['same'] else '  <--'}", flush=True)
        for way in self.ways:
            if row[way]["reason"]:
                print(f"        {way}: {row[way]['reason']}", flush=True)


def slow(rows, ratio):
    """Returns programs that are right on both sides and exceeded the time limit remotely, with both times."""
    return [
        f"{row['program']} ({row['remote']['seconds']:.1f} s, natively {row['native']['seconds']:.1f})" for row in rows
        if row["native"]["outcome"] == row["remote"]["outcome"] == "right" and row["remote"]["seconds"] > max(
            SLOW_SECONDS, ratio * row["native"]["seconds"])
    ]


def add_options(parser, limit_seconds, json_file):
    parser.add_argument("folder", metavar="FOLDER", help="where the built programs are")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="gpuwire's build tree (default: build)")
    parser.add_argument("--device", choices=("cuda", "software"), default="cuda",
                        help="the server's device; with `software` nothing runs natively")
    parser.add_argument("--only", default="", metavar="TEXT", help="only programs whose path contains this")
    parser.add_argument("--limit", type=float, default=limit_seconds, metavar="SECONDS",
                        help="for each run, which is killed then (default: %(default)g)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="programs at a time (default: 1)")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="after which no further program is begun (default: no bound)")
    parser.add_argument("--json", default=json_file, metavar="FILE", help="where the results go (default: %(default)s)")


def compare(options, chosen, arguments, slow_ratio):
    """Runs the programs each way and says what differs; the exit code. With a bound of the whole run their order is a
    shuffled one, the same each time, so that what came to its turn is a sample."""
    build = os.path.abspath(options.build)
    if options.seconds < float("inf"):
        random.Random(ORDER_SEED).shuffle(chosen)
    with Server(build, ["--device", options.device]) as server:
        print(f"{server.address}, {server.device}")
        remote = [os.path.join(build, "bin", "gpuwire"), "run", "--server", server.address, "--"]
        ways = {"software": remote
                } if options.device == "software" else {"native": [], "remote": [WITHOUT_GPU, *remote]}
        rows = Suite(options, ways, arguments).run(chosen)
    for way in ways:
        counts = {}
        for row in rows:
            counts[row[way]["outcome"]] = counts.get(row[way]["outcome"], 0) + 1
        seconds = sum(row[way]["seconds"] for row in rows)
        print(f"{way}: {seconds:.0f} s, " + ", ".join(f"{count} {kind}" for kind, count in sorted(
            counts.items(), key=lambda item: -item[1])))
    if len(rows) < len(chosen):
        print(f"not run, for want of time: {len(chosen) - len(rows)} of {len(chosen)}")
    if len(ways) > 1:
        print(f"longer than {slow_ratio:g} times as natively: " + (", ".join(slow(rows, slow_ratio)) or "none"))
    different = [row["program"] for row in rows if not row["same"]]
    print(f"{len(different)} of {len(rows)} programs " +
          ("differ" if len(ways) > 1 else "are wrong, without a reason, or too slow")
          + (": " + ", ".join(different) if different else ""))
    return 1 if different else 0
