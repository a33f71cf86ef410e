"""Programs see the version of the server's driver, and a newer program gets CUDA's own error."""

import os
import sys
import unittest

from support import DEVICE, RUN_LIMIT_SECONDS, ServerCase, nobody_listens, one_line_naming, run, wait_until


@unittest.skipIf(DEVICE != "software", "the version of another driver cannot be chosen")
class OlderDriver(ServerCase):
    server_environment = {**os.environ, "GPUWIRE_SOFTWARE_DRIVER_VERSION": "12040"}

    def test_a_runtime_newer_than_the_driver_says_insufficient_and_one_line_names_both_versions(self):
        # The program has the static runtime of the toolkit that builds the tests: 13.
        ran = run(self.server.address, "first_error")
        self.assertEqual((ran.returncode, ran.stdout), (3, "cudaErrorInsufficientDriver\n"), ran.stderr)
        self.assertTrue(one_line_naming(ran.stderr, "CUDA 13.0", "CUDA 12.4", "server's driver"), ran.stderr)

    def test_versions_and_entry_points_are_those_of_the_servers_driver_before_cuinit_and_around_fork(self):
        ran = run(self.server.address, "driver_version", "12040")
        self.assert_passed(ran)
        before, _, after = ran.stderr.partition("newer by a major version:\n")
        self.assertEqual(before, "", "a newer minor version is no reason for a line")
        self.assertTrue(one_line_naming(after, "CUDA 13.0", "CUDA 12.4", "server's driver"), ran.stderr)


class OnlyAsked(ServerCase):
    def test_a_program_that_only_asks_the_version_says_goodbye(self):
        ran = run(self.server.address, "driver_version", "13000", "only")
        self.assert_passed(ran)
        self.assertEqual(ran.stderr, "")
        wait_until(lambda: "session 1 of open" in self.server_log(), RUN_LIMIT_SECONDS, "the session is over")
        self.assertNotIn("without a goodbye", self.server_log())


class OwnDriver(ServerCase):
    def test_a_program_that_is_newer_than_the_client_is_told_so(self):
        ran = run(self.server.address, "driver_version", "13000")
        self.assert_passed(ran)
        before, _, after = ran.stderr.partition("newer by a major version:\n")
        self.assertEqual(before, "", "a newer minor version is no reason for a line")
        self.assertTrue(one_line_naming(after, "CUDA 14.0", "CUDA 13.0"), ran.stderr)


# Functions that need neither cuInit nor a device; the last one queries functions of every supported driver.
ASKS_NO_DEVICE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
text, function, status = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuGetErrorName(2, ctypes.byref(text)) == 0 and text.value == b"CUDA_ERROR_OUT_OF_MEMORY"
assert cuda.cuGetErrorString(2, ctypes.byref(text)) == 0 and text.value == b"out of memory"
for name, version in ((b"cuInit", 2000), (b"cuMemAllocAsync", 11020), (b"cuLaunchKernelEx", 12000)):
    assert cuda.cuGetProcAddress_v2(name, ctypes.byref(function), version, 0, ctypes.byref(status)) == 0, name
    assert function.value and status.value == 0, name
assert cuda.cuDeviceGetCount(ctypes.byref(status)) == 3  # CUDA_ERROR_NOT_INITIALIZED
print("PASSED")
"""


class NoServer(unittest.TestCase):
    def setUp(self):
        self.address = self.enterContext(nobody_listens())

    def test_without_a_server_the_version_is_the_clients_and_a_line_says_why(self):
        ran = run(self.address, "driver_version", "13000", "only")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertTrue(one_line_naming(ran.stderr, self.address, "refused"), ran.stderr)

    def test_calls_that_need_no_device_and_no_version_are_answered_without_a_search_for_the_server(self):
        ran = run(self.address, sys.executable, "-c", ASKS_NO_DEVICE)
        self.assertEqual((ran.stdout, ran.stderr), ("PASSED\n", ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
