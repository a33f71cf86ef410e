#!/usr/bin/env python3
"""server/ledger/worker/memory_calls.toml against the description of the API and the wrappers: no function that takes
memory escapes the ledger."""

import re
import sys
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
LEDGER = ROOT / "server/ledger/worker"
sys.path.insert(0, str(ROOT / "protocol/codegen"))

from model import read_api  # noqa: E402


class MemoryCalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        api = read_api(ROOT / "protocol/api")
        cls.described = {function.name for function in api.functions}
        # A refused function reaches no driver; an alias, a form with the default stream and what the client does by a
        # second version reach it under the other name.
        second = {f.name.removesuffix("_v2") for f in api.functions if f.name.endswith("_v2")}
        cls.reachable = {
            f.name for f in api.functions
            if not (f.unsupported or f.same_as or f.via or f.is_old_abi or f.name in second and f.server == "none")
        }
        table = tomllib.loads((LEDGER / "memory_calls.toml").read_text())
        cls.listed_wrapped = [name for group in table["wrapped"].values() for name in group["functions"]]
        cls.listed_free = [name for group in table["free"].values() for name in group["functions"]]
        cls.groups = list(table["free"].values())
        cls.wrapped = [
            name for path in sorted(LEDGER.glob("wrap_*.cpp"))
            for name in re.findall(r"wrap\(table\.(cu\w+),", path.read_text())
        ]

    def test_every_function_that_a_session_can_reach_is_listed(self):
        self.assertEqual(sorted(self.reachable - set(self.listed_wrapped) - set(self.listed_free)), [])

    def test_every_function_is_listed_once_and_exists(self):
        listed = self.listed_wrapped + self.listed_free
        self.assertEqual(sorted(name for name in set(listed) if listed.count(name) > 1), [])
        self.assertEqual(sorted(set(listed) - self.described), [])

    def test_what_is_listed_as_wrapped_is_wrapped_and_nothing_else(self):
        self.assertEqual(sorted(self.wrapped), sorted(self.listed_wrapped))

    def test_what_is_not_wrapped_has_a_reason(self):
        for group in self.groups:
            self.assertGreater(len(group["reason"]), 10)

    def test_no_function_whose_name_speaks_of_allocation_goes_unwrapped(self):
        """A second look at what the table says: names that take memory in every other version of the driver."""
        suspects = re.compile(
            r"^(?!.*Get).*(Alloc|ArrayCreate|MemCreate|HostRegister|LoadData|LoadFatBinary|(?<!Green)CtxCreate|"
            r"CtxRetain|SetLimit)"
        )
        self.assertEqual([name for name in self.listed_free if suspects.search(name)], [])


if __name__ == "__main__":
    unittest.main()
