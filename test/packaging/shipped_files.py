"""Determines the glibc version and the libraries that the files of an installed tree need."""

import os
import re
import subprocess

# The libraries of every system with glibc: its own parts.
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
# Only for the plug-in for RDMA, which is loaded if a session uses RDMA (docs/rdma.md).
UCX = {"libucp.so.0", "libucs.so.0"}
RDMA = "libgpuwire_rdma.so"
LIMIT_SECONDS = 120


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True,
                          env={**os.environ, "LC_ALL": "C"}).stdout


def binaries(root):
    """Returns every program and library below a folder; does not follow links."""
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                continue
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def number(version):
    return tuple(int(part) for part in version.split("."))


def too_new(symbols, promised):
    """Returns the undefined symbols of a later version than documented, from the output of objdump -T."""
    found = re.findall(r"\*UND\*\s+\S+\s+\(?GLIBC_([\d.]+)\)?\s+(\S+)", symbols)
    return [f"{name} (glibc {version})" for version, name in found if number(version) > number(promised)]


def needed(path):
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", path)))


def faults(root, promised):
    """Returns the missing symbols and libraries of the files below `root` on a system with only the documented glibc,
    one line each."""
    found, shipped = [], {name for _, _, names in os.walk(root) for name in names}
    for path in binaries(root):
        name = os.path.relpath(path, root)
        libraries = needed(path)
        if not libraries:  # static, as the front door is: objdump has nothing to list
            continue
        found += [f"{name}: {symbol}" for symbol in too_new(output("objdump", "-T", path), promised)]
        foreign = libraries - LIBRARIES - shipped - (UCX if os.path.basename(path) == RDMA else set())
        found += [f"{name}: needs {library}" for library in sorted(foreign)]
    return found
