"""Programs that Debian packages and that use a GPU, PyCUDA and nvtop, run as they are installed.

Their packages are unpacked into a private root (80 MB are fetched once). Left out, with the reason, where the packages
or such a root cannot be had."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import debian_packages  # noqa: E402
from gpuwire_server import Server  # noqa: E402
from other_system import ENVIRONMENT, GPUWIRE, RUN_LIMIT_SECONDS, System, why_not  # noqa: E402

BUILD = os.environ["GPUWIRE_BUILD"]
DEBIAN_12 = System(
    BUILD, "bookworm", "libc6 libgcc-s1 libcrypt1 zlib1g libexpat1 libbz2-1.0 liblzma5 libstdc++6 libffi8 libssl3"
    " python3.11-minimal libpython3.11-minimal libpython3.11-stdlib python3-pkg-resources python3-numpy libblas3"
    " liblapack3 libgfortran5 libquadmath0 python3-pycuda python3-pytools python3-mako python3-markupsafe"
    " python3-appdirs python3-platformdirs python3-decorator python3-six python3-typing-extensions"
    " libboost-python1.74.0 libboost-thread1.74.0 libcurand10"
    " nvtop libncursesw6 libtinfo6 ncurses-base libsystemd0 libgcrypt20 libgpg-error0 liblz4-1 libzstd1 libcap2",
    "main contrib non-free", "bookworm_programs")
# An installation would choose these by Debian's alternatives.
ALTERNATIVES = "/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack"
ESCAPES = re.compile(rb"\x1b(\[[0-9;?]*[A-Za-z]|\([A-Z0-9]|[=>])")
SIZE = (50, 160)


@unittest.skipIf(why_not(), why_not())
class DebianPrograms(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="gpuwire-programs-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        shutil.copy(os.path.join(HERE, "pycuda_program.py"), cls.folder)
        cls.server = Server(BUILD, ["--device", "software"])
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.stop)

    def words(self, *program):
        try:
            return DEBIAN_12.words(self.folder, GPUWIRE, "run", "--server", self.server.address, "--", *program)
        except debian_packages.Unavailable as missing:
            self.skipTest(f"Debian's packages cannot be had: {missing}")

    def test_pycuda_runs(self):
        ran = subprocess.run(self.words("/usr/bin/python3.11", "/mnt/pycuda_program.py"), capture_output=True,
                             text=True, timeout=RUN_LIMIT_SECONDS, check=False,
                             env={**ENVIRONMENT, "LD_LIBRARY_PATH": ALTERNATIVES})
        self.assertTrue(ran.stdout.endswith("PASSED\n"), ran.stdout + ran.stderr)
        self.assertIn("gpuwire software device", ran.stdout)

    def test_nvtop_shows_the_device_and_its_memory_and_ends_at_a_key(self):
        words = self.words("/usr/bin/nvtop")
        terminal, end = pty.openpty()
        self.addCleanup(os.close, terminal)
        subprocess.run(["stty", "rows", str(SIZE[0]), "columns", str(SIZE[1])], stdin=end, check=True)
        nvtop = subprocess.Popen(words, stdin=end, stdout=end, stderr=end, env=ENVIRONMENT, start_new_session=True)
        self.addCleanup(nvtop.wait)
        self.addCleanup(nvtop.kill)
        os.close(end)
        shown = self.until(terminal, lambda text: b"gpuwire software device" in text and b"MEM" in text)
        os.write(terminal, b"q")
        self.until(terminal, lambda text: nvtop.poll() is not None, shown)
        self.assertEqual(nvtop.returncode, 0)

    def until(self, terminal, fulfilled, shown=b""):
        """Returns the terminal's output without control sequences, once it contains the text."""
        deadline = time.monotonic() + RUN_LIMIT_SECONDS
        while not fulfilled(ESCAPES.sub(b"", shown)):
            self.assertLess(time.monotonic(), deadline, ESCAPES.sub(b"", shown)[-2000:])
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    shown += os.read(terminal, 65536)
                except OSError:  # the other end is closed
                    if fulfilled(ESCAPES.sub(b"", shown)):
                        break
        return shown


if __name__ == "__main__":
    unittest.main(verbosity=2)
