"""Runs one program of a suite within limits, and determines its outcome."""

import os
import re
import resource
import signal
import subprocess
import tempfile
import time

OUTPUT_BYTES_MAX = 16 << 20  # of each stream; a program that writes more is ended
LOOK_SECONDS = 0.2  # how often its time and output are looked at
KEPT_CHARACTERS = 3000
REASON_CHARACTERS = 200
WAIVED = 2  # the samples' own exit code for "this machine lacks what I show"

# The samples' output, beside their exit code, after a failed comparison. Errors that they measure are no failures.
FAILURE = re.compile(r"\b(FAILED|FAILURE|FAIL|Test failed|Result = FAIL)\b")
UNFAILED = re.compile(r"\b0 (failed|failures)\b", re.I)
CUDA_ERROR = re.compile(
    r"(CUDA error|CUDA_ERROR|cudaError|CUDA Runtime Error|code ?= ?\d+|checkCudaErrors|Driver API error|error ?="
    r" ?\d{3})"
)
# A line of gpuwire or its software device that names the missing feature.
NAMED = re.compile(r"^gpuwire.*$", re.M)


def without_core():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def wait(process, streams, limit_seconds):
    """Returns the exit code within the limits; None: the program was still running, or had written too much."""
    end = time.monotonic() + limit_seconds
    while time.monotonic() < end and all(os.fstat(stream.fileno()).st_size <= OUTPUT_BYTES_MAX for stream in streams):
        try:
            return process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            pass
    return None


def run(command, folder, limit_seconds):
    """Returns the outcome of a command in a folder: its kind, a reason if it is not right, seconds, exit code and the
    ends of its output."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   start_new_session=True, preexec_fn=without_core)
        code = wait(process, (out, err), limit_seconds)
        # Ends the program's remaining processes.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read(OUTPUT_BYTES_MAX).decode(errors="replace"))
    kind, reason = judge(code, *texts)
    return {
        "outcome": kind, "reason": reason[:REASON_CHARACTERS], "seconds": round(time.monotonic() - start, 2),
        "code": code, "out": texts[0][-KEPT_CHARACTERS:], "err": texts[1][-KEPT_CHARACTERS:]
    }


def judge(code, out, err):
    """Returns one of: right, waived, refused by name, refused without name, wrong, crashed, too long; with the
    reason."""
    named = NAMED.search(err)
    failed = next(
        (line for line in (out + "\n" + err).splitlines() if FAILURE.search(line) and not UNFAILED.search(line)), "")
    if code is None:
        return "too long", ""
    if code == 0 and not failed:
        return "right", ""
    if code == WAIVED:
        return "waived", last_line(out + err)
    if named:
        return "refused by name", named.group(0).strip()
    error = next((line for line in (err + "\n" + out).splitlines() if CUDA_ERROR.search(line)), "")
    if error:
        return "refused without name", error.strip()
    if code < 0:
        return "crashed", signal.Signals(-code).name
    return "wrong", failed.strip() or last_line(out + err)


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
