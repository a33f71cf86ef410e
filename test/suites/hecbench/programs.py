"""Selects the programs of HeCBench: CUDA programs that check themselves and need no data, according to their Makefiles
and sources."""

import os
import re

MODEL = "-cuda"  # at the end of a folder's name
SOURCES = (".cu", ".cuh", ".h", ".hpp", ".cpp", ".c", ".cc")
SOURCE_BYTES_MAX = 4 << 20
# The output of a program's own comparison.
CHECKS = re.compile(r'"[^"\n]*(\b(pass|fail|ok)(ed)?\b|mismatch|\bcorrect|verif)', re.I)
ARGUMENT = re.compile(r"-{0,2}[\w=,+-]*(\.\d+)?(e[-+]?\d+)?")
LAUNCH = re.compile(r"^\t\s*(?:\$\(LAUNCHER\)\s+)?\./(?:\$\(program\)|main)(?P<arguments>[^|&;>#]*)$")


def arguments_of(makefile):
    """Returns the arguments that `make run` passes to the program, at the first of several runs; None: it also runs
    something else, or a program that reads files."""
    lines = makefile.splitlines()
    start = next((i for i, line in enumerate(lines) if re.match(r"run\s*:", line)), None)
    if start is None:
        return None
    recipe = []
    for line in lines[start + 1:]:
        if not line.startswith("\t"):
            break
        if line.strip() and not line.lstrip().startswith("#"):
            recipe.append(line)
    launches = [LAUNCH.match(line) for line in recipe]
    if not launches or not all(launches):
        return None
    each = [launch["arguments"].split() for launch in launches]
    return each[0] if all(ARGUMENT.fullmatch(word) for words in each for word in words) else None


def text_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(SOURCE_BYTES_MAX)


def checks_itself(folder):
    return any(CHECKS.search(text_of(os.path.join(here, name)))
               for here, _, names in os.walk(folder) for name in names if name.endswith(SOURCES))


def chosen(clone, only=""):
    """Returns the name, folder and arguments of each selected program, in order."""
    found = []
    source = os.path.join(clone, "src")
    for name in sorted(os.listdir(source)):
        makefile = os.path.join(source, name, "Makefile")
        if not name.endswith(MODEL) or only not in name or not os.path.exists(makefile):
            continue
        arguments = arguments_of(text_of(makefile))
        if arguments is not None and checks_itself(os.path.join(source, name)):
            found.append((name.removesuffix(MODEL), os.path.join(source, name), arguments))
    return found
