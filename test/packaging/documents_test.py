"""The documents: none is missing from an index, no link leads nowhere, and the messages that troubleshooting.md
explains are those of the sources."""

import json
import os
import re
import subprocess
import sys
import unittest

SOURCE = os.environ["GPUWIRE_SOURCE"]
DOCS = os.path.join(SOURCE, "docs")
SOURCES = ("client_stub", "command_line", "protocol", "scheduler", "server")
# Words of the C library, not of ours.
FOREIGN = {"unknown host"}
# Where what a user is told is said: a line of the client's, a connection or login that fails, a refusal of the server.
SAYING = re.compile(r"\b(?:say|not_ready|refuse|refuse_all|refused|end|close)\(|RefusalCode::\w+,\s*\"\w+\",")
SAYING_SOURCES = ("client_stub", "server/broker", "server/login", "server/identity", "protocol/resume")
# Those that no user needs a mend for, and why.
UNEXPLAINED = {
    # Inside of another line, which is explained.
    "it offers none", "no key for the session:", "out of memory", "the client spoke before it was answered",
    # In the server's log and audit log, of connections that are no program's: a scan, a peer that is not gpuwire.
    "... bytes of a preface within ... ms",
    # Of whoever tries to take a session over without its keys.
    "the session is not this client's",
    # A program that waits in more threads than any would, and a question whose answer has no room.
    "... programs wait already", "the answer is too long",
}
# Variables that are not the user's: between the server's own processes, and between Slurm's plugin and its scripts.
OWN_VARIABLES = {
    "GPUWIRE_SOFTWARE_DEVICES", "GPUWIRE_SOFTWARE_MEMORY_BYTES", "GPUWIRE_SOFTWARE_DRIVER_VERSION", "GPUWIRE_MEM",
    "GPUWIRE_CLASS", "GPUWIRE_SLURM_JOB"
}


def read(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


def pages(folder):
    return sorted(name for name in os.listdir(os.path.join(SOURCE, folder))
                  if name.endswith(".md") and name != "README.md")


def links(text):
    return re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)


def all_literals():
    """Every string of the sources, with pieces that the compiler joins as one."""
    found = []
    for top in SOURCES:
        for folder, _, names in os.walk(os.path.join(SOURCE, top)):
            for name in names:
                if name.endswith((".cpp", ".hpp", ".py", ".inc")):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        text = re.sub(r'"\s*\n\s*"', "", file.read())
                    found.append("\n".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)).replace('\\"', '"'))
    return "\n".join(found)


def sources(folders, endings):
    for top in folders:
        for folder, _, names in os.walk(os.path.join(SOURCE, top)):
            for name in names:
                if name.endswith(endings):
                    yield read(folder, name)


def literals(text):
    return [one.replace('\\"', '"') for one in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)]


def with_dots(text):
    """A format's holes are where the message's dots are."""
    return re.sub(r"\{[^{}]*\}|%[a-z0-9.*]*[sdu]", "...", text)


def said(text):
    """The sentences among the arguments of what says something (SAYING)."""
    text = re.sub(r'"\s*\n\s*"', "", re.sub(r"//[^\n]*", "", text))
    for found in SAYING.finditer(text):
        depth, end, quoted = 1, found.end(), False
        while end < len(text) and depth:
            if quoted:
                end += text[end] == "\\"
                quoted = text[end] != '"'
            else:
                quoted = text[end] == '"'
                depth += (text[end] in "({") - (text[end] in ")}")
            end += 1
        yield from (with_dots(one) for one in literals(text[found.end():end]) if one.count(" ") >= 2)


def parts_of(message):
    return [part.strip(' ;:,"()') for part in message.split("...")]


def is_explained(sentence, messages):
    """A sentence may be a part of a message, as when a name stands between two of them."""
    if sentence.strip() in UNEXPLAINED:
        return True
    return any(
        all(part in sentence for part in parts_of(message)) or all(part in message for part in parts_of(sentence))
        for message in messages)


