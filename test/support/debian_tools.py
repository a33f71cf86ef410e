"""Programs of this system's Debian for a test: where they are installed, or unpacked into the build tree.

Nothing is installed. What is unpacked knows its own files by the paths of an installation, so each user says where
they are instead."""

import os
import shutil
import unittest

import debian_packages

FOLDERS = ("usr/bin", "bin", "usr/sbin", "sbin")


class Tool:
    """A program. `root`: where its files are; `program`: its path; `environment`: what it needs, too."""

    def __init__(self, root, program):
        self.root, self.program = root, program
        libraries = os.path.join(root, "usr", "lib", "x86_64-linux-gnu")
        self.environment = {} if root == "/" else {"LD_LIBRARY_PATH": libraries}

    def path(self, *parts):
        return os.path.join(self.root, *parts)


def codename():
    try:
        with open("/etc/os-release", encoding="utf-8") as file:
            facts = dict(line.strip().split("=", 1) for line in file if "=" in line)
    except OSError:
        facts = {}
    if facts.get("ID") != "debian" or "VERSION_CODENAME" not in facts:
        raise debian_packages.Unavailable("this system is not Debian")
    return facts["VERSION_CODENAME"]


def tool(build, name, packages, wanted=()):
    """A program by its name, from the packages if it is not installed. `wanted`: patterns of what is needed of them.

    Ends the test as left out, with the reason, where neither is there."""
    installed = shutil.which(name)
    if installed:
        return Tool("/", installed)
    try:
        suite = codename()
        root = debian_packages.unpack(os.path.join(build, "systems", "tools", name), suite, "main", packages.split(),
                                      wanted_of=lambda package: wanted)
    except debian_packages.Unavailable as missing:
        raise unittest.SkipTest(f"{name} is not installed, and its package cannot be had: {missing}") from missing
    for folder in FOLDERS:
        program = os.path.join(root, folder, name)
        if os.path.exists(program):
            return Tool(root, program)
    raise unittest.SkipTest(f"{name} is not installed, and {suite} has it elsewhere")
