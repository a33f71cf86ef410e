"""Each line of README, docs/ and CONTRIBUTING that is a command is run by a test, or stands here with the reason why it
is not.

guide_test.py types the blocks of README and docs/install.md, recipes_test.py and containers_test.py those of the
recipes. Everywhere else, and in text, a `gpuwire` command is compared with what the real program says of itself (its
command, its options), and a script of the tree with its own --help. What is left is in NOT_RUN."""

import json
import os
import re
import subprocess
import unittest

BUILD, SOURCE = os.environ["GPUWIRE_BUILD"], os.environ["GPUWIRE_SOURCE"]
COMMANDS = os.path.join(BUILD, "lib", "gpuwire", "commands")
# Pages whose blocks another test types; that test fails at an unknown block.
TYPED = {"README.md": "guide_test.py", "docs/install.md": "guide_test.py"}
TYPED_FOLDER = {"docs/recipes": "recipes_test.py"}
# The first words of commands that are not run, without `sudo` and variables, with the reason.
NOT_RUN = {
    "cmake/install_packages.sh": "test/run.sh and examples/demo.sh run it; it installs Debian's packages",
    "cmake --preset release": "this build is made by it",
    "ctest --test-dir": "this test runs under it",
    "build/bench/slow_link": "bench/network starts it: test/bench/network_test.py",
    "eval": "a shell's word; test/packaging/commands_test.py has the shells read what `gpuwire env` prints",
    "jq": "a profile is read as JSON by test/end_to_end/profile_test.py; the filter is an example",
    "systemctl edit": "what it adds to the unit is tried by test/end_to_end/restart_test.py, as root",
    "usermod": "test/server/broker/worker/worker_users_test.cpp reads files of subordinate users",
    "curl --cacert": "test/end_to_end/web_tls_test.py asks for the page in the same way",
    "openssl pkcs12": "test/end_to_end/web_browser_test.py signs in with the file that it makes",
    "dpkg-deb -x": "packages_test.py unpacks the packages in this way",
}
# Words after "gpuwire" in the labels of the protocol and of profiles, which are no commands.
LABELS = {"clocks", "lane", "resume", "token"}
# Words before a command that do not belong to it.
BEFORE = re.compile(r"^(?:sudo |[A-Z_]+=\S* )*")
# The first words of indented lines that are commands, and no drawing or part of a file.
TOOLS = re.compile(r"(?:sudo|apt|cmake|ctest|curl|docker|eval|git|jq|kubectl|make|ninja|openssl|pip|python3?|ssh|"
                   r"systemctl) ")
SHELL = re.compile(r"`(gpuwire(?: [^`]*)?)`")


def read(page):
    with open(os.path.join(SOURCE, page), encoding="utf-8") as file:
        return file.read()


def pages():
    found = ["README.md", "CONTRIBUTING.md"]
    for folder in ("docs", "docs/recipes"):
        names = sorted(os.listdir(os.path.join(SOURCE, folder)))
        found += [f"{folder}/{name}" for name in names if name.endswith(".md")]
    return found


def is_typed(page):
    return page in TYPED or os.path.dirname(page) in TYPED_FOLDER


def lines_of_blocks(text):
    """The lines of a page's blocks, of fenced ones that are a shell's and of indented ones, and whether it is a shell's
    for certain. A line that ends with a backslash goes on."""
    fence, before = None, ""
    for line in text.split("\n"):
        begins = re.match(r"```(\w*)", line)
        if begins:
            fence = None if fence is not None else begins[1]
        elif fence == "sh" or (fence is None and line.startswith("    ")):
            before += line.strip()
            if before.endswith("\\"):
                before = before[:-1]
                continue
            yield before, fence == "sh"
            before = ""


def is_script(word):
    path = os.path.join(SOURCE, word)
    return "/" in word and not word.startswith("build/") and os.path.isfile(path) and os.access(path, os.X_OK)


def command_of(line):
    """A line of a block without comments and words before the command; empty: it is none, but a program's output, a
    drawing or a part of a file."""
    words = BEFORE.sub("", line.split("  #")[0].split(" # ")[0]).strip()
    first = words.split(" ")[0] if words else ""
    known = first.split("/")[-1] == "gpuwire" or any(words.startswith(name) for name in NOT_RUN)
    return words if known or is_script(first) else ""


def options_of(words):
    """Returns the options in a command, without those of the program that it runs."""
    return re.findall(r"(?<![\w-])--?[a-z][a-z-]*", re.split(r" -- |\|(?!\|) *(?!--)", words)[0])


