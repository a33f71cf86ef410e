"""The documents: none is missing from an index, no link leads nowhere, and the messages that troubleshooting.md
explains are those of the sources."""

import os
import re
import unittest

SOURCE = os.environ["GPUWIRE_SOURCE"]
DOCS = os.path.join(SOURCE, "docs")
SOURCES = ("client_stub", "command_line", "protocol", "scheduler", "server")
# Words of the C library, not of ours.
FOREIGN = {"unknown host"}


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
        literals = all_literals()
        # A format's holes are where the message's dots are.
        literals = re.sub(r"\{[^{}]*\}|%[a-z0-9.]*[sdu]", "...", literals)
        messages = [message for message in explained(read("docs", "troubleshooting.md")) if message not in FOREIGN]
        self.assertGreater(len(messages), 50)
        missing = [
            message for message in messages if any(
                part.strip(' ;:,"()') not in literals for part in message.split("..."))
        ]
        self.assertEqual(missing, [])

    def test_a_message_that_is_not_in_the_sources_would_be_found(self):
        self.assertNotIn("this server has no lodger", all_literals())


if __name__ == "__main__":
    unittest.main(verbosity=2)
