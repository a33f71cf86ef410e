"""Man pages and completions say what the commands' help says, and the programs that read them find no fault."""

import glob
import json
import os
import shutil
import subprocess
import unittest

BUILD = os.environ["GPUWIRE_BUILD"]
SHARE = os.path.join(BUILD, "share")
PAGES = sorted(glob.glob(os.path.join(SHARE, "*", "man", "man?", "*")))
COMMANDS = ("run", "shell", "env", "info", "queue", "serve", "admin", "top", "status", "usage", "metrics")


def described(command):
    return json.loads(
        subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), command, "--describe"], capture_output=True, text=True,
                       check=True, timeout=120).stdout)


def completion(*path):
    return os.path.join(SHARE, "client", *path)


class Manual(unittest.TestCase):
    def page(self, name):
        found, = (page for page in PAGES if os.path.basename(page) == name)
        with open(found, encoding="utf-8") as file:
            return file.read().replace("\\-", "-")

    def test_there_is_a_page_for_every_command_and_every_configuration(self):
        names = {os.path.basename(page) for page in PAGES}
        self.assertEqual(names, {"gpuwire.1", "gpuwire-server.toml.5", "gpuwire-client.toml.5"}
                         | {f"gpuwire-{command}.1" for command in COMMANDS})

    def test_a_page_has_every_option_of_its_command(self):
        for command in COMMANDS:
            page, description = self.page(f"gpuwire-{command}.1"), described(command)
            for one in [description, *description["commands"]]:
                for option in one["options"]:
                    for name in option["names"]:
                        if name not in ("-h", "--help"):
                            self.assertIn(f"\\fB{name}\\fR", page, command)
            for sub in description["commands"]:
                self.assertIn(f'.SH "{(command + " " + sub["name"]).upper()}"', page)

    def test_the_pages_of_the_configurations_have_every_key(self):
        page = self.page("gpuwire-server.toml.5")
        for key in ("listen", "metrics_listen", "kernel_time_max", "unix_users", "memory.guaranteed"):
            self.assertIn(f"\\fB{key}\\fR", page)
        self.assertIn("\\fBtoken_file\\fR", self.page("gpuwire-client.toml.5"))

    @unittest.skipUnless(shutil.which("man"), "man is missing")
    def test_man_finds_no_fault(self):
        for page in PAGES:
            ran = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page], capture_output=True,
                                 text=True, timeout=120,
                                 env={**os.environ, "LC_ALL": "C.UTF-8", "MANROFFSEQ": "",
                                      "MANWIDTH": "80"}, check=False)
            # A word longer than a line, such as an address, cannot be broken.
            faults = [
                line for line in ran.stderr.splitlines()
                if "can't break line" not in line and "cannot adjust line" not in line
            ]
            self.assertEqual((ran.returncode, faults), (0, []), page)

    def complete(self, *words):
        """What bash offers for the last word."""
        script = (
            f"source {completion('bash-completion', 'completions', 'gpuwire')};"
            f" COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; _gpuwire; printf '%s\\n'"
            ' "${COMPREPLY[@]}"'
        )
        return set(
            subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True,
                           timeout=120).stdout.split())

    def test_bash_offers_commands_options_and_values(self):
        self.assertLessEqual(set(COMMANDS), self.complete("gpuwire", ""))
        self.assertEqual(self.complete("gpuwire", "se"), {"serve"})
        self.assertEqual(self.complete("gpuwire", "run", "--mem"), {"--memory"})
        self.assertEqual(self.complete("gpuwire", "top", "--sort", ""), {"gpu", "memory", "link", "tenant", "id"})
        self.assertEqual(self.complete("gpuwire", "admin", "re"), {"reload", "revoke", "renew"})
        self.assertEqual(self.complete("gpuwire", "admin", "add-tenant", "--ca"), {"--ca-out"})
        self.assertIn("bash", self.complete("gpuwire", "run", "--server", "x", "--", "bas"))

    def test_every_shell_knows_every_option(self):
        with open(completion("fish", "vendor_completions.d", "gpuwire.fish"), encoding="utf-8") as file:
            fish = file.read()
        with open(completion("zsh", "vendor-completions", "_gpuwire"), encoding="utf-8") as file:
            zsh = file.read()
        for command in COMMANDS:
            for option in described(command)["options"]:
                long = option["names"][-1]
                self.assertRegex(fish, rf"seen_subcommand_from {command}' .*-l {long[2:]}\b")
                self.assertIn(long, zsh)

    @unittest.skipUnless(shutil.which("zsh"), "zsh is missing")
    def test_zsh_reads_its_completion(self):
        subprocess.run(["zsh", "-n", completion("zsh", "vendor-completions", "_gpuwire")], check=True, timeout=120)

    @unittest.skipUnless(shutil.which("fish"), "fish is missing")
    def test_fish_reads_its_completion(self):
        subprocess.run(
            ["fish", "--no-execute", completion("fish", "vendor_completions.d", "gpuwire.fish")], check=True,
            timeout=120)


if __name__ == "__main__":
    unittest.main(verbosity=2)
