"""The parts of the differential machine that need no device: sequences, comparing, shrinking, rules."""

import unittest
from pathlib import Path

import comparing
import sequences
from grammar import Sequence

HERE = Path(__file__).resolve().parent
API = sequences.model.read_api(HERE.parents[1] / "protocol" / "api")
SEEDS = range(1, 200)


class Sequences(unittest.TestCase):
    def test_a_seed_names_one_sequence(self):
        self.assertEqual(sequences.make(7, API), sequences.make(7, API))
        self.assertNotEqual(sequences.make(7, API), sequences.make(8, API))

    def test_every_driver_call_is_described(self):
        described = {f.name for f in API.functions if not f.unsupported}
        called = {line.split()[2].lstrip("~") for seed in SEEDS for line in sequences.make(seed, API)}
        self.assertEqual({name for name in called if name.startswith("cu") and not name.startswith("cuda")} - described, set())

    def test_every_family_takes_part(self):
        for family in sequences.SCENARIOS:
            with self.subTest(family):
                self.assertTrue(any(len(sequences.make(seed, API, [family])) > 8 for seed in range(1, 6)))

    def test_a_call_has_at_most_one_wrong_argument(self):
        sequence = Sequence(1, 1)
        for _ in range(200):
            chosen = sequence.one_wrong([("right", "wrong"), ("right", "wrong"), "right"], probability=1)
            self.assertEqual(chosen.count("wrong"), 1)


class Comparing(unittest.TestCase):
    def test_lines_that_differ_are_found_unless_a_rule_explains_them(self):
        direct, remote = ["0 cuInit CUDA_SUCCESS", "1 cuMemFree_v2 CUDA_SUCCESS", "end"], ["0 cuInit CUDA_SUCCESS", "1 cuMemFree_v2 CUDA_ERROR_INVALID_VALUE", "end"]
        found = comparing.differences(direct, remote)
        self.assertEqual([each.kind for each in found], [("cuMemFree_v2", "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE")])
        rule = comparing.Rule("cuMemFree_v2", "*", "CUDA_ERROR_INVALID_VALUE", "for the test")
        self.assertEqual(comparing.differences(direct, remote, [rule]), [])

    def test_a_side_that_ends_early_differs(self):
        found = comparing.differences(["0 cuInit CUDA_SUCCESS", "end"], ["ended with -11"])
        self.assertEqual(len(found), 1)

    def test_shrinking_leaves_what_matters(self):
        lines = [str(i) for i in range(60)]
        self.assertEqual(comparing.shrink(lines, lambda some: "17" in some and "42" in some), ["17", "42"])

    def test_the_rules_can_be_read_and_are_few(self):
        for rule in comparing.read_rules(HERE / "explained.toml"):
            self.assertGreater(len(rule.reason), 20)

    def test_each_rule_is_said_to_users(self):
        text = " ".join((HERE.parents[1] / "docs" / "differences.md").read_text().split())
        for rule in comparing.read_rules(HERE / "explained.toml"):
            if "software device" not in rule.reason:
                self.assertIn(rule.reason, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
