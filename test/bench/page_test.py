"""Tests the page of ratios: its rows, its verdicts better and worse, and its list of slow copies."""

import json
import os
import sys
import tempfile
import unittest

from support import BENCH

sys.path.insert(0, BENCH)
import goals  # noqa: E402
import page  # noqa: E402
from page import Row  # noqa: E402


class Ratios(unittest.TestCase):
    def test_a_duration_is_told_in_native_ones_and_in_round_trips_of_its_own_round(self):
        row = page.row_of("d2h_4k_us", native=[10, 10, 10], remote=[20, 30, 40], round_trip_us=[10, 10, 20])
        self.assertEqual((row.native, row.round_trips, row.spread), (3, 2, 2 / 3))

    def test_milliseconds_and_seconds_are_round_trips_too(self):
        self.assertEqual(page.row_of("cnn_step_ms", [2], [3], [10]).round_trips, 300)
        self.assertEqual(page.row_of("load_s", [2], [3], [10]).round_trips, 300_000)

    def test_a_larger_rate_is_worse_as_well(self):
        row = page.row_of("h2d_64m_gb_s", native=[50], remote=[10], round_trip_us=[10])
        self.assertEqual((row.native, row.round_trips), (5, 0))

    def test_a_figure_that_one_side_lacks_in_a_round_has_no_row(self):
        made = page.page_of([{"a_us": 1, "b_us": 1}, {"a_us": 1}], {"tcp": [{"a_us": 2, "b_us": 2, "c_us": 1}] * 2},
                            {"tcp": [1, 1]})
        self.assertEqual(list(made["tcp"]), ["a_us"])

    def test_a_figure_of_nothing_has_no_row(self):
        self.assertEqual(page.page_of([{"a_us": 0}], {"tcp": [{"a_us": 2}]}, {"tcp": [1]}), {"tcp": {}})


class Verdicts(unittest.TestCase):
    WAS = Row(native=2, round_trips=2, spread=0.05)

    def of(self, native, round_trips, spread=0.05):
        return page.verdict(self.WAS, Row(native, round_trips, spread))

    def test_a_time_that_grew_beyond_the_spread_against_both_is_worse(self):
        self.assertEqual(self.of(2.3, 2.3), page.WORSE)
        self.assertEqual(self.of(2.15, 2.15), page.SAME)

    def test_a_time_that_fell_beyond_the_spread_against_both_is_better(self):
        self.assertEqual(self.of(1.7, 1.7), page.BETTER)
        self.assertEqual(self.of(1.9, 1.9), page.SAME)

    def test_a_slower_link_or_a_faster_native_side_alone_changes_no_verdict(self):
        self.assertEqual(self.of(3, 2), page.SAME)
        self.assertEqual(self.of(2, 3), page.SAME)
        self.assertEqual(self.of(1, 3), page.SAME)

    def test_rounds_that_differ_much_widen_what_counts_as_the_same(self):
        self.assertEqual(self.of(2.9, 2.9, spread=0.5), page.SAME)
        self.assertEqual(self.of(3.1, 3.1, spread=0.5), page.WORSE)

    def test_a_rate_is_judged_by_the_native_ratio_alone(self):
        was = Row(native=2, round_trips=0, spread=0)
        self.assertEqual(page.verdict(was, Row(3, 0, 0)), page.WORSE)
        self.assertEqual(page.verdict(was, Row(1, 0, 0)), page.BETTER)

    def test_pages_are_compared_row_by_row_and_rows_of_one_alone_are_new_or_left_out(self):
        was = {"tcp": {"a_us": self.WAS, "gone_us": self.WAS}}
        now = {"tcp": {"a_us": Row(4, 4, 0), "b_us": self.WAS}, "shm": {"a_us": self.WAS}}
        self.assertEqual([(each.road, each.figure, each.verdict) for each in page.compare(was, now)],
                         [("tcp", "a_us", page.WORSE), ("tcp", "b_us", page.NEW), ("shm", "a_us", page.NEW)])

    def test_the_text_has_what_got_worse_first_with_both_ratios(self):
        was = {"tcp": {"d2h_4k_us": self.WAS, "launch_sync_us": self.WAS}}
        now = {"tcp": {"d2h_4k_us": self.WAS, "launch_sync_us": Row(4, 6, 0.2)}}
        first, _, worse, same = page.lines_of(page.compare(was, now), "a page")
        self.assertEqual(first, "ratios against a page: 0 better, 1 the same, 1 worse")
        for text in ("launch + synchronize, us", "2.00 -> 4.00", "2.0 -> 6.0", "worse (spread 20 %)"):
            self.assertIn(text, worse)
        self.assertTrue(same.startswith("D2H 4 KiB, us") and same.endswith("same"), same)


