"""Compares the native and the remote result of a case."""

import array
import base64
import math
import struct

# Verdicts about a case: equal to the last bit (or outcome); values within the case's tolerance; different; different,
# and the native side differs from itself, too; no outcome on one side, because the process had ended before.
VERDICTS = ("equal", "close", "differ", "unsteady", "not run")
PASSED = "pass"
# Outcomes of a process and not of a case: a crash, an exit status, a silence for too long.
ENDS = ("crashed", "ended", "too long")


def ended(case):
    return case["outcome"].startswith(ENDS)


def first_verdict(native, remote):
    """Compares two cases as reported by drivers, without their values."""
    if native is None and remote is None:
        return "equal"
    if native is None or remote is None:
        # The process ended before this case, or in this case, and the other side's did not.
        return "differ" if ended(native or remote) else "not run"
    same = native["outcome"] == remote["outcome"] and native.get("digest") == remote.get("digest")
    return "equal" if same else "differ"


def numbers(kind, encoded):
    """Returns the numbers of a value; None: values of this format can only be equal or different."""
    data = base64.b64decode(encoded)
    if kind == "b":  # bfloat16: the upper half of a float
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        return array.array("f", struct.pack(f"<{len(halves)}I", *(half << 16 for half in halves)))
    if kind == "e":
        return struct.unpack(f"<{len(data) // 2}e", data)
    if kind in ("f", "d"):
        return array.array(kind, data)
    return None


def near(one, other, relative, absolute):
    """NaN is near NaN, an infinity near itself."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return True
    if not (math.isfinite(one) and math.isfinite(other)):
        return False
    return abs(one - other) <= absolute + relative * abs(one)


def values_are_close(native, remote, tolerance):
    """Compares two lists of [format, shape, base64]."""
    if not tolerance or native is None or remote is None or len(native) != len(remote):
        return False
    relative, absolute = tolerance
    for (kind, shape, here), (other_kind, other_shape, there) in zip(native, remote):
        if (kind, shape) != (other_kind, other_shape):
            return False
        if here == there:
            continue
        ours, theirs = numbers(kind, here), numbers(other_kind, there)
        if ours is None or len(ours) != len(theirs):
            return False
        if not all(near(a, b, relative, absolute) for a, b in zip(ours, theirs)):
            return False
    return True


def verdict(native, remote, native_values, remote_values):
    """Compares two cases and their values, by case as in Worker.values(), or None."""
    first = first_verdict(native, remote)
    if first != "differ" or not native or not remote or native["outcome"] != remote["outcome"]:
        return first
    return "close" if values_are_close(native_values, remote_values, native.get("tolerance")) else "differ"


class Counts:
    """Counts the cases of a suite or a part of it by verdict, and the passing cases of each side."""

    NAMES = ("cases", "native pass", "remote pass", *VERDICTS)

    def __init__(self, known=()):
        self.of = dict.fromkeys(self.NAMES, 0)
        self.of.update(known)

    def add(self, native, remote, found):
        self.of["cases"] += 1
        self.of[found] += 1
        self.of["native pass"] += native is not None and native["outcome"] == PASSED
        self.of["remote pass"] += remote is not None and remote["outcome"] == PASSED

    def join(self, other):
        for name, count in other.items():
            self.of[name] = self.of.get(name, 0) + count

    def text(self):
        return ", ".join(f"{count} {name}" for name, count in self.of.items() if count or name in ("cases", "differ"))
