"""Tests the output of a hanging test, and that the tests after it still run."""

import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
HANGS = """
import subprocess, sys, unittest
sys.path.insert(0, sys.argv.pop())
import time_limit

class Suite(unittest.TestCase):
    def test_a_waits_for_a_line_that_never_comes(self):
        program = subprocess.Popen(["sleep", "1000"], stdout=subprocess.PIPE)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        program.stdout.readline()

    def test_b_passes(self):
        print("the second test ran", file=sys.stderr)

unittest.main()
"""


class TimeLimit(unittest.TestCase):
    def test_a_test_that_hangs_fails_with_its_line_and_its_processes_and_the_next_one_runs(self):
        ran = subprocess.run([sys.executable, "-c", HANGS, HERE], capture_output=True, text=True, check=False,
                             env={**os.environ, "GPUWIRE_TEST_METHOD_SECONDS": "2"})
        self.assertEqual(ran.returncode, 1, ran.stderr)
        self.assertRegex(ran.stderr, r"process \d+ \([A-Z]\) sleep 1000: \w+")
        if shutil.which("gdb"):
            self.assertRegex(ran.stderr, r"stacks of process \d+:")
        self.assertIn("TimeoutError: the test has not ended within 2 s", ran.stderr)
        self.assertIn("the second test ran", ran.stderr)
        self.assertIn("FAILED (errors=1)", ran.stderr)


if __name__ == "__main__":
    unittest.main()
