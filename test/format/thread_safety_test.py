"""What `GUARDED_BY` and `REQUIRES` say of locks (protocol/threads/mutex.hpp) holds, as clang's analysis sees it: in
each source beside a header that says it, a guarded member is used with its lock held only. One call of clang for a
folder reads the folder's sources together, as the build does. Skipped where clang is not installed."""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MACROS = os.path.join("protocol", "threads", "mutex.hpp")
TREES = ("protocol", "client_stub", "scheduler", "server")
CLANG = next((found for found in map(shutil.which, ("clang++", "clang++-14")) if found), None)
JOBS = 2
# Folders that one call reads together: most of a call's time goes into the same headers.
TOGETHER = ("client_stub/driver/state", "client_stub/driver/calls", "server/replay", "server/software_device/driver")
LOCKED = (*TREES, "bench", "command_line")
COMMENTS = "comments state what it guards"
# Files with locks that no annotation names, and why.
WITHOUT_ANNOTATIONS = {
    "bench/slow_way.hpp": "a relay of benchmarks, not of the product",
    "client_stub/driver/state/composition/lifecycle.cpp": "fork and tests change the guarded variables without it",
    "client_stub/driver/state/module/module_state.hpp": "functions take it by other objects that refer to the module",
    "client_stub/nvml/connection.cpp": "calls run in a lambda that maps exceptions",
    "client_stub/session/connected_session.hpp": COMMENTS,
    "client_stub/session/lane_opener.hpp": "guards no member but the start of the thread",
    "client_stub/session/rdma_library.cpp": COMMENTS,
    "client_stub/session/transfer_progress.hpp": "functions get a part of what it guards as an argument",
    "protocol/cuda_abi/context_local_storage.hpp": "protocol/threads is not below it",
    "protocol/link/link.hpp": "two locks guard a member together, and callers hold one over a frame",
    "protocol/tls/channel.hpp": COMMENTS,
    "protocol/tls/openssl.cpp": "it is held over fork()",
    "protocol/transport/rdma.cpp": COMMENTS,
    "protocol/transport/rdma_library.cpp": "guards a call of dlopen() and no variable",
    "protocol/transport/shared_memory.cpp": COMMENTS,
    "protocol/transport/simulated.cpp": COMMENTS,
    "server/software_device/driver/call/driver_state.cpp": COMMENTS,
    "server/software_device/driver/call/driver_state.hpp": COMMENTS,
    "server/software_device/driver/call/refusal.cpp": COMMENTS,
    "server/software_device/driver/context/context_object.hpp": "it guards members of streams, too",
    "server/software_device/driver/graph/graph_condition.cpp": COMMENTS,
    "server/software_device/driver/graph/graph_memory.cpp": COMMENTS,
    "server/software_device/driver/memory/allocation.cpp": COMMENTS,
    "server/software_device/driver/memory/pool_object.hpp": COMMENTS,
    "server/software_device/driver/module/program_image.cpp": COMMENTS,
    "server/software_device/driver/stream/stream_object.hpp": "the lock of all graphs guards members beside it",
    "server/software_device/execution/engine.cpp": COMMENTS,
    "server/software_device/execution/running_launch.hpp": COMMENTS,
    "server/worker/connection/out_of_order_reader.hpp": "clang 14 cannot compile its vector of capnp::word",
}
LIMIT_S = 900

WRONG = """
#include "protocol/threads/mutex.hpp"
struct Counter {
  gpuwire::Mutex mutex_;
  int count_ GUARDED_BY(mutex_) = 0;
  void locked() { gpuwire::MutexLock lock(mutex_); ++count_; }
  void asked() REQUIRES(mutex_) { ++count_; }
  void %s
};
"""


def files_of(trees, endings):
    """Folder and name of each file with one of these endings, in order."""
    for tree in trees:
        for folder, _, names in os.walk(os.path.join(ROOT, tree)):
            for name in sorted(names):
                if name.endswith(endings):
                    yield os.path.relpath(folder, ROOT), name


def text_of(folder, name):
    with open(os.path.join(ROOT, folder, name), encoding="utf-8") as file:
        return file.read()


