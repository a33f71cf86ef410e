"""Runs clang-tidy 14 over sources of a build, and tells each thing it finds once.

    python3 test/format/tidy.py [--build DIRECTORY] [--jobs N] [FOLDER...]

Without a folder: all of the project's own sources. Ends with 1 when there is something to mend, with 77 when clang-tidy
14 is not installed."""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VERSION = "version 14."
NOT_INSTALLED = 77
FOUND = re.compile(r"^(?P<file>/[^:]+):(?P<line>\d+):\d+: (?:warning|error): (?P<what>.*) \[(?P<check>[a-z][^\]]*)\]$")
# The project's compiler is gcc: what clang 14 does not know of C++20 is no fault of the code.
NOT_OURS = "clang-diagnostic-"


def tidy():
    path = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
    if path and VERSION in subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout:
        return path
    return None


INCLUDED = re.compile(r'^#include "(/[^"]+)"', re.MULTILINE)
# What gcc is told of its precompiled headers, which clang cannot read.
PRECOMPILED = re.compile(r" (-include \S*cmake_pch\.hxx|-Winvalid-pch|-fpch-preprocess)(?= )")


def commands(build):
    """How the build compiles each file: by itself, or in the unit of its folder."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as database:
        entries = json.load(database)
    for entry in entries:
        unit = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
        files = [unit]
        if os.path.basename(unit).startswith("unity_"):
            with open(unit, encoding="utf-8") as text:
                files = INCLUDED.findall(text.read())
        for file in files:
            command = PRECOMPILED.sub("", entry["command"])
            yield {"directory": entry["directory"], "file": file, "command": command.replace(entry["file"], file)}


def sources(build, folders, database):
    """What the build compiles of these folders; writes how into the folder `database`, one file at a time."""
    roots = [os.path.join(ROOT, folder) + os.sep for folder in folders] or [ROOT + os.sep]
    wanted = {one["file"]: one for one in commands(build)
              if one["file"].startswith(tuple(roots)) and not one["file"].startswith(build + os.sep)}
    with open(os.path.join(database, "compile_commands.json"), "w", encoding="utf-8") as out:
        json.dump(list(wanted.values()), out)
    return sorted(wanted)


def look(program, database, file):
    """What there is to mend, as (file, line, words)."""
    ran = subprocess.run([program, "--quiet", "-p", database, file], capture_output=True, text=True, check=False)
    found = (FOUND.match(line) for line in ran.stdout.splitlines())
    return {(os.path.relpath(one["file"], ROOT), int(one["line"]), f"{one['what']} [{one['check'].split(',')[0]}]")
            for one in found if one and not one["check"].startswith(NOT_OURS) and one["file"].startswith(ROOT + os.sep)}


def main():
    parser = argparse.ArgumentParser(description="Looks for mistakes and for names that are not the project's.")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="a build directory (default: build)")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once (default: 1)")
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="of the tree; default: all")
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    program = tidy()
    if not program:
        print("clang-tidy 14 is not installed")
        return NOT_INSTALLED
    seen = set()
    with tempfile.TemporaryDirectory() as database, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        files = sources(build, arguments.folders, database)
        if not files:
            sys.exit("there is no such source in " + build)
        for found in pool.map(lambda file: look(program, database, file), files):
            for name, line, what in sorted(found - seen):
                print(f"{name}:{line}: {what}", flush=True)
            seen |= found
    print(f"{len(files)} sources, {len(seen)} to mend")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
