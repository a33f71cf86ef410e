"""Sessions one after another leave the server as it was: processes, descriptors and memory."""

import os
import unittest

from support import BUILD, RUN_LIMIT_SECONDS, ServerCase, run, wait_until

SESSIONS = 25


class Leaks(ServerCase):
    def descriptors(self):
        return len(os.listdir(f"/proc/{self.server.process.pid}/fd"))

    def resident_kib(self):
        with open(f"/proc/{self.server.process.pid}/status", encoding="ascii", errors="replace") as status:
            return int(next(line for line in status if line.startswith("VmRSS")).split()[1])

    def settled(self):
        wait_until(lambda: len(self.worker_ids()) == 1, RUN_LIMIT_SECONDS, "only the spare worker is left")
        return self.descriptors(), self.resident_kib()

    def test_sessions_leave_nothing_behind(self):
        program = os.path.join(BUILD, "examples", "add_one")
        for _ in range(3):
            self.assert_passed(run(self.server.address, program))
        descriptors, memory = self.settled()
        for number in range(SESSIONS):
            if number % 3 == 2:
                run(self.server.address, "endings", "sigkill")
            else:
                self.assert_passed(run(self.server.address, program))
        _, memory_after = self.settled()
        # A worker is gone a moment before the broker has closed what led to it.
        wait_until(lambda: self.descriptors() <= descriptors, RUN_LIMIT_SECONDS,
                   f"the broker has {descriptors} descriptors again")
        self.assertLess(memory_after - memory, 2048, "KiB that the broker grew by")


if __name__ == "__main__":
    unittest.main(verbosity=2)
