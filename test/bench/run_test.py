"""Tests that `bench/run` measures every figure natively and over every transport, and reports which goals are met."""

import json
import os
import sys
import unittest

from support import BENCH, BUILD, ROOT, BenchCase, run

sys.path.insert(0, BENCH)
import goals  # noqa: E402
import page  # noqa: E402

# The parts for the software device: large copies are not meaningful there, and frameworks need a GPU.
LEFT_OUT = {name for name in goals.FIGURES
            if any(text in name for text in ("_1g_", "_4m_", "_16m_", "_step_ms", "llama_token"))}
FAR = {"turn_us"}  # over links with a delay
LONG = os.environ.get("GPUWIRE_TEST_LONG", "") not in ("", "0")
PLUG_IN = os.path.join(BUILD, "lib", "gpuwire", "libgpuwire_rdma.so")
ROADS = ["tcp", "tls", "shm"] + (["rdma-tcp", "rdma-shm"] if os.path.exists(PLUG_IN) else [])


class Run(BenchCase):
    def check_every_cell_is_filled(self, roads, sides, *arguments):
        written = self.path("run.json")
        ran = run("run", "--build", BUILD, "--device", "software", "--rounds", "1", "--once", "--json", written,
                  *arguments)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        with open(written, encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual(set(result["rounds"]), {"native", "raw", *sides})
        self.assertTrue(result["device"].startswith("1 x gpuwire software device"), result["device"])
        for side in ("native", *sides):
            figures, = result["rounds"][side]
            for name in set(goals.FIGURES) - LEFT_OUT - FAR:
                self.assertGreater(figures[name], 0, f"{side}: {name}")
        raw, = result["rounds"]["raw"]
        self.assertGreater(raw["loopback"]["round_trip_polling_us"], 0)
        self.assertEqual(set(result["streams"]), set(roads))
        for count in result["streams"].values():
            self.assertGreater(raw["streams"][str(count)]["sockets_gb_s"], 0)
        self.assertEqual({(goal["road"], goal["figure"]) for goal in result["goals"]},
                         {(road, name) for road in roads for name in goals.ON_THE_SOFTWARE_DEVICE})
        table = ran.stdout.partition("ratios")[0]
        for name, text in goals.FIGURES.items():
            lines = [line for line in table.splitlines() if line.startswith(text + "  ")]
            self.assertEqual(len(lines), 0 if name in LEFT_OUT | FAR else 1, text)
            for line in lines:
                self.assertGreaterEqual(len(line[len(text):].split()), 1 + 2 * len(roads), line)

    def test_every_cell_is_filled_of_a_road_and_of_another_build_beside_it(self):
        self.check_every_cell_is_filled(["shm"], ["shm", "shm before"], "--transport", "shm", "--against", BUILD)

    def run_quick(self, *arguments):
        ran = run("run", "--build", BUILD, "--device", "software", "--rounds", "1", "--once", "--quick", "--json",
                  self.path("run.json"), "--recorded", self.path("recorded"), "--transport", "tcp-1ms", *arguments)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def test_the_page_of_ratios_is_recorded_and_the_next_run_is_told_beside_it(self):
        first = self.run_quick("--record")
        self.assertIn("no page of ratios is recorded", first)
        name, = os.listdir(self.path("recorded"))
        recorded = page.read(os.path.join(self.path("recorded"), name))
        self.assertEqual(list(recorded["page"]), ["tcp-1ms"])
        turn = recorded["page"]["tcp-1ms"]["turn_us"]
        self.assertGreaterEqual(turn.round_trips, 0.5)  # a link cannot be faster than its configured delay
        self.assertIn(f"ratios against {os.path.relpath(self.path('recorded'), ROOT)}", self.run_quick())

    @unittest.skipUnless(LONG, "make test-long measures every road")
    def test_every_cell_of_every_road_is_filled(self):
        self.check_every_cell_is_filled(ROADS, ROADS)

    def test_help_names_the_roads(self):
        ran = run("run", "--help")
        for road in ("tcp", "tls", "unix", "shm", "rdma-tcp", "rdma-shm", "tcp-1ms", "tcp-30ms"):
            self.assertIn(road, ran.stdout)

    def test_quick_and_against_measure_the_copies_by_size_and_the_calls_that_are_waited_for(self):
        text = run("run", "--build", BUILD, "--device", "software", "--rounds", "1", "--once", "--quick", "--json",
                   self.path("run.json"), "--recorded", self.path("recorded"), "--transport", "shm", "--against", BUILD)
        self.assertEqual(text.returncode, 0, text.stdout + text.stderr)
        self.assertIn(f"ratios against the build {BUILD}", text.stdout)
        with open(self.path("run.json"), encoding="utf-8") as file:
            rounds = json.load(file)["rounds"]
        wanted = {name for sizes in goals.CURVES.values() for name in sizes} - LEFT_OUT
        for side in ("native", "shm", "shm before"):
            self.assertLessEqual(wanted | {"launch_sync_us", "mem_get_info_busy_us"}, set(rounds[side][0]))
            self.assertNotIn("h2d_64m_gb_s", rounds[side][0])


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
        # 1 MiB at 90 % of 20 GB/s.
        self.assertEqual(self.bound("tcp", "h2d_1m_blocking_us", 99), ("<=", 99 + 6 + (1 << 20) / 18e3))

    def test_met_is_said_of_the_bound_itself(self):
        self.assertTrue(goals.met("<=", 16, 16))
        self.assertFalse(goals.met("<=", 16.1, 16))
        self.assertTrue(goals.met(">=", 18, 18))
        self.assertFalse(goals.met(">=", 17.9, 18))

    def test_each_is_of_a_figure_that_is_shown(self):
        for road in ("tcp", "tls", "unix", "shm", "rdma-tcp", "rdma-shm", "rdma", "tcp-1ms", "tcp-30ms"):
            for software in (False, True):
                self.assertLessEqual(set(goals.of(road, software)), set(goals.FIGURES))


if __name__ == "__main__":
    unittest.main(verbosity=2)
