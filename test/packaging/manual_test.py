"""Tests that man pages and completions agree with the commands' help, and that the programs that read them report no
fault."""

import glob
import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import debian_tools  # noqa: E402

BUILD = os.environ["GPUWIRE_BUILD"]
SHARE = os.path.join(BUILD, "share")
PAGES = sorted(glob.glob(os.path.join(SHARE, "*", "man", "man?", "*")))
COMMANDS = ("run", "shell", "env", "attach", "detach", "info", "queue", "end", "suspend", "resume", "serve", "admin",
            "top", "status", "usage", "metrics")


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
        """Returns bash's completions of the last word."""
        script = (
            f"source {shlex.quote(completion('bash-completion', 'completions', 'gpuwire'))};"
            f" COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; _gpuwire; printf '%s\\n'"
            ' "${COMPREPLY[@]}"'
        )
        return set(
            subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True,
                           timeout=120).stdout.split())

    def test_bash_offers_commands_options_and_values(self):
        self.assertLessEqual(set(COMMANDS), self.complete("gpuwire", ""))
        self.assertEqual(self.complete("gpuwire", "se"), {"serve"})
        self.assertEqual(self.complete("gpuwire", "ps", "--js"), {"--json"})
        self.assertEqual(self.complete("gpuwire", "run", "--mem"), {"--memory"})
        self.assertEqual(self.complete("gpuwire", "top", "--sort", ""), {"gpu", "memory", "link", "tenant", "id"})
        self.assertEqual(self.complete("gpuwire", "admin", "re"), {"reload", "revoke", "renew", "resume"})
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

    def fish_offers(self, *lines):
        """Returns fish's completions at the end of each line."""
        fish = debian_tools.tool(BUILD, "fish", "fish fish-common libpcre2-32-0")
        with tempfile.TemporaryDirectory() as home:
            script = "\n".join([
                f"set fish_function_path {shlex.quote(fish.path('usr', 'share', 'fish', 'functions'))}",
                f"set fish_complete_path {shlex.quote(completion('fish', 'vendor_completions.d'))}",
                *(f"complete -C '{line}' | string match -r '^[^\\t]*'; echo ." for line in lines)
            ])
            open(os.path.join(home, "weights"), "w", encoding="ascii").close()
            ran = subprocess.run([fish.program, "--no-config", "-c", script], capture_output=True, text=True,
                                 check=True, timeout=120, cwd=home,
                                 env={**os.environ, **fish.environment, "HOME": home, "XDG_CONFIG_HOME": home,
                                      "PATH": os.path.join(BUILD, "bin") + ":" + os.environ["PATH"]})
        self.assertEqual(ran.stderr, "")
        return [set(part.split()) for part in ran.stdout.split(".\n")]

    def test_fish_offers_commands_options_and_values(self):
        offered = self.fish_offers("gpuwire ", "gpuwire se", "gpuwire run --mem", "gpuwire top --sort ",
                                   "gpuwire admin re", "gpuwire admin add-tenant --ca",
                                   "gpuwire run --server x -- bas", "gpuwire run -- bash --rcf",
                                   r'gpuwire run -- cat a\"b wei')
        self.assertLessEqual(set(COMMANDS), offered[0])
        self.assertEqual(offered[1:6], [{"serve"}, {"--memory"}, {"gpu", "memory", "link", "tenant", "id"},
                                        {"reload", "revoke", "renew", "resume"}, {"--ca-out"}])
        self.assertIn("bash", offered[6])
        self.assertNotIn("--rdma", offered[7])
        self.assertEqual(offered[8], {"weights"})

    def test_zsh_offers_commands_options_and_values(self):
        zsh = debian_tools.tool(BUILD, "zsh", "zsh zsh-common")
        with tempfile.TemporaryDirectory() as home, Zsh(self, zsh, home) as shell:
            for typed, made in (("gpuwire se", "gpuwire serve "), ("gpuwire run --mem", "gpuwire run --memory "),
                                ("gpuwire top --sort me", "gpuwire top --sort memory "),
                                ("gpuwire admin rel", "gpuwire admin reload "),
                                ("gpuwire admin add-tenant --ca", "gpuwire admin add-tenant --ca-out "),
                                ("gpuwire run --server x -- gpuwire-onl",
                                 "gpuwire run --server x -- gpuwire-only-here ")):
                self.assertEqual(shell.completed(typed), made)


class Zsh:
    """A zsh on a terminal, because it completes only there."""

    def __init__(self, test, zsh, home):
        self.test, self.seen = test, ""
        self.terminal, end = pty.openpty()
        only_here = os.path.join(home, "gpuwire-only-here")
        with open(only_here, "w", encoding="ascii"):
            os.chmod(only_here, 0o755)
        environment = {**os.environ, **zsh.environment, "HOME": home, "ZDOTDIR": home, "TERM": "dumb",
                       "PATH": home + ":" + os.environ["PATH"]}
        self.shell = subprocess.Popen([zsh.program, "-f", "-i"], stdin=end, stdout=end, stderr=end, env=environment,
                                      cwd=home, start_new_session=True)
        os.close(end)
        own = shlex.quote(zsh.path("usr", "share", "zsh", "functions"))
        functions = f"{own}/**/*(/N) {own}" if zsh.root != "/" else "$fpath"
        if zsh.root != "/":
            self.say(f"module_path=({shlex.quote(zsh.path('usr', 'lib', 'x86_64-linux-gnu', 'zsh'))}/*(/))")
        self.say(f"fpath=({shlex.quote(completion('zsh', 'vendor-completions'))} {functions})")
        # A widget prints its result between marks, because the terminal also echoes the typed text, but not the marks.
        self.say("PROMPT=; unsetopt prompt_cr prompt_sp beep; autoload -Uz compinit; compinit -u -D")
        self.say("made() { zle complete-word; print -r -- $'\\n'\"<<\"${BUFFER}\">>\"; BUFFER=; }")
        self.say("zle -N made; bindkey '^I' made; print -r -- \"rea\"dy")
        self.wait_for(r"(ready)")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shell.kill()
        self.shell.wait()
        os.close(self.terminal)

    def say(self, line):
        os.write(self.terminal, line.encode() + b"\n")

    def wait_for(self, pattern):
        end = time.monotonic() + 120
        while not (found := re.search(pattern, self.seen)):
            self.test.assertLess(time.monotonic(), end, f"zsh said {self.seen!r}")
            if select.select([self.terminal], [], [], 1)[0]:
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")
        self.seen = self.seen[found.end():]
        return found[1]

    def completed(self, line):
        """Returns the line after the Tab key."""
        os.write(self.terminal, line.encode() + b"\t")
        return self.wait_for(r"\n<<(.*)>>")


if __name__ == "__main__":
    unittest.main(verbosity=2)
