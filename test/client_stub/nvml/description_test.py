"""The description of NVML against itself, the built library and the page made from it.

usage: description_test.py LIBRARY
"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "protocol/codegen"))

import emit_nvml  # noqa: E402
from nvml_model import read_nvml  # noqa: E402

LIBRARY = sys.argv[1]
ALLOWED_LIBRARIES = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0", "libdl.so.2"}


class Description(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.nvml = read_nvml(ROOT / "protocol/nvml")

    def test_the_library_exports_what_is_described_and_nothing_else(self):
        lines = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True,
                               check=True).stdout.splitlines()
        exported = {line.split()[-1].split("@")[0] for line in lines}
        self.assertGreater(len(exported), 400)
        self.assertEqual(exported ^ {f.name for f in self.nvml.functions}, set())

    def test_the_library_needs_nothing_but_the_c_library(self):
        dynamic = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
        self.assertLessEqual(set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)), ALLOWED_LIBRARIES)
        self.assertIn("Library soname: [libnvidia-ml.so.1]", dynamic)

    def test_functions_that_change_the_card_are_refused(self):
        for function in self.nvml.functions:
            if re.match(r"nvml(Device|System|Unit)?(Set|Reset|Clear|Create|Remove|Modify|Freeze)",
                        function.name) and "CpuAffinity" not in function.name:
                self.assertEqual(function.cls, "changes", function.name)

    def test_every_unsupported_function_has_a_reason(self):
        for function in self.nvml.functions:
            if function.cls == "unsupported":
                self.assertGreater(len(function.reason), 10, function.name)

    def test_the_coverage_page_is_up_to_date(self):
        self.assertEqual((ROOT / "docs/nvml_coverage.md").read_text(), emit_nvml.coverage(self.nvml),
                         "run protocol/codegen/generate_nvml.py")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
