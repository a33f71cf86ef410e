"""Unpacks Debian's packages of a CUDA toolkit into a folder of its own. Nothing is installed: apt and dpkg work on
private folders."""

import glob
import os
import subprocess

# Of the development package, which is large, only this: cudart and the headers.
WANTED_OF_DEV = ["./usr/include/*", "./usr/lib/x86_64-linux-gnu/libcudart*", "./usr/lib/x86_64-linux-gnu/libcudadevrt*",
                 "./usr/lib/x86_64-linux-gnu/libculibos*", "./usr/lib/x86_64-linux-gnu/stubs/*"]


class Unavailable(Exception):
    """The packages cannot be had here; the text says why."""


def system_mirror():
    """Where this system's own packages come from."""
    try:
        told = subprocess.run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"],
                              capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as failed:
        raise Unavailable(f"apt-get does not tell where packages come from: {failed}") from failed
    for line in told.splitlines():
        origin, _, uri = line.partition(" ")
        if origin == "Debian" and "security" not in uri:
            return uri
    raise Unavailable("this system takes no packages from a Debian archive; name one with --mirror")


class Toolkit:
    """One unpacked toolkit. `root` holds what the packages would install below /."""

    def __init__(self, description, folder):
        self.version = description["version"]
        self.suite = description["suite"]
        self.packages = description["packages"]
        self.host_compilers = description["host_compilers"]
        self.architecture = description["architecture"]
        self.folder = os.path.join(os.path.abspath(folder), self.version)
        self.root = os.path.join(self.folder, "root")
        self.binaries = os.path.join(self.root, "usr/lib/nvidia-cuda-toolkit/bin")
        self.libraries = os.path.join(self.root, "usr/lib/x86_64-linux-gnu")

    def unpack(self, mirror, say):
        """Does nothing when it has been done before."""
        done = os.path.join(self.folder, "unpacked")
        if os.path.exists(done):
            return
        archives = os.path.join(self.folder, "archives")
        for name in ("lists/partial", "cache/archives/partial", "archives", "root"):
            os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        sources = os.path.join(self.folder, "sources.list")
        with open(sources, "w", encoding="utf-8") as out:
            out.write(f"deb {mirror} {self.suite} main non-free\n")
        apt = [
            "apt-get", "-q", f"-oDir::Etc::sourcelist={sources}", "-oDir::Etc::sourceparts=-",
            f"-oDir::State::Lists={self.folder}/lists", f"-oDir::Cache={self.folder}/cache",
            "-oDir::State::status=/dev/null", "-oAPT::Sandbox::User="
        ]
        say(f"CUDA {self.version}: fetching packages of {self.suite}")
        self._command(apt + ["update"])
        self._command(apt + ["download", *self.packages], cwd=archives)
        say(f"CUDA {self.version}: unpacking")
        for archive in sorted(glob.glob(os.path.join(archives, "*.deb"))):
            wanted = WANTED_OF_DEV if os.path.basename(archive).startswith("nvidia-cuda-dev") else []
            self._extract(archive, wanted)
            os.unlink(archive)
        self._write_profile()
        with open(done, "w", encoding="utf-8") as out:
            out.write("".join(package + "\n" for package in self.packages))

    @staticmethod
    def _command(command, cwd=None):
        try:
            subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as failed:
            last = (getattr(failed, "stderr", "") or str(failed)).strip().splitlines()[-1:]
            raise Unavailable(f"{command[0]} failed: {' '.join(last)}") from failed

    def _extract(self, archive, wanted):
        unpacked = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE)
        tar = subprocess.run(["tar", "-x", "-C", self.root, *(["--wildcards", *wanted] if wanted else [])],
                             stdin=unpacked.stdout, capture_output=True, text=True, check=False)
        unpacked.stdout.close()
        # tar says "not found in archive" of a pattern without a match, which a package of another version may be.
        if unpacked.wait() != 0 or (tar.returncode != 0 and not wanted):
            raise Unavailable(f"{os.path.basename(archive)} could not be unpacked: {tar.stderr.strip()}")

    def _write_profile(self):
        """Debian's names the places where the packages would be installed."""
        profile = os.path.join(self.binaries, "nvcc.profile")
        if os.path.lexists(profile):
            os.unlink(profile)
        with open(profile, "w", encoding="utf-8") as out:
            out.write(f"NVVMIR_LIBRARY_DIR = {self.root}/usr/lib/nvidia-cuda-toolkit/libdevice\n"
                      f"PATH += {self.root}/usr/bin:{self.binaries}:\n"
                      f"INCLUDES += -I{self.root}/usr/include\n"
                      f"LIBRARIES =+ $(_SPACE_) -L{self.libraries}/stubs -L{self.libraries}\n")

    def host_compiler(self):
        for name in self.host_compilers:
            path = os.path.join("/usr/bin", name)
            if os.path.exists(path):
                return path
        raise Unavailable(f"CUDA {self.version} needs one of {', '.join(self.host_compilers)}")

    def nvcc(self):
        return [
            os.path.join(self.binaries, "nvcc"), "-ccbin",
            self.host_compiler(), "-allow-unsupported-compiler", f"-arch={self.architecture}"
        ]

    def environment(self):
        paths = [self.libraries, os.environ.get("LD_LIBRARY_PATH", "")]
        return dict(os.environ, LD_LIBRARY_PATH=":".join(path for path in paths if path))
