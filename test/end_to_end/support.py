"""The common part of the end-to-end tests: programs, prefaces, processes of a server."""

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from gpuwire_server import Server  # noqa: E402,F401

BUILD = os.path.abspath(os.environ.get("GPUWIRE_BUILD", os.path.join(HERE, "..", "..", "build")))
# The build of the programs' client: under the thread sanitizer not the tree's own, because CUDA programs are built
# without it.
CLIENT_BUILD = os.path.abspath(os.environ.get("GPUWIRE_CLIENT_BUILD", BUILD))
PROGRAMS = os.path.join(BUILD, "test_programs")
RDMA_PLUGIN = os.path.join(BUILD, "lib", "gpuwire", "libgpuwire_rdma.so")  # built where libucx-dev is
# The settings of both sides in tests of RDMA, which exclude a machine's cards.
UCX = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
DEVICE = os.environ.get("GPUWIRE_TEST_DEVICE", "software")
# A program's waits do not depend on earlier programs, unless a test is about that.
os.environ.setdefault("GPUWIRE_LOOK_AHEAD", "off")
# Programs do not wait for a missing server, unless a test is about that.
os.environ.setdefault("GPUWIRE_CONNECT_PATIENCE", "0s")
# No test judges by time: this only ends one that hangs.
RUN_LIMIT_SECONDS = 300
# The long forms of the tests, which `make test-long` runs (test/long/README.md): more seeds, more places, more roads.
LONG = os.environ.get("GPUWIRE_TEST_LONG", "") not in ("", "0")

PREFACE = struct.Struct("<8sHHIII24s16s")
FRAME = struct.Struct("<BBHIQIIQ")
MAGIC = b"GPUWIRE\n"
VERSION = (2, 0)
PREFACE_TLS = 2


def read_exactly(connection, size):
    """Returns so many bytes of a socket. Raises EOFError if it was closed before."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError("the connection was closed")
        data += piece
    return data


def preface(magic=MAGIC, major=VERSION[0], minor=VERSION[1], status=0, text_bytes=0, flags=0, release=b"0.0.0-test"):
    return PREFACE.pack(magic, major, minor, status, text_bytes, flags, release, b"")


def command(address, program, *arguments, options=()):
    """Returns the command line that runs a test program (or a path) with a server. `options`: those of gpuwire run."""
    path = program if os.sep in program else os.path.join(PROGRAMS, program)
    gpuwire = os.path.join(CLIENT_BUILD, "bin", "gpuwire")
    return [gpuwire, "run", "--server", address, *options, "--", path, *arguments]


def run(address, program, *arguments, **extra):
    return subprocess.run(command(address, program, *arguments), capture_output=True, text=True,
                          timeout=RUN_LIMIT_SECONDS, **extra)


def start(address, program, *arguments, options=(), **extra):
    return subprocess.Popen(command(address, program, *arguments, options=options), stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **extra)


def children(process_id, name=None):
    """Returns the process ids of all children, or of those that run this program, by /proc."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as stat:
                command, rest = stat.read().split(" (", 1)[1].rsplit(")", 1)
                fields = rest.split()
        except OSError:
            continue
        if command == (name or command) and int(fields[1]) == process_id and fields[0] != "Z":
            found.append(int(entry))
    return found


def wait_until(condition, limit_seconds, what):
    """Polls a condition until it holds; a test waits for a state, never for a time."""
    end = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_seconds} s: {what}")
        time.sleep(0.005)


def wait_for_answer(ask, expected, what):
    """Repeats the query until it has this answer. A server counts and audits later than its clients get their results:
    on a busy machine a single query may come too early."""
    last = []

    def answered():
        last[:] = [ask()]
        return last[0] == expected

    try:
        wait_until(answered, RUN_LIMIT_SECONDS, what)
    except AssertionError as late:
        raise AssertionError(f"{late}: {last[0]!r} instead of {expected!r}") from None


@contextlib.contextmanager
def nobody_listens():
    """Yields a HOST:PORT that refuses connections meanwhile: the port is bound without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield "127.0.0.1:%d" % taken.getsockname()[1]


def runs(process_id):
    """Returns whether a process exists and has not ended; a zombie has ended."""
    try:
        with open(f"/proc/{process_id}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class OneAnswer:
    """A listening socket that answers every connection with the same bytes and closes it."""

    def __init__(self, answer):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.socket.getsockname()[1]
        self.answer = answer
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(RUN_LIMIT_SECONDS)
                try:
                    connection.recv(64)
                    connection.sendall(self.answer)
                    # The peer closes first, so that no reset overtakes the answer.
                    while connection.recv(4096):
                        pass
                except OSError:
                    pass

    def close(self):
        self.socket.close()


class ServerCase(unittest.TestCase):
    """A test case with one server for all its tests, and a check that it ends normally."""

    server_arguments = ()
    server_environment = None  # None: that of this process
    resume_grace = None  # the grace of detached sessions; None: the server's default
    prewarmed_workers_max = 1  # so that the number of workers follows from the sessions; None: the server's default

    @classmethod
    def setUpClass(cls):
        arguments = ["--device", DEVICE, *cls.server_arguments]
        if cls.prewarmed_workers_max is not None:
            arguments += ["--prewarmed-workers-max", str(cls.prewarmed_workers_max)]
        if cls.resume_grace:
            with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
                file.write(f'[server]\nopen_tenant = "open"\nresume_grace = "{cls.resume_grace}"\n[tenants.open]\n')
            cls.addClassCleanup(os.unlink, file.name)
            arguments += ["--config", file.name]
        cls.server = Server(BUILD, arguments, environment=cls.server_environment).__enter__()

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        if code != 0:
            raise AssertionError(f"the server ended with {code}:\n" + "".join(cls.server.log))

    def assert_passed(self, ran):
        self.assertEqual(ran.returncode, 0, f"{ran.stdout}\n{ran.stderr}\n" + "".join(self.server.log[-20:]))
        self.assertTrue(ran.stdout.rstrip().endswith("PASSED"), ran.stdout + ran.stderr)

    def worker_ids(self):
        return set(children(self.server.process.pid, "gpuwire-worker"))

    def status(self):
        """Returns all metrics of the server (docs/monitoring.md)."""
        folder = "/run/gpuwire" if os.geteuid() == 0 else f"/tmp/gpuwire-{os.geteuid()}"
        asked = [
            os.path.join(BUILD, "bin", "gpuwire"), "status", "--json", "--control",
            f"{folder}/{self.server.process.pid}.sock"
        ]
        ran = subprocess.run(asked, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)

    def server_log(self):
        return "".join(self.server.log)


def audit_lines(log):
    """Returns the audit events in the log of a server without an audit file, with the name as `event`."""
    return [{"event": match[1], **json.loads(match[2])}
            for match in re.finditer(r"audit: (\w+) (\{.*\})", "".join(log))]


def one_line_naming(stderr, *words):
    """Returns whether gpuwire wrote exactly one line on stderr, with all the words in it."""
    lines = [line for line in stderr.splitlines() if re.match(r"gpuwire\b", line)]
    return len(lines) == 1 and all(word.lower() in lines[0].lower() for word in words)
