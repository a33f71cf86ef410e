"""Tests that installed files need no newer glibc than documented, and only libraries of glibc or of the
installation."""

import os
import subprocess
import tempfile
import unittest

from shipped_files import LIBRARIES, binaries, faults, needed, output, too_new

BUILD = os.environ["GPUWIRE_BUILD"]
PROMISED = os.environ["GPUWIRE_OLDEST_GLIBC"]
LIMIT_SECONDS = 400
PROGRAMS = {"libcuda.so.1", "libnvidia-ml.so.1", "nvidia-smi", "gpuwire", "gpuwire-run", "gpuwire-info",
            "gpuwire-serve", "gpuwire-worker", "gpuwire-login", "gpuwire-keeper", "gpuwire-suspender",
            "gpuwire-admin", "gpuwire-top", "gpuwire-status", "gpuwire-usage", "gpuwire-metrics",
            "libgpuwire_software_cuda.so"}


@unittest.skipIf(not PROMISED, "the packages are for this machine's glibc")
class Glibc(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="gpuwire-glibc-")
        cls.addClassCleanup(folder.cleanup)
        cls.installed = folder.name
        # Slurm's plug-ins depend on the version of Slurm, and so on the system, of the build.
        for component in ("client", "server"):
            subprocess.run(["cmake", "--install", BUILD, "--prefix", folder.name, "--component", component], check=True,
                           capture_output=True, timeout=LIMIT_SECONDS)

    def test_every_installed_file_runs_with_the_promised_glibc_and_nothing_else(self):
        names = {os.path.basename(path) for path in binaries(self.installed)}
        self.assertLessEqual(PROGRAMS, names)
        self.assertEqual(faults(self.installed, PROMISED), [])

    def test_the_forwarders_of_the_wheel_need_the_stub_libraries_and_nothing_else(self):
        for path in binaries(os.path.join(BUILD, "wheel")):
            self.assertEqual(too_new(output("objdump", "-T", path), PROMISED), [])
            self.assertEqual(needed(path) - LIBRARIES, {os.path.basename(path) + ".1"}, path)

    def test_the_front_door_needs_no_c_library(self):
        self.assertNotIn("NEEDED", output("readelf", "-d", os.path.join(BUILD, "bin/gpuwire")))
        self.assertNotIn("INTERP", output("readelf", "-lW", os.path.join(BUILD, "bin/gpuwire")))

    def test_a_newer_symbol_and_a_foreign_library_would_be_found(self):
        self.assertEqual(
            too_new("0000  DF *UND*\t0000 (GLIBC_2.34) pthread_create\n0000 DF *UND* 0000 GLIBC_2.2.5 read\n", "2.31"),
            ["pthread_create (glibc 2.34)"])
        with tempfile.TemporaryDirectory(prefix="gpuwire-glibc-") as folder:
            source, library = os.path.join(folder, "newer.c"), os.path.join(folder, "newer.so")
            with open(source, "w", encoding="ascii") as file:
                file.write("#include <pthread.h>\n#include <zlib.h>\npthread_t thread;\nvoid* begin(void* none) {\n"
                           "  pthread_create(&thread, 0, begin, none);\n  return (void*)zlibVersion();\n}\n")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-lz"], check=True, timeout=LIMIT_SECONDS)
            self.assertEqual(faults(folder, "2.31"),
                             ["newer.so: pthread_create (glibc 2.34)", "newer.so: needs libz.so.1"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