class Curves(unittest.TestCase):
    def test_a_size_that_takes_longer_than_the_next_larger_one_is_named(self):
        curve = [(2 << 20, 315), (64 << 10, 117), (1 << 20, 841), (4 << 20, 585)]
        self.assertEqual(page.steps_down(curve), [(1 << 20, 2 << 20)])

    def test_a_difference_within_the_spread_is_none(self):
        self.assertEqual(page.steps_down([(1, 105), (2, 100)]), [])
        self.assertEqual(page.steps_down([(1, 105), (2, 100)], spread=0.01), [(1, 2)])

    def test_each_curve_of_a_road_is_looked_at(self):
        figures = {name: 10 for sizes in goals.CURVES.values() for name in sizes}
        self.assertEqual(page.lines_of_curves("tcp", figures),
                         ["tcp: no size of a copy takes longer than the next larger one"])
        said, = page.lines_of_curves("tcp", {**figures, "h2d_1m_pinned_async_us": 90})
        self.assertEqual(said, "tcp, H2D pinned async: 1 MiB takes 90 us, longer than 2 MiB with 10")
        self.assertEqual(page.lines_of_curves("tcp", {}), [])

    def test_the_curves_have_each_size_direction_memory_and_call_once(self):
        names = [name for sizes in goals.CURVES.values() for name in sizes]
        self.assertEqual(len(names), 8 * len(goals.SIZES))
        self.assertEqual(len(set(names)), len(names))


class Recorded(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "recorded", "card.json")

    def test_a_written_page_is_read_again(self):
        made = {"tcp": {"a_us": Row(1.5, 2.25, 0.1)}, "shm": {"a_us": Row(1, 3, 0)}}
        self.assertIsNone(page.read(self.path))
        page.write(self.path, "a \"card\"", "2030-01-02", made)
        self.assertEqual(page.read(self.path), {"device": "a \"card\"", "when": "2030-01-02", "page": made})

    def test_rows_that_were_not_measured_this_time_stay(self):
        page.write(self.path, "a card", "2030-01-02", {"tcp": {"a_us": Row(1, 1, 0), "b_us": Row(1, 1, 0)}})
        page.write(self.path, "a card", "2030-01-03", {"tcp": {"a_us": Row(2, 2, 0)}, "shm": {}})
        recorded = page.read(self.path)
        self.assertEqual(recorded["page"]["tcp"], {"a_us": Row(2, 2, 0), "b_us": Row(1, 1, 0)})

    def test_each_row_is_a_line(self):
        page.write(self.path, "a card", "2030-01-02", {"tcp": {"a_us": Row(1, 1, 0), "b_us": Row(1, 1, 0)}})
        with open(self.path, encoding="utf-8") as file:
            self.assertEqual(sum('_us"' in line for line in file), 2)

    def test_a_card_has_a_file_of_its_name(self):
        for device in ("1 x NVIDIA H200", "2 x NVIDIA H200, driver 580"):
            self.assertEqual(os.path.basename(page.file_of(device)), "nvidia_h200.json")

    def test_the_pages_in_the_tree_can_be_read(self):
        for name in os.listdir(page.FOLDER) if os.path.isdir(page.FOLDER) else ():
            if name.endswith(".json"):
                recorded = page.read(os.path.join(page.FOLDER, name))
                self.assertEqual(os.path.basename(page.file_of(recorded["device"])), name)
                for rows in recorded["page"].values():
                    self.assertLessEqual(set(rows), set(goals.FIGURES) | {"matmul_first_ms"}, json.dumps(name))


if __name__ == "__main__":
    unittest.main(verbosity=2)
