"""Sessions of several tenants on a server with two GPUs: starting them, what their programs and the server say of
them."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench", "sharing"))
from tenants import Gpuwire  # noqa: E402

WAIT_SECONDS = 20
SOFTWARE_DEVICES, SOFTWARE_BYTES = 2, 1 << 30
# The length of a kernel of `several_devices`: some 0.2 ms on an H200, 0.3 ms on the software device.
GPU_ITERATIONS, SOFTWARE_ITERATIONS = 100_000, 2000


class Wrong(Exception):
    """Raised if an expected event did not occur."""


def wait_until(condition, what):
    """Returns the condition's value, once it is true."""
    end = time.monotonic() + WAIT_SECONDS
    while not (value := condition()):
        if time.monotonic() > end:
            raise Wrong(f"not within {WAIT_SECONDS} s: {what}")
        time.sleep(0.005)
    return value


class Said:
    """Collects the lines of a stream as they arrive."""

    def __init__(self, stream):
        self.lines, self.ended, self.changed = [], False, threading.Condition()
        self.thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self.thread.start()

    def _read(self, stream):
        with stream:
            for line in stream:
                with self.changed:
                    self.lines.append(line.rstrip("\n"))
                    self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def all(self):
        with self.changed:
            return list(self.lines)

    def find(self, pattern, after=0, seconds=WAIT_SECONDS):
        """Returns the first match from line `after` on, and the number of the next line; None if the stream ends or the
        time is over."""
        end = time.monotonic() + seconds
        with self.changed:
            while True:
                for number, line in enumerate(self.lines[after:], after):
                    if match := re.search(pattern, line):
                        return match, number + 1
                if self.ended or not self.changed.wait(max(0, end - time.monotonic())):
                    return None


class Session:
    """A program of a tenant behind `gpuwire run`."""

    def __init__(self, tenant, command, environment):
        self.tenant = tenant
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.out, self.err = Said(self.process.stdout), Said(self.process.stderr)
        self.counted = 0  # lines of `out` up to the last count

    def _wrong(self, what):
        said = "\n".join(f"    | {line}" for line in self.out.all()[-8:] + self.err.all()[-8:])
        return Wrong(f"{self.tenant}'s program: {what}; exit status {self.process.poll()}\n{said}")

    def works(self):
        if not self.out.find("^working$"):
            raise self._wrong("does not work")
        return self

    def uuids(self):
        """Of the devices that the program sees, in its order; it works."""
        return [line.split()[1] for line in self.works().out.all() if line.startswith("device ")]

    def place(self, place, waiting):
        """Waits until standard error shows this place in the queue; returns the line."""
        found = self.err.find(rf"^gpuwire\b.*: place {place} of {waiting}\b")
        if not found:
            raise self._wrong(f"was not told place {place} of {waiting}")
        return found[0].string

    def count(self):
        """Rounds that are done."""
        try:
            self.process.stdin.write("?")
            self.process.stdin.flush()
        except OSError:
            raise self._wrong("is not there any more") from None
        found = self.out.find(r"^count (\d+)$", self.counted)
        if not found:
            raise self._wrong("tells no count")
        self.counted = found[1]
        return int(found[0].group(1))

    def close(self):
        """Lets it end by itself."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def result(self):
        """Waits for its end; returns its last lines, which report success."""
        try:
            code = self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._wrong("does not end") from None
        self.out.thread.join(WAIT_SECONDS)
        if code != 0 or self.out.all()[-1:] != ["PASSED"]:
            raise self._wrong("did not pass")
        return self.out.all()

    def end(self):
        self.close()
        return self.result()

    def refusal(self):
        """Waits for its end; returns the message about a refused session, or nothing if it was not refused."""
        try:
            self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._wrong("is neither refused nor served") from None
        self.err.thread.join(WAIT_SECONDS)
        refused = [line for line in self.err.all() if "the server refuses" in line]
        return refused[0] if refused and self.process.returncode != 0 else ""

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.close()


class TwoGpuServer(Gpuwire):
    """A server of these tenants; on the software device it has two."""

    def __init__(self, build, device, client_prefix, tenants, keys=()):
        super().__init__(build, device, client_prefix, tenants)
        file = os.path.join(self.folder, "gpuwire.toml")
        with open(file, encoding="utf-8") as configuration:
            text = configuration.read()
        with open(file, "w", encoding="utf-8") as configuration:
            configuration.write(text.replace("[server]\n", "[server]\n" + "".join(key + "\n" for key in keys), 1))
        self.arguments += ["--software-devices", str(SOFTWARE_DEVICES), "--software-memory", f"{SOFTWARE_BYTES}B"]
        self.sessions = []

    @property
    def software(self):
        return "software" in self.server.device.lower()

    def session(self, tenant, *program, gpus=None, memory=None):
        """Starts a program; `several_devices until` when none is named. A name without a slash is one of
        build/test_programs."""
        name, *arguments = program or ("several_devices", "until",
                                       str(SOFTWARE_ITERATIONS if self.software else GPU_ITERATIONS))
        path = name if os.sep in name else os.path.join(self.build, "test_programs", name)
        options = ["--gpus", str(gpus)] if gpus else []
        options += ["--memory", f"{memory}B"] if memory else []
        command = self.client_prefix + [
            self.gpuwire, "run", "--server", self.server.address, "--token-file",
            os.path.join(self.folder, tenant + ".token"), *options, "--", path, *arguments
        ]
        environment = {
            name: value for name, value in os.environ.items()
            if name not in ("CUDA_VISIBLE_DEVICES", "GPUWIRE_GPUS", "GPUWIRE_MEMORY")
        }
        self.sessions.append(Session(tenant, command, environment))
        return self.sessions[-1]

    def listed_by_nvml(self, tenant):
        """Returns the UUIDs that `nvidia-smi -L` shows to the tenant."""
        listing = self.session(tenant, os.path.join(self.build, "lib", "gpuwire", "bin", "nvidia-smi"), "-L")
        listing.process.wait(WAIT_SECONDS)
        listing.out.thread.join(WAIT_SECONDS)
        return re.findall(r"UUID: (GPU-[0-9a-f-]+)", "\n".join(listing.out.all()))

    def metrics_of(self, session, status=None):
        """Returns the server's figures of a session, or None."""
        found = [one for one in (status or self.status())["sessions"] if one["client_pid"] == session.process.pid]
        return found[0] if found else None

    def gpus_of(self, session):
        figures = self.metrics_of(session)
        if figures is None:
            raise Wrong(f"the status does not have {session.tenant}'s session")
        return [device["device"] for device in figures["devices"]]

    def queued(self, session):
        figures = self.metrics_of(session)
        return figures is not None and figures["state"] == "queued"

    def gone(self, session):
        wait_until(lambda: self.metrics_of(session) is None, f"the end of {session.tenant}'s session in the status")

    def clear(self):
        """Ends the running programs, and waits until the server has removed their sessions."""
        for session in self.sessions:
            session.kill()
        self.sessions.clear()
        wait_until(lambda: not self.status()["sessions"], "the end of all sessions in the status")

    def __exit__(self, *about):
        for session in self.sessions:
            session.kill()
        super().__exit__(*about)
