"""Unpacks Debian's packages into a private folder. Nothing is installed: apt and dpkg work on private folders."""

import glob
import os
import subprocess

FETCH_LIMIT_SECONDS = 1200  # which only ends a hanging fetch
MERGED_FOLDERS = ("bin", "sbin", "lib", "lib64")  # links into /usr, as every Debian from 12 on has them


class Unavailable(Exception):
    """Raised if the packages are not available on this machine; the text has the reason."""


def command(words, cwd=None):
    """Runs apt or dpkg; raises Unavailable, with its first error, if that fails."""
    # A test inside a sanitizer preloads its runtime, with which gpgv deadlocks.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        return subprocess.run(words, cwd=cwd, check=True, capture_output=True, text=True, env=environment,
                              timeout=FETCH_LIMIT_SECONDS).stdout
    except (OSError, subprocess.SubprocessError) as failed:
        said = getattr(failed, "stderr", "") or str(failed)
        lines = (said if isinstance(said, str) else said.decode(errors="replace")).strip().splitlines()
        why = [line for line in lines if line.startswith("E:")][:1] or lines[-1:]
        raise Unavailable(f"{words[0]} failed: {' '.join(why)}") from failed


def system_mirror():
    """Returns the sources of this system's own packages."""
    told = command(["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"])
    for line in told.splitlines():
        origin, _, uri = line.partition(" ")
        if origin == "Debian" and "security" not in uri:
            return uri
    raise Unavailable("this system takes no packages from a Debian archive")


def extract(archive, root, wanted=()):
    """Unpacks the files that a package would install below /, or those that match the patterns."""
    unpacked = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE)
    tar = subprocess.run(
        ["tar", "-x", "--keep-directory-symlink", "-C", root, *(["--wildcards", *wanted] if wanted else [])],
        stdin=unpacked.stdout, capture_output=True, text=True, check=False)
    unpacked.stdout.close()
    # tar reports "not found in archive" for a pattern without a match, which is normal for a package of another
    # version.
    if unpacked.wait() != 0 or (tar.returncode != 0 and not wanted):
        raise Unavailable(f"{os.path.basename(archive)} could not be unpacked: {tar.stderr.strip()}")


def unpack(folder, suite, components, packages, mirror=None, wanted_of=lambda package: (), merged=False):
    """The folder that holds what packages of a suite (bookworm...) would install below /; made once for each folder.

    wanted_of: patterns of what is wanted of a package, by its file's name; merged: with links into /usr, for a root.
    """
    root, done = os.path.join(folder, "root"), os.path.join(folder, "unpacked")
    wanted = "".join(package + "\n" for package in packages)
    if os.path.exists(done):
        with open(done, encoding="utf-8") as file:
            if file.read() == wanted:
                return root
    archives = os.path.join(folder, "archives")
    for name in ("lists/partial", "cache/archives/partial", "archives", "root"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    for name in MERGED_FOLDERS if merged else ():
        os.makedirs(os.path.join(root, "usr", name), exist_ok=True)
        if not os.path.lexists(os.path.join(root, name)):
            os.symlink(os.path.join("usr", name), os.path.join(root, name))
    sources = os.path.join(folder, "sources.list")
    with open(sources, "w", encoding="utf-8") as out:
        out.write(f"deb {mirror or system_mirror()} {suite} {components}\n")
    apt = [
        "apt-get", "-q", f"-oDir::Etc::sourcelist={sources}", "-oDir::Etc::sourceparts=-",
        f"-oDir::State::Lists={folder}/lists", f"-oDir::Cache={folder}/cache", "-oDir::State::status=/dev/null",
        "-oAPT::Sandbox::User=", "-oAcquire::Retries=0", "-oAcquire::Languages=none"
    ]
    # An unreachable mirror would only cause a warning, and each package would be unknown.
    command(apt + ["update", "-oAPT::Update::Error-Mode=any"])
    command(apt + ["download", *packages], cwd=archives)
    for archive in sorted(glob.glob(os.path.join(archives, "*.deb"))):
        extract(archive, root, wanted_of(os.path.basename(archive)))
        os.unlink(archive)
    with open(done, "w", encoding="utf-8") as out:
        out.write(wanted)
    return root
