"""`gpuwire run --stats` prints an account with its process, however the program ends."""

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import unittest

from support import PROGRAMS, RUN_LIMIT_SECONDS, ServerCase, command, run, wait_until

ENDINGS = {  # the endings of programs/endings.cu, with their exit statuses
    "_exit": 8, "abort": -signal.SIGABRT, "sigterm": -signal.SIGTERM, "sigkill": -signal.SIGKILL,
    "segv": -signal.SIGSEGV
}


def with_stats(line, depth=None):
    line[2:2] = [f"--stats={depth}" if depth else "--stats"]
    return line


class Accounts(ServerCase):
    def run_with_stats(self, *words, depth=None):
        # The watch holds the program's stderr until it has printed the account, so this reads all of it.
        return subprocess.run(with_stats(command(self.server.address, *words), depth), capture_output=True, text=True,
                              timeout=RUN_LIMIT_SECONDS)

    def test_a_program_that_ends_well_prints_one_account(self):
        ran = self.run_with_stats("endings", "return")
        self.assertEqual(ran.returncode, 9)
        self.assertEqual(len(re.findall(r"gpuwire: account of endings, process \d+\n", ran.stderr)), 1, ran.stderr)
        self.assertNotIn("ended by a signal", ran.stderr)

    def test_a_program_that_crashes_or_is_killed_leaves_its_account_and_ends_as_without_one(self):
        for how, code in ENDINGS.items():
            with self.subTest(how):
                self.assertEqual(run(self.server.address, "endings", how).returncode, code)
                ran = self.run_with_stats("endings", how)
                self.assertEqual(ran.returncode, code, ran.stderr)
                lines = [line for line in ran.stderr.splitlines() if line.startswith("gpuwire: ")]
                self.assertRegex(lines[0], r"^gpuwire: endings, process \d+, ended by a signal or by _exit: ")
                whose = re.match(r"gpuwire: account of endings, process (\d+)$", lines[1])
                self.assertIn(f", process {whose[1]}, ", lines[0])
                account = "\n".join(lines)
                self.assertIn(f"server: {self.server.address} over ", account)
                self.assertRegex(account, r"device 0: \S")
                # The counts up to the program's end include the allocation and the launch.
                called = re.search(r"calls: [1-9]\d* local, [1-9]\d* posted, ([1-9]\d*) called", account)
                self.assertTrue(called, account)
                self.assertRegex(account, r"images: 1 used")
                self.assertRegex(account, r"waits: [1-9]\d*, \d")

    def test_tables_and_advice_survive_a_crash_too(self):
        table = self.run_with_stats("endings", "segv", depth="calls").stderr
        rows = {words[1]: words for words in (row.split() for row in table.splitlines()) if len(words) > 5}
        self.assertEqual(rows["cuMemAlloc_v2"][2:4], ["1", "1"], table)
        self.assertEqual(rows["cuLaunchKernel"][3], "0", table)
        advice = [line for line in self.run_with_stats("endings", "sigkill", depth="why").stderr.splitlines()
                  if line.startswith("gpuwire: ")]
        self.assertEqual(len(advice), 6, advice)
        self.assertRegex(advice[0], "ended by a signal or by _exit")
        self.assertRegex(advice[1], r"why endings, process \d+, took ")

    def test_a_group_that_is_killed_as_a_whole_leaves_the_account(self):
        line = with_stats(command(self.server.address, "neighbour"))
        program = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, start_new_session=True)
        program.stdout.readline()
        os.killpg(program.pid, signal.SIGKILL)
        _, errors = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(program.returncode, -signal.SIGKILL)
        self.assertIn(f"gpuwire: account of neighbour, process {program.pid}\n", errors)

    def test_each_process_of_a_program_says_whose_account_it_is(self):
        # Two programs that crash and one that ends normally, all children of a program without CUDA.
        each = shlex.quote(os.path.join(PROGRAMS, "endings"))
        script = f"{each} segv; {each} return; {each} abort; exit 4"
        ran = self.run_with_stats("/bin/bash", "-c", script)
        self.assertEqual(ran.returncode, 4)
        whose = re.findall(r"gpuwire: account of endings, process (\d+)\n", ran.stderr)
        self.assertEqual(len(set(whose)), 3, ran.stderr)
        self.assertEqual(len(re.findall("ended by a signal or by _exit", ran.stderr)), 2, ran.stderr)

    def test_the_program_gets_no_child_and_nothing_stays_of_the_watch(self):
        script = (
            "import os, sys\n"
            "try: os.wait()\n"
            "except ChildProcessError: print('none', os.environ['GPUWIRE_ACCOUNTS'], os.getppid())\n")
        ran = self.run_with_stats(sys.executable, "-c", script)
        word, name, parent = ran.stdout.split()
        self.assertEqual((word, int(parent)), ("none", os.getpid()))

        def listens():
            with open("/proc/net/unix", encoding="ascii", errors="replace") as sockets:
                return any(line.split()[-1] == "@" + name for line in sockets)

        wait_until(lambda: not listens(), RUN_LIMIT_SECONDS, "the watch has ended")

    def test_without_stats_there_is_no_watch(self):
        ran = run(self.server.address, sys.executable, "-c", "import os; print(os.environ.get('GPUWIRE_ACCOUNTS'))")
        self.assertEqual(ran.stdout, "None\n")

    def test_a_program_may_close_the_descriptors_that_it_has_not_opened(self):
        # The account's memory holds a descriptor from the load of the library to the session's begin.
        ran = self.run_python("""
            os.closerange(3, 64)
            files = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
            assert cuda.cuInit(0) == 0
            assert all(os.fstat(file).st_rdev == os.stat("/dev/null").st_rdev for file in files)
            """)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(ran.stderr.count("gpuwire: account of "), 1, ran.stderr)

    def test_parent_and_child_of_a_fork_have_accounts_of_their_own(self):
        ran = self.run_python("""
            for _ in range(100): cuda.cuDriverGetVersion(ctypes.byref(ctypes.c_int()))
            child = os.fork()
            assert cuda.cuInit(0) == 0
            if child == 0: os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)
            print(os.getpid(), child)
            """, depth="calls")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        parent, child = ran.stdout.split()
        calls = {}  # of cuDriverGetVersion, by process
        for line in ran.stderr.splitlines():
            if whose := re.match(r"gpuwire: account of .*, process (\d+)$", line):
                process = whose[1]
                calls[process] = 0
            if row := re.match(r"gpuwire: cuDriverGetVersion +(\d+) ", line):
                calls[process] = int(row[1])
        self.assertEqual(set(calls), {parent, child}, ran.stderr)
        self.assertGreaterEqual(calls[parent], 100, ran.stderr)
        self.assertLess(calls[child], 100, ran.stderr)

    def test_a_child_that_has_no_session_leaves_no_account_and_counts_nothing_for_its_parent(self):
        ran = self.run_python("""
            assert cuda.cuInit(0) == 0
            child = os.fork()
            if child == 0:
                for _ in range(1000): cuda.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
                os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)
            print(os.getpid())
            """, depth="calls")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        whose = re.findall(r"gpuwire: account of .*, process (\d+)\n", ran.stderr)
        self.assertEqual(whose, [ran.stdout.strip()], ran.stderr)
        self.assertNotIn("cuDeviceGetCount", ran.stderr)

    def run_python(self, text, depth=None):
        """Runs Python with the library as `cuda`, before any call of it."""
        begin = "import ctypes, os, signal\ncuda = ctypes.CDLL('libcuda.so.1')\n"
        return self.run_with_stats(sys.executable, "-c", begin + textwrap.dedent(text), depth=depth)


if __name__ == "__main__":
    unittest.main(verbosity=2)
