"""README, "Sharing a GPU": an administrator types its commands, in its order, and two tenants work."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from support import BUILD, PROGRAMS, RUN_LIMIT_SECONDS, Server, wait_until

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
# The section's sizes are of a large card.
DEVICE = ["--device", "software", "--software-memory", "80GiB"]


def section():
    with open(README, encoding="utf-8") as file:
        text = file.read()
    return re.search(r"^## Sharing a GPU\n(.*?)^## ", text, re.S | re.M)[1]


def commands(block):
    return [line.split("  #")[0].rstrip() for line in block.splitlines() if line.strip()]


class Sharing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpuwire-sharing-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        blocks = re.findall(r"```(sh|toml)\n(.*?)```", section(), re.S)
        self.assertEqual([kind for kind, _ in blocks], ["sh", "toml", "sh", "sh", "sh", "sh"])
        self.admin, self.configuration, self.serving, self.anna, self.bob, self.watching = [
            block for _, block in blocks
        ]

    def user(self, name):
        """The environment and the folder of somebody with an account of their own."""
        home = os.path.join(self.folder, "home", name)
        os.makedirs(home, exist_ok=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("GPUWIRE_", "XDG_"))}
        return {
            "cwd": home,
            "env": {**environment, "HOME": home, "PATH": os.path.join(BUILD, "bin") + ":" + environment["PATH"]}
        }

    def here(self, text):
        """The section's words with this test's folder, address and program in the place of its examples."""
        text = text.replace("/etc/gpuwire", os.path.join(self.folder, "etc"))
        text = text.replace("gpuwire admin",
                            "gpuwire admin --directory " + os.path.join(self.folder, "etc", "identity"))
        text = text.replace('listen = "0.0.0.0:9750"\n', 'listen = "127.0.0.1:0"\n'
                            f'control_socket = "{self.folder}/control"\n').replace("127.0.0.1:9751", "127.0.0.1:0")
        text = text.replace("./my_cuda_program", os.path.join(PROGRAMS, "neighbour"))
        return re.sub(r"gpuwire (top|status)", rf"gpuwire \1 --control {self.folder}/control", text)

    def type(self, line, user):
        ran = subprocess.run(["sh", "-c", self.here(line)], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                             **user)
        self.assertEqual(ran.returncode, 0, f"{line}\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    def work(self, block, user, server):
        """Types a tenant's commands; the last one runs a program, which works until it is told to end."""
        *before, program = commands(block)
        for line in before:
            self.type(line, user)
        self.assertTrue(program.startswith("gpuwire run --server gpuhost:9750 "), program)
        line = self.here(program.replace("gpuhost:9750", "tls://" + server.address.replace("127.0.0.1", "localhost")))
        running = subprocess.Popen(["sh", "-c", "exec " + line], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, **user)
        self.addCleanup(running.communicate)
        self.addCleanup(running.kill)
        self.assertEqual(running.stdout.readline(), "working\n")
        return running

    def audit(self):
        with open(os.path.join(self.folder, "etc", "audit.log"), encoding="ascii") as file:
            return file.read()

    def test_from_nothing_to_two_tenants(self):
        root = self.user("root")
        os.makedirs(os.path.join(self.folder, "etc"))
        for line in commands(self.admin):
            self.type(line, root)
        file = os.path.join(self.folder, "etc", "server.toml")
        with open(file, "w", encoding="utf-8") as configuration:
            configuration.write(self.here(self.configuration))
        check, serve = commands(self.serving)
        self.assertIn("is right", self.type(" ".join([check, *DEVICE]), root))
        self.assertEqual(serve, "gpuwire serve --config /etc/gpuwire/server.toml")
        server = Server(BUILD, ["--config", file, *DEVICE])
        self.addCleanup(server.stop)
        server.__enter__()
        # By a way that nobody else reads.
        for name, carried in (("anna", ["anna.pem"]), ("bob", ["bob.token", "ca.pem"])):
            for one in carried:
                shutil.copy(os.path.join(root["cwd"], one), self.user(name)["cwd"])
        anna = self.work(self.anna, self.user("anna"), server)
        bob = self.work(self.bob, self.user("bob"), server)
        top, status, usage, revoke = commands(self.watching)
        shown = self.type(top + " --once --interval 0.2", root)
        for word in ("anna", "bob", "interactive", "batch", "60.0 GiB"):
            self.assertIn(word, shown)
        self.assertIn("tls certificate", self.type(status, root))
        self.assertIn("GPU HOURS", self.type(f"{usage} --config {file}", root))
        self.type(revoke, root)
        self.assertNotEqual(bob.wait(RUN_LIMIT_SECONDS), 0)
        self.assertIn("was revoked on", bob.communicate()[1])
        out, err = anna.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)
        wait_until(lambda: self.audit().count('"event":"ended"') == 2, RUN_LIMIT_SECONDS,
                   "two ended sessions in the audit log")
        for word in ("was revoked on", '"tenant":"anna"', '"identified_by":"tls certificate"',
                     '"identified_by":"tls token"', '"cause":"stopped"'):
            self.assertIn(word, self.audit())
        again = subprocess.run([
            "sh", "-c",
            self.here(
                commands(self.bob)[-1].replace("gpuhost:9750",
                                               "tls://" + server.address.replace("127.0.0.1", "localhost")))
        ], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS, **self.user("bob"))
        self.assertNotEqual(again.returncode, 0)
        self.assertEqual(len([line for line in again.stderr.splitlines() if line.startswith("gpuwire")]), 1,
                         again.stderr)


if __name__ == "__main__":
    unittest.main()
