"""A program's waits for the server: the difference between a loop of N steps and one of 2N."""

import os
import re
import subprocess
import tempfile
import unittest

from support import RUN_LIMIT_SECONDS, ServerCase, command

STEPS = 4
KERNELS_OF_A_STEP = 3


class RoundTrips(ServerCase):
    def waits(self, mode, steps, environment):
        line = command(self.server.address, "training_loop", mode, str(steps))
        line[2:2] = ["--stats=calls"]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                             env=dict(os.environ, **environment))
        self.assert_passed(ran)
        return int(re.search(r"waits: (\d+)", ran.stderr).group(1)), ran.stderr

    def user(self, home, **environment):
        """Returns the environment of a user with stored profiles in this folder."""
        return {"GPUWIRE_LOOK_AHEAD": "on", "GPUWIRE_CACHE_KEY_FILE": os.path.join(home, "cache_key"), **environment}

    def assert_waits_per_step(self, expected, mode, **environment):
        self.waits(mode, STEPS, environment)  # from here on the server has the program's images
        once, _ = self.waits(mode, STEPS, environment)
        twice, account = self.waits(mode, 2 * STEPS, environment)
        self.assertEqual(twice - once, expected * STEPS, account)

    def test_a_training_step_waits_for_nothing(self):
        self.assert_waits_per_step(0, "step")

    def test_reading_the_loss_waits_once(self):
        self.assert_waits_per_step(1, "item")

    def test_a_large_copy_from_pinned_memory_waits_for_nothing(self):
        self.assert_waits_per_step(0, "large_pinned")

    def test_a_pageable_copy_of_a_megabyte_waits_for_nothing(self):
        self.assert_waits_per_step(0, "large_pageable")

    def test_a_step_with_a_blocking_copy_of_a_batch_waits_for_nothing(self):
        self.assert_waits_per_step(0, "blocking_pageable")

    def test_a_blocking_copy_waits_for_nothing_beside_streams_that_do_not_wait_for_the_null_stream(self):
        self.assert_waits_per_step(0, "blocking_pageable_beside")

    def test_replaying_a_graph_waits_for_nothing(self):
        self.assert_waits_per_step(0, "graph")

    def test_a_kernel_waits_at_its_first_launch_only(self):
        self.assert_waits_per_step(1, "new_kernels")

    def test_kernels_that_an_earlier_program_used_wait_for_the_first_of_them_only(self):
        with tempfile.TemporaryDirectory() as home:
            user = self.user(home, GPUWIRE_KEPT_MEMORY="0")  # memory is another test's
            self.waits("new_kernels", 2 * STEPS, user)
            few, _ = self.waits("new_kernels", STEPS, user)
            many, account = self.waits("new_kernels", 2 * STEPS, user)
            self.assertEqual(many, few, account)
            more, account = self.waits("new_kernels", 3 * STEPS, user)
            self.assertEqual(more - many, STEPS, account)

    def test_an_earlier_programs_queries_about_a_kernel_are_prefetched_with_the_kernel(self):
        with tempfile.TemporaryDirectory() as home:
            user = self.user(home, GPUWIRE_KEPT_MEMORY="0")  # memory is another test's
            self.waits("occupancy", 2 * STEPS, user)
            few, _ = self.waits("occupancy", 1, user)
            many, account = self.waits("occupancy", 2 * STEPS, user)
            self.assertEqual(many, few, account)
            more, account = self.waits("occupancy", 3 * STEPS, user)
            self.assertEqual(more - many, STEPS, account)

    def test_an_earlier_programs_queries_after_a_setting_are_prefetched_with_the_kernel(self):
        with tempfile.TemporaryDirectory() as home:
            user = self.user(home, GPUWIRE_KEPT_MEMORY="0")  # memory is another test's
            mode, questions = "occupancy_of_settings", 3
            self.waits(mode, 2 * STEPS, user)
            few, _ = self.waits(mode, 1, user)
            many, account = self.waits(mode, 2 * STEPS, user)
            self.assertEqual(many, few, account)
            one_by_one, account = self.waits(mode, 2 * STEPS, dict(user, GPUWIRE_LOOK_AHEAD="off"))
            self.assertEqual(one_by_one - many, questions * 2 * STEPS, account)
            more, account = self.waits(mode, 3 * STEPS, user)
            self.assertEqual(more - many, questions * STEPS, account)

    def test_libraries_that_an_earlier_run_of_the_program_used_wait_for_the_first_of_them_only(self):
        with tempfile.TemporaryDirectory() as home:
            user = self.user(home, GPUWIRE_KEPT_MEMORY="0")  # memory is another test's
            without = dict(user, GPUWIRE_LOOK_AHEAD="off")
            self.waits("libraries", 3 * STEPS, without)  # from here on the server has the images
            self.waits("libraries", 2 * STEPS, user)
            few, _ = self.waits("libraries", STEPS, user)
            many, account = self.waits("libraries", 2 * STEPS, user)
            self.assertEqual(many, few, account)
            # A new library costs a wait for its first kernel, and two for its queries.
            more, account = self.waits("libraries", 3 * STEPS, user)
            self.assertEqual(more - many, 3 * STEPS, account)
            one_by_one, account = self.waits("libraries", 2 * STEPS, without)
            self.assertEqual(one_by_one - many, 3 * 2 * STEPS + KERNELS_OF_A_STEP - 1, account)

    def test_memory_that_an_earlier_run_of_the_program_allocated_waits_for_the_first_block_only(self):
        def allocations(steps, environment):
            _, account = self.waits("sizes", steps, environment)
            row = re.search(r"^gpuwire: +cuMemAlloc_v2 +(\d+) +(\d+) ", account, re.MULTILINE)
            return int(row.group(1)), int(row.group(2)), account

        # Unused prefetched memory is released, on a busy machine perhaps before the program uses it: then the test
        # tries again.
        for attempts_left in reversed(range(10)):
            with tempfile.TemporaryDirectory() as home:
                user = self.user(home)
                calls, first, account = allocations(2 * STEPS, user)
                self.assertGreaterEqual(first, 2 * STEPS, account)
                again, second, account = allocations(2 * STEPS, user)
                self.assertEqual(again, calls, account)
                more, third, further = allocations(2 * STEPS + 1, user)
                self.assertEqual(more, calls + 1, further)
                _, without, account_without = allocations(2 * STEPS, dict(user, GPUWIRE_LOOK_AHEAD="off"))
                self.assertEqual(without, first, account_without)
            if second <= 1 and third <= 2:
                return
            self.assertGreater(attempts_left, 0, account + further)

    def test_allocating_waits_once_and_freeing_does_not(self):
        self.assert_waits_per_step(1, "malloc", GPUWIRE_KEPT_MEMORY="0")
        self.assert_waits_per_step(1, "malloc_async", GPUWIRE_KEPT_MEMORY="0")

    def test_allocating_what_was_freed_before_waits_for_nothing(self):
        self.assert_waits_per_step(0, "malloc")
        self.assert_waits_per_step(0, "malloc_async")

    def test_allocating_more_and_more_of_a_size_waits_for_nothing(self):
        # Each step waits for the loss, so the prefetched memory has arrived by then. It is released if not used soon,
        # on a busy machine perhaps within a step: then the test tries again.
        self.assert_waits_per_step(2, "grow", GPUWIRE_KEPT_MEMORY="0")
        for attempts_left in reversed(range(10)):
            try:
                return self.assert_waits_per_step(1, "grow")
            except AssertionError:
                if attempts_left == 0:
                    raise

    def test_polling_an_event_waits_for_nothing(self):
        # The first record is queried, and perhaps once more after other progress.
        self.assert_waits_per_step(0, "poll")

    def bytes_sent(self, *arguments):
        line = command(self.server.address, "pinned_pointers", *arguments)
        line[2:2] = ["--stats"]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        self.assert_passed(ran)
        number, unit = re.search(r"sent ([0-9.]+) (bytes|KiB|MiB|GiB)", ran.stderr).groups()
        return float(number) * {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]

    def test_data_that_a_copy_brought_to_pinned_memory_are_not_sent_back(self):
        # Each round copies 4 MiB that differ from those of the round before.
        for memory in ("REGISTERED", "GIVEN", "GIVEN_ROWS"):
            with self.subTest(memory):
                self.bytes_sent("copies", memory, "2")
                once, twice = self.bytes_sent("copies", memory,
                                              str(STEPS)), self.bytes_sent("copies", memory, str(2 * STEPS))
                self.assertLess(twice - once, 64 << 10)

    def test_blocking_launches_wait_once_each(self):
        self.assert_waits_per_step(51, "step", CUDA_LAUNCH_BLOCKING="1")


if __name__ == "__main__":
    unittest.main(verbosity=2)
