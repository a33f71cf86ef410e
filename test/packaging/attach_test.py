"""`gpuwire attach` on a machine made for the test (machine/README.md), and on the folder of an image: programs start
without `gpuwire run`, find the server, and no longer do when it is detached or the package goes."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "machine"), os.path.join(HERE, "..", "support")]
from gpuwire_server import Server  # noqa: E402
from installed import BUILD, PROGRAM, SERVER, Installed  # noqa: E402
from machine import LIMIT_SECONDS, Machine, why_not  # noqa: E402

GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")


@unittest.skipIf(why_not(), why_not())
class AttachedMachine(Installed):
    def setUp(self):
        self.begin(Machine())
        self.machine.write("/run/fake-systemd/arguments", "--device software")
        self.install()
        self.machine.run("systemctl", "start", "gpuwire-server")

    def log(self):
        return self.machine.read("/run/fake-systemd/gpuwire-server.log")

    def start_alone(self, *before):
        """Starts the program without `gpuwire run`; it works until its standard input closes."""
        program = self.machine.start(*before, "./neighbour", user="anna")
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        return program

    def assert_works(self, *before):
        program = self.start_alone(*before)
        self.assertEqual(program.stdout.readline(), "working\n", self.log())
        self.assert_passes(program)

    def assert_finds_no_device(self):
        self.assertNotEqual(self.start_alone().wait(LIMIT_SECONDS), 0)

    def paths(self):
        return {path for path in self.machine.changes()[0] if re.search("ld.so.conf.d/|profile.d/|attached", path)}

    def test_every_program_finds_the_server_until_it_is_detached(self):
        if self.machine.try_run("sh", "-c", "ldconfig -p | grep libcuda.so.1").returncode == 0:
            self.skipTest("this machine has a driver")
        self.assert_finds_no_device()
        self.assertIn(f"programs that start now use {SERVER}",
                      self.machine.run("gpuwire", "attach", "--server", SERVER))
        self.assert_works()
        self.assertIn("software device", self.machine.run("nvidia-smi", "-L", user="anna"))
        # A server in the program's environment takes precedence.
        other = self.start_alone("env", "GPUWIRE_SERVER=127.0.0.1:1", "GPUWIRE_CONNECT_PATIENCE=0s")
        self.assertNotEqual(other.wait(LIMIT_SECONDS), 0)
        self.assertIn("127.0.0.1:1: connection refused", other.communicate()[1])
        self.assertIn("attached already", self.machine.run("gpuwire", "attach", "--server", SERVER))

        self.machine.run("gpuwire", "attach", "--server", SERVER, "--with", "profile")
        self.assert_finds_no_device()
        self.assert_works("sh", "-lc", 'exec "$0"')

        self.machine.run("gpuwire", "detach")
        self.assert_finds_no_device()
        self.assertEqual(self.paths(), set())

    def test_a_package_that_is_removed_is_detached_before(self):
        self.machine.run("gpuwire", "attach", "--server", SERVER)
        self.assertEqual(len(self.paths()), 2)
        self.machine.run("dpkg", "--purge", "gpuwire-server", "gpuwire-client")
        self.assertEqual(self.paths(), set())
        self.assertFalse(os.path.lexists(self.machine.path("/usr/local/bin/nvidia-smi")))
        self.assertFalse(os.path.lexists(self.machine.path("/etc/gpuwire")))


@unittest.skipUnless(os.geteuid() == 0, "only root has a program in a root of its own")
@unittest.skipUnless(os.path.exists(PROGRAM), "the test programs were not built: no nvcc")
class AttachedImage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpuwire-image-")
        self.addCleanup(folder.cleanup)
        self.image = os.path.join(folder.name, "image")
        self.put(PROGRAM, "/neighbour")
        for binary in (PROGRAM, os.path.join(BUILD, "lib", "gpuwire", "libcuda.so.1")):
            linked = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True,
                                    timeout=LIMIT_SECONDS).stdout
            for library in re.findall(r"(/\S+) \(0x", linked):
                self.put(library, library)
        self.write("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
        self.write("/etc/ld.so.conf.d/system.conf", "/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n")
        self.write("/etc/hosts", "127.0.0.1 localhost\n")

    def put(self, file, inside):
        os.makedirs(os.path.dirname(self.image + inside), exist_ok=True)
        shutil.copy(os.path.realpath(file), self.image + inside)

    def write(self, inside, text):
        os.makedirs(os.path.dirname(self.image + inside), exist_ok=True)
        with open(self.image + inside, "w", encoding="ascii") as file:
            file.write(text)

    def gpuwire(self, *words):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("GPUWIRE_", "LD_"))}
        return subprocess.run([GPUWIRE, *words], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
                              env=environment)

    def run_inside(self):
        return subprocess.run(["/usr/sbin/chroot", self.image, "/neighbour"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=LIMIT_SECONDS, check=False, env={})

    def test_a_program_of_an_image_without_gpuwire_uses_the_server_that_is_attached(self):
        self.assertNotIn("PASSED", self.run_inside().stdout)
        with Server(BUILD, ["--device", "software", "--module-cache", "none"]) as server:
            ran = self.gpuwire("attach", "--root", self.image, "--server", server.address)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
            ran = self.run_inside()
            self.assertEqual(ran.stdout.splitlines()[-1:], ["PASSED"], ran.stdout + ran.stderr)
        ran = self.gpuwire("detach", "--root", self.image)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertFalse(os.path.exists(self.image + "/opt/gpuwire"))
        self.assertNotIn("PASSED", self.run_inside().stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
