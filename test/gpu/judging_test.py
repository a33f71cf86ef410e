"""Tests the runner's verdicts without a GPU: right results, comparisons, and the texts of the table."""

import importlib.machinery
import importlib.util
import json
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)
import judging  # noqa: E402
import matrix  # noqa: E402


def script(name):
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(HERE, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


table = script("table")
run = script("run")


def ran(out, seconds=1.0, code=0, err=""):
    return {"code": code, "seconds": seconds, "out": out, "err": err}


def row(**more):
    return matrix.Row("group", "name", ["program"], **more)


class Judging(unittest.TestCase):
    def test_a_checksum_that_differs_is_a_difference(self):
        native = ran("CHECKSUM fp32 00ff\nCHECKSUM tf32 0101\nPASSED\n")
        self.assertEqual(judging.differences(row(), native, native), [])
        self.assertEqual(
            len(judging.differences(row(), native, ran("CHECKSUM fp32 00ff\nCHECKSUM tf32 0102\nPASSED\n"))), 1)
        self.assertEqual(len(judging.differences(row(), native, ran("PASSED\n"))), 2)

    def test_loss_curves_are_compared_relative_to_the_first_loss(self):
        native, near, far = (ran(f'METRICS {{"curve": [2.0, {last}]}}\nPASSED\n') for last in (0.1, 0.13, 0.3))
        self.assertEqual(judging.differences(row(curve_tolerance=0.02), native, near), [])
        self.assertEqual(len(judging.differences(row(curve_tolerance=0.02), native, far)), 1)
        self.assertEqual(len(judging.differences(row(curve_tolerance=0.02), native, ran("PASSED\n"))), 1)

    def test_a_slow_start_misses_its_goal(self):
        self.assertEqual(judging.differences(row(time_ratio=1.2), ran("", 1.0), ran("", 1.19)), [])
        self.assertEqual(len(judging.differences(row(time_ratio=1.2), ran("", 1.0), ran("", 1.21))), 1)

    def test_the_goal_is_the_loosest_tolerance_that_was_printed(self):
        self.assertEqual(judging.goal(row(), "a: right, within 1e-05\nb: right, within 0.01\nPASSED\n"), "0.01")
        self.assertEqual(judging.goal(row(), "a: right, within 0\nPASSED\n"), "exact")
        self.assertEqual(judging.goal(row(), "PASSED\n"), "its own check")
        self.assertEqual(judging.goal(row(right=matrix.same_output), ""), "the native output")

    def test_a_program_that_is_not_installed_is_skipped_with_its_reason(self):
        self.assertEqual(judging.not_installed(ran("NOT INSTALLED: a module\n", code=77)), "a module")
        self.assertEqual(judging.not_installed(ran("PASSED\n")), "")

    def test_a_failure_says_what_the_program_said_last(self):
        self.assertEqual(judging.failure(ran("a\n", code=1, err="/a/b/c.cu:5: no\ngpuwire: waits: 3\n")),
                         "exit code 1: c.cu:5: no")
        self.assertEqual(judging.failure(ran("", code="timeout")), "exit code timeout")

    def test_the_same_output_is_the_same_to_the_letter(self):
        self.assertTrue(matrix.same_output(ran("a\n"), ran("a\n")))
        self.assertFalse(matrix.same_output(ran("a \n"), ran("a\n")))


class FakeRunner(run.Runner):
    """Returns given results instead of running programs."""

    def __init__(self, native, remote, longer=None):
        super().__init__(["prefix"], 1)
        self.native, self.remote, self.longer = native, remote, longer

    def best(self, row, prefix, steps=matrix.STEPS):
        return dict(self.longer if steps != matrix.STEPS else self.remote if prefix else self.native)


class Rows(unittest.TestCase):
    def result(self, first, second, **more):
        def account(waits):
            return f"gpuwire: waits: {waits}, 1 ms\n"
        return FakeRunner(ran("PASSED\n"), ran("PASSED\n", err=account(first)),
                          ran("PASSED\n", err=account(second))).row(row(**more))

    def test_waits_of_a_step_are_the_difference_of_two_runs(self):
        self.assertEqual(self.result(100, 100, waits=0)["verdict"], "right")
        result = self.result(100, 100 + matrix.STEPS, waits=0)
        self.assertEqual((result["verdict"], result["waits_per_step"]), ("wrong", 1))
        self.assertEqual(self.result(100, 100 + matrix.STEPS, waits=1)["verdict"], "right")

    def test_a_wait_more_or_less_is_the_start_s_and_one_in_every_tenth_step_is_not(self):
        for second in (98, 101, 102):
            self.assertEqual(self.result(100, second, waits=0)["verdict"], "right")
        for second in (97, 100 + matrix.STEPS // 10):
            self.assertEqual(self.result(100, second, waits=0)["verdict"], "wrong")

    def test_a_program_that_was_not_built_is_no_failure(self):
        result = run.Runner([], 1).row(matrix.Row("group", "name", ["/no/such/program"]))
        self.assertEqual(result["verdict"], "not built")

    def test_output_of_a_wrong_run_is_kept_and_not_recorded(self):
        result = FakeRunner(ran("PASSED\n"), ran("oh\n", code=1)).row(row())
        self.assertEqual((result["verdict"], result["remote"]["out"]), ("wrong", "oh\n"))
        self.assertNotIn("out", table.without_output(result)["remote"])

    def test_every_row_has_a_name_of_its_own(self):
        names = [(each.group, each.name) for each in matrix.rows("")]
        self.assertEqual(len(names), len(set(names)))

    def test_a_record_keeps_the_names_of_right_rows_and_all_of_the_others(self):
        wrong = FakeRunner(ran("PASSED\n"), ran("oh\n", code=1)).row(row())
        other = {"group": "group", "program": "other", "verdict": "not tried here", "reason": "why"}
        record = table.of_run({"device": "1 x GPU", "versions": {"torch": "2"},
                               "results": [dict(self.result(5, 5, waits=0), program="good"), wrong, other]})
        self.assertEqual(record["right"], {"group": ["good"]})
        self.assertEqual(record["not right"], [table.without_output(wrong), other])
        self.assertEqual(json.loads(table.written(record)), record)
        text = table.table(record)
        self.assertIn("* group, 1 right: `good`\n", text)
        self.assertIn("* group, **wrong** (remote: exit code 1: oh): `name`\n", text)
        self.assertIn("* group, not tried here (why): `other`\n", text)
        self.assertIn("1 of 2 rows are right", text)

    def test_a_later_record_replaces_the_rows_that_it_has(self):
        group = matrix.rows("")[0].group
        a, b, c = (each.name for each in matrix.rows("")[:3])

        def part(right, wrong):
            rows = [{"group": group, "program": name, "verdict": "not built", "reason": "why"} for name in wrong]
            return {"device": "", "versions": {}, "right": {group: right} if right else {}, "not right": rows}

        record = table.merged([part([a, "no longer there"], [c, b]), part([b], [a])])
        self.assertEqual(record["right"], {group: [b]})
        self.assertEqual([row["program"] for row in record["not right"]], [a, c])


if __name__ == "__main__":
    unittest.main(verbosity=2)
