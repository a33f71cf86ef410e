"""Tests that the RPM packages contain the same files as Debian's, declare their requirements, and can be installed and
erased in an empty root."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from shipped_files import faults

BUILD, VERSION = os.environ["GPUWIRE_BUILD"], os.environ["GPUWIRE_VERSION"]
GLIBC = os.environ["GPUWIRE_OLDEST_GLIBC"]
LIMIT_SECONDS = 400
CONFIGURATION = {"gpuwire-client": ["/etc/gpuwire/client.toml"],
                 "gpuwire-server": ["/etc/gpuwire/server.toml", "/etc/logrotate.d/gpuwire-server"]}


def package(name):
    return os.path.join(BUILD, "packages", f"{name}-{VERSION}-1.x86_64.rpm")


@unittest.skipUnless(shutil.which("rpmbuild"), "rpmbuild is missing (Debian package rpm)")
class Rpm(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpuwire-rpm-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_in(self, *words):
        # Uses a separate database, even for queries that need none.
        rpm = ["rpm", "--dbpath", os.path.join(self.folder, "database")] if words[0] == "rpm" else [words[0]]
        ran = subprocess.run([*rpm, *words[1:]], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
                             env={**os.environ, "LC_ALL": "C", "HOME": self.folder})
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def lines(self, *words):
        return self.run_in("rpm", "-qp", *words).splitlines()

    def test_they_hold_the_files_of_debians_packages(self):
        for name in CONFIGURATION:
            root = os.path.join(self.folder, "deb-" + name)
            deb = os.path.join(BUILD, "packages", f"{name}_{VERSION}_amd64.deb")
            self.run_in("dpkg-deb", "-x", deb, root)
            held = {os.path.join("/", os.path.relpath(os.path.join(folder, file), root))
                    for folder, _, files in os.walk(root) for file in files}
            listed = self.lines("-l", package(name))
            self.assertEqual(held - set(listed), set())
            # Otherwise only the packages' own folders.
            self.assertEqual([path for path in set(listed) - held if "gpuwire" not in path], [])
            self.assertEqual(sorted(self.lines("-c", package(name))), CONFIGURATION[name])

    def test_they_need_glibc_and_each_other_and_offer_nothing_of_nvidias(self):
        needs = {name: [line for line in self.lines("--requires", package(name)) if not line.startswith("rpmlib(")]
                 for name in CONFIGURATION}
        self.assertEqual([line for line in needs["gpuwire-client"] if line != "/bin/sh"], [f"glibc >= {GLIBC}"])
        self.assertIn(f"gpuwire-client = {VERSION}", needs["gpuwire-server"])
        self.assertIn(f"glibc >= {GLIBC}", needs["gpuwire-server"])
        self.assertFalse([line for lines in needs.values() for line in lines if ".so" in line])
        for name in CONFIGURATION:
            self.assertFalse([line for line in self.lines("--provides", package(name)) if "libcuda" in line])

    def test_their_scripts_are_scripts(self):
        client, server = (self.run_in("rpm", "-qp", "--scripts", package(name)) for name in CONFIGURATION)
        self.assertIn("gpuwire detach", client)
        for words in ("systemd-sysusers gpuwire.conf", "try-restart gpuwire-server", "disable --now gpuwire-server"):
            self.assertIn(words, server)
        for text in re.split(r"^\w+ scriptlet \(using /bin/sh\):\n", client + server, flags=re.M)[1:]:
            self.run_in("sh", "-n", "-c", text)

    @unittest.skipUnless(os.geteuid() == 0, "rpm installs into a root for root only")
    def test_they_are_installed_in_an_empty_root_run_there_and_leave_nothing(self):
        root = os.path.join(self.folder, "root")
        os.makedirs(root)
        # The scripts would need a shell in the root.
        rpm = ("rpm", "--root", root, "--dbpath", "/database", "--nodeps", "--noscripts")
        subprocess.run([*rpm, "-i", *map(package, CONFIGURATION)], check=True, capture_output=True,
                       timeout=LIMIT_SECONDS)
        self.assertEqual(faults(root, GLIBC), [])
        for command in ("run", "env", "serve", "metrics"):
            self.assertEqual(self.run_in(os.path.join(root, "usr", "bin", "gpuwire"), command, "--version"),
                             f"gpuwire {VERSION}\n")
        subprocess.run([*rpm, "-V", *CONFIGURATION], check=True, timeout=LIMIT_SECONDS)
        subprocess.run([*rpm, "-e", *CONFIGURATION], check=True, timeout=LIMIT_SECONDS)
        left = [os.path.join(folder, name) for folder, folders, files in os.walk(root) for name in folders + files]
        self.assertEqual([path for path in left if "gpuwire" in os.path.relpath(path, root)], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
