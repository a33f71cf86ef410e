"""The packages' life on a machine (machine/README.md): installed, started, upgraded below a running program, removed,
purged without traces."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "machine"))
from installed import BUILD, PACKAGES, VERSION, Installed, package  # noqa: E402
from machine import LIMIT_SECONDS, Machine, why_not  # noqa: E402

NEXT = VERSION + "+1"
# Files of package managers and account tools, and a user's own files.
FOREIGN = re.compile(r"/var/(lib/(dpkg|apt|systemd)|log/(apt|dpkg\.log)|cache/(apt|man|debconf|ldconfig))(/|$)"
                     r"|/home/anna/|/etc/(passwd|group|shadow|gshadow|subuid|subgid)-$|/etc/\.pwd\.lock$")


def with_next_version(folder, name):
    """Makes the same package with a later release."""
    tree = os.path.join(folder, name)
    subprocess.run(["dpkg-deb", "-R", os.path.join(BUILD, "packages", package(name)), tree], check=True,
                   timeout=LIMIT_SECONDS)
    control = os.path.join(tree, "DEBIAN", "control")
    with open(control, encoding="utf-8") as file:
        text = file.read()
    with open(control, "w", encoding="utf-8") as file:
        file.write(text.replace(f"Version: {VERSION}\n", f"Version: {NEXT}\n").replace(f"(= {VERSION})", f"(= {NEXT})"))
    made = os.path.join(folder, package(name, NEXT))
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "-b", tree, made], check=True, capture_output=True,
                   timeout=LIMIT_SECONDS)
    return made


@unittest.skipIf(why_not(), why_not())
class LifeCycle(Installed):
    def setUp(self):
        self.begin(Machine())
        self.machine.write("/run/fake-systemd/arguments", "--device software")

    def purge(self):
        self.machine.run("dpkg", "--purge", "gpuwire-server", "gpuwire-client")

    def log(self):
        return self.machine.read("/run/fake-systemd/gpuwire-server.log")

    def sessions(self):
        return [session["id"] for session in json.loads(self.machine.run("gpuwire", "admin", "sessions", "--json"))]

    def test_a_program_goes_on_through_an_upgrade_and_nothing_is_left_after_a_purge(self):
        changes, accounts = self.machine.changes(), self.machine.accounts()
        self.install()
        self.machine.run("systemctl", "enable", "--now", "gpuwire-server")
        program = self.start_program()
        before, process = self.sessions(), self.machine.read("/run/fake-systemd/gpuwire-server.pid")
        self.assertEqual(len(before), 1)

        with tempfile.TemporaryDirectory(prefix="gpuwire-next-") as folder:
            for name in PACKAGES:
                made = with_next_version(folder, name)
                self.machine.put(made, "/tmp/" + os.path.basename(made))
                shutil.rmtree(os.path.join(folder, name))
        self.install(NEXT)
        self.assertNotEqual(self.machine.read("/run/fake-systemd/gpuwire-server.pid"), process)
        self.wait_until(lambda: self.sessions() == before, "the session with the next server")
        self.await_in_file('"event":"adopted"', "/var/log/gpuwire/audit.log")
        newer = self.start_program()
        self.assert_passes(program)
        self.assert_passes(newer)

        self.machine.run("dpkg", "--remove", "gpuwire-server")
        for kept in ("/etc/gpuwire/server.toml", "/etc/gpuwire/identity", "/var/log/gpuwire/audit.log"):
            self.assertTrue(os.path.lexists(self.machine.path(kept)), kept)
        self.wait_until(lambda: "gpuwire-" not in self.machine.run("ps", "-e", "-o", "comm"), "the last process ends")
        self.purge()
        self.assertEqual(self.machine.accounts(), accounts)
        for before, after in zip(changes, self.machine.changes()):
            self.assertEqual({path for path in after - before if not FOREIGN.match(path)}, set())
        self.assertFalse(os.path.exists(self.machine.path("/run/gpuwire")))

    def test_a_rotated_audit_log_is_followed_by_a_new_one(self):
        self.install()
        self.machine.run("systemctl", "start", "gpuwire-server")
        self.assert_passes(self.start_program())
        rules = self.machine.read("/etc/logrotate.d/gpuwire-server")
        log = re.match(r"(/\S+) \{", rules)[1]
        script = re.search(r"postrotate\n(.*?)endscript", rules, re.S)[1]

        # Rotates like logrotate (nocreate): renames the file, then runs the script.
        self.machine.run("mv", log, log + ".1")
        said = self.machine.try_run("sh", "-c", script.replace("2>/dev/null || true", ""))
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.wait_until(lambda: os.path.exists(self.machine.path(log)), "a new audit log")
        before = self.machine.read(log + ".1")
        self.assert_passes(self.start_program())
        self.await_in_file('"event":"begun"', log)
        self.assertEqual(self.machine.read(log + ".1"), before)
        made = os.stat(self.machine.path(log))
        self.assertEqual((made.st_mode & 0o777, made.st_uid), (0o600, os.stat(self.machine.path(log + ".1")).st_uid))

    def test_without_sysusers_the_user_is_made_by_adduser_with_the_devices_group(self):
        accounts = self.machine.accounts()
        os.unlink(self.machine.path("/usr/bin/systemd-sysusers"))
        self.install()
        self.assertEqual(set(self.machine.run("id", "--name", "--groups", "gpuwire").split()), {"gpuwire", "video"})
        self.machine.run("systemctl", "start", "gpuwire-server")
        self.assert_passes(self.start_program())
        self.purge()
        self.assertEqual(self.machine.accounts(), accounts)

    def test_the_configuration_is_right_before_the_first_start(self):
        self.install()
        self.assertIn("no mistakes found", self.machine.run("gpuwire", "serve", "--config", "/etc/gpuwire/server.toml",
                                                   "--check-config"))
        log = os.stat(self.machine.path("/var/log/gpuwire"))
        self.assertEqual(log.st_mode & 0o777, 0o750)
        self.assertNotEqual(log.st_uid, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
