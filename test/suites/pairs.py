"""Runs a driver twice, natively and remotely, with the same unit on both sides at a time."""

import collections
import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time

import comparing

START_LIMIT_SECONDS = 180
STOP_LIMIT_SECONDS = 1
STARTS_MAX = 3  # in a row without a unit between them
ERROR_CHARACTERS = 600
BETWEEN = "(between cases)"
UNTRIED = ("skip", "expected failure", "not supported")  # outcomes by which a suite says that nothing is wrong
REPEATS_MAX = 4  # of a unit with cases that differ
FAILURES_KEPT = 5  # kinds, of a unit and of a suite


class Broken(Exception):
    """Raised if a driver does not start; the text is its output."""


class Unavailable(Exception):
    """Raised if the driver's suite is not available; the text has the reason."""


class OutOfTime(Exception):
    """Raised when the time limit of the whole run is reached."""


class Worker:
    """One side's process of a driver: started when it is wanted, and again after it has ended."""

    def __init__(self, command, environment, limit_seconds, deadline):
        self.command, self.environment = command, environment
        self.limit_seconds, self.deadline = limit_seconds, deadline
        self.process = None
        self.versions = {}
        self.left_out = 0  # cases of the unit that ran last which its driver did not choose
        self._starts = 0
        self._errors = None  # the file into which the process writes its standard error
        self._said = ""      # its end, of a process that has ended

    def start(self):
        if self.process:
            return
        if self._starts == STARTS_MAX:
            raise Broken(f"does not start: {' '.join(self.command)}: {self.said()}")
        self._starts += 1
        self._errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self._errors, env=self.environment, start_new_session=True)
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout, self._lines), daemon=True)
        self._reader.start()
        first = self._next(START_LIMIT_SECONDS)
        if first and "unavailable" in first:
            self.stop()
            raise Unavailable(first["unavailable"])
        if not first:
            self.stop()
            return self.start()
        self.versions, self._starts = first["versions"], 0

    @staticmethod
    def _read(stream, lines):
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    def _next(self, limit_seconds):
        """Returns the next message; None: the process has ended, or was silent for too long."""
        try:
            line = self._lines.get(timeout=max(0, min(limit_seconds, self.deadline - time.monotonic())))
        except queue.Empty:
            if time.monotonic() >= self.deadline:
                raise OutOfTime() from None
            return None
        try:
            return json.loads(line) if line else None
        except ValueError:  # cut short by the process's end
            return None

    def _send(self, message):
        try:
            self.process.stdin.write((json.dumps(message) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says so

    def ask(self, message):
        """Returns an answer of one line; None: there was none."""
        self.start()
        self._send(message)
        answer = self._next(self.limit_seconds)
        if answer is None:
            self.stop()
        return answer

    def begin(self, unit):
        self.start()
        self._send({"unit": unit})

    def finish(self, unit):
        """Returns the cases of the present unit, by name."""
        cases, current, self.left_out = {}, None, 0
        while True:
            message = self._next(self.limit_seconds)
            if message is None:
                cases[current or BETWEEN] = {"outcome": self._end_of_process(), "reason": self.said()}
                self.stop()
                return cases
            if "begin" in message:
                current = message["begin"]
            elif "case" in message:
                cases[message["case"]] = message
                current = None
            elif "end" in message:
                self.left_out = message.get("left out", 0)
                if message.get("spent"):
                    self.stop()
                return cases

    def _end_of_process(self):
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return "too long"
        # A shell reports a signal of its child as 128 plus the signal's number.
        number = -code if code < 0 else code - 128 if code > 128 else 0
        try:
            return f"crashed {signal.Signals(number).name}"
        except ValueError:
            return f"ended with {code}"

    def values(self, cases):
        """Returns the values of the last unit, by case."""
        if not self.process:
            return {}
        return (self.ask({"values": cases}) or {}).get("values", {})

    def said(self):
        """Returns the end of its standard error."""
        if not self.process:
            return self._said
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - ERROR_CHARACTERS))
        return self._errors.read().decode(errors="replace").strip()

    def stop(self):
        if not self.process:
            return
        self.process.stdin.close()
        try:
            self.process.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # with whatever it has started
        except ProcessLookupError:
            pass
        self.process.wait()
        self._reader.join()
        self._said = self.said()
        self._errors.close()
        self.process = None


