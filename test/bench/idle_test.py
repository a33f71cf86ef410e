"""Sessions that do nothing use next to no processor time, at both ends."""

import os
import subprocess
import sys
import tempfile
import time
import unittest

from support import BENCH, BUILD, ROOT

sys.path.insert(0, BENCH)
sys.path.insert(0, os.path.join(ROOT, "test", "support"))
import measuring  # noqa: E402
from unreliable_way import UnreliableWay  # noqa: E402

SESSIONS = 16
LIMIT_SECONDS = 120
# protocol/link/heartbeat.hpp: each end of an idle session sends a frame without a message so often.
HEARTBEAT_SECONDS, HEARTBEAT_BYTES = 3, 32
# How many of each client's are waited for.
HEARTBEATS = 4
# Switching costs more on a machine with much else to do. A thread that polls takes fifty times the bound.
ROOM = 3


class Idle(unittest.TestCase):
    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        limits = measuring.configuration(os.path.join(folder, "gpuwire.toml"), f"sessions_max = {SESSIONS + 8}")
        self.server = self.enterContext(measuring.Server(BUILD, ["--device", "software", *limits]))
        # Counts what passes, in a process that is not counted.
        self.way = UnreliableWay(self.server.address, 0, 0, (1, 1))
        self.addCleanup(self.way.close)
        self.programs = [self.started() for _ in range(SESSIONS)]
        for program in self.programs:
            self.assertEqual(program.stdout.readline(), "ready\n")

    def started(self):
        words = measuring.through(BUILD, "", "--server", self.way.address)
        program = subprocess.Popen([*words, os.path.join(BUILD, "bench", "session_calls"), "idle"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(program.communicate, timeout=LIMIT_SECONDS)
        return program

    def await_heartbeats(self, count):
        """Until each client may have sent so many, by the bytes that have passed: where nothing is called, nothing else
        passes, and servers send no more than clients."""
        until = self.way.carried + 2 * count * SESSIONS * HEARTBEAT_BYTES
        end = time.monotonic() + LIMIT_SECONDS
        while self.way.carried < until:
            self.assertLess(time.monotonic(), end, f"no {count} heartbeats of each session")
            time.sleep(0.05)  # between two looks at the condition

    def used_seconds(self):
        roots = [self.server.process.pid, *(program.pid for program in self.programs)]
        return sum(measuring.processor_seconds(one) for root in roots for one in measuring.processes(root))

    def test_sixteen_that_sleep_stay_within_the_bound_of_a_session_over_some_heartbeats(self):
        self.await_heartbeats(1)  # what the start has left to do is not idleness
        before = self.used_seconds()
        self.await_heartbeats(HEARTBEATS)
        used = self.used_seconds() - before
        bound = measuring.IDLE_SHARE_MAX * HEARTBEAT_SECONDS * HEARTBEATS * SESSIONS * ROOM
        print(f"{used:.4f} s of {bound:.4f} s")
        self.assertGreater(used, 0)
        self.assertLessEqual(used, bound)
        for program in self.programs:
            self.assertIsNone(program.poll())


if __name__ == "__main__":
    unittest.main(verbosity=2)
