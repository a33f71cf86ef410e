#!/usr/bin/env python3
"""llama.cpp's test-backend-ops, which compares each operator on the GPU with the processor: llama_cpp.py --folder
FOLDER. A unit is an operator, a case one of its shapes and types."""

import argparse
import re

import programs
from driver import serve

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# "  ADD(type=f32,ne=[1,1,8,1],nr=[1,1,1,1]): OK"
CASE = re.compile(r"^\s+([A-Z][A-Z0-9_]*\(.*\)): (.*)$", re.M)

ALL = "all operators"  # for a version that does not list them


def operators(text):
    """Of the program's list."""
    return sorted(set(re.findall(r"^\s*([A-Z][A-Z0-9_]+)\s*$", COLOURS.sub("", text), re.M)))


def cases(text):
    """Returns the outcome of each case in the program's output, by its description; a repeated description gets a
    number."""
    found, seen = [], {}
    for name, said in CASE.findall(COLOURS.sub("", text)):
        seen[name] = seen.get(name, 0) + 1
        outcome = "pass" if said.endswith("OK") else "not supported" if "not supported" in said else "fail"
        found.append((name if seen[name] == 1 else f"{name} #{seen[name]}", outcome, said))
    return found


class Operators:
    def __init__(self, folder):
        self.program = programs.find(folder, "test-backend-ops")
        self.folder, self.versions = folder, {}

    def units(self):
        _, text = programs.run([self.program, "--list-ops"], self.folder)
        return operators(text) or [ALL]

    def run(self, unit, recorder):
        chosen = [] if unit == ALL else ["-o", unit]
        programs.run_unit(recorder, [self.program, "test", *chosen, "-b", "CUDA0"], self.folder, cases)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--device")
    chosen = parser.parse_args()
    serve(lambda: Operators(chosen.folder))
