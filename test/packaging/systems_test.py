"""Client and server run on other systems: inside their own C library, beside their own OpenSSL, Boost, Cap'n Proto and
libstdc++, older and newer than those that are in them.

The systems' packages are unpacked into a private folder (25 MB and 30 MB are fetched once), which is the root of what
runs. Left out, with the reason, where the packages or such a root cannot be had."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import debian_packages  # noqa: E402
from gpuwire_server import Server  # noqa: E402
from other_system import ENVIRONMENT, GPUWIRE, RUN_LIMIT_SECONDS, System, why_not  # noqa: E402

BUILD = os.environ["GPUWIRE_BUILD"]
TENANT = "anna"
PROGRAM = os.path.join(BUILD, "examples", "vector_add")
INSIDE = "/opt/gpuwire"  # the build tree


COMMON = "libc6 libgcc-s1 libcrypt1 zlib1g libexpat1 libbz2-1.0 liblzma5 libstdc++6 "
# glibc 2.31 is Ubuntu 20.04's, too.
OLDER = System(BUILD, "bullseye", COMMON + "libffi7 libssl1.1 python3.9-minimal libpython3.9-minimal"
               " libpython3.9-stdlib libcapnp-0.7.0 libboost-filesystem1.74.0")
NEWER = System(BUILD, "trixie", COMMON + "libffi8 libssl3t64 libzstd1 python3.13-minimal libpython3.13-minimal"
               " libpython3.13-stdlib libcapnp-1.1.0 libboost-filesystem1.83.0")
# Libraries that the program loads globally before the client's libraries.
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
        # Its OpenSSL and the client's are in use in one process.
        cls.server = Server(BUILD, ["--device", "software", "--config", configuration])
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.stop)

    def gpuwire(self, system, name, *words):
        """Runs a command of gpuwire in the root of the system."""
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

    def metrics(self, server):
        """Returns the exporter's answer; its address appears in the log a moment after its start."""
        limit = time.monotonic() + RUN_LIMIT_SECONDS
        while not (found := re.search(r"metrics at (http\S+)", "".join(server.log))):
            self.assertLess(time.monotonic(), limit, "".join(server.log))
            time.sleep(0.05)
        with urllib.request.urlopen(found[1], timeout=RUN_LIMIT_SECONDS) as answer:
            return answer.read().decode()

    def assert_serves(self, system):
        """The server and its processes run in that system, the client on this one."""
        if not os.path.exists(PROGRAM):
            self.skipTest("the examples were not built: no nvcc")
        folder = tempfile.mkdtemp(dir=self.folder)
        with open(os.path.join(folder, "server.toml"), "w", encoding="utf-8") as file:
            file.write('[server]\nmetrics_listen = "127.0.0.1:0"\naudit_log = "/mnt/audit.log"\n'
                       'control_socket = "/mnt/control.sock"\n'
                       f'[tls]\ndirectory = "/mnt/identity"\n[tenants.{TENANT}]\n')
        try:
            prefix = system.words(folder)
        except debian_packages.Unavailable as missing:
            self.skipTest(f"Debian's packages of {system.suite} cannot be had: {missing}")
        # The loader binds all references at a program's start, including those to uncalled functions.
        environment = {**ENVIRONMENT, "LD_BIND_NOW": "1"}

        def inside(*words):
            ran = subprocess.run([*prefix, GPUWIRE, *words], capture_output=True, text=True, check=False,
                                 timeout=RUN_LIMIT_SECONDS, env=environment)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
            return ran.stdout

        inside("admin", "--directory", "/mnt/identity", "init", "--host", "127.0.0.1")
        inside("admin", "--directory", "/mnt/identity", "add-tenant", TENANT, "--out", "/mnt/anna.pem")
        for command in ("run", "info", "serve", "admin", "top", "status", "usage", "metrics", "worker", "login",
                        "keeper", "suspender"):
            self.assertIn("gpuwire ", inside(command, "--version"))
        serve = ["--device", "software", "--config", "/mnt/server.toml", "--module-cache", "none"]
        with Server(INSIDE, serve, environment, prefix) as server:
            ran = subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), "run", "--server", "tls://" + server.address,
                                  "--identity", os.path.join(folder, "anna.pem"), "--", PROGRAM], capture_output=True,
                                 text=True, timeout=RUN_LIMIT_SECONDS, check=False)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr + "".join(server.log))
            self.assertIn(TENANT, inside("status", "--control", "/mnt/control.sock"))
            self.assertIn("gpuwire_up 1\n", self.metrics(server))
            self.assertEqual(server.stop(), 0)
        with open(os.path.join(folder, "audit.log"), encoding="utf-8") as file:
            self.assertIn('"event":"ended"', file.read())

    def test_the_server_runs_in_debian_11_with_glibc_2_31(self):
        self.assert_serves(OLDER)

    def test_the_server_runs_in_debian_13(self):
        self.assert_serves(NEWER)


if __name__ == "__main__":
    unittest.main(verbosity=2)
