#!/usr/bin/env python3
"""NVIDIA's nccl-tests on one GPU, with their own check of the results: nccl_tests.py --folder FOLDER. A unit is a
program, a case one size of its messages."""

import argparse
import os
import re

import programs
from driver import Unavailable, serve

ARGUMENTS = ["-b", "8", "-e", "32M", "-f", "4", "-g", "1", "-n", "3", "-w", "1", "-c", "1"]
# size, count, type, reduction, root; out of place time, two bandwidths, wrong; in place the same. A column may be N/A.
TIMES = r"\s+\S+" * 3
ROW = re.compile(rf"^\s+(\d+)\s+\d+\s+(\S+)\s+(\S+)\s+(\S+){TIMES}\s+(\S+){TIMES}\s+(\S+)\s*$", re.M)


def cases(text):
    """Returns each size in a program's table with its number of errors."""
    return [(f"{size} bytes {kind} {reduction} root {root}", "pass" if {out, inside} <= {"0", "N/A"} else "wrong",
             f"{out} out of place, {inside} in place")
            for size, kind, reduction, root, out, inside in ROW.findall(text)]


class Collectives:
    def __init__(self, folder):
        self.folder, self.versions = folder, {}
        self.programs = {}
        for here, folders, files in os.walk(folder):
            folders.sort()
            self.programs.update({name: os.path.join(here, name) for name in files
                                  if name.endswith("_perf") and os.access(os.path.join(here, name), os.X_OK)})
        if not self.programs:
            raise Unavailable(f"{folder} has no *_perf")

    def units(self):
        return sorted(self.programs)

    def run(self, unit, recorder):
        programs.run_unit(recorder, [self.programs[unit], *ARGUMENTS], self.folder, cases)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--device")
    chosen = parser.parse_args()
    serve(lambda: Collectives(chosen.folder))
