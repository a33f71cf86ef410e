"""The tools that starve threads and repeat tests: they reach what their command starts and nobody else, and tell what
failed."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
RUN, REPEAT, SUITE = (os.path.join(HERE, name) for name in ("run", "repeat", "suite"))
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


# A build tree's tests, as ctest reads them: one that fails each third time, one that looks at what it is given.
TESTS = r"""
add_test(thrice sh -c "echo x >>count; test $(( $(wc -l <count) % 3 )) != 0 || { echo third time; exit 5; }")
set_tests_properties(thrice PROPERTIES WORKING_DIRECTORY [==[FOLDER]==])
add_test(given sh -c "test \"$WORD\" = \"with a space\" && test \"$1\" = more" sh)
set_tests_properties(given PROPERTIES ENVIRONMENT "WORD=with a space")
add_test(left_out sh -c "exit 77")
set_tests_properties(left_out PROPERTIES SKIP_RETURN_CODE 77)
"""


class Repeat(unittest.TestCase):
    def setUp(self):
        self.build = self.enterContext(tempfile.TemporaryDirectory(prefix="gpuwire build "))
        with open(os.path.join(self.build, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            file.write(TESTS.replace("FOLDER", self.build))

    def repeat(self, *arguments):
        return subprocess.run([sys.executable, REPEAT, "--build", self.build, "--load", "1", *arguments],
                              capture_output=True, text=True, timeout=LIMIT_SECONDS)

    def test_a_test_that_fails_now_and_then_is_counted_and_the_output_of_these_runs_is_kept(self):
        ran = self.repeat("thrice", "--times", "7", "--keep", self.build)
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertIn("thrice beside a load of 1: 2 of 7 runs failed\n", ran.stdout)
        kept = re.findall(r"status 5: (.+)", ran.stdout)
        self.assertEqual(len(kept), 2, ran.stdout)
        with open(kept[0], encoding="ascii") as file:
            self.assertEqual(file.read(), "third time\n")

    def test_it_runs_as_ctest_runs_it_with_words_of_ones_own_behind(self):
        self.assertEqual(self.repeat("given", "--times", "1").returncode, 1)
        ran = self.repeat("given", "--times", "2", "--starve", "--", "more")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("0 of 2 runs failed", ran.stdout)

    def test_a_run_that_was_left_out_has_not_failed_and_is_told(self):
        ran = self.repeat("left_out", "--times", "2")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("0 of 2 runs failed, 2 left out", ran.stdout)

    def test_a_name_that_is_none_is_told_with_one_that_is(self):
        ran = self.repeat("trice")
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))
        self.assertIn("has no test trice; did you mean thrice?", ran.stderr)


def why_no_clone():
    """Why the tree cannot be cloned; empty: it can."""
    if not shutil.which("git"):
        return "git is missing"
    asked = subprocess.run(["git", "-C", HERE, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return "" if asked.returncode == 0 else "this tree is no checkout: " + asked.stderr.strip()


@unittest.skipIf(why_no_clone(), why_no_clone())
class Suite(unittest.TestCase):
    """With a command in the place of `make test`."""

    def suite(self, *arguments):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.log = os.path.join(folder, "log")
        places = [os.path.join(folder, name) for name in ("plain", "with a space")]
        ran = subprocess.run([sys.executable, SUITE, "--log", self.log, "--load", "1",
                              *(word for place in places for word in ("--in", place)), *arguments],
                             capture_output=True, text=True, timeout=LIMIT_SECONDS)
        for place in filter(os.path.exists, places):
            self.assertEqual(os.listdir(place), [], "a clone is left")
        with open(self.log, encoding="utf-8") as log:
            return ran, log.read().splitlines()

    def test_each_run_is_in_a_clone_of_its_own_and_has_a_line_in_the_log(self):
        ran, lines = self.suite("--idle", "1", "--loaded", "1", "--environment", "SAID=2 passed, 0 failed", "--command",
                                "sh -c 'test -f Makefile && echo \"$SAID\"'")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertRegex(lines[0], r"^run 1 of 2, \w+, below \S+/plain, idle: \d+ s, 2 passed, 0 failed$")
        self.assertRegex(lines[1], r"^run 2 of 2, \w+, below \S+/with a space, beside a load of 1: \d+ s, 2 passed, 0 ")
        self.assertEqual(lines[2:], ["0 of 2 runs failed"])

    def test_a_run_that_fails_or_ends_without_its_last_line_is_told_with_what_failed(self):
        ran, lines = self.suite("--idle", "1", "--loaded", "0", "--command", "false")
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertIn("nothing; status 1; failed: ?", lines[0])
        self.assertEqual(lines[1:], ["1 of 1 runs failed"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
