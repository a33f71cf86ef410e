"""IPython for a test: the interpreter's own, or Debian's packages, unpacked into the build tree."""

import contextlib
import fcntl
import importlib.util
import os
import unittest

import debian_packages
import debian_tools

# IPython and what it imports. It runs without Jedi, which is larger than all of these together.
PACKAGES = ("python3-ipython python3-asttokens python3-backcall python3-decorator python3-executing "
            "python3-matplotlib-inline python3-pexpect python3-pickleshare python3-prompt-toolkit python3-ptyprocess "
            "python3-pure-eval python3-pygments python3-six python3-stack-data python3-traitlets python3-wcwidth")
FOLDER = os.path.join("usr", "lib", "python3", "dist-packages")


def folders(build):
    """Returns the folders to append to sys.path; none if this interpreter has IPython itself.

    Ends the test as left out, with the reason, where neither is there."""
    if importlib.util.find_spec("IPython"):
        return []
    own = os.path.join(build, "systems", "tools", "ipython")
    os.makedirs(own, exist_ok=True)
    with open(os.path.join(own, "lock"), "w", encoding="ascii") as lock, contextlib.ExitStack() as held:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two tests use it
        held.callback(fcntl.flock, lock, fcntl.LOCK_UN)
        try:
            root = debian_packages.unpack(own, debian_tools.codename(), "main", PACKAGES.split(),
                                          wanted_of=lambda package: (f"./{FOLDER}/*",))
        except debian_packages.Unavailable as missing:
            raise unittest.SkipTest(f"IPython is not installed, and its packages cannot be had: {missing}") from missing
    return [os.path.join(root, FOLDER)]
