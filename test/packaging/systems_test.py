"""The client runs on other systems: inside their own C library, beside their own OpenSSL, Boost, Cap'n Proto and
libstdc++, older and newer than those that are in it.

The systems' packages are unpacked into a private folder (25 MB and 30 MB are fetched once), which is the root of what
runs. Left out, with the reason, where the packages or such a root cannot be had."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import debian_packages  # noqa: E402
from gpuwire_server import Server  # noqa: E402
from other_system import GPUWIRE, RUN_LIMIT_SECONDS, System, why_not  # noqa: E402

BUILD = os.environ["GPUWIRE_BUILD"]
TENANT = "anna"


COMMON = "libc6 libgcc-s1 libcrypt1 zlib1g libexpat1 libbz2-1.0 liblzma5 libstdc++6 "
# glibc 2.31 is Ubuntu 20.04's, too.
OLDER = System(BUILD, "bullseye", COMMON + "libffi7 libssl1.1 python3.9-minimal libpython3.9-minimal"
               " libpython3.9-stdlib libcapnp-0.7.0 libboost-filesystem1.74.0")
NEWER = System(BUILD, "trixie", COMMON + "libffi8 libssl3t64 libzstd1 python3.13-minimal libpython3.13-minimal"
               " libpython3.13-stdlib libcapnp-1.1.0 libboost-filesystem1.83.0")
# What the program loads for all to see before the client's libraries.
OLDER_LIBRARIES = ("libstdc++.so.6", "libcrypto.so.1.1", "libssl.so.1.1", "libkj-0.7.0.so", "libcapnp-0.7.0.so",
                   "libboost_filesystem.so.1.74.0")
NEWER_LIBRARIES = ("libstdc++.so.6", "libcrypto.so.3", "libssl.so.3", "libkj-1.1.0.so", "libcapnp-1.1.0.so",
                   "libboost_filesystem.so.1.83.0")


def gpuwire(*words):
    subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), *words], check=True, capture_output=True,
                   timeout=RUN_LIMIT_SECONDS)


@unittest.skipIf(why_not(), why_not())
class Systems(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="gpuwire-systems-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        identity = os.path.join(cls.folder, "identity")
        gpuwire("admin", "--directory", identity, "init", "--host", "127.0.0.1")
        gpuwire("admin", "--directory", identity, "add-tenant", TENANT, "--out", os.path.join(cls.folder, "anna.pem"))
        configuration = os.path.join(cls.folder, "server.toml")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(f'[server]\nlisten = "127.0.0.1:0"\n[tls]\ndirectory = "{identity}"\n[tenants.{TENANT}]\n')
        shutil.copy(os.path.join(HERE, "on_other_system.py"), cls.folder)
        # Its OpenSSL and the client's are in one process, both at work.
        cls.server = Server(BUILD, ["--device", "software", "--config", configuration])
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.stop)

    def gpuwire(self, system, name, *words):
        """A command of gpuwire where the root is the system's."""
        try:
            return system.run(self.folder, GPUWIRE, name, "--server", self.server.address, "--identity",
                              "/mnt/anna.pem", *words)
        except debian_packages.Unavailable as missing:
            self.skipTest(f"Debian's packages of {system.suite} cannot be had: {missing}")

    def assert_runs(self, system, python, libraries, *facts):
        info = self.gpuwire(system, "info")
        self.assertEqual(info.returncode, 0, info.stdout + info.stderr)
        self.assertIn("gpuwire software device", info.stdout)
        ran = self.gpuwire(system, "run", "--", python, "/mnt/on_other_system.py", *libraries)
        self.assertTrue(ran.stdout.endswith("PASSED\n"), ran.stdout + ran.stderr)
        for fact in facts:
            self.assertIn(fact, ran.stdout)

    def test_the_client_runs_in_debian_11_with_glibc_2_31_beside_older_libraries(self):
        self.assert_runs(OLDER, "/usr/bin/python3.9", OLDER_LIBRARIES, "glibc 2.31", "OpenSSL 1.1.1")

    def test_the_client_runs_in_debian_13_beside_newer_libraries(self):
        self.assert_runs(NEWER, "/usr/bin/python3.13", NEWER_LIBRARIES, "glibc 2.41", "OpenSSL 3.5")


if __name__ == "__main__":
    unittest.main(verbosity=2)
