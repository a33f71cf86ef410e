"""Starts a gpuwire server for a test or a benchmark, and stops it."""

import os
import re
import signal
import subprocess
import threading

import time_limit  # noqa: F401, no test waits for a server without end

LISTENING = re.compile(r"listening on (\S+?:\d+)(.*)")


class Server:
    """A `gpuwire serve` on a loopback port of its own choosing. Use it as a context manager.

    The child's standard error is kept in `log`; `address` is HOST:PORT once it accepts. `prefix`: words before the
    command, which it has to `exec`.
    """

    START_LIMIT_SECONDS = 300
    STOP_LIMIT_SECONDS = 300

    def __init__(self, build_directory, arguments=(), environment=None, prefix=()):
        program = os.path.join(build_directory, "bin", "gpuwire")
        arguments = [*arguments, *os.environ.get("GPUWIRE_TEST_SERVE_ARGUMENTS", "").split()]
        if "--log-level" not in arguments:
            arguments = [*arguments, "--log-level", "debug"]
        self.process = subprocess.Popen(
            [*prefix, program, "serve", "--listen", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.log = []
        self.address = None
        self.device = ""
        self._listening = threading.Event()
        self._readers = [threading.Thread(target=self._read_output), threading.Thread(target=self._read_log)]
        for reader in self._readers:
            reader.start()

    def _read_output(self):
        for line in self.process.stdout:
            match = LISTENING.search(line)
            if match and not self.address:
                self.address = match.group(1).rstrip(",")
                self.device = match.group(2).lstrip(", ").strip()
                self._listening.set()
        self._listening.set()

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)

    def __enter__(self):
        self._listening.wait(self.START_LIMIT_SECONDS)
        if not self.address:
            self.stop()
            raise RuntimeError("the server did not start:\n" + "".join(self.log))
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self, signal_number=signal.SIGTERM):
        """Ends the server; returns its exit status. A second signal, then SIGKILL, if it does not go."""
        for number in (signal_number, signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                try:
                    self.process.wait(self.STOP_LIMIT_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        for reader in self._readers:
            reader.join(self.STOP_LIMIT_SECONDS)
        return self.process.returncode
