"""`bench/network --quick` measures every row over every network, natively and remotely."""

import os
import unittest

from support import BenchCase, run

LONG = os.environ.get("GPUWIRE_TEST_LONG", "") not in ("", "0")


class Network(BenchCase):
    def test_every_row_has_a_value_of_each_side(self):
        networks = [0.2, 2] if LONG else [2]
        result, table = self.measured("network", *([] if LONG else ["--round-trips", "2"]))
        self.assertEqual([network["round_trip_ms"] for network in result["networks"]], networks)
        for network in result["networks"]:
            for name in ("checkpoint", "copies", "small"):
                for side in ("native", "remote"):
                    runs = network["rows"][name][side]
                    self.assertEqual(len(runs), result["rounds"], name)
                    for key, value in runs[0].items():
                        self.assertGreater(value, 0, f"{name}, {side}: {key}")
            self.assertIn("torch", {**network["rows"], **result["left_out"]})
            # A network cannot be faster than its configured delay.
            self.assertGreaterEqual(network["raw"]["round_trip_us"], 1000 * network["round_trip_ms"])
            self.assertGreaterEqual(network["rows"]["small"]["remote"][0]["turn_us"], 1000 * network["round_trip_ms"])
        self.assertIn("copies: d2h 1 KiB, us", table)

    def test_rows_and_networks_are_chosen(self):
        result, _ = self.measured("network", "--only", "^small$", "--round-trips", "1", "--gbit", "10", "1")
        self.assertEqual([(network["round_trip_ms"], network["gbit"]) for network in result["networks"]], [(1, 10),
                                                                                                          (1, 1)])
        self.assertEqual([list(network["rows"]) for network in result["networks"]], [["small"], ["small"]])
        self.assertEqual(result["left_out"], {})

    def test_help_names_the_rows(self):
        ran = run("network", "--help")
        for name in ("cnn-read", "resnet50", "gpt2", "checkpoint", "copies", "small"):
            self.assertIn(name, ran.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
