"""test/ mirrors the tree by path, and the same noun has the same folder in the trees that stand for it."""

import collections
import os
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIRRORED = ("bench", "client_stub", "command_line", "protocol", "scheduler", "server")
SOURCE = (".cpp", ".hpp", ".py")
# One noun, seen by the program, by the server that repeats its calls, and by the device on the CPU.
NOUN_TREES = (
    "client_stub/driver/calls", "client_stub/driver/state", "server/replay", "server/software_device/driver"
)

# A test that is about more than the source whose name it has, with the reason.
ELSEWHERE = {
    "test/client_stub/session/notices_test.cpp": "what the session's thread does with any notice",
    "test/client_stub/session/process_test.cpp": "the process that a session is of",
    "test/protocol/api/description_test.py": "the description against cuda.h",
    "test/protocol/link/lanes_test.cpp": "lanes of a link",
    "test/server/replay/host_memory/host_memory_test.cpp": "the calls of that noun; server/base has the bound",
    "test/server/replay/module/module_test.cpp": "the calls of that noun, whose sources are several",
}


def walk(top):
    for folder, _, files in os.walk(os.path.join(ROOT, top)):
        for name in sorted(files):
            yield os.path.relpath(folder, ROOT), name


def sources_by_stem():
    """For each tree that test/ mirrors and each name: the folders in which there is a source of that name."""
    found = collections.defaultdict(set)
    for top in MIRRORED:
        for folder, name in walk(top):
            stem, suffix = os.path.splitext(name)
            if suffix in SOURCE:
                found[top, stem].add(folder)
    return found


def tests():
    """Each test of a mirrored tree: path, the folder it stands for, tree and name of the source it would be of."""
    for top in MIRRORED:
        for folder, name in walk(os.path.join("test", top)):
            stem, suffix = os.path.splitext(name)
            if suffix in (".cpp", ".py") and stem.endswith("_test"):
                yield os.path.join(folder, name), os.path.relpath(folder, "test"), (top, stem[: -len("_test")])


class Mirror(unittest.TestCase):
    def test_a_test_lies_where_the_source_of_its_name_lies(self):
        sources = sources_by_stem()
        misplaced = [
            f"{path}: its source is in {' and '.join(sorted(sources[source]))}"
            for path, folder, source in tests()
            if sources.get(source) and folder not in sources[source] and path not in ELSEWHERE
        ]
        self.assertEqual(misplaced, [])

    def test_each_exception_is_one(self):
        sources = sources_by_stem()
        there = {path: (folder, source) for path, folder, source in tests()}
        idle = [
            path
            for path in ELSEWHERE
            if path not in there or there[path][0] in sources.get(there[path][1], {there[path][0]})
        ]
        self.assertEqual(idle, [])

    def test_a_name_that_several_trees_share_is_of_one_noun(self):
        nouns = collections.defaultdict(dict)
        for tree in NOUN_TREES:
            for folder, name in walk(tree):
                stem, suffix = os.path.splitext(name)
                noun = os.path.relpath(folder, tree)
                if suffix == ".cpp" and noun != ".":
                    nouns[stem].setdefault(noun, []).append(tree)
        differ = {stem: found for stem, found in nouns.items() if len(found) > 1}
        self.assertEqual(differ, {})


if __name__ == "__main__":
    unittest.main()
