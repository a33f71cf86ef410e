"""Unpacks Debian's packages of a CUDA toolkit into a folder of its own. Nothing is installed: apt and dpkg work on
private folders."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import debian_packages  # noqa: E402
from debian_packages import Unavailable, system_mirror  # noqa: E402,F401

# Unpacks only cudart and the headers of the development package, which is large.
WANTED_OF_DEV = ["./usr/include/*", "./usr/lib/x86_64-linux-gnu/libcudart*", "./usr/lib/x86_64-linux-gnu/libcudadevrt*",
                 "./usr/lib/x86_64-linux-gnu/libculibos*", "./usr/lib/x86_64-linux-gnu/stubs/*"]


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
        """Does nothing if the toolkit is already unpacked."""
        if os.path.exists(os.path.join(self.folder, "unpacked")):
            return
        say(f"CUDA {self.version}: fetching and unpacking packages of {self.suite}")
        debian_packages.unpack(self.folder, self.suite, "main non-free", self.packages, mirror,
                               lambda package: WANTED_OF_DEV if package.startswith("nvidia-cuda-dev") else ())
        self._write_profile()

    def _write_profile(self):
        """Debian's configuration names the paths of an installation."""
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
