"""What the drivers of suites share.

A driver is a program that test/suites/run starts once natively and once remotely. It reads requests from standard input
and answers on standard output, a JSON object a line, while whatever the suite prints goes to standard error:

    (at the start)            {"ready": true, "versions": {...}}, or {"unavailable": WHY} and the end
    {"list": true}            {"units": [NAME...]}
    {"unit": NAME}            {"begin": CASE} and {"case": CASE, "outcome": ...} for each case, then {"end": NAME}
    {"values": [CASE...]}     {"values": {CASE: [[FORMAT, SHAPE, BASE64]...]}}, of the unit that ran last

The outcome of a case is a short text that has to be the same both ways ("pass", "skip", "error RuntimeError"), its
digest one of all values that it computed. A driver whose process is of no more use ends itself behind the unit, having
said so: {"end": NAME, "spent": true}. Where it ran a sample of a unit, it says so there too: {"left out": COUNT}.
"""

import base64
import hashlib
import json
import os
import re
import sys

REASON_CHARACTERS = 200
KEPT_BYTES_MAX = 64 << 20  # of a unit's values; of what comes behind only the digest is known
DIGEST_BYTES = 12


class Unavailable(Exception):
    """The suite is not to be had on this machine; the text says why."""


class Recorder:
    """Takes the cases of one unit as they run.

    Values are tuples of a format, a shape and bytes. Formats: "e", "f" and "d" as in the module struct, "b" for
    bfloat16, "bytes" for what only has to be equal.
    """

    def __init__(self, send):
        self._send = send
        self.values = {}
        self.kept_bytes = 0
        self.left_out = 0   # set by a suite: cases of the unit that are not in its sample
        self.spent = False  # set by a suite: this process has an error that does not go away

    def begin(self, case):
        self._send({"begin": case})

    def end(self, case, outcome, reason="", values=(), tolerance=None):
        """tolerance: (relative, absolute), within which values may differ; None: not at all."""
        told = {"case": case, "outcome": outcome}
        if reason:
            told["reason"] = first_line(reason)
        if tolerance:
            told["tolerance"] = tolerance
        if values:
            told["digest"] = digest(values)
            size = sum(len(data) for _, _, data in values)
            if self.kept_bytes + size <= KEPT_BYTES_MAX:
                self.kept_bytes += size
                self.values[case] = values
        self._send(told)

    def encoded(self, cases):
        return {
            case: [[kind, list(shape), base64.b64encode(data).decode()] for kind, shape, data in self.values[case]]
            for case in cases if case in self.values
        }


def first_line(text):
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return lines[0][:REASON_CHARACTERS] if lines else ""


def steady(text):
    """The first line of an error's text without what differs from run to run: addresses, counts, sizes."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+(\.\d+)?", "N", first_line(text))


def digest(values):
    sum_of_all = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for kind, shape, data in values:
        sum_of_all.update(f"{kind} {tuple(shape)};".encode())
        sum_of_all.update(data)
    return sum_of_all.hexdigest()


def serve(make_suite):
    """Runs a driver: make_suite() gives an object with versions, units() and run(unit, recorder)."""
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)

    def send(message):
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        suite = make_suite()
    except Unavailable as missing:
        send({"unavailable": str(missing)})
        return
    send({"ready": True, "versions": suite.versions})
    recorder = Recorder(send)
    for line in requests:
        request = json.loads(line)
        if "list" in request:
            send({"units": list(suite.units())})
        elif "values" in request:
            send({"values": recorder.encoded(request["values"])})
        elif "unit" in request:
            recorder = Recorder(send)
            suite.run(request["unit"], recorder)
            send({
                "end": request["unit"], **({"spent": True} if recorder.spent else {}),
                **({"left out": recorder.left_out} if recorder.left_out else {})
            })
            if recorder.spent:
                break
    sys.stderr.flush()
    # Without the libraries' own tidying, which has nothing to tell and after a fault may not end.
    os._exit(0)
