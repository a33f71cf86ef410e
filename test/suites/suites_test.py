#!/usr/bin/env python3
"""Tests the comparison of two sides of a suite, with a replacement driver, and the parsing of texts by drivers."""

import base64
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "drivers")]
import comparing  # noqa: E402
import driver  # noqa: E402
import llama_cpp  # noqa: E402
import nccl_tests  # noqa: E402
import pairs  # noqa: E402
import python_tests  # noqa: E402

LIMIT_SECONDS = 300  # which only ends a hang
SILENCE_SECONDS = 2  # of a side that is meant to hang


def value(kind, *numbers):
    return [kind, [len(numbers)], base64.b64encode(struct.pack(f"<{len(numbers)}{kind}", *numbers)).decode()]


def script(name):
    loader = importlib.machinery.SourceFileLoader(f"{name}_suites", os.path.join(HERE, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


class Values(unittest.TestCase):
    def test_numbers_are_close_within_the_tolerance_and_not_beyond(self):
        for kind in "efd":
            self.assertTrue(comparing.values_are_close([value(kind, 1.0)], [value(kind, 1.0009765625)], (1e-2, 0)))
            self.assertFalse(comparing.values_are_close([value(kind, 1.0)], [value(kind, 1.125)], (1e-2, 0)))

    def test_the_half_of_a_float_is_read_as_one(self):
        def half(number):
            return ["b", [1], base64.b64encode(struct.pack("<f", number)[2:]).decode()]

        self.assertTrue(comparing.values_are_close([half(1.0)], [half(1.0078125)], (1e-2, 0)))
        self.assertFalse(comparing.values_are_close([half(1.0)], [half(2.0)], (1e-2, 0)))

    def test_nan_is_near_nan_alone_and_infinity_near_itself_alone(self):
        nan, infinite = value("f", float("nan")), value("f", float("inf"))
        negative = ["f", [1], base64.b64encode(struct.pack("<I", 0xFFC00001)).decode()]  # another NaN
        self.assertTrue(comparing.values_are_close([nan], [negative], (1e-3, 1)))
        self.assertFalse(comparing.values_are_close([nan], [value("f", 0.0)], (1e-3, 1)))
        self.assertFalse(comparing.values_are_close([infinite], [value("f", float("-inf"))], (1e-3, 1)))
        self.assertFalse(comparing.values_are_close([infinite], [value("f", 3e38)], (1e-3, 1)))

    def test_integers_other_shapes_and_other_counts_are_never_close(self):
        whole = ["bytes", [1], base64.b64encode(b"\x01").decode()]
        other = ["bytes", [1], base64.b64encode(b"\x02").decode()]
        self.assertFalse(comparing.values_are_close([whole], [other], (10, 10)))
        self.assertFalse(comparing.values_are_close([value("f", 1.0)], [["f", [1, 1], value("f", 1.5)[2]]], (10, 10)))
        self.assertFalse(comparing.values_are_close([value("f", 1.0)], [], (10, 10)))
        self.assertFalse(comparing.values_are_close([value("f", 1.0)], [value("f", 1.5)], None))

    def test_a_digest_tells_shapes_types_and_every_byte(self):
        values = [[("f", (2,), b"12345678")], [("f", (1, 2), b"12345678")], [("bytes", (2,), b"12345678")],
                  [("f", (2,), b"12345679")], []]
        self.assertEqual(len({driver.digest(each) for each in values}), len(values))

    def test_the_steady_part_of_an_error_has_no_addresses_and_counts(self):
        self.assertEqual(driver.steady("CUDA error: 700 at 0x7f12ab\nmore"), "CUDA error: N at N")


class Sides(unittest.TestCase):
    """Each test runs one unit of the replacement driver on two sides."""

    def pair(self, **environment):
        command = [sys.executable, os.path.join(HERE, "stand_in.py")]
        made = pairs.Pair(*(pairs.Worker(command, {**os.environ, **environment, "SIDE": side}, LIMIT_SECONDS,
                                         time.monotonic() + LIMIT_SECONDS) for side in ("native", "remote")))
        self.addCleanup(made.stop)
        return made

    def row(self, unit):
        row = self.pair().run(unit)
        return row["counts"], {case["case"]: case for case in row["different"]}

    def test_cases_that_are_the_same_on_both_sides_are_equal(self):
        counts, different = self.row("equal")
        self.assertEqual(counts, {"cases": 2, "native pass": 2, "remote pass": 2, "equal": 2})
        self.assertEqual(different, {})

    def test_values_within_the_tolerance_are_close_and_are_named(self):
        counts, different = self.row("close")
        self.assertEqual(counts, {"cases": 1, "native pass": 1, "remote pass": 1, "close": 1})
        self.assertEqual(list(different), ["a"])

    def test_values_beyond_the_tolerance_differ_and_differ_again(self):
        counts, different = self.row("apart")
        self.assertEqual((counts["equal"], counts["differ"]), (1, 1))
        self.assertEqual(different["a"]["again"], "differs again")

    def test_a_case_that_natively_differs_from_itself_is_unsteady(self):
        counts, different = self.row("unsteady")
        self.assertEqual(counts.get("differ"), None)
        self.assertEqual((counts["unsteady"], different["a"]["verdict"]), (1, "unsteady"))

    def test_a_case_that_natively_differs_from_itself_in_a_later_run_is_unsteady(self):
        counts, different = self.row("seldom_unsteady")
        self.assertEqual((counts.get("differ"), different["a"]["verdict"]), (None, "unsteady"))

    def test_a_case_that_fails_natively_alone_differs(self):
        counts, different = self.row("native_fails")
        self.assertEqual((counts["differ"], counts.get("native pass"), counts["remote pass"]), (1, None, 1))
        self.assertIn("ValueError", different["a"]["native"])

    def test_a_case_that_fails_alike_on_both_sides_is_equal_and_passes_on_none(self):
        counts, _ = self.row("both_fail")
        self.assertEqual(counts, {"cases": 1, "equal": 1})
        self.assertIn("ValueError", self.pair().run("both_fail")["native"])
        self.assertNotIn("native", self.pair().run("equal"))

    def test_a_crash_of_one_side_is_a_difference_and_what_came_behind_it_was_not_run(self):
        counts, different = self.row("remote_crashes")
        self.assertEqual((counts["equal"], counts["differ"], counts["not run"]), (1, 1, 1))
        self.assertIn("crashed SIGSEGV", different["b"]["remote"])
        self.assertEqual(different["c"]["verdict"], "not run")

    def test_a_side_that_says_nothing_is_ended_and_the_next_unit_runs(self):
        pair = self.pair()
        pair.remote.limit_seconds = SILENCE_SECONDS
        row = pair.run("remote_hangs")
        self.assertEqual(row["counts"]["differ"], 1)
        self.assertIn("too long", row["different"][0]["remote"])
        pair.remote.limit_seconds = LIMIT_SECONDS
        self.assertEqual(pair.run("equal")["counts"]["equal"], 2)

    def test_a_process_that_ends_between_cases_is_a_difference(self):
        counts, different = self.row("remote_ends")
        self.assertEqual(counts["differ"], 1)
        self.assertIn("ended with 3", different[pairs.BETWEEN]["remote"])

    def test_output_of_a_suite_is_no_answer(self):
        counts, _ = self.row("prints")
        self.assertEqual(counts, {"cases": 1, "native pass": 1, "remote pass": 1, "equal": 1})

    def test_a_side_that_is_spent_is_started_anew(self):
        pair = self.pair()
        pair.run("spent")
        self.assertIsNone(pair.native.process)
        self.assertEqual(pair.run("equal")["counts"]["equal"], 2)

    def test_the_bound_of_all_ends_a_unit_that_hangs(self):
        with self.assertRaises(pairs.OutOfTime):
            pair = self.pair()
            pair.native.start()
            pair.remote.start()
            pair.native.deadline = pair.remote.deadline = time.monotonic() + SILENCE_SECONDS
            pair.run("remote_hangs")

    def test_a_suite_that_is_not_there_says_why_and_one_that_does_not_start_is_broken(self):
        with self.assertRaisesRegex(pairs.Unavailable, "it is nowhere"):
            self.pair(MISSING="suite").run("equal")
        with self.assertRaisesRegex(pairs.Broken, "no start"):
            self.pair(MISSING="start").run("equal")


class PythonTests(unittest.TestCase):
    """The driver of tests written in Python, with a package of two tests."""

    def test_a_module_that_is_absent_or_newer_keeps_no_test_from_running_but_those_that_use_it(self):
        with tempfile.TemporaryDirectory() as folder:
            package = os.path.join(folder, "their_tests")
            os.mkdir(package)
            with open(os.path.join(package, "__init__.py"), "w", encoding="utf-8") as file:
                file.write("from nowhere_to_be_found.matcher import Matcher\n")
            with open(os.path.join(package, "test_two.py"), "w", encoding="utf-8") as file:
                file.write("import unittest\nfrom their_tests import Matcher\nclass Two(unittest.TestCase):\n"
                           "    def test_plain(self): __import__('math').former(4)\n"
                           "    def test_that_uses_it(self): Matcher(1)\n")
            ran = subprocess.run([
                sys.executable, os.path.join(HERE, "drivers", "python_tests.py"), "--package", "their_tests",
                "--may-be-absent", "nowhere_to_be_found", "--restore", "math.former=math.sqrt"
            ], input='{"unit": "test_two.py"}\n', env={**os.environ, "PYTHONPATH": folder}, capture_output=True,
                                 text=True, timeout=LIMIT_SECONDS, check=True)
        told = [json.loads(line) for line in ran.stdout.splitlines()]
        self.assertEqual({case["case"].rpartition(".")[2]: case["outcome"] for case in told if "case" in case},
                         {"test_plain": "pass", "test_that_uses_it": "skip"})


    def test_a_large_file_is_several_units_which_have_each_of_its_cases_once(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "test_large.py"), "w", encoding="utf-8") as file:
                file.write("pass\n" * (3 * python_tests.PART_LINES))
            with open(os.path.join(folder, "test_small.py"), "w", encoding="utf-8") as file:
                file.write("pass\n")
            self.assertEqual([unit for file in python_tests.test_files(folder)
                              for unit in python_tests.parts(folder, file)],
                             [f"test_large.py part {number} of 3" for number in (1, 2, 3)] + ["test_small.py"])
        found = []
        for number in (1, 2, 3):
            items = list(range(100))
            python_tests.Chosen(types.SimpleNamespace(), number, 3, sys.maxsize).pytest_collection_modifyitems(items)
            self.assertEqual(items, sorted(items))
            found += items
        self.assertEqual(sorted(found), list(range(100)))

    def test_a_sample_is_the_same_each_time_and_says_what_it_leaves_out(self):
        samples = []
        for _ in range(2):
            recorder, items = types.SimpleNamespace(), list(range(100))
            python_tests.Chosen(recorder, 1, 1, 10).pytest_collection_modifyitems(items)
            samples.append((items, recorder.left_out))
        self.assertEqual(samples[0], samples[1])
        self.assertEqual((len(samples[0][0]), samples[0][1]), (10, 90))

    def test_an_error_that_stays_with_the_process_spends_it(self):
        for text, lasts in (("RuntimeError: CUDA error: an illegal memory access was encountered", True),
                            ("E   cupy.cuda.driver.CUDADriverError: CUDA_ERROR_ILLEGAL_ADDRESS: it", True),
                            ("ValueError: an illegal shape", False)):
            recorder = types.SimpleNamespace(spent=False)
            report = types.SimpleNamespace(failed=True, longrepr=text, when="call", nodeid="a")
            python_tests.Telling(recorder).pytest_runtest_logreport(report)
            self.assertEqual(recorder.spent, lasts, text)


class Runs(unittest.TestCase):
    """Tests of the runner, with units of the replacement driver."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_suites, self.table = script("run"), script("table")
        self.options = types.SimpleNamespace(folder={}, out=folder.name, fresh=False, python=sys.executable,
                                             device="cuda", limit=LIMIT_SECONDS, jobs=2, only="e", quiet=True,
                                             cases=None)
        self.suite = self.run_suites.Suite("stand_in", "../stand_in.py")

    def summary(self, seconds=LIMIT_SECONDS, **options):
        self.options.__dict__.update(options)
        sides = [([], {"SIDE": "native"}), ([], {"SIDE": "remote"})]
        with contextlib.redirect_stdout(io.StringIO()):
            return self.run_suites.Runner(self.options, sides).suite(self.suite, seconds)

    def test_a_run_without_time_says_that_nothing_ran(self):
        self.assertEqual((self.summary(seconds=0)["units run"], self.summary(only="close")["units run"]), (0, 1))

    def test_a_run_goes_on_where_an_earlier_one_ended_unless_it_begins_anew(self):
        first = self.summary(only="both_fail")
        self.assertEqual((first["units"], first["units run"], first["counts"]["equal"]), (1, 1, 1))
        path = os.path.join(self.options.out, "stand_in.jsonl")
        with open(path, encoding="utf-8") as file:
            row = json.loads(file.read())
        row["counts"]["equal"] = 7  # which only a row that is kept can say
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n" + '{"unit": "cut sh')
        again = self.summary(only="_fail")["counts"]
        self.assertGreaterEqual(again["equal"], 7)
        self.assertEqual(self.summary(only="both_fail", fresh=True)["counts"]["equal"], 1)

    def test_a_suite_of_which_natively_nothing_passes_is_broken_and_says_what_its_first_case_said(self):
        self.assertIn("not one case passes natively: error ValueError", self.summary(only="both_fail")["broken"])
        self.assertNotIn("broken", self.summary(only="equal"))

    def test_cases_that_fail_natively_are_counted_by_kind_and_a_sample_names_the_others(self):
        self.assertEqual(self.summary(only="both_fail")["native failures"], {"error ValueError: N": 1})
        self.assertNotIn("native failures", self.summary(only="equal"))
        self.assertEqual(self.summary(only="sampled")["left out"], 5)

    def test_each_difference_is_named_with_its_unit(self):
        summary = self.summary(only="apart")
        self.assertEqual(summary["versions"], {"stand_in": "1"})
        self.assertEqual([(case["unit"], case["case"]) for case in summary["different"]], [("apart", "a")])

    def test_a_record_keeps_counts_and_how_many_cases_of_a_unit_differ(self):
        apart, failing = self.table.recorded(self.summary(only="apart")), self.summary(only="both_fail")
        self.assertEqual((apart["differ"], apart["counts"]["differ"]), ({"apart": 1}, 1))
        self.assertNotIn("different", apart)
        self.assertIn("differ: `apart`", self.table.remarks(apart))
        self.assertIn("natively most often: 1 x `error ValueError: N`",
                      self.table.remarks(self.table.recorded(failing)))
        self.assertEqual(json.loads(self.table.written({"apart": apart})), {"apart": apart})

    def test_a_suite_without_its_folder_is_not_run_and_says_which_it_wants(self):
        self.suite.folder = "what somebody built"
        self.assertIn("what somebody built", self.summary()["not run"])


class Texts(unittest.TestCase):
    def test_cases_of_test_backend_ops_are_read_with_their_endings(self):
        text = ("Backend 1/2: CUDA0\n  ADD(type=f32,ne=[1,1]): \x1b[1;32mOK\x1b[0m\n"
                "  ADD(type=f32,ne=[1,1]): \x1b[1;31mFAIL\x1b[0m\n  ROPE(type=q8): not supported [CUDA0]\n"
                "  2/3 passed\n")
        self.assertEqual([case[:2] for case in llama_cpp.cases(text)],
                         [("ADD(type=f32,ne=[1,1])", "pass"), ("ADD(type=f32,ne=[1,1]) #2", "fail"),
                          ("ROPE(type=q8)", "not supported")])
        self.assertEqual(llama_cpp.operators("Available ops:\n  MUL_MAT\n  ADD\n\nTotal: 2\n"), ["ADD", "MUL_MAT"])

    def test_sizes_of_nccl_tests_are_read_with_what_they_found_wrong(self):
        text = ("# nThread 1 nGpus 1\n"
                "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw"
                "   busbw #wrong\n"
                "           8             2     float     sum      -1     5.10    0.00    0.00      0     0.20    0.04"
                "    0.00      0\n"
                "          32             8     float     sum      -1     5.10    0.01    0.00      3     0.20    0.16"
                "    0.00    N/A\n# Out of bounds values : 0 OK\n")
        self.assertEqual([case[:2] for case in nccl_tests.cases(text)],
                         [("8 bytes float sum root -1", "pass"), ("32 bytes float sum root -1", "wrong")])



if __name__ == "__main__":
    unittest.main(verbosity=2)
