"""No lower folder includes a higher one: the #include lines of the tree against the declared order of its folders."""

import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INCLUDE = re.compile(r'^\s*#include "([a-z_0-9]+(?:/[a-z_0-9]+)*)/[^"/]+"', re.MULTILINE)

# Lowest first. A folder may include those above it in this list, and itself; those of one line nothing of each other.
ORDER = [
    ["protocol"],
    ["scheduler", "client_stub"],
    ["server/base"],
    ["server/log", "server/config", "server/identity", "server/confinement", "server/module_cache", "server/software_device"],
    ["server/login"],
    ["server/replay"],
    ["server/management"],
    ["server/broker"],
    ["server/control", "server/gate", "server/host_guard"],
    ["server/gpu_scheduler", "server/keeper", "server/ledger"],
    ["server/worker", "server/metrics"],
    ["server/cli"],
]
# What does not keep to it yet, and from which file. To be taken away, not added to.
EXCEPTIONS = {
    ("server/login", "server/broker"): "ipc_message.hpp",
    ("server/broker", "server/worker"): "end_cause.hpp",
    ("server/control", "server/worker"): "end_cause.hpp",
    ("server/gate", "server/worker"): "link_counters.hpp",
    ("server/management", "server/worker"): "driver_library.hpp",
    ("server/metrics", "server/cli"): "listen_address.hpp",
}


def rank_of(folder):
    for rank, folders in enumerate(ORDER):
        for known in folders:
            if folder == known or folder.startswith(known + "/"):
                return rank, known
    return None


def sources():
    for top in ("protocol", "scheduler", "client_stub", "server"):
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            for name in files:
                if name.endswith((".hpp", ".cpp", ".h")):
                    yield os.path.relpath(folder, ROOT), os.path.join(folder, name)


def violations():
    for folder, path in sources():
        me = rank_of(folder)
        if me is None:
            continue
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for match in INCLUDE.finditer(text):
            other = rank_of(match[1])
            if other is None or other[1] == me[1] or other[0] < me[0]:
                continue
            yield (me[1], other[1]), match[0].rsplit("/", 1)[1].rstrip('"'), os.path.relpath(path, ROOT)


class Layers(unittest.TestCase):
    def test_every_folder_of_the_server_has_its_place_in_the_order(self):
        folders = {f"server/{name}" for name in os.listdir(os.path.join(ROOT, "server")) if os.path.isdir(os.path.join(ROOT, "server", name))}
        self.assertEqual(folders - {folder for line in ORDER for folder in line}, set())

    def test_no_lower_folder_includes_a_higher_one(self):
        wrong = [f"{path} includes {edge[1]}/{header}" for edge, header, path in violations() if EXCEPTIONS.get(edge) != header]
        self.assertEqual(wrong, [])

    def test_an_exception_that_is_not_needed_any_more_is_taken_away(self):
        needed = {edge for edge, _, _ in violations()}
        self.assertEqual(set(EXCEPTIONS) - needed, set())


# A code out of a message, made a CUresult without a look at it.
UNCHECKED_CODE = re.compile(r"CUresult>?\s*[({][^;{}]*\bget(?:Result|Deferred|Status|\w*Errors?)\(\)")


class PeerCodes(unittest.TestCase):
    def test_codes_of_the_server_become_results_in_one_checked_place(self):
        wrong = []
        for folder, path in sources():
            if folder.startswith("server"):
                continue
            with open(path, encoding="utf-8") as file:
                wrong += [f"{os.path.relpath(path, ROOT)}: {found[0]}" for found in UNCHECKED_CODE.finditer(file.read())]
        self.assertEqual(wrong, [], "cuda_abi::from_peer() is that place")

    def test_the_look_for_unchecked_codes_finds_them(self):
        for text in ("CUresult(reply.getResult())", "static_cast<CUresult>(notice.getStatus())", "CUresult{facts.getAttributeErrors()[0]}"):
            self.assertRegex(text, UNCHECKED_CODE)


if __name__ == "__main__":
    unittest.main()
