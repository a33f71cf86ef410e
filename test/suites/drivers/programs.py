"""Programs of a suite that a driver runs, and whose output it reads."""

import os
import subprocess

from driver import Unavailable

OUTPUT_BYTES_MAX = 64 << 20
LIMIT_SECONDS = 100  # less than what the runner grants a silent driver


def find(folder, name):
    """An executable below a folder."""
    for here, folders, files in os.walk(folder):
        folders.sort()
        path = os.path.join(here, name)
        if name in files and os.access(path, os.X_OK):
            return path
    raise Unavailable(f"{folder} has no program {name}")


def run(command, folder):
    """Exit status, or what ended it, and both of its streams."""
    try:
        ran = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired as late:
        return "too long", (late.stdout or b"")[:OUTPUT_BYTES_MAX].decode(errors="replace")
    code = f"crashed {-ran.returncode}" if ran.returncode < 0 else ran.returncode
    return code, ran.stdout[:OUTPUT_BYTES_MAX].decode(errors="replace")
