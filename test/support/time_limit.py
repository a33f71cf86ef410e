"""Where this is imported, each test method and the setting up of each class has a limit of time: a test that hangs
fails with the line where it stands and with what its processes do, and the other tests of its file still run.

No test judges by time: the limit is many times what the slowest method takes on a busy machine.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import unittest

LIMIT_SECONDS = int(os.environ.get("GPUWIRE_TEST_METHOD_SECONDS", "900"))
# The time for cleaning up, which may hang as well.
CLEANING_SECONDS = 60
# The largest number of processes whose stacks are shown, and the time that the debugger has for each.
STACKS_MAX, STACK_SECONDS = 12, 60
LONG_TIMES = 8  # the long forms of the tests, which `make test-long` runs


def _read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # the process has ended, or its file is not readable
        return ""


def processes_below(process_id):
    """A line for each process that this one has started, and for theirs: number, state, where each thread waits."""
    parents, lines = {}, []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        rest = _read(f"/proc/{entry}/stat").rpartition(")")[2].split()
        if rest:
            parents.setdefault(int(rest[1]), []).append((int(entry), rest[0]))
    waiting = [(process_id, 0)]
    while waiting:
        parent, depth = waiting.pop()
        for child, state in parents.get(parent, []):
            line = _read(f"/proc/{child}/cmdline").replace("\0", " ").strip()
            threads = sorted(os.listdir(f"/proc/{child}/task")) if os.path.isdir(f"/proc/{child}/task") else []
            waits = [_read(f"/proc/{child}/task/{thread}/wchan") or "?" for thread in threads]
            lines.append(f"{'  ' * depth}process {child} ({state}) {line[:200]}: {', '.join(waits)}")
            waiting.append((child, depth + 1))
    return lines


def stacks_below(process_id):
    """Returns the lines of the processes below this one and, where gdb is installed, the stacks of their threads. A
    process that gdb may not trace, or not within STACK_SECONDS, has no stacks."""
    lines = processes_below(process_id)
    numbers = [number for line in lines for number in re.findall(r"^ *process (\d+) \([^Z]\)", line)]
    for number in numbers[:STACKS_MAX] if shutil.which("gdb") else []:
        try:
            ran = subprocess.run(["gdb", "-p", number, "-batch", "-ex", "thread apply all backtrace 16"], text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                 timeout=STACK_SECONDS, check=False)
            said = ran.stdout.splitlines()
        except subprocess.TimeoutExpired:
            said = []
        lines.append(f"stacks of process {number}:")
        lines += [line for line in said if line.startswith(("#", "Thread"))]
    return "\n".join(lines)


def _expire(_number, _frame):
    signal.alarm(CLEANING_SECONDS + STACKS_MAX * STACK_SECONDS)
    print(stacks_below(os.getpid()), file=sys.stderr, flush=True)
    signal.alarm(CLEANING_SECONDS)
    raise TimeoutError(f"the test has not ended within {LIMIT_SECONDS} s")


def _arm():
    signal.alarm(LIMIT_SECONDS * (LONG_TIMES if os.environ.get("GPUWIRE_TEST_LONG", "") not in ("", "0") else 1))


def _limited(run):
    """`run` of a test, or of a class of tests, which sets the class up first, with the limit begun anew."""

    def run_within_limit(tests, *arguments, **named):
        _arm()
        return run(tests, *arguments, **named)

    return run_within_limit


def _install():
    unittest.TestCase.run = _limited(unittest.TestCase.run)
    unittest.TestSuite.run = _limited(unittest.TestSuite.run)
    signal.signal(signal.SIGALRM, _expire)


# Programs that are no tests import the same helpers: nothing is limited before tests run.
if threading.current_thread() is threading.main_thread():
    _install()
