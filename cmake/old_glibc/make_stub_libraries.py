"""Makes shared libraries to link against that offer what an old glibc offered, out of the symbol versions of the one
that is installed.

A C library keeps every interface that it ever had, each under the version it came with, and a linker takes the newest.
These libraries have no code; of
each symbol they have only the newest version that is not newer than asked for, so that a program linked against them
runs with that glibc and all later
ones. What the old one lacks is an undefined symbol at link time, and compat.c has it.

usage: make_stub_libraries.py --version 2.31 --compiler CC --output FOLDER
"""

import argparse
import collections
import os
import re
import subprocess

LIBC = "libc.so.6"
LOADER = "ld-linux-x86-64.so.2"
LIBRARIES = (LIBC, "libm.so.6", LOADER)
# Parts of libc.so.6 today; programs for an old glibc have to name them. What is in them is looked up by its name and
# version, wherever it is.
FORMER_LIBRARIES = ("libpthread.so.0", "libdl.so.2")
VERSION = re.compile(r"GLIBC_(\d+(?:\.\d+)+)$")
# Of `readelf --dyn-syms --wide`: number, value, size, type, binding, visibility, section, name@version.
SYMBOL = re.compile(
    r"^\s*\d+:\s+([0-9a-f]+)\s+(\S+)\s+(FUNC|IFUNC|OBJECT)\s+(GLOBAL|WEAK)\s+DEFAULT\s+\d+\s+([^@\s]+)@{1,2}(\S+)")
Symbol = collections.namedtuple("Symbol", "version address bytes is_data is_weak")

VARIABLE_ALIGNMENT = 32


def number(version):
    return tuple(int(part) for part in version.split("."))


def path_of(compiler, library):
    path = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True,
                          check=True).stdout.strip()
    if not os.path.isabs(path):
        raise SystemExit(f"{compiler} does not know where {library} is")
    return path


def symbols(path, newest):
    """Of each symbol of a library its newest version up to `newest`, by name."""
    listing = subprocess.run(["readelf", "--dyn-syms", "--wide", path], capture_output=True, text=True,
                             check=True).stdout
    found = {}
    for line in listing.splitlines():
        match = SYMBOL.match(line)
        version = match and VERSION.match(match[6])
        if not version or number(version[1]) > number(newest):
            continue
        name = match[5]
        if name not in found or number(version[1]) > number(found[name].version):
            found[name] = Symbol(version[1], int(match[1], 16), int(match[2], 0), match[3] == "OBJECT",
                                 match[4] == "WEAK")
    return found


def label(name, symbol):
    kind = "object" if symbol.is_data else "function"
    return [
        f"{'.weak' if symbol.is_weak else '.globl'} {name}", f".type {name}, @{kind}", f".size {name}, {symbol.bytes}",
        f"{name}:"
    ]


def assembly(found):
    lines = [".text"]
    for name, symbol in sorted(found.items()):
        if not symbol.is_data:
            lines += label(name, symbol) + [".skip 1"]
    # Names of one variable stay names of one: a program that has a copy of it has it under all of them.
    variables = collections.defaultdict(list)
    for name, symbol in sorted(found.items()):
        if symbol.is_data:
            variables[symbol.address].append(name)
    lines.append(".bss")
    for _, names in sorted(variables.items()):
        lines.append(f".balign {VARIABLE_ALIGNMENT}")
        for name in names:
            lines += label(name, found[name])
        lines.append(f".skip {max(1, *(found[name].bytes for name in names))}")
    return "\n".join(lines + ['.section .note.GNU-stack, "", @progbits', ""])


def version_script(found):
    by_version = collections.defaultdict(list)
    for name, symbol in sorted(found.items()):
        by_version[symbol.version].append(name)
    return "".join("GLIBC_%s { global: %s };\n" % (version, "; ".join(names) + ";")
                   for version, names in sorted(by_version.items(), key=lambda item: number(item[0])))


def make(compiler, soname, found, output):
    """Writes the library for one soname; returns its path."""
    base = os.path.join(output, soname.split(".so")[0])
    with open(base + ".s", "w", encoding="ascii") as file:
        file.write(assembly(found))
    arguments = [compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-o", base + ".so", base + ".s"]
    if found:
        with open(base + ".map", "w", encoding="ascii") as file:
            file.write(version_script(found))
        arguments += [f"-Wl,--version-script={base}.map"]
    subprocess.run(arguments, check=True)
    return base + ".so"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    os.makedirs(options.output, exist_ok=True)
    made = {
        library: make(options.compiler, library, symbols(path_of(options.compiler, library), options.version),
                      options.output) for library in LIBRARIES
    }
    for library in FORMER_LIBRARIES:
        make(options.compiler, library, {}, options.output)
    # As the installed libc.so does: what every program has a copy of, and the loader for those that need it. Paths are
    # quoted: a tree's may have a space.
    script = made[LIBC]
    os.rename(script, script.replace(".so", "_stub.so"))
    with open(script, "w", encoding="ascii") as file:
        file.write('GROUP ( "%s" "%s" AS_NEEDED ( "%s" ) )\n' %
                   (script.replace(".so", "_stub.so"), path_of(options.compiler, "libc_nonshared.a"), made[LOADER]))


if __name__ == "__main__":
    main()
