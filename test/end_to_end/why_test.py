"""`gpuwire run --stats=why` names the reason for which a program is slow, with its count."""

import os
import select
import signal
import subprocess
import unittest

from support import BUILD, PROGRAMS, RUN_LIMIT_SECONDS, ServerCase, command, wait_until

TIMES = 400
LARGE_TIMES = 40  # of 17 MiB
# 128 MiB in all, more than a session and a connection hold until the server has them.
SENT_TIMES = 512
# A thread that sleeps so often within one call waits for room: such a wait ends and begins again every few
# milliseconds.
SLEEPS = 10


class Why(ServerCase):
    def command(self, reason, times, address=None):
        line = command(address or self.server.address, os.path.join(PROGRAMS, "slow_reasons"), reason, str(times))
        return [*line[:2], "--stats=why", *line[2:]]

    def told(self, ran):
        """Returns the lines of a program that has passed."""
        self.assert_passed(ran)
        told = ran.stderr.splitlines()
        self.assertEqual(len(told), 5, ran.stderr)
        for text in told:
            self.assertTrue(text.startswith("gpuwire: "), ran.stderr)
        return told

    def why(self, reason, times, **environment):
        return self.told(subprocess.run(self.command(reason, times), capture_output=True, text=True,
                                        timeout=RUN_LIMIT_SECONDS, env=dict(os.environ, **environment)))

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

    @staticmethod
    def sleeps_of(process_id):
        """Returns how often the process's first thread has gone to sleep."""
        with open(f"/proc/{process_id}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))

    def wait_until_it_stands(self, program):
        """Waits until a call of the program does not end, and returns the program's output so far."""
        os.set_blocking(program.stdout.fileno(), False)
        said, begun = b"", self.sleeps_of(program.pid)

        def stands():
            nonlocal said, begun
            more = os.read(program.stdout.fileno(), 1 << 16) if select.select([program.stdout], [], [], 0)[0] else b""
            if more:
                said, begun = said + more, self.sleeps_of(program.pid)
            return not more and self.sleeps_of(program.pid) - begun >= SLEEPS

        wait_until(stands, RUN_LIMIT_SECONDS, "a call that waits for room")
        os.set_blocking(program.stdout.fileno(), True)
        return said

    def test_a_narrow_link(self):
        """The link stands still until the program waits for it, however fast the machine is."""
        link = subprocess.Popen([os.path.join(BUILD, "bench", "slow_link"), "--server", self.server.address, "--gbit",
                                 "1"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(link.stdout.close)
        self.addCleanup(link.wait)
        self.addCleanup(link.kill)
        line = self.command("sending", SENT_TIMES, link.stdout.readline().split()[-1])
        program = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), b"copy\n")  # its session has begun
        link.send_signal(signal.SIGSTOP)
        said = self.wait_until_it_stands(program)
        self.assertLess(said.count(b"copy"), SENT_TIMES - 1)
        link.send_signal(signal.SIGCONT)
        out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        told = self.told(subprocess.CompletedProcess(line, program.returncode, (said + out).decode(), err.decode()))
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
