"""Ends or cuts a session at stages that its program prints (programs/stages.cu), on roads whose bytes a proxy cannot
parse. A mixin for the suites of one road."""

import os
import random
import signal
import subprocess

from support import BUILD, LONG, PROGRAMS, start, wait_until

SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20251123"))
PROGRAM = "stages"
STAGES = 10  # in a round
LIMIT_SECONDS = 300


class CutsAtStages:
    """The mixin's class provides `way(cuts, seed)`, a proxy between clients and the server with block(), unblock() and
    `made`."""

    def cut_at_stages(self, rounds, cuts, seed, more=0):
        """Runs the program over a proxy that is cut in so many of its stages, chosen by the seed, and `more` times by
        itself, early; returns the number of lost connections. The test fails unless the output equals the uncut one.
        The program begins each stage on a signal. Otherwise a program that polls shared memory, on a machine with many
        cores, could finish all stages before it checks its socket."""
        uncut = subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), "run", "--server", self.server.address, "--",
                                os.path.join(PROGRAMS, PROGRAM), str(rounds)], capture_output=True, text=True,
                               timeout=LIMIT_SECONDS)
        self.assertEqual(uncut.returncode, 0, uncut.stderr)
        # The last round is not cut: a loss without later work goes unnoticed.
        places = set(random.Random(seed).sample(range((rounds - 1) * STAGES), cuts))
        way = self.way(more, seed)
        self.addCleanup(way.close)
        running = start(way.address, PROGRAM, str(rounds), "told", env={**os.environ, "GPUWIRE_STATS": "1"})
        self.addCleanup(running.kill)
        said = []
        for number, line in enumerate(running.stdout):
            said.append(line)
            made = way.made
            if number < rounds * STAGES:
                running.stdin.write("\n")
                running.stdin.flush()
            if number not in places:
                continue
            way.block()
            way.unblock()
            wait_until(lambda: way.made > made or running.poll() is not None, LIMIT_SECONDS,
                       f"the next connection after {line!r}")
        running.stdin.close()
        account = running.stderr.read()
        self.assertEqual(running.wait(LIMIT_SECONDS), 0, "".join(said[-3:]) + account + "".join(self.server.log[-20:]))
        running.stdout.close()
        running.stderr.close()
        self.assertEqual("".join(said), uncut.stdout)
        self.assertIn(f"over {self.ROAD}, release", account)
        self.assertRegex(account, r"connections lost: \d+")
        return way.made - 1


class EndsAtStages:
    """Clients and workers that end, and connections that are cut for good, in each stage. For crashes_test's
    BesideANeighbour, with a short grace, and a `way` as above."""

    def at_each_stage(self, strike, fails=True, first=0):
        """Runs each stage in the long form, else every second one, with other ends on each road."""
        for stage in range(STAGES) if LONG else range(first, STAGES, 2):
            with self.subTest(stage=stage):
                self.at_stage(stage, strike, fails)
                self.assert_nothing_left()

    def at_stage(self, stage, strike, fails):
        way = self.way(0, SEED + stage)
        self.addCleanup(way.close)
        self.program = start(way.address, PROGRAM, "1000000")
        self.addCleanup(self.program.kill)
        # In the second round, when all stages have run once.
        for _ in range(STAGES + stage + 1):
            self.program.stdout.readline()
        strike(way)
        # The standard input stays open.
        said = self.program.stdout.read() + self.program.stderr.read()
        code = self.program.wait(LIMIT_SECONDS)
        for pipe in (self.program.stdin, self.program.stdout, self.program.stderr):
            pipe.close()
        self.assertNotIn("succeeded after", said)
        if fails:
            self.assertEqual(code, 3, said)
            self.assertIn("cudaError", said)
        else:
            self.assertEqual(code, -signal.SIGKILL, said)

    def test_a_client_that_is_killed_in_each_stage(self):
        self.at_each_stage(self.kill_client, fails=False)

    def test_a_worker_that_is_killed_in_each_stage(self):
        def kill_worker(way):
            wait_until(self.sessions, LIMIT_SECONDS, "the session is known")
            os.kill(self.sessions()[0]["worker_pid"], signal.SIGKILL)

        self.at_each_stage(kill_worker, first=1)

    def test_a_connection_that_is_cut_for_good_in_each_stage(self):
        self.at_each_stage(lambda way: way.block())
