"""The sent part of a program's GPU code, and the server's cache of it."""

import os
import re
import subprocess
import tempfile
import unittest

from support import BUILD, DEVICE, RUN_LIMIT_SECONDS, Server, command, one_line_naming, run, wait_until

IMAGES_USED = 30
PTX_BYTES = 64 << 10
IMAGE_OVERHEAD_BYTES = 80  # a container's header and an entry's


class Modules(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cache = os.path.join(self.folder.name, "cache")

    def server(self, *arguments):
        return Server(BUILD, ["--device", DEVICE, "--module-cache", self.cache, *arguments])

    def images_sent(self, server, tenant="red"):
        """Runs the program as that tenant; returns the number of sent images, and of all sent bytes."""
        key = tenant if tenant == "none" else os.path.join(self.folder.name, "keys", tenant)
        line = command(server.address, "large_library")
        line[2:2] = ["--stats=calls"]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                             env=dict(os.environ, GPUWIRE_CACHE_KEY_FILE=key))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr + "".join(server.log[-20:]))
        self.assertTrue(ran.stdout.endswith("PASSED\n"))
        used, sent = map(int, re.search(r"images: (\d+) used, (\d+) sent", ran.stderr).groups())
        self.assertEqual(used, IMAGES_USED)
        number, unit = re.search(r"sent ([\d.]+) (\w+) in", ran.stderr).groups()
        return sent, float(number) * {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]

    def kept_files(self):
        return sorted(
            os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(self.cache, "tenants"))
            for name in names)

    def kept_bytes(self):
        def size_of(path):
            try:
                return os.path.getsize(path)
            except FileNotFoundError:  # the server has just made room
                return 0
        return sum(size_of(path) for path in self.kept_files())

    def test_only_the_used_images_of_a_large_library_travel_and_only_once(self):
        with self.server() as server:
            sent, sent_bytes = self.images_sent(server)
            self.assertEqual(sent, IMAGES_USED)
            self.assertGreater(sent_bytes, IMAGES_USED * PTX_BYTES)
            self.assertLess(sent_bytes, 1.1 * IMAGES_USED * (PTX_BYTES + IMAGE_OVERHEAD_BYTES))
            sent, sent_bytes = self.images_sent(server)
            self.assertEqual(sent, 0)
            self.assertLess(sent_bytes, PTX_BYTES)
        with self.server() as restarted:
            self.assertEqual(self.images_sent(restarted)[0], 0)

    def test_another_tenant_sends_its_own(self):
        with self.server() as server:
            self.assertEqual(self.images_sent(server, "red")[0], IMAGES_USED)
            self.assertEqual(self.images_sent(server, "blue")[0], IMAGES_USED)
            self.assertEqual(self.images_sent(server, "red")[0], 0)
            self.assertEqual(self.images_sent(server, "blue")[0], 0)

    def test_a_program_without_a_key_is_shown_nothing_and_leaves_nothing(self):
        with self.server() as server:
            self.assertEqual(self.images_sent(server, "none")[0], IMAGES_USED)
            self.assertEqual(self.kept_files(), [])
            self.images_sent(server, "red")
            self.assertEqual(self.images_sent(server, "none")[0], IMAGES_USED)

    def test_damaged_files_are_sent_again(self):
        with self.server() as server:
            self.images_sent(server)
            changed, cut = self.kept_files()[3:5]
            with open(changed, "r+b") as file:
                file.seek(1000)
                file.write(b"#")
            os.truncate(cut, 100)
            self.assertEqual(self.images_sent(server)[0], 2)
            self.assertEqual(self.images_sent(server)[0], 0)

    def test_a_full_cache_is_soon_within_its_bound_again(self):
        bound = 10 * PTX_BYTES
        with self.server("--module-cache-bytes", f"{bound}B") as server:
            for _ in range(2):
                self.assertGreater(self.images_sent(server)[0], 0)
                wait_until(lambda: self.kept_bytes() <= bound, RUN_LIMIT_SECONDS, "the server makes no room")
                self.assertGreater(self.kept_bytes(), bound // 2)

    @unittest.skipUnless(DEVICE == "software", "a GPU of this architecture runs the program")
    def test_a_program_without_code_for_the_device_is_told_both_architectures_in_one_line(self):
        with self.server() as server:
            ran = run(server.address, "only_sm_90")
        self.assertEqual((ran.returncode, ran.stdout), (1, "cudaErrorNoKernelImageForDevice\nFAILED\n"), ran.stderr)
        self.assertTrue(one_line_naming(ran.stderr, "it has sm_90, and the device is sm_",
                                        "a software device, which runs PTX alone"), ran.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
