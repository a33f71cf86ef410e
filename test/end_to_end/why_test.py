"""`gpuwire run --stats=why` names the reason for which a program is slow, with its count."""

import os
import subprocess
import unittest

from support import BUILD, PROGRAMS, RUN_LIMIT_SECONDS, ServerCase, command

TIMES = 400
LARGE_TIMES = 40  # of 17 MiB
# 128 MiB in all, of which a session holds at most 64 MiB until the server has them. A link of 0.1 Gbit/s takes 5 s for
# the others: a program on a busy machine, too, is faster than that.
SENT_TIMES = 512


class Why(ServerCase):
    def why(self, reason, times, address=None, **environment):
        line = command(address or self.server.address, os.path.join(PROGRAMS, "slow_reasons"), reason, str(times))
        line[2:2] = ["--stats=why"]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                             env=dict(os.environ, **environment))
        self.assert_passed(ran)
        told = ran.stderr.splitlines()
        self.assertEqual(len(told), 5, ran.stderr)
        for text in told:
            self.assertTrue(text.startswith("gpuwire: "), ran.stderr)
        return told

    def assert_named(self, told, pattern):
        """Checks that one of the lines has the reason and its count. The line's place depends on the measured waits,
        and so on the machine; test/client_stub/account/advice_test.cpp tests the order for given times."""
        self.assertRegex("\n".join(told[2:]), pattern)

    def test_pageable_memory(self):
        self.assert_named(self.why("pageable", LARGE_TIMES),
                          rf"cudaMemcpy to the device from pageable memory (waited )?{LARGE_TIMES} times, [0-9.]+ s")

    def test_results_that_are_read_one_by_one(self):
        told = self.why("reading", 10 * TIMES)
        self.assert_named(told, r"cudaMemcpy from the device with pageable memory (waited )?4,000 times, ")

    def test_allocations(self):
        self.assert_named(self.why("allocating", 3 * TIMES, GPUWIRE_KEPT_MEMORY="0"),
                          r"cudaMalloc (waited )?1,20\d times, [0-9.]+ s")

    def test_launches_that_wait(self):
        told = self.why("launching", TIMES, CUDA_LAUNCH_BLOCKING="1")
        self.assert_named(told, rf"launches (waited )?{TIMES} times, ")

    def test_a_narrow_link(self):
        link = subprocess.Popen([os.path.join(BUILD, "bench", "slow_link"), "--server", self.server.address, "--gbit",
                                 "0.1"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(link.stdout.close)
        self.addCleanup(link.wait)
        self.addCleanup(link.kill)
        told = self.why("sending", SENT_TIMES, link.stdout.readline().split()[-1])
        self.assert_named(told, r"cudaMemcpyAsync to the device (stood )?(once|\d+ times), [0-9.]+ s")

    def test_work_of_the_gpu(self):
        told = self.why("computing", 20)
        self.assertRegex(told[1], r"GPU \d+ %")
        self.assert_named(told, r"cudaDeviceSynchronize (waited )?2\d times, ")

    def test_the_first_two_lines_name_the_program_and_where_its_waiting_went(self):
        told = self.why("reading", TIMES)
        self.assertRegex(told[0], r"^gpuwire: why slow_reasons, process \d+, took [0-9.]+ s: it waited [0-9.]+ s "
                         r"\(\d+ %\) for the server, in \d+ round trips$")
        self.assertRegex(told[1], r"^gpuwire: waits: network \d+ % \(round trip [0-9.]+ ms, sent \d+ KiB, received "
                         r"\d+ KiB\), server \d+ %, GPU \d+ %, others' turns 0 %")

    def test_it_takes_the_place_of_the_account(self):
        self.assertNotIn("account of", "\n".join(self.why("reading", 1)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
