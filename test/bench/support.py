"""Common code of the tests of benchmarks."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.abspath(os.environ.get("GPUWIRE_BUILD", os.path.join(ROOT, "build")))
BENCH = os.path.join(ROOT, "bench")
RUN_LIMIT_SECONDS = 1500  # only ends what hangs


def run(name, *arguments):
    return subprocess.run([sys.executable, os.path.join(BENCH, name), *arguments], capture_output=True, text=True,
                          timeout=RUN_LIMIT_SECONDS)


class BenchCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def measured(self, name, *arguments):
        """Returns (the JSON of a benchmark's --quick, its output)."""
        written = self.path("out.json")
        ran = run(name, "--build", BUILD, "--device", "software", "--quick", "--json", written, *arguments)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        with open(written, encoding="utf-8") as out:
            result = json.load(out)
        self.assertEqual(result["benchmark"], name)
        self.assertIn("software", result["device"])
        self.assertGreater(result["machine"]["cores"], 0)
        return result, ran.stdout
