"""Tests that every command prints its release, its purpose, and its errors."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.environ["GPUWIRE_BUILD"]
VERSION = os.environ["GPUWIRE_VERSION"]
COMMANDS = sorted(
    name.removeprefix("gpuwire-") for name in os.listdir(os.path.join(BUILD, "lib", "gpuwire", "commands"))
    if name.startswith("gpuwire-"))


def gpuwire(*words, root=BUILD):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUWIRE_")}
    return subprocess.run([os.path.join(root, "bin", "gpuwire"), *words], capture_output=True, text=True, timeout=120,
                          env=environment)


class Commands(unittest.TestCase):
    def test_all_of_them_are_of_one_version(self):
        self.assertEqual(gpuwire("--version").stdout, f"gpuwire {VERSION}\n")
        self.assertLessEqual({"run", "info", "serve", "admin", "top", "status", "metrics", "worker", "login"},
                             set(COMMANDS))
        for command in COMMANDS:
            ran = gpuwire(command, "--version")
            self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, f"gpuwire {VERSION}\n", ""), command)

    def test_each_has_a_help(self):
        for command in COMMANDS:
            ran = gpuwire(command, "--help")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""), command)
            self.assertIn("--version", ran.stdout)

    def test_the_front_door_lists_those_that_are_for_people(self):
        listed = re.findall(r"^  (\w+)  ", gpuwire("--help").stdout, re.M)
        self.assertEqual(sorted(listed),
                         sorted(["ps", *(command for command in COMMANDS if command not in (
                             "worker", "login", "keeper", "suspender", "web", "tenant-top", "tenant-usage"))]))

    def test_a_misspelt_option_is_wrong_use(self):
        for command in COMMANDS:
            ran = gpuwire(command, "--verison")
            self.assertEqual((ran.returncode, ran.stdout), (2, ""), command)
            self.assertIn("did you mean --version?", ran.stderr)

    def test_a_misspelt_admin_command_is_suggested(self):
        self.assertIn("did you mean add-tenant?", gpuwire("admin", "addtenant", "anna").stderr)
        described = json.loads(gpuwire("admin", "--describe").stdout)
        for command in described["commands"]:
            if command["name"] in COMMANDS:
                continue  # `gpuwire end` is a command of its own
            said = gpuwire(command["name"].replace("-", "")).stderr
            self.assertIn(f"did you mean admin {command['name']}?", said)

    def test_a_value_that_is_none_is_told_with_what_it_must_be(self):
        for words, line in ((("serve", "--device", "toaster"), "--device must be auto, cuda or software, got toaster"),
                            (("run", "--gpus", "0", "--", "true"), "--gpus must be from 1 to 1024, got 0"),
                            (("serve", "--module-cache-bytes", "8589934592"), "a unit is missing, one of B, KB"),
                            (("serve", "--drain-seconds", "soon"), "--drain-seconds must be a number, got soon")):
            ran = gpuwire(*words)
            self.assertEqual(ran.returncode, 2)
            self.assertIn(line, ran.stderr)

    def test_a_command_for_the_server_alone_says_so_and_what_to_use_instead(self):
        for command in ("worker", "login", "keeper", "suspender", "web"):
            ran = gpuwire(command)
            self.assertEqual((ran.returncode, ran.stdout), (2, ""), command)
            self.assertRegex(
                ran.stderr, rf"^gpuwire {command}: this is a part of `gpuwire serve`, which starts it; "
                r"use `gpuwire serve` to .*`gpuwire run` to .*\n$")
            told = gpuwire(command, "--help").stdout
            for words in ("which starts it", "use `gpuwire serve`", "`gpuwire run`"):
                self.assertIn(words, told.replace("\n", " "), command)

    def test_a_machine_without_glibc_is_told_what_it_lacks(self):
        # A command whose loader does not exist, as on a machine with musl.
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "bin"))
            os.makedirs(os.path.join(root, "lib", "gpuwire", "commands"))
            shutil.copy(os.path.join(BUILD, "bin", "gpuwire"), os.path.join(root, "bin"))
            with open(os.path.join(BUILD, "lib", "gpuwire", "commands", "gpuwire-run"), "rb") as file:
                program = file.read()
            copy = os.path.join(root, "lib", "gpuwire", "commands", "gpuwire-run")
            with open(copy, "wb") as file:
                file.write(program.replace(b"/lib64/ld-linux-x86-64.so.2", b"/lib64/ld-linux-nobody.so.2"))
            os.chmod(copy, 0o755)
            ran = gpuwire("run", "--version", root=root)
            self.assertEqual(ran.returncode, 126)
            self.assertIn("needs glibc 2.31 or later", ran.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
