"""Runs a sequence on two sides, finds their differences, and shortens a sequence that differs."""

import fnmatch
import os
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

RUN_LIMIT_SECONDS = 300  # of a process
HUNG = "- - hung"  # in a log
STOPPED, WRONG_SEQUENCE = 3, 2  # the interpreter's exit status
RULES_MAX = 20
SHRINK_RUNS_MAX = 150


@dataclass
class Side:
    """One way to run the interpreter."""

    name: str
    command: list  # before the sequence's file
    environment: dict
    limit_seconds: float = RUN_LIMIT_SECONDS

    def run(self, lines, limit_seconds=None):
        """Returns the log of a sequence in a process of its own."""
        with tempfile.TemporaryDirectory(prefix="differential-") as folder:
            file = Path(folder, "alone.sequence")
            file.write_text("\n".join(lines) + "\n")
            try:
                ran = subprocess.run([*self.command, str(file)], capture_output=True, text=True, errors="replace",
                                     timeout=limit_seconds or self.limit_seconds,
                                     env={**os.environ, **self.environment})
                output, last_words = ran.stdout, f"- - ended:{ran.returncode}"
                if ran.returncode == WRONG_SEQUENCE:
                    raise RuntimeError(ran.stderr)
            except subprocess.TimeoutExpired as late:
                output, last_words = (late.stdout or b"").decode(errors="replace"), HUNG
        log = output.splitlines()[1:]  # without the file's name
        return log if log[-1:] == ["end"] else [*log, last_words]


FAULTS = {"CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED"}


def answered(expected, answer):
    """Returns whether a rule expects this answer; a rule may expect any sticky error."""
    return answer == expected or expected == "a fault" and answer in FAULTS


@dataclass
class Rule:
    """An intended difference: its calls, each side's answer, and the reason."""

    calls: list  # names; "*" in them stands for any letters
    direct: str
    remote: str
    device: str  # the compared device: "cuda", "software", or "any"
    reason: str

    def explains(self, difference):
        return answered(self.direct, difference.direct) and answered(self.remote, difference.remote) and any(
            fnmatch.fnmatchcase(difference.call, name) for name in self.calls)


@dataclass
class Difference:
    number: str  # of the line
    call: str
    direct: str
    remote: str
    first: bool = False  # the first of its sequence: later ones may follow from it

    @property
    def kind(self):
        """Returns the kind, by which two differences count as the same on any lines."""
        return (self.call, self.direct.split(" ")[0], self.remote.split(" ")[0])

    def __str__(self):
        return f"{self.number} {self.call}: direct {self.direct}, remote {self.remote}"


def read_rules(path, device=None):
    """Returns the rules for a device; all of them without a device."""
    rules = [Rule(**row) for row in tomllib.loads(Path(path).read_text())["rule"]]
    if len(rules) > RULES_MAX:
        raise ValueError(f"more than {RULES_MAX} rules: a list that explains everything compares nothing")
    return [rule for rule in rules if device is None or rule.device in ("any", device)]


def differences(direct, remote, rules=(), explained=None):
    """Returns all lines that differ without a rule; a side that ends early differs in its first missing line.
    `explained`: a list to which the applied rules are added."""
    found = []
    if direct == remote and direct[-1:] != [HUNG]:
        return found
    for i in range(max(len(direct), len(remote))):
        left = direct[i] if i < len(direct) else "- - missing"
        right = remote[i] if i < len(remote) else "- - missing"
        if left == right and left != HUNG:  # a sequence that hangs on both sides compares nothing
            continue
        first, second = (left.split(" ", 2) + ["", ""])[:3], (right.split(" ", 2) + ["", ""])[:3]
        difference = Difference(first[0] if first[0] != "-" else second[0], first[1] if first[1] != "-" else second[1],
                                first[2], second[2], not found)
        rule = next((rule for rule in rules if rule.explains(difference)), None)
        if not rule:
            found.append(difference)
        elif explained is not None:
            explained.append(rule)
        if first[0] != second[0]:
            break  # the sides are no longer at the same call
    return found


def shrink(lines, differs):
    """Delta debugging (Zeller): the shortest list, by removing ever smaller parts, for which differs(lines) still
    holds."""
    runs, part = 0, max(len(lines) // 2, 1)
    while part >= 1 and runs < SHRINK_RUNS_MAX:
        at, removed = 0, False
        while at < len(lines) and runs < SHRINK_RUNS_MAX:
            candidate = lines[:at] + lines[at + part:]
            runs += 1
            if candidate and differs(candidate):
                lines, removed = candidate, True
            else:
                at += part
        if part == 1 and not removed:
            break
        part = max(part // 2, 1) if part > 1 else 1
    return lines
