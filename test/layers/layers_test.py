"""No lower folder includes a higher one, and what runs in one process includes nothing of another: the #include lines
of the tree against a declaration."""

import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INCLUDE = re.compile(r'^\s*#include "([a-z_0-9]+(?:/[a-z_0-9]+)*)/[^"/]+"', re.MULTILINE)

PROCESSES = {"broker", "worker", "keeper", "suspender", "auth", "web", "tool", "client"}
ANY = " ".join(sorted(PROCESSES))

# Lowest first: each folder with the processes that its code runs in. A folder may include itself and those of the lines
# above its own, if they run wherever it runs. A folder stands for its subfolders, but for those that have an entry of
# their own. suspender: gpuwire-suspender; auth: the login process (gpuwire-login); web: the web page (gpuwire-web);
# tool: programs that ask the broker (top, status, admin, metrics); client: the user's program.
ORDER = [{
    "protocol/cuda_abi": ANY, "protocol/digest": ANY, "protocol/fatbin": ANY, "protocol/nvml": ANY,
    "protocol/threads": ANY, "protocol/units": ANY, "protocol/wire": ANY
}, {"protocol/api": ANY, "protocol/transport": ANY}, {
    "protocol/link": ANY, "protocol/tls": ANY, "protocol/transport/ucx": ANY
}, {"protocol/resume": ANY}, {"scheduler": ANY, "client_stub/session": "client",
    "client_stub/account": "client"}, {
    "client_stub/driver/process": "client", "client_stub/launcher": "client", "client_stub/nvidia_smi": "client"
}, {"client_stub/driver/state": "client"}, {
    "client_stub/driver/calls": "client", "client_stub/nvml": "client"
}, {"server/base": ANY}, {
    "server/log": ANY, "server/config": "broker tool", "server/confinement": "broker worker suspender auth web",
    "server/identity": "broker auth tool web", "server/module_cache": "broker worker",
    "server/chunk_store": "broker worker",
    "server/software_device": "worker client",  # a library: tests open it in a program, too
}, {
    "server/ipc": "broker worker keeper suspender auth web", "server/control/client": "broker tool web",
    "server/gate/page": "broker worker keeper", "server/ledger/page": "broker worker",
    "server/driver/library": "worker suspender", "server/driver/trace": "worker", "server/control/usage": "broker tool",
}, {
    "server/control/view": "broker tool web", "server/login": "auth", "server/keeper": "keeper",
    "server/suspender": "suspender",
    "server/broker": "broker", "server/replay": "worker"
}, {
    "server/control": "broker", "server/management": "worker", "server/gate": "worker",
    "server/ledger/worker": "worker", "server/profiler": "worker"
}, {
    "server/gpu_scheduler": "broker", "server/host_guard": "broker", "server/ledger/broker": "broker",
    "server/chunk_store/broker": "broker", "server/budget": "broker",
    "server/driver": "worker"
}, {"server/worker": "worker", "server/metrics": "tool", "server/web": "web"}, {
    "server/cli": "tool", "server/cli/serve": "broker"
}, ]
FOLDERS = {
    folder: (rank, set(processes.split())) for rank, line in enumerate(ORDER) for folder, processes in line.items()
}


def declared(folder):
    """The entry that stands for a folder: its own, or that of the nearest folder above it."""
    while folder:
        if folder in FOLDERS:
            return folder
        folder = os.path.dirname(folder)
    return None


def sources(root):
    for top in ("protocol", "scheduler", "client_stub", "server"):
        for folder, _, files in os.walk(os.path.join(root, top)):
            for name in sorted(files):
                if name.endswith((".hpp", ".cpp", ".h")):
                    yield os.path.relpath(folder, root), os.path.join(folder, name)


def wrong_with(includer, included):
    """Nothing, or why a file of the one entry may not include one of the other."""
    if includer == included:
        return None
    (own_rank, own), (rank, there) = FOLDERS[includer], FOLDERS[included]
    if rank >= own_rank:
        return "is not below it"
    missing = own - there
    if missing:
        return f"does not run in: {' '.join(sorted(missing))}"
    return None


def violations(root):
    for folder, path in sources(root):
        own = declared(folder)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for match in INCLUDE.finditer(text):
            other = declared(match[1])
            wrong = own and other and wrong_with(own, other)
            if wrong:
                yield f"{os.path.relpath(path, root)} includes {match[0].split()[1]}: {other} {wrong}"


# The folders inside one entry, lowest first; "." is the files that lie in the entry's own folder. A folder includes
# those before it.
INSIDE = {
    "client_stub/driver/state": (
        "call handle device session profile context launch warm_start stream memory host_memory managed_memory array "
        "module copy graph composition"
    ),
    "server/replay": (
        ". completion session device handle call host_memory context copy managed_memory stream module memory launch "
        "graph composition"
    ),
    "server/worker": "connection session .",
    "server/software_device": "ptx execution driver",
}
# Includes against that order, and why they stay.
AGAINST = {
    ("client_stub/driver/state", "context", "stream"): "a context holds the state of its NULL stream",
    ("client_stub/driver/state", "copy", "graph"): "work in flight holds the program's memory that launched graphs use",
    ("client_stub/driver/state", "host_memory", "copy"): "a region is made when no copy uses its memory",
    ("client_stub/driver/state", "host_memory", "graph"): "memory of graphs is sent with the changes of regions",
    ("client_stub/driver/state", "launch", "module"): "an answer about occupancy is cached with its function",
    ("client_stub/driver/state", "memory", "copy"): "a freed block is cached unless work in flight may use it",
    ("client_stub/driver/state", "memory", "host_memory"): "the memory at an address may be a region",
    ("server/replay", "context", "copy"): "a context owns the pinned memory that its copies go through",
    ("server/replay", "context", "stream"): "host functions in the streams of a context end with it",
    ("server/replay", "host_memory", "graph"): "memory of graphs is delivered with the changes of regions",
}


