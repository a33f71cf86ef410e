"""Runs the programs of a suite for a driver, and reads their output."""

import os
import subprocess

from driver import Unavailable

OUTPUT_BYTES_MAX = 64 << 20
LIMIT_SECONDS = 100  # less than the runner's limit for a silent driver


def find(folder, name):
    """An executable below a folder."""
    for here, folders, files in os.walk(folder):
        folders.sort()
        path = os.path.join(here, name)
        if name in files and os.access(path, os.X_OK):
            return path
    raise Unavailable(f"{folder} has no program {name}")


def run_unit(recorder, command, folder, cases_of):
    """Reports the cases in a program's output, each as (name, outcome, text), and the program's end."""
    recorder.begin("(program)")
    code, text = run(command, folder)
    for name, outcome, said in cases_of(text):
        recorder.end(name, outcome, reason="" if outcome == "pass" else said)
    recorder.end("(program)", "pass" if code == 0 else f"exit status {code}", reason=text[-200:] if code else "")


def run(command, folder):
    """Returns the exit status, or the cause of the end, and both streams."""
    try:
        ran = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired as late:
        return "too long", (late.stdout or b"")[:OUTPUT_BYTES_MAX].decode(errors="replace")
    code = f"crashed {-ran.returncode}" if ran.returncode < 0 else ran.returncode
    return code, ran.stdout[:OUTPUT_BYTES_MAX].decode(errors="replace")
