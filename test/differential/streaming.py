"""Runs sequences one after the other in one process on each side: a process start and a new context cost more than many
sequences."""

import os
import select
import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path

import comparing

SAID_BYTES = 4000  # of a process's error output
AHEAD = 4  # sequences that a process has got and whose logs are not read yet
KILLED_SECONDS = 10  # the longest wait for a killed process, which may hang in the kernel's driver


class TooLate(Exception):
    """The time for the whole run is over."""


class Living:
    """A process of one side that gets sequences by the names of their files."""

    def __init__(self, side, folder):
        self.limit_seconds = side.limit_seconds
        self.errors = tempfile.TemporaryFile(dir=folder)
        self.process = subprocess.Popen([*side.command, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, env={**os.environ, **side.environment})
        self.unread, self.seen = b"", 0
        self.renewed = 0  # the number of times that it had to end its contexts

    def give(self, path):
        try:
            self.process.stdin.write(f"{path}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # log() reports how it ended

    def log(self, give_up=None):
        """Returns the log of the next sequence, in the form of comparing.Side.run(). None: the process ended before it,
        as expected after an error that only a new process clears."""
        until = time.monotonic() + self.limit_seconds
        while (end := self.unread.find(b"\nend\n", self.seen)) < 0:
            self.seen = max(0, len(self.unread) - len(b"\nend"))
            left = min(until, until if give_up is None else give_up) - time.monotonic()
            more = os.read(self.process.stdout.fileno(), 1 << 16) if self.readable(left) else None
            if more is None:
                if time.monotonic() < until:
                    raise TooLate
                return self.last(comparing.HUNG)
            if not more:
                return self.ended()
            self.unread += more
        text, self.unread, self.seen = self.unread[:end], self.unread[end + len(b"\nend\n"):], 0
        return [*self.lines(text), "end"]

    def readable(self, seconds):
        return bool(select.select([self.process.stdout], [], [], max(seconds, 0))[0])

    def lines(self, text):
        """Returns the sequence's own lines."""
        lines = text.decode(errors="replace").splitlines()
        self.renewed += sum(line == "renewed" for line in lines[:1])
        return lines[next((i for i, line in enumerate(lines) if line.startswith("sequence ")), -1) + 1:]

    def last(self, words):
        return [*self.lines(self.unread), words]

    def ended(self):
        code = self.process.wait()
        if code == comparing.WRONG_SEQUENCE:
            self.errors.seek(0)
            raise RuntimeError(self.errors.read().decode(errors="replace"))
        begun = b"sequence " in self.unread
        if not begun and code == comparing.STOPPED:
            return None
        return self.last(f"- - ended:{code}" + ("" if begun else " between sequences"))

    def said(self):
        """Returns the end of its error output so far."""
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), SAID_BYTES, max(0, size - SAID_BYTES)).decode(errors="replace")

    def close(self):
        self.process.kill()
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.errors.close()
        try:
            self.process.wait(KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            pass


class Pair:
    """A process on each side. Both are replaced after `batch` sequences, after a sequence that ended or hung one of
    them, and when `tainted` is set."""

    def __init__(self, sides, batch):
        self.sides, self.batch = sides, batch
        self.living, self.room = [], 0
        self.processes = self.renewed = 0  # so far
        self.tainted = False

    def run(self, tasks, give_up=None):
        """Yields (key, lines, the log of each side) for each task, a key and lines."""
        tasks, again, given = iter(tasks), deque(), deque()
        with tempfile.TemporaryDirectory(prefix="differential-") as folder:
            try:
                while True:
                    while len(given) < AHEAD and (self.room > 0 or not given):
                        task = again.popleft() if again else next(tasks, None)
                        if task is None:
                            break
                        if self.room <= 0:
                            self.renew(folder)
                        given.append((task, self.give(Path(folder), task[1])))
                    if not given:
                        return
                    task, path = given[0]
                    logs = [each.log(give_up) for each in self.living]
                    if None not in logs:
                        given.popleft()
                        path.unlink()
                        yield (*task, logs)
                    if self.tainted or any(log is None or log[-1] != "end" for log in logs):
                        again.extendleft(reversed([task for task, _ in given]))
                        given.clear()
                        self.end()
            finally:
                self.end()

    def said(self):
        """Returns the end of each present process's error output."""
        return [each.said() for each in self.living]

    def give(self, folder, lines):
        path = folder / f"{self.processes}-{self.room}.sequence"
        path.write_text("\n".join(lines) + "\n")
        for each in self.living:
            each.give(path)
        self.room -= 1
        return path

    def renew(self, folder):
        self.end()
        self.living = [Living(side, folder) for side in self.sides]
        self.processes += len(self.living)
        self.room = self.batch

    def end(self):
        for each in self.living:
            self.renewed += each.renewed
            each.close()
        self.living, self.room, self.tainted = [], 0, False
