"""Idle sessions cost nothing: the wakes and the processor time of their processes."""

import os
import time
import unittest

from support import RUN_LIMIT_SECONDS, ServerCase, start, wait_until

SESSIONS = 16
# Longer than the interval of heartbeats and of any other periodic work.
WINDOW_SECONDS = 7
# For each session, both ends together, with its part of the server's other processes.
WAKES_PER_SECOND_MAX = 10
SHARE_OF_A_CORE_MAX = 0.002


def descendants(process_id):
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as stat:
                    parents[int(entry)] = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                pass
    found, new = [], [process_id]
    while new:
        found += new
        new = [one for one, parent in parents.items() if parent in new]
    return found


def threads_of(processes):
    """Returns {thread: (voluntary context switches, nanoseconds of run time)}."""
    figures = {}
    for process in processes:
        try:
            for thread in os.listdir(f"/proc/{process}/task"):
                folder = f"/proc/{process}/task/{thread}"
                with open(f"{folder}/status", encoding="ascii", errors="replace") as status:
                    wakes = next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
                with open(f"{folder}/schedstat", encoding="ascii") as counts:
                    figures[int(thread)] = (wakes, int(counts.read().split()[0]))
        except OSError:
            pass  # it has ended
    return figures


class Idle(ServerCase):

    def setUp(self):
        self.programs = []
        for _ in range(SESSIONS):
            program = start(self.server.address, "saturate", "idle")
            self.programs.append(program)
            self.addCleanup(program.wait)
            self.addCleanup(program.communicate)
            self.addCleanup(program.kill)

    def all_idle(self):
        sessions = self.status()["sessions"]
        return sum(one["state"] == "running" and one["replies"] > 0 for one in sessions) == SESSIONS

    def test_idle_sessions_hardly_wake_and_use_no_processor_time(self):
        wait_until(self.all_idle, RUN_LIMIT_SECONDS, f"{SESSIONS} sessions that have begun")
        seen = []

        # The work of the starts ends at some time: one common window has to be quiet.
        def quiet():
            processes = [one for root in (self.server.process.pid, *(program.pid for program in self.programs))
                         for one in descendants(root)]
            begun, before = time.monotonic(), threads_of(processes)
            wait_until(lambda: time.monotonic() - begun >= WINDOW_SECONDS, RUN_LIMIT_SECONDS, "a window")
            after, seconds = threads_of(processes), time.monotonic() - begun
            stayed = before.keys() & after.keys()
            wakes = sum(after[one][0] - before[one][0] for one in stayed) / seconds / SESSIONS
            share = sum(after[one][1] - before[one][1] for one in stayed) / 1e9 / seconds / SESSIONS
            seen.append(f"{len(stayed)} threads: {wakes:.1f} wakes a second and {100 * share:.3f} % of a core for each"
                        " session")
            return wakes <= WAKES_PER_SECOND_MAX and share <= SHARE_OF_A_CORE_MAX

        try:
            wait_until(quiet, RUN_LIMIT_SECONDS, "a quiet window")
        finally:
            print("\n".join(seen))
        self.assertEqual([program.poll() for program in self.programs], [None] * SESSIONS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
