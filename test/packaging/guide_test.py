"""Every block of commands of README.md and docs/install.md is typed, in their order, on machines of a lab
(machine/README.md): a server `gpuhost`, its administrator, and users on machines of their own."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
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


# Prints a page, with the cookies of earlier pages.
VISIT = """
import http.cookiejar, sys, urllib.request
address, *form = sys.argv[1:]
cookies = http.cookiejar.LWPCookieJar("/root/cookies")
try:
    cookies.load(ignore_discard=True)
except FileNotFoundError:
    pass
browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
print(browser.open(address, form[0].encode() if form else None, timeout=300).read().decode())
cookies.save(ignore_discard=True)
"""


class Visitor:
    """A visitor on the server's machine, who signs in to the web page with a code."""

    ADDRESS = "http://127.0.0.1:9752/"

    def __init__(self, machine, code):
        self.machine = machine
        csrf = re.search(r'name="csrf" value="(\w+)"', self.ask("sign-in"))[1]
        self.ask("sign-in", f"csrf={csrf}&secret={code}")

    def ask(self, path, *form):
        return self.machine.run("python3", "-c", VISIT, self.ADDRESS + path, *form)

    def await_answer(self, path, pattern):
        """Repeats the question until the answer matches; returns the match."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (found := re.search(pattern, self.ask(path), re.S)):
            if time.monotonic() > deadline:
                raise AssertionError(f"no {pattern} in {self.ask(path)}")
            time.sleep(0.05)
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
    def test_from_nothing_to_three_tenants_by_the_readme_alone(self):
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

        carol = self.third_tenant_waits(server)
        watching = self.next_block("For administrators")
        self.assertIn("revoke bob", watching[-1])
        seen = self.type(server, "admin", watching)
        for word in ("anna", "bob", "interactive", "batch", "60.0 GiB"):
            self.assertIn(word, seen["sudo gpuwire top --once"])
        self.assertIn("tls certificate", seen["sudo gpuwire status"])
        self.assertIn("GPU HOURS", seen["sudo gpuwire usage"])
        self.assertNotEqual(bob.wait(LIMIT_SECONDS), 0)
        self.assertIn("was revoked on", bob.communicate()[1])
        page = Visitor(server, seen["sudo gpuwire admin web-code"].splitlines()[0])
        self.all_is_answered_and_told(seen, page, carol)
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

    def third_tenant_waits(self, server):
        """Makes another tenant by README's commands, with a certificate that ends soon. Returns its program, which
        waits for the memory that bob's has reserved."""
        self.type(server, "admin", ["sudo gpuwire admin add-tenant carol --days 10"])
        server.write("/etc/gpuwire/server.toml", server.read("/etc/gpuwire/server.toml") + "\n[tenants.carol]\n")
        self.type(server, "admin", ["sudo gpuwire admin reload"])
        carols = self.machine("carol", of_network=server)
        self.carry(server, ["carol.pem"], carols, "carol")
        self.type(carols, "carol", [
            f"sudo apt install ./gpuwire-client_{VERSION}_amd64.deb", "mkdir -p ~/.config/gpuwire",
            "install -m 600 carol.pem ~/.config/gpuwire/identity.pem"
        ])
        waiting = carols.start("sh", "-c", "exec gpuwire run --server gpuhost:9750 --memory 40GiB -- ./my_cuda_program",
                               user="carol")
        self.addCleanup(waiting.communicate)
        self.addCleanup(waiting.kill)
        self.assertIn("place 1 of 1", waiting.stderr.readline())
        return waiting

    def all_is_answered_and_told(self, seen, page, carol):
        """The page says who had which GPU when, and why a program waited; what ends in two weeks is told to the
        administrator, and to the tenant."""
        self.assertEqual(carol.stdout.readline(), "working\n")
        self.assertIn("<bdi>carol</bdi>", page.ask("overview"))
        out, err = carol.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual((carol.returncode, out.splitlines()[-1:]), (0, ["PASSED"]), out + err)
        self.assertRegex(err, "your certificate for gpuhost expires on .* ask the server's administrator")
        day = r"20\d\d-\d\d-\d\d \d\d:\d\d UTC"
        row = page.await_answer("history", rf"<bdi>my_cuda_program</bdi> on [^\n]*<bdi>carol</bdi></td><td>0</td>"
                                           rf"<td>{day}</td><td>{day}</td>[^\n]*")[0]
        self.assertIn("40 GiB of 80 GiB are not free", row)
        self.assertIn("reserved by programs that run", row)
        expires = "the certificate of tenant carol expires on"
        self.assertIn(expires, seen["sudo gpuwire status"])
        self.assertIn(expires, page.ask("server"))

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
