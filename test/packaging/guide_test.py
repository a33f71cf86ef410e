"""Every block of commands of README.md and docs/install.md is typed, in their order, on machines of a lab
(machine/README.md): a server `gpuhost`, its administrator, and users on machines of their own."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE, VERSION = os.environ["GPUWIRE_BUILD"], os.environ["GPUWIRE_SOURCE"], os.environ["GPUWIRE_VERSION"]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "machine"))
from machine import Machine, why_not  # noqa: E402

PROGRAM = os.path.join(BUILD, "test_programs", "neighbour")
LIMIT_SECONDS = 300
# An address other than loopback, as from another machine.
ADDRESS = "192.0.2.1"
# Headings whose commands are not typed, with the reason.
NOT_TYPED = {"Python": "pip needs a network; test/gpu/run frameworks runs PyTorch natively and through gpuwire"}
# The only change of the typed commands: the documents use the memory sizes of a large card, which the test machine
# lacks.
CARD = "--device software --software-memory 80GiB"


class Guide:
    """The blocks of a document, each with its heading."""

    def __init__(self, *path):
        with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
            text = file.read()
        self.blocks = []
        heading = ""
        for line in re.finditer(r"^#+ ([^\n]*)$|^```(\w*)\n(.*?)^```$", text, re.M | re.S):
            if line[1]:
                heading = line[1]
            else:
                self.blocks.append((heading, line[2], line[3]))

    def commands(self):
        return [(heading, text.splitlines()) for heading, kind, text in self.blocks if kind == "sh"]

    def file(self, heading):
        found, = (text for below, kind, text in self.blocks if below == heading and kind == "toml")
        return found


class Lab(unittest.TestCase):
    def machine(self, *users, **which):
        made = Machine(**which)
        self.addCleanup(made.end)
        made.write("/etc/hosts", f"127.0.0.1 localhost\n{ADDRESS} gpuhost\n")
        for user in users:
            made.add_user(user)
            for name in os.listdir(os.path.join(BUILD, "packages")):
                if name.endswith((".tar.gz", ".whl")) or (name.endswith(".deb") and "slurm" not in name):
                    made.put(os.path.join(BUILD, "packages", name), f"/home/{user}/{name}")
            made.put(PROGRAM, f"/home/{user}/my_cuda_program", 0o755)
        return made

    def server(self):
        made = self.machine("admin")
        made.run("ip", "address", "add", ADDRESS + "/32", "dev", "lo")
        made.write("/run/fake-systemd/arguments", CARD)
        return made

    def type(self, machine, user, lines):
        said = {}
        for line in lines:
            typed = line.replace("gpuwire serve --config", f"gpuwire serve {CARD} --config")
            said[line.split("  #")[0].strip()] = machine.run("sh", "-c", typed, user=user)
        return said

    def start(self, machine, user, lines):
        """Types the lines; the last one runs a program, which works until its standard input closes."""
        *before, program = lines
        said = self.type(machine, user, before)
        running = machine.start("sh", "-c", "exec " + program, user=user)
        self.addCleanup(running.communicate)
        self.addCleanup(running.kill)
        self.assertEqual(running.stdout.readline(), "working\n", program)
        return running, said

    def carry(self, server, names, machine, user):
        """Passes the files on in a way that nobody else can read."""
        for name in names:
            machine.write(f"/home/{user}/{name}", server.run("sudo", "cat", name, user="admin"))
            machine.run("chown", user, f"/home/{user}/{name}")

    def assert_passes(self, program):
        out, err = program.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual((program.returncode, out.splitlines()[-1:]), (0, ["PASSED"]), out + err)

    def next_block(self, heading):
        """Returns the commands of the next block, which has this heading."""
        self.assertTrue(self.left, f"no block of commands is left; one below \"{heading}\" was expected")
        below, lines = self.left.pop(0)
        self.assertEqual(below, heading)
        return lines

    def assert_all_typed(self):
        self.assertEqual(self.left, [], "blocks of commands that this test does not type")


@unittest.skipIf(why_not(), why_not())
@unittest.skipUnless(os.path.exists(PROGRAM), "the test programs were not built: no nvcc")
class Guides(Lab):
    def test_from_nothing_to_two_tenants_by_the_readme_alone(self):
        guide = Guide("README.md")
        self.left = [block for block in guide.commands() if block[0] not in NOT_TYPED]
        installing = "A server for a lab"
        self.tried_in_a_minute()
        server = self.server()
        annas, bobs = self.machine("anna", of_network=server), self.machine("bob", of_network=server)

        server.write("/run/edited", guide.file(installing))
        self.type(server, "admin", self.next_block(installing))
        forgotten = server.run("sh", "-c", "gpuwire admin list 2>&1 || true", user="admin")
        self.assertIn("that of this machine's service is in /etc/gpuwire/identity: use sudo", forgotten)
        self.assertIn("no mistakes found", "".join(self.type(server, "admin", self.next_block(installing)).values()))
        self.carry(server, ["anna.pem"], annas, "anna")
        self.carry(server, ["bob.token", "ca.pem"], bobs, "bob")
        anna, _ = self.start(annas, "anna", self.next_block("For users"))
        bobs.run("sh", "-c", f"sudo apt install ./gpuwire-client_{VERSION}_amd64.deb", user="bob")
        bob_types = self.next_block("For users")
        bob, _ = self.start(bobs, "bob", bob_types)

        mine = self.type(bobs, "bob", self.next_block("For users"))
        self.assertIn("software device", mine["gpuwire info --server gpuhost:9750"])
        self.assertIn("my_cuda_program", mine["gpuwire queue --server gpuhost:9750"])
        self.assertNotIn("anna", "".join(mine.values()))

        watching = self.next_block("For administrators")
        self.assertIn("revoke bob", watching[-1])
        seen = self.type(server, "admin", watching)
        for word in ("anna", "bob", "interactive", "batch", "60.0 GiB"):
            self.assertIn(word, seen["sudo gpuwire top --once"])
        self.assertIn("tls certificate", seen["sudo gpuwire status"])
        self.assertIn("GPU HOURS", seen["sudo gpuwire usage"])
        self.assertNotEqual(bob.wait(LIMIT_SECONDS), 0)
        self.assertIn("was revoked on", bob.communicate()[1])
        self.assert_passes(anna)
        again = bobs.try_run("sh", "-c", bob_types[-1], user="bob")
        self.assertNotEqual(again.returncode, 0)
        self.assertEqual(len([line for line in again.stderr.splitlines() if line.startswith("gpuwire")]), 1,
                         again.stderr)
        server.run("systemctl", "stop", "gpuwire-server")
        audit = server.read("/var/log/gpuwire/audit.log")
        for word in ("was revoked on", '"tenant":"anna"', '"identified_by":"tls certificate"',
                     '"identified_by":"tls token"', '"cause":"stopped"', '"event":"ended"'):
            self.assertIn(word, audit)

        self.made_from_the_sources(server)
        self.assert_all_typed()

    def tried_in_a_minute(self):
        machine = self.machine("admin")
        install, serve = self.next_block("One minute")
        self.type(machine, "admin", [install])
        serving = machine.start("sh", "-c", "exec " + serve, user="admin")
        self.addCleanup(machine.stop, serving)
        self.assertIn("listening on 127.0.0.1:9750, 1 x ", serving.stdout.readline())
        program, seen = self.start(machine, "admin", self.next_block("One minute"))
        self.assertIn("GPU 0: ", "".join(seen.values()))
        self.assert_passes(program)

    def made_from_the_sources(self, machine):
        # Other tests run these commands: the packages are installed here, and this test belongs to the suite.
        for line in self.next_block("From the sources"):
            # A make that was started by another one (`make test`) prints the folder that it enters.
            make = subprocess.run(["make", "-n", "--no-print-directory", *line.split("#")[0].split()[1:]], cwd=SOURCE,
                                  capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True,
                                  env={name: value for name, value in os.environ.items() if name != "MAKEFLAGS"})
            self.assertTrue(os.access(os.path.join(SOURCE, make.stdout.strip()), os.X_OK), line)
        # Typed on this machine, which has the build; the port belongs to the other machine.
        with tempfile.TemporaryDirectory(prefix="gpuwire-guide-") as folder:
            os.symlink(BUILD, os.path.join(folder, "build"))
            os.symlink(PROGRAM, os.path.join(folder, "my_cuda_program"))
            where = {"cwd": folder, "text": True, "env": {**os.environ, "HOME": folder}}
            prefix = ["nsenter", f"--net=/proc/{machine.first}/ns/net", "sh", "-c"]
            line, = self.next_block("From the sources")
            serving = subprocess.Popen([*prefix, f"exec {line} --device software --module-cache none"],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **where)
            self.addCleanup(serving.communicate)
            self.addCleanup(serving.kill)
            self.assertIn("listening on 127.0.0.1:9750, 1 x ", serving.stdout.readline())
            for line in self.next_block("From the sources"):
                ran = subprocess.run([*prefix, line], capture_output=True, stdin=subprocess.DEVNULL,
                                     timeout=LIMIT_SECONDS, check=False, **where)
                self.assertEqual(ran.returncode, 0, line + "\n" + ran.stdout + ran.stderr)
            self.assertTrue(ran.stdout.endswith("PASSED\n"))
            serving.send_signal(signal.SIGINT)
            self.assertEqual(serving.wait(LIMIT_SECONDS), 0)

    def test_installed_served_used_and_removed_by_the_guide_to_installing(self):
        guide = Guide("docs", "install.md")
        self.left = guide.commands()
        server = self.server()
        client = self.machine("admin", "anna", of_network=server)
        server.write("/run/edited", guide.file("A server"))
        self.type(server, "admin", self.next_block("A server"))
        seen = self.type(server, "admin", self.next_block("A server"))
        self.assertIn("software device", "".join(seen.values()))
        self.carry(server, ["anna.pem"], client, "anna")
        self.type(client, "admin", self.next_block("Clients"))
        program, seen = self.start(client, "anna", self.next_block("Clients"))
        self.assertIn("software device", seen["gpuwire info"])
        # From the wheel, then from the tarball.
        for _ in range(2):
            seen = self.type(client, "anna", self.next_block("Clients"))
            self.assertIn("software device", "".join(seen.values()))
        self.assert_passes(program)
        seen = self.type(client, "anna", self.next_block("A whole machine, or the image of a container"))
        self.assertIn("PASSED", seen["./my_cuda_program </dev/null"])
        self.assertIn("software device", seen["nvidia-smi -L"])

        with tempfile.TemporaryDirectory(prefix="gpuwire-guide-") as folder:
            os.symlink(BUILD, os.path.join(folder, "build"))
            for line in self.next_block("From the sources"):
                ran = subprocess.run(["sh", "-c", line], cwd=folder, env={**os.environ, "HOME": folder},
                                     capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True)
            self.assertEqual(ran.stdout, f"gpuwire {VERSION}\n")

        # containers_test.py executes the steps of the file.
        for line in self.next_block("Containers"):
            for file in re.findall(r"-f (\S+)", line):
                self.assertTrue(os.path.exists(os.path.join(SOURCE, file)), file)

        remove, purge = self.next_block("Removing")
        self.type(server, "admin", [remove])
        self.assertTrue(os.path.exists(server.path("/etc/gpuwire/server.toml")))
        self.type(server, "admin", [purge])
        for gone in ("/etc/gpuwire", "/var/log/gpuwire", "/var/cache/gpuwire", "/usr/bin/gpuwire"):
            self.assertFalse(os.path.lexists(server.path(gone)), gone)
        self.assertNotIn("gpuwire", server.read("/etc/passwd"))
        self.assert_all_typed()


if __name__ == "__main__":
    unittest.main(verbosity=2)
