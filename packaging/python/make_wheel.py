"""Makes the client's wheel of an installed client.

usage: make_wheel.py --client PREFIX --forwarders FOLDER --version 0.1.0 --glibc 2.31 --output FOLDER [--level 0..9]
"""

import argparse
import base64
import hashlib
import os
import stat
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
# Files without a place in a wheel (pages, completions), and files that pip would overwrite in an upgrade (the
# configuration).
LEFT_OUT = ("share", "etc")
# The earliest time of a zip archive, so that the same client gives the same wheel.
TIME = (1980, 1, 1, 0, 0, 0)
METADATA = """Metadata-Version: 2.1
Name: gpuwire-client
Version: {version}
Summary: CUDA programs on machines without a GPU: client
License: Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{description}"""
WHEEL = """Wheel-Version: 1.0
Generator: gpuwire make_wheel.py
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """[console_scripts]
gpuwire = gpuwire.__main__:main
"""


class Wheel:
    def __init__(self, path, level):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level)
        self.record = []

    def add(self, name, content, mode=0o644):
        entry = zipfile.ZipInfo(name, TIME)
        entry.compress_type = zipfile.ZIP_DEFLATED
        # pip restores the permission to execute a file.
        entry.external_attr = (stat.S_IFREG | mode) << 16
        self.archive.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}\n")

    def add_file(self, name, path):
        with open(path, "rb") as file:
            self.add(name, file.read(), 0o755 if os.access(path, os.X_OK) else 0o644)

    def close(self, information):
        """The last file names all others, and itself without a digest."""
        name = f"{information}/RECORD"
        content = "".join(self.record) + f"{name},,\n"
        self.add(name, content.encode())
        self.archive.close()


def files(top):
    """Returns the paths below a folder, relative to it; the caller handles links."""
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), top)


def add_client(wheel, client, forwarders):
    for path in files(client):
        whole, name = os.path.join(client, path), "gpuwire/client/" + path
        if path.split(os.sep)[0] in LEFT_OUT:
            continue
        if not os.path.islink(whole):
            wheel.add_file(name, whole)
        elif path.endswith(".so"):
            wheel.add_file(name, os.path.join(forwarders, os.path.basename(path)))
        elif os.path.dirname(path) != os.path.join("lib", "gpuwire", "commands"):
            raise SystemExit(f"{path} is a link, and nothing stands for it in a wheel")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("client", "forwarders", "version", "glibc", "output"):
        parser.add_argument("--" + option, required=True)
    parser.add_argument("--level", type=int, default=9)
    options = parser.parse_args()
    tag = f"py3-none-manylinux_{options.glibc.replace('.', '_')}_x86_64"
    information = f"gpuwire_client-{options.version}.dist-info"
    os.makedirs(options.output, exist_ok=True)
    wheel = Wheel(os.path.join(options.output, f"gpuwire_client-{options.version}-{tag}.whl"), options.level)
    package = os.path.join(HERE, "gpuwire")
    for path in files(package):
        wheel.add_file("gpuwire/" + path, os.path.join(package, path))
    add_client(wheel, options.client, options.forwarders)
    with open(os.path.join(HERE, "description.md"), encoding="utf-8") as file:
        wheel.add(f"{information}/METADATA",
                  METADATA.format(version=options.version, description=file.read()).encode())
    wheel.add(f"{information}/WHEEL", WHEEL.format(tag=tag).encode())
    wheel.add(f"{information}/entry_points.txt", ENTRY_POINTS.encode())
    wheel.add_file(f"{information}/LICENSE", os.path.join(SOURCE, "LICENSE"))
    wheel.close(information)


if __name__ == "__main__":
    main()
