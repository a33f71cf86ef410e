#!/usr/bin/env python3
"""Memory: tenants' limits hold whatever their programs do, and no program finds data of another one."""

import json
import os
import sys
import tempfile
import unittest

from support import BUILD, DEVICE, LONG, RUN_LIMIT_SECONDS, ServerCase, run, start, wait_until

FUZZ = os.path.join(BUILD, "bench", "sharing", "quota_fuzz")
CLEARING = os.path.join(BUILD, "bench", "sharing", "memory_clearing")
# 10^6 as `GPUWIRE_QUOTA_FUZZ=1000000 ctest -R end_to_end_quotas`.
COUNT = os.environ.get("GPUWIRE_QUOTA_FUZZ", "100000" if LONG else "4000")
SEED = os.environ.get("GPUWIRE_QUOTA_SEED", "1")


# nvmlMemory_t, and nvmlMemory_v2_t without its version.
NVML_FIGURES = """
import ctypes, json, struct
nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
first = (ctypes.c_ulonglong * 3)()
second = ctypes.create_string_buffer(struct.pack("<IIQQQQ", 2 << 24 | 40, 0, 0, 0, 0, 0), 40)
assert nvml.nvmlDeviceGetMemoryInfo(device, first) == 0 and nvml.nvmlDeviceGetMemoryInfo_v2(device, second) == 0
print(json.dumps({"first": list(first), "second": struct.unpack("<IIQQQQ", second.raw)[2:]}))
"""


class MemoryCase(ServerCase):
    def setUp(self):
        """Each test has the device for itself: an ended session's memory is free once its process has exited."""
        wait_until(lambda: not any(device["memory_used_bytes"] for device in self.status()["devices"])
                   and not self.status()["sessions"], RUN_LIMIT_SECONDS, "no session has memory")


class TenantWithQuota(MemoryCase):
    """The quota is less than the device has, because only a quota bounds managed memory."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="gpuwire-quotas-")
        cls.addClassCleanup(folder.cleanup)
        file = os.path.join(folder.name, "server.toml")
        limit = "1GiB" if DEVICE == "software" else "40GiB"
        with open(file, "w", encoding="ascii") as out:
            out.write(f'[server]\nopen_tenant = "all"\n[tenants.all]\nmemory.limit = "{limit}"\n')
        cls.server_arguments = ("--config", file, *(("--software-memory", "2GiB") if DEVICE == "software" else ()))
        super().setUpClass()

    def test_sessions_that_race_for_every_kind_of_memory_never_exceed_it_and_are_refused_nothing_that_fits(self):
        print("seed", SEED)
        self.assert_passed(run(self.server.address, FUZZ, "--count", COUNT, "--seed", SEED))


class Quotas(MemoryCase):
    server_arguments = ("--software-memory", "1GiB") if DEVICE == "software" else ()

    def hold(self):
        """Returns a program that holds most of the device; None if the memory is not available."""
        holder = start(self.server.address, CLEARING, "hold", "896")
        if "holds" in holder.stdout.readline():
            return holder
        holder.communicate()
        return None

    def test_a_session_that_is_killed_gives_its_memory_back(self):
        for _ in range(4):
            holders = []
            wait_until(lambda found=holders: found or found.extend(filter(None, [self.hold()])), RUN_LIMIT_SECONDS,
                       "the memory is there again")
            self.assertIsNone(self.hold(), "two hold what one may have")
            holders[0].kill()
            holders[0].communicate()

    def test_cached_memory_is_reported_as_free_and_is_there_when_memory_is_short(self):
        for kept in ("64MiB", "0"):
            with self.subTest(kept):
                self.assert_passed(
                    run(self.server.address, "cached_memory", "alone", env={**os.environ, "GPUWIRE_KEPT_MEMORY": kept}))

    def test_a_program_that_makes_no_call_gives_back_what_was_kept_for_it(self):
        held = []
        for kept in ("0", "64MiB"):
            idle = start(self.server.address, "cached_memory", "idle", env={**os.environ, "GPUWIRE_KEPT_MEMORY": kept})
            self.assertEqual(idle.stdout.readline(), "freed\n")
            if kept == "0":
                held.append(self.status()["devices"][0]["memory_used_bytes"])
            else:
                wait_until(lambda: self.status()["devices"][0]["memory_used_bytes"] == held[0], RUN_LIMIT_SECONDS,
                           "the server has it back")
            self.assertEqual(idle.communicate()[0], "PASSED\n")
            self.setUp()

    def test_a_session_does_not_find_data_that_another_has_left_in_memory(self):
        self.assert_passed(run(self.server.address, CLEARING, "fill", "256"))
        wait_until(lambda: run(self.server.address, CLEARING, "count", "192").stdout.endswith("PASSED\n"),
                   RUN_LIMIT_SECONDS, "nothing is found")


class Limited(MemoryCase):
    """A tenant with a limit of a quarter of the device."""

    LIMIT = 256 << 20
    CONFIGURATION = """
        [server]
        open_tenant = "open"
        [tenants.open]
        memory.limit = "256MiB"
        host_memory = "8MiB"
        [tenants.other]
        memory.guaranteed = "128MiB"
    """

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        path = os.path.join(cls.folder.name, "server.toml")
        with open(path, "w", encoding="ascii") as file:
            file.write(cls.CONFIGURATION)
        cls.server_arguments = ("--config", path, *(("--software-memory", "1GiB") if DEVICE == "software" else ()))
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def test_the_limit_holds_and_is_what_programs_see(self):
        ran = run(self.server.address, FUZZ, "--count", "3000", "--threads", "4", "--seed", SEED)
        self.assert_passed(ran)
        figures = json.loads(ran.stdout.splitlines()[0])
        self.assertEqual(figures["limit"], self.LIMIT)
        self.assertGreater(figures["refusals"], 0)

    def test_no_form_of_a_program_takes_more_than_the_limits(self):
        for form in ("variables", "graphs"):
            with self.subTest(form):
                self.assert_passed(run(self.server.address, "charged_by_form", form))

    def test_nvml_shows_the_limit_and_what_the_tenants_sessions_have(self):
        smi = os.path.join(BUILD, "lib", "gpuwire", "bin", "nvidia-smi")
        query = (smi, "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits")
        holder = start(self.server.address, CLEARING, "hold", "192")
        self.assertIn("holds", holder.stdout.readline())
        shown = run(self.server.address, *query).stdout.strip().split(", ")
        holder.communicate()
        self.assertEqual(shown, ["256", "192"])

    def test_the_figures_of_nvml_add_up_to_the_limit(self):
        holder = start(self.server.address, CLEARING, "hold", "192")
        self.assertIn("holds", holder.stdout.readline())
        figures = json.loads(run(self.server.address, sys.executable, "-c", NVML_FIGURES).stdout)
        holder.communicate()
        total, free, used = figures["first"]
        self.assertEqual((total, free + used), (256 << 20, total))
        total, reserved, free, used = figures["second"]
        self.assertEqual((total, reserved + free + used, used), (256 << 20, total, 192 << 20))


if __name__ == "__main__":
    unittest.main()
