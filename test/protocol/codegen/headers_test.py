#!/usr/bin/env python3
"""Code generated for functions that the installed headers do not have yet (`since` of the description) compiles all
the same.

The description beside this file has functions of CUDA 99.0, with types that no header has.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "protocol/codegen"))

import emit_mocks  # noqa: E402
import generate  # noqa: E402
from model import read_api  # noqa: E402

OPTIONS = None
GUARD = re.compile(r"^#if CUDA_VERSION >= \d+\n|^#endif\n", re.MULTILINE)


def sources(files):
    """All that are compiled, but those that follow from the session's own calls: there is nothing of CUDA's in them."""
    return sorted(path for path in files if path.endswith(".cpp") and "session" not in path and "trace" not in path)


class Headers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        api = read_api(HERE / "description")
        cls.files = generate.outputs(api) | emit_mocks.emit(api)
        for path, text in cls.files.items():
            generate.write_if_changed(cls.folder / path, text)
        schema = cls.folder / "schema"
        command = ["capnp", "compile", "-I/usr/include", f"--src-prefix={schema}", f"-oc++:{schema}"]
        subprocess.run([*command, *schema.glob("*.capnp")], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def compile(self, path):
        includes = [f"-I{folder}" for folder in (self.folder, ROOT, OPTIONS.generated)]
        includes += ["-isystem", f"{OPTIONS.cuda}/include"]
        command = [OPTIONS.compiler, "-std=c++20", "-Wall", "-Wextra", "-fsyntax-only", *includes, self.folder / path]
        return subprocess.run(command, capture_output=True, text=True)

    def test_functions_of_newer_toolkits_are_left_out(self):
        newer = [f.name for f in read_api(HERE / "description").functions if f.since == 99000]
        self.assertGreaterEqual(len(newer), 4)
        for path in sources(self.files):
            with self.subTest(path):
                compiled = self.compile(path)
                self.assertEqual(compiled.returncode, 0, compiled.stderr)
                self.assertNotIn("warning", compiled.stderr)

    def test_without_the_guards_it_would_not_compile(self):
        path = "server/driver_table.cpp"
        header = self.folder / "server/driver_table.hpp"
        text = header.read_text()
        try:
            header.write_text(GUARD.sub("", text))
            self.assertIn("CUfuture", self.compile(path).stderr)
        finally:
            header.write_text(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda"))
    parser.add_argument("--generated", type=Path, default=ROOT / "build/generated", help="the build's generated files")
    parser.add_argument("--compiler", default="c++")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
