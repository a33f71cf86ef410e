"""Sessions that share a GPU: turns are taken, nobody waits for ever, and whoever goes leaves nothing behind."""

import os
import re
import signal
import subprocess
import unittest

from support import GONE_WITHIN_SECONDS, ServerCase, children, command, run, start, wait_until

STEPS = 400
# A turn is 10 ms and more, and the two cores of a test machine run clients, servers and the device itself: half or twice as much is still sharing.
SHARE_FACTOR = 3


class Sharing(ServerCase):
    def start(self, *arguments):
        program = start(self.server.address, "saturate", *arguments)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "working\n")
        return program

    def end(self, program):
        """Closes its input; how many kernels it says were done."""
        out, err = program.communicate(timeout=60)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)
        return int(re.search(r"done (\d+)", out).group(1))

    def test_two_that_always_have_work_take_turns(self):
        other = self.start("until")
        first = run(self.server.address, "saturate", "steps", str(STEPS))
        done = self.end(other)
        self.assert_passed(first)
        self.assertIn(f"done {STEPS}\n", first.stdout)
        self.assertGreater(done, STEPS / SHARE_FACTOR)
        self.assertLess(done, STEPS * SHARE_FACTOR)

    def test_one_that_never_waits_takes_no_more_than_its_turns(self):
        hostile = self.start("hostile")
        first = run(self.server.address, "saturate", "steps", str(STEPS))
        self.end(hostile)
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
        for program in ("callbacks", "callbacks_busy", "memory_operations", "graph_capture", "managed_memory", "graph_host_nodes", "cooperation", "threads"):
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
