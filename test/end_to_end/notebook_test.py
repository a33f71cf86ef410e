"""A notebook that waits in a server's queue shows its wait, and then its session."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from support import BUILD, DEVICE, RUN_LIMIT_SECONDS, Server, command
import ipython

GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")

# A kernel's use of the extension; it prints the messages to the frontend.
KERNEL = """
import sys
import gpuwire_notebook as notebook

def show(text, handle):
    print("displayed", text, flush=True)
    return True

extension = notebook.Extension(show=show)
extension.magic("")
sys.stdout.flush()
extension.magic("start")
extension.end()
"""


# The cells of a notebook, in IPython. The last one is the program's own use of the GPU.
CELLS = """
%load_ext gpuwire_notebook
import sys; sys.stdout.flush()
%gpuwire start
%gpuwire
import ctypes
count = ctypes.c_int()
print("cuInit", ctypes.CDLL("libcuda.so.1").cuInit(0))
print("cuDeviceGetCount", ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)), count.value)
"""


class Notebook(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpuwire-notebook-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        file = os.path.join(self.folder, "server.toml")
        with open(file, "w", encoding="utf-8") as out:
            out.write('[server]\nopen_tenant = "open"\nsessions_per_gpu_max = 1\n[tenants.open]\n')
        self.server = Server(BUILD, ["--config", file, "--device", DEVICE])
        self.addCleanup(self.server.stop)
        self.server.__enter__()

    def begin(self, words, **more):
        started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, **more)
        self.addCleanup(started.wait)
        self.addCleanup(started.communicate)
        self.addCleanup(started.kill)
        return started

    def test_a_notebook_shows_its_place_in_the_queue_and_then_its_session(self):
        full = self.begin(command(self.server.address, "neighbour"))
        self.assertEqual(full.stdout.readline(), "working\n")
        kernel = self.begin([GPUWIRE, "run", "--server", self.server.address, "--", sys.executable, "-c", KERNEL])
        told = kernel.stdout.readline()
        self.assertIn(f"gpuwire: no session yet; one would wait at {self.server.address}, at place 1", told,
                      told or kernel.stderr.readline())
        shown = kernel.stdout.readline()
        self.assertIn("displayed gpuwire: waiting for a place at 127.0.0.1: place 1 of 1", shown)
        # The queue shows the waiting notebook, too.
        ran = subprocess.run([GPUWIRE, "ps", "--json", "--server", self.server.address], capture_output=True,
                             text=True, timeout=RUN_LIMIT_SECONDS, check=True)
        self.assertEqual([one["client_pid"] for one in json.loads(ran.stdout) if one["place"]], [kernel.pid])
        full.communicate(timeout=RUN_LIMIT_SECONDS)
        out, err = kernel.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(kernel.returncode, 0, err)
        self.assertIn("displayed gpuwire: admitted at 127.0.0.1 after", out)
        self.assertRegex(out, rf"gpuwire: session \d+ at {self.server.address}: running, 1 GPU, ")

    def test_ipython_loads_the_extension_by_its_name_and_shows_the_place_the_admission_and_the_session(self):
        folders = ipython.folders(BUILD)
        cells = os.path.join(self.folder, "cells.ipy")
        with open(cells, "w", encoding="utf-8") as out:
            out.write(CELLS)
        full = self.begin(command(self.server.address, "neighbour"))
        self.assertEqual(full.stdout.readline(), "working\n")
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *folders])
        kernel = self.begin([GPUWIRE, "run", "--server", self.server.address, "--", sys.executable, "-m", "IPython",
                             "--no-banner", "--quick", cells],
                            env={**os.environ, "PYTHONPATH": path, "IPYTHONDIR": self.folder})
        self.assertIn(f"gpuwire: no session yet; one would wait at {self.server.address}, at place 1",
                      kernel.stdout.readline())
        self.assertIn("gpuwire: waiting for a place at 127.0.0.1: place 1 of 1", kernel.stdout.readline())
        full.communicate(timeout=RUN_LIMIT_SECONDS)
        out, err = kernel.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(kernel.returncode, 0, err)
        self.assertIn("gpuwire: admitted at 127.0.0.1 after", out)
        self.assertRegex(out, rf"gpuwire: session \d+ at {self.server.address}: running, 1 GPU, ")
        self.assertIn("cuInit 0\ncuDeviceGetCount 0 1\n", out)


if __name__ == "__main__":
    unittest.main()
