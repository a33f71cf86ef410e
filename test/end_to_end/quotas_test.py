#!/usr/bin/env python3
"""Memory: what tenants may have holds whatever their programs do, and what one leaves no other finds."""

import os
import signal
import unittest

from support import BUILD, DEVICE, ServerCase, run, start, wait_until

FUZZ = os.path.join(BUILD, "bench", "sharing", "quota_fuzz")
CLEARING = os.path.join(BUILD, "bench", "sharing", "memory_clearing")
# 10^6 as `GPUWIRE_QUOTA_FUZZ=1000000 ctest -R end_to_end_quotas`.
COUNT = os.environ.get("GPUWIRE_QUOTA_FUZZ", "12000")
SEED = os.environ.get("GPUWIRE_QUOTA_SEED", "1")


class Quotas(ServerCase):
    server_arguments = ("--software-memory", str(1 << 30)) if DEVICE == "software" else ()

    def setUp(self):
        """Each test has the device for itself: a session that has ended gives back what it had when its process has gone."""
        wait_until(lambda: self.server_log().count("audit: begun") == self.server_log().count("audit: ended"), 20, "no session runs")

    def hold(self):
        """A program that holds most of the device, and None when the memory is not there."""
        holder = start(self.server.address, CLEARING, "hold", "896")
        if "filled" in holder.stdout.readline():
            return holder
        holder.communicate()
        return None

    def test_sessions_that_race_for_every_kind_of_memory_never_exceed_it_and_are_refused_nothing_that_fits(self):
        print("seed", SEED)
        self.assert_passed(run(self.server.address, FUZZ, "--count", COUNT, "--seed", SEED))

    def test_a_session_that_is_killed_gives_its_memory_back(self):
        for _ in range(4):
            holders = []
            wait_until(lambda found=holders: found or found.extend(filter(None, [self.hold()])), 15, "the memory is there again")
            self.assertIsNone(self.hold(), "two hold what one may have")
            holders[0].kill()
            holders[0].communicate()

    def test_what_one_session_leaves_in_memory_another_does_not_find(self):
        self.assert_passed(run(self.server.address, CLEARING, "fill", "512"))
        wait_until(lambda: run(self.server.address, CLEARING, "count", "384").stdout.endswith("PASSED\n"), 15, "nothing is found")


if __name__ == "__main__":
    unittest.main()
