"""`bench/run` measures every figure natively and over every road, and says which goals are met."""

import json
import os
import sys
import unittest

from support import BENCH, BUILD, BenchCase, run

sys.path.insert(0, BENCH)
import goals  # noqa: E402

# Of the software device: copies of 1 GiB say nothing there.
LEFT_OUT = {name for name in goals.FIGURES if "_1g_" in name}
PLUG_IN = os.path.join(BUILD, "lib", "gpuwire", "libgpuwire_rdma.so")
ROADS = ["tcp", "tls", "shm"] + (["rdma-tcp", "rdma-shm"] if os.path.exists(PLUG_IN) else [])


class Run(BenchCase):
    def test_every_cell_is_filled(self):
        written = self.path("run.json")
        ran = run("run", "--build", BUILD, "--device", "software", "--rounds", "1", "--quick", "--json", written)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        with open(written, encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual(set(result["rounds"]), {"native", "raw", *ROADS})
        self.assertTrue(result["device"].startswith("1 x gpuwire software device"), result["device"])
        for side in ("native", *ROADS):
            figures, = result["rounds"][side]
            for name in set(goals.FIGURES) - LEFT_OUT:
                self.assertGreater(figures[name], 0, f"{side}: {name}")
        raw, = result["rounds"]["raw"]
        self.assertGreater(raw["loopback"]["round_trip_polling_us"], 0)
        self.assertEqual(set(result["streams"]), set(ROADS))
        for count in result["streams"].values():
            self.assertGreater(raw["streams"][str(count)]["sockets_gb_s"], 0)
        self.assertEqual({(goal["road"], goal["figure"]) for goal in result["goals"]},
                         {(road, name) for road in ROADS for name in goals.ON_THE_SOFTWARE_DEVICE})
        for name, text in goals.FIGURES.items():
            lines = [line for line in ran.stdout.splitlines() if line.startswith(text + "  ")]
            self.assertEqual(len(lines), 0 if name in LEFT_OUT else 1, text)
            for line in lines:
                self.assertGreaterEqual(len(line[len(text):].split()), 1 + 2 * len(ROADS), line)

    def test_another_build_has_a_column_for_each_road(self):
        result, _ = self.measured("run", "--rounds", "1", "--transport", "shm", "--against", BUILD)
        self.assertEqual(set(result["rounds"]), {"native", "raw", "shm", "shm before"})
        before, = result["rounds"]["shm before"]
        for name in set(goals.FIGURES) - LEFT_OUT:
            self.assertGreater(before[name], 0, name)
        self.assertEqual({goal["road"] for goal in result["goals"]}, {"shm"})

    def test_help_names_the_roads(self):
        ran = run("run", "--help")
        for road in ("tcp", "tls", "unix", "shm", "rdma-tcp", "rdma-shm"):
            self.assertIn(road, ran.stdout)


class Goals(unittest.TestCase):
    RAW = {"round_trip_polling_us": 6, "bandwidth_gb_s": 20}

    def bound(self, road, figure, native):
        goal = goals.of(road, False)[figure]
        return goal.relation, goal.value(native, self.RAW)

    def test_they_are_relative_to_the_native_value_and_to_the_raw_link(self):
        self.assertEqual(self.bound("tcp", "launch_sync_us", 8), ("<=", 16))
        self.assertEqual(self.bound("shm", "launch_sync_us", 8), ("<=", 10))
        self.assertEqual(self.bound("shm", "launch_poll_us", 9), ("<=", 12))
        self.assertEqual(self.bound("tcp", "h2d_1g_pinned_gb_s", 55), (">=", 18))
        self.assertEqual(self.bound("shm", "h2d_1g_pinned_gb_s", 55), (">=", 50))
        self.assertEqual(self.bound("shm", "d2h_64m_gb_s", 8), (">=", 8))
        self.assertEqual(self.bound("tls", "d2h_4k_us", 8), ("<=", 15))
        self.assertEqual(self.bound("rdma-tcp", "mem_get_info_us", 5.8), ("<=", 5.8))

    def test_met_is_said_of_the_bound_itself(self):
        self.assertTrue(goals.met("<=", 16, 16))
        self.assertFalse(goals.met("<=", 16.1, 16))
        self.assertTrue(goals.met(">=", 18, 18))
        self.assertFalse(goals.met(">=", 17.9, 18))

    def test_each_is_of_a_figure_that_is_shown(self):
        for road in ("tcp", "tls", "unix", "shm", "rdma-tcp", "rdma-shm", "rdma"):
            for software in (False, True):
                self.assertLessEqual(set(goals.of(road, software)), set(goals.FIGURES))


if __name__ == "__main__":
    unittest.main(verbosity=2)
