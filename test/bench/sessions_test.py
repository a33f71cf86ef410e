"""`bench/sessions --quick` measures sessions together, idle and growing."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import types
import unittest

from support import BenchCase

SESSIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "sessions")


def bench_sessions():
    loader = importlib.machinery.SourceFileLoader("bench_sessions", SESSIONS)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_sessions", loader))
    loader.exec_module(module)
    return module


class Sessions(BenchCase):
    def test_every_part_has_its_figures(self):
        result, table = self.measured("sessions")
        together = {(row["sessions"], row["side"]): row for row in result["together"]}
        self.assertEqual(sorted(together), [(1, "native"), (1, "remote"), (2, "native"), (2, "remote")])
        for (count, side), row in together.items():
            self.assertGreater(row["turns_per_s"], 0)
            self.assertGreater(row["pss_bytes"]["clients"], 0)
            for group in ("broker", "workers"):
                self.assertEqual(row["pss_bytes"][group] > 0, side == "remote", f"{count} {side}: {group}")
        self.assertEqual(result["idle"]["sessions"], 2)
        self.assertEqual(set(result["idle"]["processor_s"]), {"broker", "workers", "clients"})
        growth = {(row["kind"], row["side"]): row["by_count"] for row in result["growth"]}
        self.assertEqual(len(growth), 6)
        for by_count in growth.values():
            self.assertEqual(sorted(by_count, key=int), ["10", "100"])
        self.assertIn("2 idle sessions for", table)

    def test_a_process_that_has_ended_takes_nothing_away(self):
        program = "sum(range(1000000)); print('ready', flush=True); input()"
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            watched = bench_sessions().Watched(None, [types.SimpleNamespace(process=process)])
            self.assertGreater(sum(watched.before.values()), 0)
            process.communicate("\n")
        used, _ = watched.used()
        self.assertEqual(used["clients"], 0)

    def test_parts_are_chosen(self):
        result, _ = self.measured("sessions", "--only", "idle", "--counts", "1")
        self.assertEqual(result["idle"]["sessions"], 1)
        self.assertNotIn("growth", result)


if __name__ == "__main__":
    unittest.main(verbosity=2)
