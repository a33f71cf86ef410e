"""Tests that the pictures of `bench/plot` contain the invented figures."""

import json
import os
import re
import unittest
import xml.etree.ElementTree as xml

from support import BenchCase, run

SVG = "{http://www.w3.org/2000/svg}"


def network(round_trip_ms, gbit, step_ms):
    copies = {"h2d_us 1024": 10.0 * round_trip_ms, "h2d_us 1048576": 100.0 * round_trip_ms}
    torch = {"cnn.step_ms": step_ms, "gpt2.step_ms": 2 * step_ms}
    return {
        "round_trip_ms": round_trip_ms, "gbit": gbit,
        "rows": {
            "torch": {"native": [{"cnn.step_ms": 2.0}], "remote": [torch]},
            "copies": {"native": [{"h2d_us 1024": 1.0, "h2d_us 1048576": 9.0}], "remote": [copies, copies]}
        }
    }


NETWORK = {"benchmark": "network", "device": "a <GPU> & more",
           "networks": [network(1, 100, 3.0), network(10, 100, 30.0), network(1, 10, 1000.0)]}
SESSIONS = {
    "benchmark": "sessions", "device": "a GPU",
    "together": [{"sessions": count, "side": side, "turns_per_s": 1000.0 * count}
                 for count in (1, 4) for side in ("native", "remote")]
}


class Plot(BenchCase):
    def draw(self, result):
        with open(self.path("in.json"), "w", encoding="utf-8") as out:
            json.dump(result, out)
        ran = run("plot", self.path("in.json"), "--out", self.path("pictures"))
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def picture(self, name):
        return xml.parse(os.path.join(self.path("pictures"), name + ".svg")).getroot()

    @staticmethod
    def lines(picture):
        """Returns the positions of each line's points, solid lines first."""
        paths = [path for path in picture.iter(SVG + "path") if "line" in path.get("class").split()]
        paths.sort(key=lambda path: "dashed" in path.get("class"))
        return [[tuple(map(float, point.split())) for point in re.split("[ML]", path.get("d"))[1:]] for path in paths]

    def test_a_step_over_the_round_trip_is_a_line_for_each_workload(self):
        self.draw(NETWORK)
        picture = self.picture("network_steps")
        texts = [text.text for text in picture.iter(SVG + "text")]
        for name in ("CNN, loss not read", "GPT-2 token", "CNN, loss not read, native", "round trip, ms", "step, ms"):
            self.assertIn(name, texts)
        cnn, gpt2, native = self.lines(picture)
        # For networks of the highest rate; ten times the round trip gives ten times the step, which is a decade on both
        # axes.
        self.assertEqual([len(cnn), len(gpt2), len(native)], [2, 2, 2])
        self.assertGreater(cnn[1][0], cnn[0][0])
        self.assertLess(cnn[1][1], cnn[0][1])
        self.assertAlmostEqual(cnn[0][1] - cnn[1][1], gpt2[0][1] - gpt2[1][1], delta=0.2)
        self.assertEqual(native[0][1], native[1][1])

    def test_copies_are_a_line_for_each_network_and_one_for_the_native_ones(self):
        self.draw(NETWORK)
        for name in ("network_latency", "network_bandwidth"):
            picture = self.picture(name)
            self.assertEqual(len(self.lines(picture)), 4)
            texts = [text.text for text in picture.iter(SVG + "text")]
            self.assertIn("1 MiB", texts)
            self.assertIn("10 ms, 100 Gbit/s", texts)

    def test_pictures_have_colours_for_dark_pages(self):
        self.draw(NETWORK)
        self.assertIn("prefers-color-scheme:dark", self.picture("network_steps").find(SVG + "style").text)

    def test_names_are_text_whatever_they_are_made_of(self):
        self.draw(NETWORK)
        picture = self.picture("network_steps")
        self.assertEqual(picture.find(SVG + "title").text, "A step over the round trip, a <GPU> & more")
        self.assertIn("a <GPU> & more", [text.text for text in picture.iter(SVG + "text")])

    def test_a_figure_that_was_not_measured_is_left_out_with_a_line(self):
        said = self.draw(SESSIONS)
        self.assertIn("sessions_growth.svg is left out", said)
        self.assertEqual(os.listdir(self.path("pictures")), ["sessions_throughput.svg"])

    def test_another_file_is_refused(self):
        for text in ("{}", "[1]", "no JSON"):
            with open(self.path("other.json"), "w", encoding="utf-8") as out:
                out.write(text)
            ran = run("plot", self.path("other.json"), "--out", self.path("pictures"))
            self.assertEqual(ran.returncode, 1)
            self.assertIn("other.json", ran.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
