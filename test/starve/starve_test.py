"""The tool that starves threads: it reaches what its command starts and nobody else, and tells what failed."""

import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
LIMIT_SECONDS = 600  # only ends what hangs

# Ends well once a thread of a child has been starved and is back.
WAITS_UNTIL_STARVED = """
    import os, subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    for policy in (os.SCHED_IDLE, os.SCHED_OTHER):
        while os.sched_getscheduler(child.pid) != policy:
            os.sched_yield()
    child.communicate(b"\\n")
"""


def starve(*arguments):
    return subprocess.run([sys.executable, RUN, "--load", "0", "--together", "1", *arguments], capture_output=True,
                          text=True, timeout=LIMIT_SECONDS)


class Starve(unittest.TestCase):
    def test_threads_of_what_the_command_starts_are_starved_and_given_back(self):
        ran = starve("--rounds", "1", "--longest", "0.05", "--limit", str(LIMIT_SECONDS), "--",
                     sys.executable, "-c", textwrap.dedent(WAITS_UNTIL_STARVED))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertEqual(os.sched_getscheduler(0), os.SCHED_OTHER)  # nobody else is

    def test_a_run_that_fails_is_counted_and_its_output_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            ran = starve("--rounds", "2", "--keep", folder, "--", "sh", "-c", "echo what went wrong; exit 3")
            self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
            self.assertIn("2 of 2 runs failed", ran.stdout)
            kept = re.findall(r"status 3: (\S+)", ran.stdout)
            self.assertEqual(len(kept), 2, ran.stdout)
            with open(kept[0], encoding="ascii") as file:
                self.assertEqual(file.read(), "what went wrong\n")

    def test_a_run_that_hangs_is_ended_and_counted(self):
        ran = starve("--rounds", "1", "--limit", "0.1", "--", "sleep", str(LIMIT_SECONDS))
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertIn("hung", ran.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
