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

BUILD = os.environ["GPUWIRE_BUILD"]
RUN_LIMIT_SECONDS = 120
TENANT = "anna"
# Mounts are seen by the command alone, and end with it.
IN_ROOT = """
set -eu
root=$1 build=$2 shared=$3
shift 3
for folder in proc dev opt/gpuwire mnt; do mkdir -p "$root/$folder"; done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$build" "$root/opt/gpuwire"
mount --bind "$shared" "$root/mnt"
exec chroot "$root" "$@"
"""


class System:
    """suite: Debian's; python: its interpreter; libraries: what the program loads for all to see before the client."""

    def __init__(self, suite, python, packages, libraries):
        self.suite, self.python, self.packages, self.libraries = suite, python, packages.split(), libraries.split()

    def unpack(self):
        folder = os.path.join(BUILD, "systems", self.suite)
        return debian_packages.unpack(folder, self.suite, "main", self.packages, merged=True)


COMMON = "libc6 libgcc-s1 libcrypt1 zlib1g libexpat1 libbz2-1.0 liblzma5 libstdc++6 "
# glibc 2.31 is Ubuntu 20.04's, too.
OLDER = System("bullseye", "python3.9",
               COMMON + "libffi7 libssl1.1 python3.9-minimal libpython3.9-minimal libpython3.9-stdlib libcapnp-0.7.0"
               " libboost-filesystem1.74.0",
               "libstdc++.so.6 libcrypto.so.1.1 libssl.so.1.1 libkj-0.7.0.so libcapnp-0.7.0.so"
               " libboost_filesystem.so.1.74.0")
NEWER = System("trixie", "python3.13",
               COMMON + "libffi8 libssl3t64 libzstd1 python3.13-minimal libpython3.13-minimal libpython3.13-stdlib"
               " libcapnp-1.1.0 libboost-filesystem1.83.0",
               "libstdc++.so.6 libcrypto.so.3 libssl.so.3 libkj-1.1.0.so libcapnp-1.1.0.so"
               " libboost_filesystem.so.1.83.0")


def gpuwire(*words):
    subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), *words], check=True, capture_output=True,
                   timeout=RUN_LIMIT_SECONDS)


@unittest.skipIf(os.geteuid() != 0, "a root of its own for a program needs root")
class Systems(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
            raise unittest.SkipTest("no namespace of mounts can be made here")
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

    def run_in(self, system, *command):
        """A gpuwire command where the root is the system's."""
        try:
            root = system.unpack()
        except debian_packages.Unavailable as missing:
            self.skipTest(f"Debian's packages of {system.suite} cannot be had: {missing}")
        name, *words = command
        return subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", IN_ROOT, "in_root", root,
                               BUILD, self.folder, "/opt/gpuwire/bin/gpuwire", name, "--server", self.server.address,
                               "--identity", "/mnt/anna.pem", *words],
                              capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS, check=False,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/mnt"})

    def assert_runs(self, system, *facts):
        info = self.run_in(system, "info")
        self.assertEqual(info.returncode, 0, info.stdout + info.stderr)
        self.assertIn("gpuwire software device", info.stdout)
        ran = self.run_in(system, "run", "--", "/usr/bin/" + system.python, "/mnt/on_other_system.py",
                          *system.libraries)
        self.assertTrue(ran.stdout.endswith("PASSED\n"), ran.stdout + ran.stderr)
        for fact in facts:
            self.assertIn(fact, ran.stdout)

    def test_the_client_runs_in_debian_11_with_glibc_2_31_beside_older_libraries(self):
        self.assert_runs(OLDER, "glibc 2.31", "OpenSSL 1.1.1")

    def test_the_client_runs_in_debian_13_beside_newer_libraries(self):
        self.assert_runs(NEWER, "glibc 2.41", "OpenSSL 3.5")


if __name__ == "__main__":
    unittest.main(verbosity=2)
