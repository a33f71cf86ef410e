"""Programs that leave calls without a return, and that change their own process: each ends as it would natively.
GPUWIRE_WAYS_OUT_ROUNDS repeats each way so often, at other seeded points."""

import os
import platform
import signal
import unittest

from shared_memory_test import LocalServer
from support import LONG, RUN_LIMIT_SECONDS, run, start
from unreliable_way import UnreliableWay

SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20261128"))
ROUNDS = int(os.environ.get("GPUWIRE_WAYS_OUT_ROUNDS", "1"))
EXIT_CODE = 7  # of the program's handler
END_LIMIT_SECONDS = "120"  # this only ends a program that hangs
ENVIRONMENT, ROOT_FOLDER, USER = 1, 2, 4  # the rights that the program gives up


class WaysOut(LocalServer):

    def addresses(self):
        return {"tcp": self.server.address, "shared memory": self.address}

    def each(self, way, rounds, repeated=1):
        """Runs one way over every road, as often as requested, and yields the outcomes."""
        for road, address in self.addresses().items():
            for number in range(repeated * ROUNDS):
                with self.subTest(road=road, way=way, seed=SEED + number):
                    yield run(address, "ways_out", way, str(SEED + number), str(rounds))

    def test_a_thread_that_is_cancelled_in_a_loop_of_calls_ends_between_two_of_them(self):
        for ran in self.each("cancelled", 20):
            self.assert_passed(ran)

    def test_a_handler_may_jump_out_of_a_call_that_waits_and_the_program_goes_on(self):
        for ran in self.each("jumped", 24):
            self.assert_passed(ran)

    def test_a_program_that_exits_in_a_handler_in_the_middle_of_a_call_ends(self):
        for ran in self.each("exits", 1, repeated=12):
            self.assertEqual(ran.returncode, EXIT_CODE, ran.stdout + ran.stderr)

    @unittest.skipUnless(platform.machine() == "x86_64", "places are told by instructions of x86-64")
    @unittest.skipIf(os.environ.get("GPUWIRE_TEST_SANITIZED"), "a sanitizer has locks of its own, and an allocator")
    def test_a_program_that_exits_in_a_handler_ends_wherever_in_a_call_the_signal_comes(self):
        for road, address in self.addresses().items():
            for number in range(ROUNDS):
                with self.subTest(road=road, seed=SEED + number):
                    places = "60" if LONG else "5"
                    self.assert_passed(run(address, "exit_anywhere", str(SEED + number), places, END_LIMIT_SECONDS))

    def test_children_of_a_loop_of_calls_are_told_and_end(self):
        for ran in self.each("forked", 20):
            self.assert_passed(ran)

    def test_numbers_that_a_program_closes_one_by_one_are_not_the_sessions(self):
        for ran in self.each("closes", 1):
            self.assert_passed(ran)

    def test_a_program_that_closes_everything_has_its_own_files_for_itself(self):
        for ran in self.each("closes_all", 1):
            self.assert_passed(ran)

    def test_a_limit_of_files_is_no_limit_of_memory(self):
        for ran in self.each("file_limit", 1):
            self.assert_passed(ran)

    def test_calls_leave_errno_as_it_was(self):
        for ran in self.each("errno", 20):
            self.assert_passed(ran)

    def test_registered_memory_may_lose_its_rights_and_its_file_be_shortened(self):
        for ran in self.each("rights", 8):
            self.assert_passed(ran)

    def test_copies_fault_in_memory_of_the_program_as_its_own_accesses_do(self):
        for ran in self.each("barriers", 1):
            self.assert_passed(ran)

    def test_memory_that_is_not_there_is_the_programs_fault_and_not_the_connections(self):
        for way in ("sends_bad_memory", "fetches_bad_memory"):
            for size in (1 << 16, 1 << 20, 20 << 20):
                for ran in self.each(way, size):
                    if ran.returncode != -signal.SIGBUS and ran.returncode != 128 + signal.SIGBUS:
                        self.assert_passed(ran)
                    self.assertNotIn("connection", ran.stderr)

    def come_back(self, way, what):
        """Runs a program that gives up the rights `what`, and then has to resume its session."""
        self.addCleanup(way.close)
        program = start(way.address, "ways_out", "gives_up", str(SEED), str(what))
        line = program.stdout.readline().split()
        self.assertEqual(line[:2], ["given", "up"])
        way.block()
        way.unblock()
        out, errors = program.communicate("\n", timeout=RUN_LIMIT_SECONDS)
        if os.path.isdir(line[2]):
            os.rmdir(line[2])
        self.assertTrue(out.endswith("PASSED\n"), out + errors)
        self.assertGreaterEqual(way.made, 2)

    def test_a_program_that_gives_up_its_environment_root_folder_and_user_keeps_its_session(self):
        root = os.geteuid() == 0
        with self.subTest("tcp"):
            self.come_back(UnreliableWay(self.server.address, 0, SEED, (1, 2)),
                           ENVIRONMENT + (ROOT_FOLDER + USER if root else 0))
        # Only this user can access the folder of the socket.
        with self.subTest("shared memory"):
            self.come_back(self.way(0, SEED), ENVIRONMENT + (ROOT_FOLDER if root else 0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