class Pair:
    """The two sides. `run` compares both sides of one unit."""

    def __init__(self, native, remote):
        self.native, self.remote = native, remote

    def stop(self):
        for worker in (self.native, self.remote):
            worker.stop()

    def both(self, unit):
        self.native.begin(unit)
        self.remote.begin(unit)
        return self.native.finish(unit), self.remote.finish(unit)

    def run(self, unit):
        """A row for the unit: counts, and each case that is not equal, with what either side said of it."""
        started = time.monotonic()
        native, remote = self.both(unit)
        verdicts = self.judged(native, remote)
        open_cases = [case for case, found in verdicts.items() if found == "differ"]
        again = self.once_more(unit, open_cases, native, remote) if open_cases else {}
        counts, different = comparing.Counts(), []
        for case, found in verdicts.items():
            here, there = native.get(case), remote.get(case)
            if again.get(case) == "unsteady":
                found = "unsteady"
            counts.add(here, there, found)
            if found != "equal" and not (found == "not run" and here is None and there is None):
                different.append({
                    "case": case, "verdict": found, "native": self.told(here), "remote": self.told(there),
                    **({"again": again[case]} if case in again else {})
                })
        row = {
            "unit": unit, "counts": {name: count for name, count in counts.of.items() if count},
            "different": different, "seconds": round(time.monotonic() - started, 2)
        }
        if self.native.left_out:
            row["left out"] = self.native.left_out
        # Two sides that fail in the same way compare nothing; the runner reports this for a whole suite, and names the
        # most frequent failure.
        failures = collections.Counter(self.kind_of_failure(case) for case in native.values()
                                       if case["outcome"] not in (comparing.PASSED, *UNTRIED))
        if failures:
            row["native failures"] = dict(failures.most_common(FAILURES_KEPT))
        first_failed = next((case for case in native if not counts.of["native pass"]), None)
        return {**row, "native": self.told(native[first_failed])} if first_failed else row

    @staticmethod
    def kind_of_failure(case):
        return re.sub(r"0x[0-9a-fA-F]+|\d+", "N", f"{case['outcome']}: {case.get('reason', '')}").strip(": ")

    def judged(self, native, remote):
        """Returns the verdicts by case, for all cases of either side."""
        names = list(dict.fromkeys([*native, *remote]))
        first = {case: comparing.first_verdict(native.get(case), remote.get(case)) for case in names}
        seen = [case for case in names if first[case] == "differ" and (native.get(case) or {}).get("digest")]
        here, there = ((worker.values(seen) if seen else {}) for worker in (self.native, self.remote))
        self.native_values = here
        return {
            case: comparing.verdict(native.get(case), remote.get(case), here.get(case), there.get(case))
            for case in names
        }

    def once_more(self, unit, cases, native, remote):
        """Of cases that differ, both ways some more times: `unsteady` where the native side differs from itself,
        `differs again` or, if it once did not, `equal` otherwise. In new processes, so that what a result owes to
        memory that nobody has written to is another. Sums in any order are near the tolerance now and then, natively as
        remotely, so two native runs may agree where a third does not."""
        natives, found, left = [(native, self.native_values)], {}, cases
        self.stop()
        for _ in range(REPEATS_MAX):
            native_again, remote_again = self.both(unit)
            values = self.native.values(left)
            for case in left:
                verdicts = [comparing.verdict(earlier.get(case), native_again.get(case), earlier_values.get(case),
                                              values.get(case)) for earlier, earlier_values in natives]
                if any(verdict in ("differ", "not run") for verdict in verdicts):
                    found[case] = "unsteady"
                elif comparing.first_verdict(native_again.get(case), remote_again.get(case)) == "equal":
                    found[case] = "equal"
                else:
                    found.setdefault(case, "differs again")
            natives.append((native_again, values))
            left = [case for case in left if found[case] != "unsteady"]
            if not left:
                break
        return found

    @staticmethod
    def told(case):
        return "not run" if case is None else " ".join(
            word for word in (case["outcome"], f"({case['reason']})" if case.get("reason") else "",
                              case.get("digest", "")) if word)
