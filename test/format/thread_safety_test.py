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


def annotated_folders():
    """By folder: the sources that stand beside a header with annotations."""
    found = {}
    for tree in TREES:
        for folder, _, names in os.walk(os.path.join(ROOT, tree)):
            relative = os.path.relpath(folder, ROOT)
            for name in sorted(names):
                path = os.path.join(relative, name)
                if not name.endswith(".hpp") or path == MACROS:
                    continue
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    annotated = re.search(r"\b(GUARDED_BY|REQUIRES)\(", file.read())
                source = name[: -len(".hpp")] + ".cpp"
                if annotated:
                    found.setdefault(relative, []).append(source if source in names else name)
    return found


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
        texts = {folder: "".join(f'#include "{folder}/{name}"\n' for name in names)
                 for folder, names in folders.items()}
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            said = list(pool.map(lambda text: check(text, self.build, self.cuda), texts.values()))
        self.assertEqual([(folder, text) for folder, text in zip(texts, said) if text], [])

    def test_use_without_the_lock_is_found(self):
        right = "right() { gpuwire::MutexLock lock(mutex_); asked(); lock.unlock(); lock.lock(); ++count_; }"
        self.assertEqual(check(WRONG % right, self.build, self.cuda), "")
        for wrong in ("wrong() { ++count_; }", "wrong() { asked(); }", "wrong() { mutex_.lock(); }",
                      "wrong() { gpuwire::MutexLock lock(mutex_); lock.unlock(); ++count_; }"):
            self.assertIn("thread-safety", check(WRONG % wrong, self.build, self.cuda), wrong)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=ThreadSafety.build, help="the build, for its generated headers")
    parser.add_argument("--cuda", default=ThreadSafety.cuda, help="the folder of cuda.h")
    arguments, rest = parser.parse_known_args()
    ThreadSafety.build, ThreadSafety.cuda = os.path.abspath(arguments.build), arguments.cuda
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
