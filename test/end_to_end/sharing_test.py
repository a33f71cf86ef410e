"""Sessions that share a GPU: turns are taken, nobody waits for ever, and whoever goes leaves nothing behind."""

import os
import re
import signal
import subprocess
import tempfile
import unittest

from support import GONE_WITHIN_SECONDS, ServerCase, children, command, run, start, wait_until

STEPS = 400
# A turn is 10 ms and more, and the two cores of a test machine run clients, servers and the device itself: half or twice as much is still sharing.
SHARE_FACTOR = 3


class Sharing(ServerCase):
    def start(self, *arguments):
        program = start(self.server.address, "saturate", *arguments)
        self.addCleanup(program.kill)
        said = program.stdout.readline()
        self.assertEqual(said, "working\n", "" if said else program.communicate(timeout=60)[1] + self.server_log())
        return program

    def end(self, program):
        """Closes its input; how many kernels it says were done."""
        out, err = program.communicate(timeout=60)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)
        return int(re.search(r"done (\d+)", out).group(1))

    def count(self, program):
        program.stdin.write("?")
        program.stdin.flush()
        return int(re.fullmatch(r"count (\d+)\n", program.stdout.readline()).group(1))

    def test_two_that_always_have_work_take_turns(self):
        one, other = self.start("until"), self.start("until")
        begin = self.count(one), self.count(other)
        while self.count(one) < begin[0] + STEPS:
            pass
        done = self.count(one) - begin[0], self.count(other) - begin[1]
        self.end(one)
        self.end(other)
        self.assertGreater(done[1], done[0] / SHARE_FACTOR, done)
        self.assertLess(done[1], done[0] * SHARE_FACTOR, done)

    def test_one_that_never_waits_takes_no_more_than_its_turns(self):
        hostile = self.start("hostile")
        first = run(self.server.address, "saturate", "steps", str(STEPS))
        hostile.kill()
        self.assert_passed(first)
        self.assertIn(f"done {STEPS}\n", first.stdout)

    def test_captures_and_graphs_beside_a_neighbour(self):
        neighbour = self.start("until")
        graphs = run(self.server.address, "saturate", "graph", "50")
        self.assertGreater(self.end(neighbour), 0)
        self.assert_passed(graphs)
        self.assertIn("done 200\n", graphs.stdout)

    def test_programs_that_wait_for_themselves_get_there_beside_a_neighbour(self):
        # Streams that stand at host functions, at words and at other streams; managed memory that host functions reach; captures.
        neighbour = self.start("until")
        for program in ("callbacks", "memory_operations", "graph_capture", "managed_memory", "graph_host_nodes", "cooperation"):
            with self.subTest(program):
                self.assert_passed(run(self.server.address, program))
        self.assertGreater(self.end(neighbour), 0)

    def test_a_client_that_dies_at_the_gate_leaves_its_turn_to_others(self):
        neighbour = self.start("until")
        victim = self.start("until")
        for process in [victim.pid, *children(victim.pid)]:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        wait_until(lambda: len(self.worker_ids()) <= 2, GONE_WITHIN_SECONDS + 5, "only the neighbour's worker and a spare one are left")
        self.assert_passed(run(self.server.address, "saturate", "steps", "50"))
        self.assertGreater(self.end(neighbour), 0)

    def test_a_worker_that_is_killed_leaves_its_turn_to_others(self):
        before = self.worker_ids()
        victim = self.start("until")
        for worker in before:
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                pass
        victim.communicate(timeout=60)
        self.assert_passed(run(self.server.address, "saturate", "steps", "50"))

    def test_four_sessions_come_to_an_end(self):
        programs = [subprocess.Popen(command(self.server.address, "saturate", "steps", "100"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                    for _ in range(4)]
        for program in programs:
            out, err = program.communicate(timeout=60)
            self.assertTrue(out.rstrip().endswith("done 100\nPASSED"), out + err)


class Runaways(ServerCase):
    """Kernels and sessions over their tenant's limits."""

    CONFIGURATION = """
[server]
open_tenant = "open"
[tenants.open]
kernel_time_max = "1s"
idle_time_max = "1500ms"
"""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        file = os.path.join(folder.name, "server.toml")
        with open(file, "w", encoding="utf-8") as configuration:
            configuration.write(cls.CONFIGURATION)
        cls.server_arguments = ("--config", file)
        super().setUpClass()

    def test_a_kernel_that_never_ends_is_warned_of_and_ended_with_the_reason(self):
        ran = run(self.server.address, "saturate", "endless")
        self.assertNotEqual(ran.returncode, 0)
        lines = [line for line in ran.stderr.splitlines() if line.startswith("gpuwire")]
        self.assertEqual(len([line for line in lines if "a kernel has been running" in line and "limit of 1 s" in line]), 1, ran.stderr)
        self.assertEqual(len([line for line in lines if "the server ended the session" in line and "kernel" in line]), 1, ran.stderr)
        self.assert_passed(run(self.server.address, "saturate", "steps", "10"))

    def test_a_session_that_does_nothing_is_warned_and_ended_with_the_reason(self):
        idle = start(self.server.address, "saturate", "idle")
        self.addCleanup(idle.kill)
        first = idle.stderr.readline()
        self.assertIn("the session has been idle", first)
        second = idle.stderr.readline()
        self.assertIn("the server ended the session", second)
        self.assertIn("idle", second)
        idle.communicate(timeout=60)

    def test_a_session_that_works_is_left_alone(self):
        busy = start(self.server.address, "saturate", "until")
        self.addCleanup(busy.kill)
        ran = run(self.server.address, "saturate", "endless")
        self.assertNotEqual(ran.returncode, 0)
        out, err = busy.communicate(timeout=60)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
