"""The support of `gpuwire run` for JAX, with a package in place of JAX that looks for plugins and device files like
JAX."""

import os
import subprocess
import sys
import tempfile
import unittest

GPUWIRE = os.path.join(os.environ["GPUWIRE_BUILD"], "bin", "gpuwire")
DEVICE_FILES = ("/dev/nvidia0", "/dev/nvidiactl")

HARDWARE_UTILS = """
def has_visible_nvidia_gpu():
    return False
"""

# The program lists the namespace package jax_plugins, calls each module's initialize(), then checks the device files.
PROGRAM = """
import importlib, pkgutil
from jax._src import hardware_utils
try:
    import jax_plugins
    found = sorted(module.name for module in pkgutil.iter_modules(jax_plugins.__path__))
except ModuleNotFoundError:
    found = []
for name in found:
    getattr(importlib.import_module("jax_plugins." + name), "initialize", lambda: None)()
print(found, hardware_utils.has_visible_nvidia_gpu())
"""


@unittest.skipIf(any(map(os.path.exists, DEVICE_FILES)), "this machine has the device files")
class Jax(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for path, text in {
                "jax/__init__.py": "", "jax/_src/__init__.py": "", "jax/_src/hardware_utils.py": HARDWARE_UTILS,
                "jax_plugins/other/__init__.py": "", "program.py": PROGRAM
        }.items():
            path = os.path.join(self.folder.name, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def output(self, *command, **environment):
        environment = {**os.environ, **environment}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout.strip()

    def program(self):
        return os.path.join(self.folder.name, "program.py")

    def run_remotely(self, *command, **environment):
        return self.output(GPUWIRE, "run", "--server", "127.0.0.1:1", "--", *command, **environment)

    def test_jax_takes_cuda_for_there_though_the_device_files_are_not(self):
        path = {"PYTHONPATH": self.folder.name}
        self.assertEqual(self.output(sys.executable, self.program(), **path), "['other'] False")
        self.assertEqual(self.run_remotely(sys.executable, self.program(), **path), "['gpuwire', 'other'] True")

    def test_the_programs_own_path_stays_in_front(self):
        path = self.run_remotely(sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])", PYTHONPATH="/a:/b")
        self.assertTrue(path.startswith("/a:/b:/"), path)
        self.assertIn(["jax_plugins"], [os.listdir(folder) for folder in path.split(":")[2:]])

    def test_without_a_server_the_module_does_nothing(self):
        path = self.run_remotely(sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])",
                                 PYTHONPATH=self.folder.name)
        self.assertEqual(self.output(sys.executable, self.program(), PYTHONPATH=path, GPUWIRE_SERVER=""),
                         "['gpuwire', 'other'] False")


if __name__ == "__main__":
    unittest.main(verbosity=2)