def annotated_folders():
    """By call of clang: the sources with annotations or locks, and those beside a header with annotations."""
    found = {}
    for folder, name in files_of(TREES, (".hpp", ".cpp")):
        annotated = re.search(r"\b((GUARDED_BY|REQUIRES)\(|MutexLock \w)", text_of(folder, name))
        if os.path.join(folder, name) == MACROS or not annotated:
            continue
        source = re.sub(r"\.hpp$", ".cpp", name)
        read = os.path.join(folder, source if os.path.exists(os.path.join(ROOT, folder, source)) else name)
        found.setdefault(next((tree for tree in TOGETHER if folder.startswith(tree + "/")), folder), set()).add(read)
    return {folder: sorted(names) for folder, names in sorted(found.items())}


def plain_locks(text):
    """The lock variables and members of a text that no annotation can name."""
    return re.findall(r"^[ \w]*\bstd::(?:shared_|recursive_|timed_)?mutex (\w+)[^()\n]*;", text, re.MULTILINE)


def check(text, build, cuda):
    """What clang says of this text; empty: nothing is wrong."""
    command = [CLANG, "-std=c++20", "-fsyntax-only", "-x", "c++", "-Wno-everything", "-Wthread-safety",
               "-Werror=thread-safety", "-I", ROOT, "-I", os.path.join(build, "generated"), "-isystem", cuda, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT_S)
    return "" if done.returncode == 0 else done.stderr


@unittest.skipUnless(CLANG, "clang is not installed")
class ThreadSafety(unittest.TestCase):
    build = os.path.join(ROOT, "build")
    cuda = "/usr/local/cuda/include"

    def test_a_guarded_member_is_used_with_its_lock_held_only(self):
        folders = annotated_folders()
        self.assertNotEqual(folders, {})
        texts = {folder: "".join(f'#include "{name}"\n' for name in names) for folder, names in folders.items()}
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            said = list(pool.map(lambda text: check(text, self.build, self.cuda), texts.values()))
        self.assertEqual([(folder, text) for folder, text in zip(texts, said) if text], [])

    def test_a_lock_is_a_mutex_that_annotations_can_name(self):
        self.assertEqual(plain_locks("  mutable std::mutex mutex_;  // a leaf\n  std::mutex one_, other_;\n"
                                     "  void wait(std::unique_lock<std::mutex>& lock);\n"), ["mutex_", "one_"])
        found = {os.path.join(folder, name) for folder, name in files_of(LOCKED, (".hpp", ".cpp"))
                 if plain_locks(text_of(folder, name))} - {MACROS}
        self.assertEqual(sorted(found - set(WITHOUT_ANNOTATIONS)), [], "use Mutex and GUARDED_BY (" + MACROS + ")")
        self.assertEqual(sorted(set(WITHOUT_ANNOTATIONS) - found), [], "these exceptions are none any more")

    def test_use_without_the_lock_is_found(self):
        right = "right() { gpuwire::MutexLock lock(mutex_); asked(); lock.unlock(); lock.lock(); ++count_; }"
        self.assertEqual(check(WRONG % right, self.build, self.cuda), "")
        for wrong in ("wrong() { ++count_; }", "wrong() { asked(); }", "wrong() { mutex_.lock(); }",
                      "wrong() { gpuwire::MutexLock lock(mutex_); lock.unlock(); ++count_; }"):
            self.assertIn("thread-safety", check(WRONG % wrong, self.build, self.cuda), wrong)


class Conditions(unittest.TestCase):
    def test_the_product_waits_with_its_own_condition_variable(self):
        found = [os.path.join(folder, name) for folder, name in files_of(TREES, (".hpp", ".cpp"))
                 if re.search(r"std::condition_variable \w|<condition_variable>", text_of(folder, name))]
        self.assertEqual(found, [], "protocol/threads/condition.hpp says why")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=ThreadSafety.build, help="the build, for its generated headers")
    parser.add_argument("--cuda", default=ThreadSafety.cuda, help="the folder of cuda.h")
    arguments, rest = parser.parse_known_args()
    ThreadSafety.build, ThreadSafety.cuda = os.path.abspath(arguments.build), arguments.cuda
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
