#!/usr/bin/env python3
"""A driver without a suite: each unit is a way in which two sides may be equal or different. SIDE names this side."""

import os
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "drivers"))
from driver import Unavailable, serve  # noqa: E402

NATIVE = os.environ.get("SIDE") == "native"
TOLERANCE = (1e-3, 0)


def number(value):
    return [("f", (1,), struct.pack("<f", value))]


def spoken(recorder, case, outcome="pass", values=()):
    recorder.begin(case)
    recorder.end(case, outcome, values=values, tolerance=TOLERANCE)


def equal(recorder):
    spoken(recorder, "a", values=number(1.5))
    spoken(recorder, "b", values=number(2.5))


def close(recorder):
    spoken(recorder, "a", values=number(1.0 if NATIVE else 1.0001))


def apart(recorder):
    spoken(recorder, "a", values=number(1.0 if NATIVE else 1.1))
    spoken(recorder, "b", values=number(2.0))


def unsteady(recorder):
    recorder.begin("a")
    recorder.end("a", "pass", values=number(float(os.getpid())))


def seldom_unsteady(recorder):
    """Natively the value changes from the second run in a process on."""
    seldom_unsteady.runs += 1
    spoken(recorder, "a", values=number((1.0 if seldom_unsteady.runs < 2 else 2.0) if NATIVE else 1.5))


seldom_unsteady.runs = 0


def native_fails(recorder):
    spoken(recorder, "a", "error ValueError: N" if NATIVE else "pass")


def both_fail(recorder):
    spoken(recorder, "a", "error ValueError: N")


def remote_crashes(recorder):
    spoken(recorder, "a")
    recorder.begin("b")
    if not NATIVE:
        os.kill(os.getpid(), signal.SIGSEGV)
    recorder.end("b", "pass")
    spoken(recorder, "c")


def remote_hangs(recorder):
    recorder.begin("a")
    while not NATIVE:
        time.sleep(1)
    recorder.end("a", "pass")


def remote_ends(recorder):
    if not NATIVE:
        os._exit(3)


def prints(recorder):
    """The suite's output is no answer."""
    os.write(1, b'{"case": "a", "outcome": "fail"}\n')
    print("half a line", end="")
    spoken(recorder, "a")


def sampled(recorder):
    spoken(recorder, "a")
    recorder.left_out = 5


def spent(recorder):
    spoken(recorder, str(os.getpid() * 0))
    recorder.spent = True


UNITS = {
    f.__name__: f
    for f in (equal, close, apart, unsteady, seldom_unsteady, native_fails, both_fail, remote_crashes, remote_hangs,
              remote_ends, prints, sampled, spent)
}


class Units:
    versions = {"stand_in": "1"}

    def __init__(self):
        missing = os.environ.get("MISSING")
        if missing == "suite":
            raise Unavailable("it is nowhere")
        if missing == "start":
            raise RuntimeError("no start")

    def units(self):
        return list(UNITS)

    def run(self, unit, recorder):
        UNITS[unit](recorder)


if __name__ == "__main__":
    serve(Units)
