"""Interprets the output of a program's run, and compares a remote run with the native one.

A program prints, as far as it applies: `NAME: right, within TOLERANCE` for each comparison with its own reference,
`CHECKSUM NAME HEX` for results that
are the same in every run, `METRICS {json}` with figures, among them `curve`, the losses of a training; `PASSED` at the
end. The exit code 77 says that
something it needs is not installed.
"""

import json
import re

NOT_INSTALLED = 77
FAILURE_CHARACTERS = 100


def checksums(out):
    return dict(re.findall(r"^CHECKSUM (.+) ([0-9a-f]+)$", out, re.M))


def metrics(out):
    found = re.search(r"^METRICS (\{.*\})$", out, re.M)
    return json.loads(found.group(1)) if found else {}


def loosest_tolerance(out):
    """Returns the largest tolerance that the program printed; None: it printed none."""
    return max((float(text) for text in re.findall(r"right, within ([0-9.e+-]+)$", out, re.M)), default=None)


def waits(err):
    """Returns the number of the program's waits for the server, from `gpuwire run --stats`."""
    found = re.search(r"gpuwire: waits: (\d+)", err)
    return int(found.group(1)) if found else None


def curve_difference(native, remote):
    """Returns the largest difference between two loss curves, relative to the first loss; None: the curves are not
    comparable."""
    if not native or not remote or len(native) != len(remote):
        return None
    return max(abs(a - b) for a, b in zip(native, remote)) / abs(native[0])


def failure(result):
    """Returns the exit code of a wrong run and the program's last message, without folders."""
    said = [line for line in (result["out"] + result["err"]).splitlines() if line and not line.startswith("gpuwire: ")]
    return f"exit code {result['code']}" + (": " + re.sub(r"\S*/", "", said[-1])[:FAILURE_CHARACTERS] if said else "")


def not_installed(result):
    """Returns the program's reason for not running, or nothing."""
    if result["code"] != NOT_INSTALLED:
        return ""
    found = re.search(r"^NOT INSTALLED: (.*)$", result["out"], re.M)
    return found.group(1) if found else "something it needs"


def differences(row, native, remote):
    """Returns the faults of a remote run that is right by itself, as a list of reasons."""
    reasons = []
    here, there = checksums(native["out"]), checksums(remote["out"])
    reasons += [f"the result `{name}` is not the native one" for name in here if there.get(name) != here[name]]
    if row.curve_tolerance:
        apart = curve_difference(metrics(native["out"]).get("curve"), metrics(remote["out"]).get("curve"))
        if apart is None or apart > row.curve_tolerance:
            reasons.append(
                f"the loss curve is {'not there' if apart is None else f'{apart:.1%} of the first loss'} away from the"
                " native one"
            )
    if row.time_ratio and remote["seconds"] > row.time_ratio * native["seconds"]:
        reasons.append(
            f"takes {remote['seconds'] / native['seconds']:.2f} of the native time, the goal is {row.time_ratio}")
    return reasons


def goal(row, native_out):
    """Returns the row's requirements, in words for the table."""
    if row.goal:
        return row.goal
    if row.same_output():
        return "the native output"
    parts = []
    tolerance = loosest_tolerance(native_out)
    if tolerance is not None:
        parts.append(f"{tolerance:g}" if tolerance else "exact")
    if row.curve_tolerance:
        parts.append(f"loss curve {row.curve_tolerance:g}")
    if row.time_ratio:
        parts.append(f"time <= {row.time_ratio}")
    return ", ".join(parts) or "its own check"
