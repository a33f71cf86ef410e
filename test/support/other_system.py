"""Runs commands in the root of another Debian release, which is unpacked for the test."""

import os
import subprocess

import debian_packages

RUN_LIMIT_SECONDS = 300  # which only ends a hang
# Only the command sees the mounts, which end with it.
IN_ROOT = """
set -eu
root=$1 build=$2 shared=$3
shift 3
for folder in proc dev sys tmp run opt/gpuwire mnt; do mkdir -p "$root/$folder"; done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
mount --bind "$build" "$root/opt/gpuwire"
mount --bind "$shared" "$root/mnt"
exec chroot "$root" "$@"
"""
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/mnt", "LC_ALL": "C.UTF-8", "TERM": "xterm"}
GPUWIRE = "/opt/gpuwire/bin/gpuwire"  # inside


def why_not():
    """Why no command can have a root of its own here; empty: it can."""
    if os.geteuid() != 0:
        return "a root of its own for a program needs root"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        return "no namespace of mounts can be made here"
    return ""


class System:
    """A suite of Debian (bookworm...), of which some packages are unpacked below a folder of the build tree."""

    def __init__(self, build, suite, packages, components="main", name=None):
        self.build, self.suite, self.components = build, suite, components
        self.packages = packages.split()
        self.folder = os.path.join(build, "systems", name or suite)

    def words(self, shared, *command):
        """The command in the root, with the build tree in /opt/gpuwire and `shared` in /mnt.

        debian_packages.Unavailable: the packages cannot be had."""
        root = debian_packages.unpack(self.folder, self.suite, self.components, self.packages, merged=True)
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", IN_ROOT, "in_root", root, self.build,
                shared, *command]

    def run(self, shared, *command):
        return subprocess.run(self.words(shared, *command), capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                              check=False, env=ENVIRONMENT)
