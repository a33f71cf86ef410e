"""Common code of tests of installed packages: a machine with the packages, its user anna, and her program."""

import os
import time
import unittest

from machine import LIMIT_SECONDS

BUILD, VERSION = os.environ["GPUWIRE_BUILD"], os.environ["GPUWIRE_VERSION"]
PROGRAM = os.path.join(BUILD, "test_programs", "neighbour")
PACKAGES = ("gpuwire-client", "gpuwire-server")
SERVER = "127.0.0.1:9750"


def package(name, version=VERSION):
    return f"{name}_{version}_amd64.deb"


@unittest.skipUnless(os.path.exists(PROGRAM), "the test programs were not built: no nvcc")
class Installed(unittest.TestCase):
    machine = None  # set by begin()

    def begin(self, machine):
        """The packages are in its /tmp."""
        self.machine = machine
        self.addCleanup(machine.end)
        machine.add_user("anna")
        machine.put(PROGRAM, "/home/anna/neighbour", 0o755)
        for name in PACKAGES:
            machine.put(os.path.join(BUILD, "packages", package(name)), "/tmp/" + package(name))

    def log(self):
        """The service's."""
        raise NotImplementedError

    def wait_until(self, holds, what):
        """The service works asynchronously, so logs and other effects appear a moment later."""
        limit = time.monotonic() + LIMIT_SECONDS
        while not holds():
            self.assertLess(time.monotonic(), limit, f"not within {LIMIT_SECONDS} s: {what}\n{self.log()}")
            time.sleep(0.05)

    def await_in_file(self, words, path):
        self.wait_until(lambda: words in self.machine.read(path), f"{words} in {path}")

    def install(self, version=VERSION):
        self.machine.run("dpkg", "--install", *("/tmp/" + package(name, version) for name in PACKAGES))

    def start_program(self):
        """Works until its standard input closes."""
        program = self.machine.start("gpuwire", "run", "--server", SERVER, "--", "./neighbour", user="anna")
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "working\n", self.log())
        return program

    def assert_passes(self, program):
        out, err = program.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual((program.returncode, out.splitlines()[-1:]), (0, ["PASSED"]), out + err + self.log())
