#!/usr/bin/env python3
"""Tests the outcomes of texts that samples print, and of programs that exceed the limits."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import outcomes  # noqa: E402


class Judging(unittest.TestCase):
    def outcome(self, code, out="", err=""):
        return outcomes.judge(code, out, err)[0]

    def test_a_program_that_measures_an_error_is_right(self):
        self.assertEqual(
            self.outcome(0, "L1 error: 2.745062E-08\nAbsolute error: 1.5e-03\nL2norm Error OK\nTest passed\n"), "right")

    def test_a_comparison_that_fails_is_wrong_whatever_the_exit_code_says(self):
        self.assertEqual(self.outcome(0, "Result = FAIL\n"), "wrong")
        self.assertEqual(self.outcome(1, "atomicAdd failed val = 1 testData = 2\n"), "wrong")

    def test_a_refusal_counts_as_named_by_a_line_of_gpuwire(self):
        message = 'CUDA error at x.cu:1 code=218(cudaErrorInvalidPtx) "f()"\n'
        self.assertEqual(self.outcome(1, "", message), "refused without name")
        named = "gpuwire software device: ptx:168: error: instruction 'wmma' is not supported\n"
        self.assertEqual(outcomes.judge(1, "", named + message), ("refused by name", named.strip()))

    def test_signals_waivers_and_limits_have_outcomes_of_their_own(self):
        self.assertEqual(outcomes.judge(-11, "", ""), ("crashed", "SIGSEGV"))
        self.assertEqual(self.outcome(2, "Waiving test.\n"), "waived")
        self.assertEqual(self.outcome(None, "half"), "too long")


class Running(unittest.TestCase):
    def test_a_program_that_writes_without_end_is_ended(self):
        self.assertEqual(outcomes.run(["yes"], "/", 60)["outcome"], "too long")

    def test_a_program_that_leaves_a_child_behind_does_not_keep_the_runner(self):
        self.assertEqual(outcomes.run(["sh", "-c", "sleep 1000 & exit 0"], "/", 60)["outcome"], "right")


if __name__ == "__main__":
    unittest.main()
