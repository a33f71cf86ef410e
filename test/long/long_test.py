"""The table of the long tests has a row for each of them, and what writes into it changes nothing else."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ["GPUWIRE_BUILD"]
REPORT = """<testsuite>
<testcase name="one_long" time="12.4" status="run"><system-out>5 cuts</system-out></testcase>
<testcase name="other_long" time="3" status="fail"><system-out>seed 7</system-out></testcase>
<testcase name="third_long" time="0" status="notrun"/>
</testsuite>"""
TABLE = """# long
| test | more | ran | found |
|---|---|---|---|
| `one_long` | 5 times as many | never | - |
| `other_long` | all \\| of it | 5 s, 2020-01-01 | nothing |
| `third_long` | what is not there | 7 s, 2020-01-01 | nothing |
end
"""


def runner():
    loader = importlib.machinery.SourceFileLoader("long_run", os.path.join(HERE, "run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("long_run", loader))
    loader.exec_module(module)
    return module


RUN = runner()


class Long(unittest.TestCase):
    def test_the_table_has_a_row_for_each_long_test_and_no_other(self):
        said = subprocess.run(["ctest", "--test-dir", BUILD, "-L", "^long$", "--show-only=json-v1"],
                              capture_output=True, text=True, check=True).stdout
        with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
            rows = RUN.recorded(file.read())
        there = {test["name"] for test in json.loads(said)["tests"]}
        self.assertGreater(len(there), 5)
        # Some are not built everywhere: without nvcc, and without UCX.
        self.assertLessEqual(there, set(rows), "tests without a row in test/long/README.md")

    def test_the_outcome_of_a_run_goes_into_the_rows_of_the_tests_that_ran(self):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as report:
            report.write(REPORT)
            report.flush()
            ran = RUN.results(report.name)
        self.assertEqual(RUN.with_results(TABLE, ran, "2026-01-02"), TABLE.replace(
            "| never | - |", "| 12 s, 2026-01-02 | nothing |").replace(
            "5 s, 2020-01-01 | nothing", "3 s, 2026-01-02 | something: see the output"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