def described(command):
    """Returns the descriptions of `gpuwire COMMAND`: of the server's command, and of the client's command of the same
    name."""
    found = []
    for name in (command, "tenant-" + command):
        program = os.path.join(COMMANDS, "gpuwire-" + name)
        if os.path.exists(program):
            found.append(json.loads(subprocess.run([program, "--describe"], capture_output=True, text=True, check=True,
                                                   timeout=120).stdout))
    return found


def names_of(description):
    return {name for option in description["options"] for name in option["names"]} | {"--help", "--version", "-v"}


class Gpuwire:
    """The options that the commands of the build have."""

    def __init__(self):
        self.known = {}

    def mistakes(self, words):
        """Returns the mistake in a `gpuwire` command, in words; empty: none."""
        _, *rest = words.split(" ")
        command = next((word for word in rest if not word.startswith("-")), "")
        if not command or not command.isalpha() or command.isupper() or command in LABELS | {"help"}:
            return ""  # `gpuwire --version`, `gpuwire COMMAND`, `gpuwire ...`
        behind = rest[rest.index(command) + 1:]
        if command == "ps":
            command = "queue"
        if command not in self.known:
            self.known[command] = described(command)
        descriptions = self.known[command]
        if not descriptions:
            return f"there is no command {command}"
        options = set().union(*(names_of(one) for one in descriptions))
        below = {one["name"]: one for description in descriptions for one in description["commands"]}
        while below:  # `gpuwire admin users add` has commands of commands
            name = next((word for word in behind if word in below), None)
            if not name:
                return "" if not options_of(words) else f"{command} needs one of its commands"
            behind = behind[behind.index(name) + 1:]
            options |= names_of(below[name])
            below = {one["name"]: one for one in below[name]["commands"]}
        wrong = [option for option in options_of(words) if option not in options]
        return f"{command} has no {' and no '.join(wrong)}" if wrong else ""


class DocumentedCommands(unittest.TestCase):
    def test_every_command_of_gpuwire_is_one_that_the_program_knows(self):
        gpuwire, wrong, seen = Gpuwire(), [], 0
        for page in pages():
            text = read(page)
            blocks = [command_of(line) for line, _ in lines_of_blocks(text)]
            found = [words for words in blocks if re.match(r"\S*gpuwire( |$)", words)]
            found += [" ".join(words.split()) for words in SHELL.findall(re.sub(r"^```.*?^```$", "", text,
                                                                                 flags=re.M | re.S))]
            seen += len(found)
            wrong += [f"{page}: {words}: {mistake}" for words in found if (mistake := gpuwire.mistakes(words))]
        self.assertGreater(seen, 100)
        self.assertEqual(wrong, [])

    def test_every_script_has_the_options_that_are_documented(self):
        helps, wrong, seen = {}, [], 0
        for page in pages():
            for words in [command_of(line) for line, _ in lines_of_blocks(read(page))]:
                script = words.split(" ")[0]
                if not is_script(script) or script in NOT_RUN:
                    continue
                if script not in helps:
                    helps[script] = subprocess.run([os.path.join(SOURCE, script), "--help"], capture_output=True,
                                                   text=True, check=True, timeout=120).stdout
                seen += 1
                wrong += [f"{page}: {script} has no {option}" for option in options_of(words)
                          if not re.search(rf"(?<![\w-]){option}(?![\w-])", helps[script])]
        self.assertGreater(seen, 10)
        self.assertEqual(wrong, [])

    def test_no_other_command_is_without_a_test_or_a_reason(self):
        unknown = [f"{page}: {line}" for page in pages() if not is_typed(page)
                   for line, is_shell in lines_of_blocks(read(page))
                   if (is_shell or TOOLS.match(line)) and not command_of(line)]
        self.assertEqual(unknown, [])

    def test_each_reason_is_of_a_command_that_is_documented(self):
        documented = [command_of(line) for page in pages() for line, _ in lines_of_blocks(read(page))]
        self.assertEqual([name for name in NOT_RUN if not any(words.startswith(name) for words in documented)], [])

    def test_a_command_with_a_wrong_option_would_be_found(self):
        gpuwire = Gpuwire()
        self.assertEqual(gpuwire.mistakes("gpuwire run --lodger -- program --its own"), "run has no --lodger")
        self.assertEqual(gpuwire.mistakes("gpuwire lodge"), "there is no command lodge")
        self.assertEqual(gpuwire.mistakes("gpuwire run --server HOST -- program --its own"), "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
