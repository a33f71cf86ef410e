"""Long transfers are reported on a terminal, and nowhere else: a proxy stops them in the middle for as long as the test
needs."""

import fcntl
import os
import pty
import re
import select
import socket
import subprocess
import termios
import threading
import time
import unittest

from support import BUILD, DEVICE, RUN_LIMIT_SECONDS, Server, command

MIB = 32
# The bytes that a proxy passes before it stops: more than a session's begin, less than a transfer.
FREE_BYTES = 4 << 20
PIECE_BYTES = 1 << 16
ERASE = "\r\x1b[K"
LINE = re.escape(ERASE) + r"gpuwire: [0-9.]+ [KMG]?i?B of ([0-9.]+) MiB {} the GPU, [0-9.]+ [KMG]?i?B/s"


class StandingWay:
    """Listens on `address`. It stops the bytes from the sender ("client" or "server") once FREE_BYTES have passed after
    `arm()`, until `release()`. `stands` is set at the stop."""

    def __init__(self, server_address, sender):
        self.sender, self.stands, self._released = sender, threading.Event(), threading.Event()
        self._lock, self._left = threading.Lock(), FREE_BYTES
        host, port = server_address.rsplit(":", 1)
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.address = "127.0.0.1:%d" % self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def release(self):
        self._released.set()

    def close(self):
        self.release()
        self._listening.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            for source, target, name in ((client, server, "client"), (server, client, "server")):
                threading.Thread(target=self._pass_on, args=(source, target, name), daemon=True).start()

    def _pass_on(self, source, target, name):
        try:
            while piece := source.recv(PIECE_BYTES):
                if name == self.sender and not self._released.is_set():
                    with self._lock:
                        self._left -= len(piece)
                        stands = self._left < 0
                    if stands:
                        self.stands.set()
                        self._released.wait()
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Program:
    """`transfers` with a terminal of its own, or with its standard error in a file."""

    def __init__(self, test, way, kind, on_terminal=True, options=(), **environment):
        self.test = test
        self.seen = ""
        self.master, near = pty.openpty()
        words = command(way.address, "transfers", kind, str(MIB))
        words[2:2] = options
        environment = {**os.environ, "GPUWIRE_LANES": "1", **environment}
        self.process = subprocess.Popen(
            words, stdin=near, stdout=subprocess.PIPE, stderr=near if on_terminal else subprocess.PIPE, text=True,
            env=environment, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(near)
        test.addCleanup(os.close, self.master)
        test.addCleanup(self.process.communicate)
        test.addCleanup(self.process.kill)

    def read(self, seconds):
        """Returns false if nothing has come, or the terminal is closed."""
        try:
            if select.select([self.master], [], [], seconds)[0]:
                self.seen += os.read(self.master, 65536).decode()
                return True
        except OSError:
            pass
        return False

    def wait_for_line(self, pattern):
        end = time.monotonic() + RUN_LIMIT_SECONDS
        while not (found := re.search(pattern, self.seen)):
            self.test.assertLess(time.monotonic(), end, f"no line on the terminal, but {self.seen!r}")
            self.read(1)
        return found

    def finish(self):
        """Returns the output on the terminal, or in the file."""
        out, err = self.process.communicate(timeout=RUN_LIMIT_SECONDS)
        self.test.assertEqual((self.process.returncode, out), (0, "PASSED\n"), (self.seen, err))
        while self.read(0):
            pass
        return self.seen + (err or "")


class Progress(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Without images that programs of earlier tests have sent.
        cls.server = Server(BUILD, ["--device", DEVICE, "--module-cache", "none"])
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.stop)

    def way(self, sender):
        made = StandingWay(self.server.address, sender)
        self.addCleanup(made.close)
        return made

    def check_is_told_of(self, kind, sender, direction, total=float(MIB)):
        way = self.way(sender)
        program = Program(self, way, kind)
        found = program.wait_for_line(LINE.format(direction))
        self.assertAlmostEqual(float(found[1]), total, delta=0.1)
        self.assertTrue(way.stands.wait(RUN_LIMIT_SECONDS))
        way.release()
        said = program.finish()
        # Always one line, which is erased in the end.
        self.assertNotIn("\n", said)
        self.assertTrue(said.endswith(ERASE), said)

    def test_a_copy_to_the_gpu_is_told_of(self):
        self.check_is_told_of("to", "client", "to")

    def test_a_copy_from_the_gpu_is_told_of(self):
        self.check_is_told_of("from", "server", "from")

    def test_a_copy_of_pinned_memory_to_the_gpu_is_told_of_while_the_program_waits_for_it(self):
        self.check_is_told_of("pinned-to", "client", "to")

    def test_a_copy_to_pinned_memory_is_told_of_while_the_program_waits_for_it(self):
        self.check_is_told_of("pinned-from", "server", "from")

    def test_copies_of_rows_are_told_of(self):
        rows_mib = MIB * 4000 / 4096
        self.check_is_told_of("rows-to", "client", "to", rows_mib)
        self.check_is_told_of("rows-from", "server", "from", rows_mib)

    def test_the_upload_of_an_image_is_told_of(self):
        self.check_is_told_of("image", "client", "to")

    def test_where_nobody_wants_to_know_nothing_is_said(self):
        silent = [(self.way("client"), {"options": ["--no-progress"]}),
                  (self.way("client"), {"GPUWIRE_PROGRESS": "off"}), (self.way("client"), {"on_terminal": False})]
        programs = [Program(self, way, "to", **how) for way, how in silent]
        for way, _ in silent:
            self.assertTrue(way.stands.wait(RUN_LIMIT_SECONDS))
        # A program that began later has its line by now, so theirs would have been printed, too.
        way = self.way("client")
        told = Program(self, way, "to")
        told.wait_for_line(LINE.format("to"))
        for one in [way, *(way for way, _ in silent)]:
            one.release()
        self.assertEqual([program.finish() for program in programs], ["", "", ""])
        told.finish()


if __name__ == "__main__":
    unittest.main(verbosity=2)
