#!/usr/bin/env python3
"""`charges` in the description of the API against the wrappers of the ledger: no function that takes memory escapes it,
and all of them take it in one way."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
LEDGER = ROOT / "server/ledger/worker"
sys.path.insert(0, str(ROOT / "protocol/codegen"))

from model import CHARGES, read_api  # noqa: E402


class MemoryCalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        api = read_api(ROOT / "protocol/api")
        cls.described = {function.name: function for function in api.functions}
        # A refused function does not reach the driver; an alias, a default-stream form and a first version that the
        # client replaces by the second reach it under the other name.
        second = {f.name.removesuffix("_v2") for f in api.functions if f.name.endswith("_v2")}
        cls.reachable = {
            f.name for f in api.functions
            if not (f.unsupported or f.same_as or f.via or f.is_old_abi or f.name in second and f.server == "none")
        }
        cls.sources = {path.name: path.read_text() for path in sorted(LEDGER.glob("*.[ch]pp"))}
        cls.wrapped = [
            name for file, text in cls.sources.items() if file.startswith("wrap_")
            for name in re.findall(r"wrap\(table\.(cu\w+),", text)
        ]

    def test_every_function_that_a_session_can_reach_says_what_it_charges(self):
        self.assertEqual([name for name in sorted(self.reachable) if not self.described[name].charges], [])

    def test_every_function_that_charges_is_wrapped_and_no_other(self):
        charging = [name for name, f in self.described.items() if f.charges and CHARGES[f.charges][0]]
        self.assertEqual(sorted(self.wrapped), sorted(charging))

    def test_every_function_that_is_not_wrapped_has_a_reason(self):
        for _, reason in CHARGES.values():
            self.assertGreater(len(reason), 10)

    def test_no_function_whose_name_speaks_of_memory_goes_unwrapped(self):
        """Checks the description by a second criterion: names of functions that take memory."""
        suspects = re.compile(
            r"^(?!.*MemGet|.*ArrayGet|.*NodeGet).*(Alloc(?!ation)|ArrayCreate|MemCreate|HostRegister|LoadData|"
            r"LoadFatBinary|(?<!Green)CtxCreate|CtxRetain|SetLimit|GraphAdd|GraphClone|GraphInstantiate|EndCapture|"
            r"LibraryGet(?!KernelC))"
        )
        self.assertEqual([
            name for name, f in self.described.items()
            if f.charges and not CHARGES[f.charges][0] and suspects.search(name)
        ], [])

    def test_room_is_reserved_in_one_place(self):
        """take() reserves an upper bound before a call and the driver's real use after it; only the account of the
        worker's own memory reserves besides."""
        reserving = {file for file, text in self.sources.items() if re.search(r"\bledger_?\.reserve\(", text)}
        self.assertEqual(reserving, {"take.hpp", "worker_ledger.hpp"})
        self.assertEqual([file for file, text in self.sources.items()
                          if file != "take.hpp" and re.search(r"\bReservation\b", text)], [])


if __name__ == "__main__":
    unittest.main()