def inner_folder(entry, folder):
    """The folder directly inside an entry in which `folder` lies; None: it is not in the entry."""
    if folder == entry:
        return "."
    return folder[len(entry) + 1:].split("/")[0] if folder.startswith(entry + "/") else None


def inner_includes(entry):
    """Includes between two folders inside an entry: the includer's, the included one, and the file with its line."""
    for folder, path in sources(ROOT):
        own = inner_folder(entry, folder)
        if own is None:
            continue
        with open(path, encoding="utf-8") as file:
            for match in INCLUDE.finditer(file.read()):
                other = inner_folder(entry, match[1])
                if other not in (None, own) and os.path.isfile(os.path.join(ROOT, match[0].split('"')[1])):
                    yield own, other, f"{os.path.relpath(path, ROOT)} includes {match[0].split()[1]}"


class Inside(unittest.TestCase):
    def test_every_folder_inside_has_its_place(self):
        for entry, order in INSIDE.items():
            there = {inner_folder(entry, folder) for folder, _ in sources(ROOT)} - {None}
            self.assertEqual(there, set(order.split()), entry)

    def test_folders_inside_include_lower_ones(self):
        wrong, used = [], set()
        for entry, order in INSIDE.items():
            rank = {folder: place for place, folder in enumerate(order.split())}
            for own, other, line in inner_includes(entry):
                if rank[other] < rank[own]:
                    continue
                used.add((entry, own, other))
                if (entry, own, other) not in AGAINST:
                    wrong.append(f"{line}: {other} is not below {own}")
        self.assertEqual(wrong, [])
        self.assertEqual(set(AGAINST) - used, set(), "these exceptions are none any more")


class Layers(unittest.TestCase):
    def test_every_folder_with_code_is_declared(self):
        self.assertEqual({folder for folder, _ in sources(ROOT) if declared(folder) is None}, set())

    def test_every_declared_folder_is_there(self):
        self.assertEqual([folder for folder in FOLDERS if not os.path.isdir(os.path.join(ROOT, folder))], [])

    def test_every_process_is_known(self):
        for folder, (_, processes) in FOLDERS.items():
            self.assertLessEqual(processes, PROCESSES, folder)

    def test_nothing_includes_what_is_above_it_or_of_another_process(self):
        self.assertEqual(list(violations(ROOT)), [])

    def test_both_rules_find_what_they_are_about(self):
        self.assertIsNone(wrong_with("server/worker", "server/ledger/worker"))
        self.assertEqual(wrong_with("server/gate/page", "server/worker"), "is not below it")
        self.assertEqual(wrong_with("server/ledger/broker", "server/ledger/worker"), "does not run in: broker")
        self.assertEqual(wrong_with("server/ledger/worker", "server/ledger/broker"), "is not below it")
        self.assertEqual(wrong_with("client_stub/driver/state", "client_stub/driver/calls"), "is not below it")
        self.assertEqual(wrong_with("client_stub/driver/process", "client_stub/driver/state"), "is not below it")
        self.assertIsNone(wrong_with("client_stub/driver/calls", "client_stub/driver/process"))
        self.assertEqual(declared("client_stub/driver/state/copy"), "client_stub/driver/state")
        self.assertEqual(declared("server/broker/session"), "server/broker")
        self.assertEqual(declared("server/gate/page"), "server/gate/page")


# The generated declarations of the hand-written calls, and the uses of one.
CALLS = re.compile(r'#include "client/custom\.hpp"|\bcustom::cu[A-Z]')


class Calls(unittest.TestCase):
    def test_code_below_the_calls_of_the_stub_makes_no_such_call(self):
        wrong = []
        for folder, path in sources(ROOT):
            if declared(folder) not in ("client_stub/driver/state", "client_stub/driver/process"):
                continue
            with open(path, encoding="utf-8") as file:
                wrong += [f"{os.path.relpath(path, ROOT)}: {use[0]}" for use in CALLS.finditer(file.read())]
        self.assertEqual(wrong, [], "the calls stand above state and process")

    def test_the_look_for_calls_finds_them(self):
        for text in ('#include "client/custom.hpp"', "static_cast<void>(custom::cuCtxSynchronize());"):
            self.assertRegex(text, CALLS)


# A code out of a message, made a CUresult without a look at it.
UNCHECKED_CODE = re.compile(r"CUresult>?\s*[({][^;{}]*\bget(?:Result|Deferred|Status|\w*Errors?)\(\)")


class PeerCodes(unittest.TestCase):
    def test_codes_of_the_server_become_results_in_one_checked_place(self):
        wrong = []
        for folder, path in sources(ROOT):
            if folder.startswith("server"):
                continue
            with open(path, encoding="utf-8") as file:
                found = UNCHECKED_CODE.finditer(file.read())
            wrong += [f"{os.path.relpath(path, ROOT)}: {code[0]}" for code in found]
        self.assertEqual(wrong, [], "cuda_abi::from_peer() is that place")

    def test_the_look_for_unchecked_codes_finds_them(self):
        for text in ("CUresult(reply.getResult())", "static_cast<CUresult>(notice.getStatus())",
                     "CUresult{facts.getAttributeErrors()[0]}"):
            self.assertRegex(text, UNCHECKED_CODE)


if __name__ == "__main__":
    unittest.main()