def explained(text):
    """The messages in the first column of the tables."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield from re.findall(r"`([^`]+)`", re.split(r"(?<!\\)\|", line)[1])


class Documents(unittest.TestCase):
    def test_the_indexes_list_every_page(self):
        for index, folder in (("README.md", "docs"), ("docs/README.md", "docs"), ("docs/recipes/README.md",
                                                                                  "docs/recipes")):
            listed = {os.path.normpath(os.path.join(os.path.dirname(index), link)) for link in links(read(index))}
            missing = [page for page in pages(folder) if os.path.join(folder, page) not in listed]
            self.assertEqual(missing, [], f"pages that {index} does not list")
        self.assertIn("recipes/README.md", links(read("docs/README.md")))

    def test_no_link_leads_nowhere(self):
        for folder in (".", "docs", "docs/recipes", "packaging", "cmake/old_glibc", "packaging/manual"):
            for page in os.listdir(os.path.join(SOURCE, folder)):
                if not page.endswith(".md"):
                    continue
                dead = [
                    link for link in links(read(folder, page)) if not os.path.exists(os.path.join(SOURCE, folder, link))
                ]
                self.assertEqual(dead, [], os.path.join(folder, page))

    def test_every_message_that_is_explained_is_in_the_sources(self):
        texts = with_dots(all_literals())
        messages = [message for message in explained(read("docs", "troubleshooting.md")) if message not in FOREIGN]
        self.assertGreater(len(messages), 50)
        missing = [
            message for message in messages if any(part not in texts for part in parts_of(message))
        ]
        self.assertEqual(missing, [])

    def test_every_message_that_a_user_is_told_is_explained(self):
        # Words that stand alone would be found in anything.
        messages = [
            message for message in explained(read("docs", "troubleshooting.md"))
            if max(map(len, parts_of(message))) >= 10
        ]
        sentences = {one for text in sources(SAYING_SOURCES, (".cpp", ".hpp")) for one in said(text)}
        self.assertGreater(len(sentences), 50)
        self.assertEqual(sorted(one for one in sentences if not is_explained(one, messages)), [])
        self.assertEqual({one for one in UNEXPLAINED if one not in {each.strip() for each in sentences}}, set())

    def test_a_message_without_a_line_would_be_found(self):
        found, = said('if (lost) say(fmt::format("the server has no "\n    "lodger {}", name()));')
        self.assertEqual(found, "the server has no lodger ...")
        self.assertFalse(is_explained(found, list(explained(read("docs", "troubleshooting.md")))))

    def test_every_variable_that_is_read_is_in_the_list(self):
        listed = set(re.findall(r"`(GPUWIRE_\w+)`", read("docs", "cli.md")))
        named = {
            name
            for text in sources(SOURCES, (".cpp", ".hpp", ".c"))
            for name in re.findall(r'"(GPUWIRE_[A-Z_]+)"', text)
        }
        self.assertGreater(len(named), 15)
        self.assertEqual(named - listed - OWN_VARIABLES, set())
        self.assertEqual(listed - named, set())

    def test_a_message_that_is_not_in_the_sources_would_be_found(self):
        self.assertNotIn("this server has no lodger", all_literals())


class Pictures(unittest.TestCase):
    def test_the_picture_of_the_dashboard_is_what_the_script_makes_of_it(self):
        made = subprocess.run([sys.executable, os.path.join(SOURCE, "packaging", "monitoring", "draw_dashboard.py")],
                              check=True, capture_output=True, text=True, timeout=120).stdout
        self.assertTrue(made == read("docs", "monitoring_dashboard.svg"),
                        "make it anew: packaging/monitoring/draw_dashboard.py > docs/monitoring_dashboard.svg")
        for panel in json.loads(read("packaging", "monitoring", "grafana_dashboard.json"))["panels"]:
            self.assertIn(f">{panel['title'].replace('&', '&amp;')}</text>", made)


if __name__ == "__main__":
    unittest.main(verbosity=2)
