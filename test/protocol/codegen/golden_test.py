#!/usr/bin/env python3
"""What the generator writes for a small description, against the files in golden/, so that a change of the generator
shows as a diff.

    golden_test.py            compares
    golden_test.py --renew    writes golden/ anew; read the diff before it is committed
"""

import argparse
import difflib
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "protocol/codegen"))

import emit_coverage  # noqa: E402
import emit_mocks  # noqa: E402
import generate  # noqa: E402
from model import read_api  # noqa: E402

GOLDEN = HERE / "golden"
SUFFIX = ".golden"  # so that nothing takes them for sources
SHOWN_LINES_MAX = 60


def generated():
    """Name under golden/ -> text."""
    api = read_api(HERE / "description")
    files = generate.outputs(api) | emit_mocks.emit(api) | {"api_coverage.md": emit_coverage.emit(api)}
    return {path + SUFFIX: text for path, text in files.items()}


def kept():
    return {str(path.relative_to(GOLDEN)): path.read_text() for path in GOLDEN.rglob("*" + SUFFIX)}


def difference(old, new, name):
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), f"golden/{name}", "generated", lineterm=""))
    more = [f"... {len(lines) - SHOWN_LINES_MAX} more lines"] if len(lines) > SHOWN_LINES_MAX else []
    return "\n".join(lines[:SHOWN_LINES_MAX] + more)


def renew():
    files = generated()
    for name in set(kept()) - set(files):
        (GOLDEN / name).unlink()
    for name, text in files.items():
        generate.write_if_changed(GOLDEN / name, text)


class Golden(unittest.TestCase):
    def test_the_generator_writes_what_the_golden_files_say(self):
        old, new = kept(), generated()
        self.assertEqual(sorted(old), sorted(new), "golden_test.py --renew")
        wrong = [difference(old[name], new[name], name) for name in sorted(new) if old[name] != new[name]]
        advice = "the generator writes something else; if it should: golden_test.py --renew\n"
        self.assertFalse(wrong, advice + "\n".join(wrong))

    def test_the_description_has_a_function_of_every_kind(self):
        functions = read_api(HERE / "description").functions
        self.assertGreaterEqual(len(functions), 12)
        self.assertEqual({f.cls for f in functions if not f.unsupported and not f.via}, {"posted", "called", "local"})
        self.assertEqual({f.client for f in functions}, {"generated", "hand"})
        self.assertEqual({f.server for f in functions}, {"generated", "hand", "none"})
        params = [p for f in functions for p in f.params]
        self.assertEqual({p.direction for p in params}, {"in", "out", "inout", "new", "given", "destroy"})
        wanted = {"enum", "struct", "byval", "list", "by_attribute", "string", "host", "device", "deviceptr", "stream"}
        self.assertEqual(wanted - {p.kind for p in params}, set())
        self.assertGreaterEqual({p.knowledge for p in params}, {"awaited", "examined", "foreign"})
        for key in ("unsupported", "via", "gives_work", "gate_effect", "since", "variants", "unsafe_in_capture",
                    "releases_cached_memory", "waits_for_work", "adds_sync_duties", "records_foreign"):
            self.assertTrue(any(getattr(f, key) for f in functions), key)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renew", action="store_true", help="write golden/ anew")
    options, rest = parser.parse_known_args()
    if options.renew:
        renew()
    else:
        unittest.main(argv=[sys.argv[0], *rest])
