"""A terminal for a command that draws on it: its content, keys, and its restored state."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

from support import RUN_LIMIT_SECONDS

OTHER_SCREEN, OWN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
DRAWN = re.compile(r"\x1b\[H(.*?)\x1b\[J", re.DOTALL)  # a whole screen
STYLE = re.compile(r"\x1b\[[0-9]*m")  # a colour, or reverse


class Screen:
    def __init__(self, test, words, rows=24, columns=80, environment=None):
        self.test, self.seen = test, ""
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.master, self.near = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.near)
        self.process = subprocess.Popen(words, stdin=self.near, stdout=self.near, stderr=subprocess.PIPE, text=True,
                                        env=environment, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        for descriptor in (self.master, self.near):
            test.addCleanup(os.close, descriptor)
        test.addCleanup(self.process.communicate)
        test.addCleanup(self.process.kill)

    def resize(self, rows, columns):
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            self.seen += self.decoder.decode(os.read(self.master, 65536))
            return True
        return False

    def lines(self):
        """Returns the lines of the last whole screen; the last one is the footer."""
        drawn = DRAWN.findall(self.seen)
        return re.split("\r+\n", STYLE.sub("", drawn[-1].replace("\x1b[K", ""))) if drawn else []

    def type(self, keys):
        """Discards everything drawn so far."""
        while self.read(0):
            pass
        self.seen = ""
        os.write(self.master, keys.encode())

    def wait_for(self, fulfilled, what):
        """Returns the lines once they fulfil the condition."""
        end = time.monotonic() + RUN_LIMIT_SECONDS
        while not (self.lines() and fulfilled(self.lines())):
            self.test.assertLess(time.monotonic(), end, f"no {what} on the terminal, but {self.seen[-3000:]!r}")
            self.test.assertIsNone(self.process.poll(), self.seen)
            self.read(1)
        return self.lines()

    def end(self):
        """Waits for the command's end, and checks the restored terminal; returns the exit code and the standard
        error."""
        end = time.monotonic() + RUN_LIMIT_SECONDS
        while self.process.poll() is None:
            self.test.assertLess(time.monotonic(), end, f"it does not end: {self.seen[-3000:]!r}")
            self.read(0.1)  # else the command could not write
        while self.read(0):
            pass
        err = self.process.stderr.read()
        self.test.assertTrue(self.seen.endswith(OWN_SCREEN), self.seen[-200:])
        self.test.assertEqual(termios.tcgetattr(self.near), self.before)
        return self.process.returncode, err
