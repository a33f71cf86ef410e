"""The client's programs and libraries need no glibc newer than the one that is promised."""

import os
import re
import subprocess
import unittest

BUILD = os.environ["GPUWIRE_BUILD"]
PROMISED = os.environ["GPUWIRE_CLIENT_GLIBC"]
CLIENT = ("lib/gpuwire/libcuda.so.1", "lib/gpuwire/libnvidia-ml.so.1", "lib/gpuwire/bin/nvidia-smi",
          "lib/gpuwire/commands/gpuwire-run", "lib/gpuwire/commands/gpuwire-info")
# Built where libucx-dev is; it needs UCX's libraries besides, and is loaded where a session is to go by RDMA.
RDMA = "lib/gpuwire/libgpuwire_rdma.so"
UCX = {"libucp.so.0", "libucs.so.0"}
# What every system with that glibc has: its own parts.
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}


def number(version):
    return tuple(int(part) for part in version.split("."))


def too_new(symbols, promised):
    """Of the output of objdump -T: the undefined symbols of a later version."""
    found = re.findall(r"\*UND\*\s+\S+\s+\(?GLIBC_([\d.]+)\)?\s+(\S+)", symbols)
    return [f"{name} (glibc {version})" for version, name in found if number(version) > number(promised)]


@unittest.skipIf(not PROMISED, "the client was built for this machine's glibc")
class Glibc(unittest.TestCase):
    def output(self, *command):
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True,
                              env={**os.environ, "LC_ALL": "C"}).stdout

    def test_no_symbol_is_newer_than_promised(self):
        for file in CLIENT + ((RDMA,) if os.path.exists(os.path.join(BUILD, RDMA)) else ()):
            symbols = self.output("objdump", "-T", os.path.join(BUILD, file))
            self.assertIn("GLIBC_", symbols)
            self.assertEqual(too_new(symbols, PROMISED), [], file)

    def test_nothing_but_the_c_library_is_needed(self):
        for file in CLIENT:
            needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", self.output("readelf", "-d", os.path.join(BUILD, file))))
            self.assertLessEqual(needed, LIBRARIES, file)

    @unittest.skipUnless(os.path.exists(os.path.join(BUILD, RDMA)), "it was built without UCX")
    def test_the_library_for_rdma_needs_ucx_besides(self):
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", self.output("readelf", "-d", os.path.join(BUILD, RDMA))))
        self.assertLessEqual(needed, LIBRARIES | UCX)

    def test_the_front_door_needs_no_c_library(self):
        self.assertNotIn("NEEDED", self.output("readelf", "-d", os.path.join(BUILD, "bin/gpuwire")))
        self.assertNotIn("INTERP", self.output("readelf", "-lW", os.path.join(BUILD, "bin/gpuwire")))

    def test_a_newer_symbol_would_be_found(self):
        self.assertEqual(
            too_new("0000  DF *UND*\t0000 (GLIBC_2.34) pthread_create\n0000 DF *UND* 0000 GLIBC_2.2.5 read\n", "2.31"),
            ["pthread_create (glibc 2.34)"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
