"""The client's wheel: pip installs it without a network into an environment of its own, programs run from there, and
nothing is left when it is uninstalled."""

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

BUILD, SOURCE, VERSION = os.environ["GPUWIRE_BUILD"], os.environ["GPUWIRE_SOURCE"], os.environ["GPUWIRE_VERSION"]
GLIBC = os.environ["GPUWIRE_OLDEST_GLIBC"]
sys.path.insert(0, os.path.join(SOURCE, "test", "support"))
from gpuwire_server import Server  # noqa: E402
from shipped_files import faults  # noqa: E402

NAME = f"gpuwire_client-{VERSION}-py3-none-manylinux_{GLIBC.replace('.', '_')}_x86_64.whl"
WHEEL = os.path.join(BUILD, "packages", NAME)
WHEEL_BYTES_MAX = 12 << 20
LIMIT_SECONDS = 400
# Both names lead to one library with one session.
PROGRAM = """
import ctypes
one, other = ctypes.CDLL("libcuda.so"), ctypes.CDLL("libcuda.so.1")
assert one.cuInit(0) == 0
count = ctypes.c_int()
assert one.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
assert ctypes.cast(one.cuInit, ctypes.c_void_p).value == ctypes.cast(other.cuInit, ctypes.c_void_p).value
ctypes.CDLL("libnvidia-ml.so").nvmlInit_v2
print("PASSED")
"""


def tree(folder):
    return sorted(
        os.path.relpath(os.path.join(path, name), folder) for path, _, names in os.walk(folder) for name in names
        if not name.endswith(".pyc"))


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="gpuwire-wheel-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.environment = {name: value for name, value in os.environ.items()
                           if not name.startswith(("GPUWIRE_", "PIP_", "PYTHON", "LD_"))}

    def run_in(self, *words):
        return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
                              cwd=self.folder, env={**self.environment, "HOME": self.folder})

    def must(self, *words):
        ran = self.run_in(*words)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def test_pip_installs_it_programs_run_and_it_is_uninstalled(self):
        python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
        made = self.run_in(python, "-m", "venv", "environment")
        if made.returncode != 0:
            self.skipTest("no environment can be made (Debian package python3-venv): " + made.stdout.strip())
        environment = os.path.join(self.folder, "environment")
        inside = os.path.join(environment, "bin", "python")
        before = tree(environment)
        self.must(inside, "-m", "pip", "install", "--no-index", "--disable-pip-version-check", WHEEL)
        self.assertEqual(self.must(inside, "-m", "gpuwire", "--version"), f"gpuwire {VERSION}\n")
        self.assertEqual(self.must(os.path.join(environment, "bin", "gpuwire"), "shell", "--version"),
                         f"gpuwire {VERSION}\n")
        self.assertEqual(self.run_in(inside, "-m", "gpuwire", "fly").returncode, 2)
        with Server(BUILD, ["--device", "software", "--module-cache", "none"]) as server:
            gpuwire = (inside, "-m", "gpuwire")
            self.assertIn("gpuwire software device", self.must(*gpuwire, "info", "--quick", "-s", server.address))
            ran = self.must(*gpuwire, "run", "-s", server.address, "--", inside, "-c", PROGRAM)
            self.assertEqual(ran, "PASSED\n")
            ran = self.must(*gpuwire, "run", "-s", server.address, "--", "nvidia-smi", "-L")
            self.assertIn("gpuwire software device", ran)
            self.assertEqual(self.must(*gpuwire, "queue", "-s", server.address, "--version"), f"gpuwire {VERSION}\n")
        self.must(inside, "-m", "pip", "uninstall", "--yes", "--disable-pip-version-check", "gpuwire-client")
        self.assertEqual(tree(environment), before)

    def test_it_is_a_client_for_the_promised_glibc_without_a_server(self):
        self.assertLess(os.path.getsize(WHEEL), WHEEL_BYTES_MAX)
        unpacked = os.path.join(self.folder, "unpacked")
        with zipfile.ZipFile(WHEEL) as archive:
            names = archive.namelist()
            archive.extractall(unpacked)
        self.assertIn("gpuwire/client/lib/gpuwire/libcuda.so.1", names)
        self.assertFalse([name for name in names if "serve" in name or "worker" in name])
        if GLIBC:
            self.assertEqual(faults(unpacked, GLIBC), [])

    def test_its_record_has_every_file_with_its_digest(self):
        with zipfile.ZipFile(WHEEL) as archive:
            name, = (name for name in archive.namelist() if name.endswith("/RECORD"))
            rows = list(csv.reader(archive.read(name).decode().splitlines()))
            self.assertEqual([row[0] for row in rows], archive.namelist())
            for path, digest, size in rows:
                if path == name:
                    continue
                content = archive.read(path)
                right = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                self.assertEqual((digest, size), ("sha256=" + right, str(len(content))), path)
            executable = {path for path in archive.namelist() if archive.getinfo(path).external_attr >> 16 & 0o111}
        for path in ("bin/gpuwire", "lib/gpuwire/commands/gpuwire-run", "lib/gpuwire/bin/nvidia-smi"):
            self.assertIn("gpuwire/client/" + path, executable)

    def test_the_same_client_makes_the_same_wheel(self):
        with zipfile.ZipFile(WHEEL) as archive:
            client = os.path.join(self.folder, "client")
            os.makedirs(os.path.join(client, "lib"))
            os.makedirs(os.path.join(client, "share"))
            for name in ("lib/one", "lib/two", "share/page"):
                with open(os.path.join(client, name), "w", encoding="ascii") as file:
                    file.write(name)
            made = []
            for name in ("first", "second"):
                output = os.path.join(self.folder, name)
                self.must(sys.executable, os.path.join(SOURCE, "packaging", "python", "make_wheel.py"), "--client",
                          client, "--forwarders", client, "--version", VERSION, "--glibc", GLIBC, "--output", output)
                with open(os.path.join(output, NAME), "rb") as file:
                    made.append(file.read())
            self.assertTrue(made[0] == made[1])
            with zipfile.ZipFile(os.path.join(output, NAME)) as other:
                self.assertEqual([name for name in other.namelist() if name.startswith("gpuwire/client/")],
                                 ["gpuwire/client/lib/one", "gpuwire/client/lib/two"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
