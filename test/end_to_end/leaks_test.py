"""Consecutive sessions leave the server unchanged: processes, descriptors and memory."""

import os
import unittest

from support import BUILD, RUN_LIMIT_SECONDS, ServerCase, run, wait_until

# The first sessions of each kind leave memory that the allocator keeps for later ones.
FIRST, SESSIONS = 12, 25


class Leaks(ServerCase):
    def descriptors(self):
        return len(os.listdir(f"/proc/{self.server.process.pid}/fd"))

    def resident_kib(self):
        with open(f"/proc/{self.server.process.pid}/status", encoding="ascii", errors="replace") as status:
            return int(next(line for line in status if line.startswith("VmRSS")).split()[1])

    def settled(self):
        wait_until(lambda: len(self.worker_ids()) == 1, RUN_LIMIT_SECONDS, "only the prewarmed worker is left")
        return self.descriptors(), self.resident_kib()

    def run_sessions(self, count):
        """Runs sessions, of which each third one is cut."""
        for number in range(count):
            if number % 3 == 2:
                run(self.server.address, "endings", "sigkill")
            else:
                self.assert_passed(run(self.server.address, os.path.join(BUILD, "examples", "add_one")))

    def test_sessions_leave_nothing_behind(self):
        self.run_sessions(FIRST)
        descriptors, memory = self.settled()
        self.run_sessions(SESSIONS)
        _, memory_after = self.settled()
        # A worker exits a moment before the broker has closed its descriptors.
        wait_until(lambda: self.descriptors() <= descriptors, RUN_LIMIT_SECONDS,
                   f"the broker has {descriptors} descriptors again")
        self.assertLess(memory_after - memory, 1024, "KiB that the broker grew by")


if __name__ == "__main__":
    unittest.main(verbosity=2)
