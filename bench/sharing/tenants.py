"""Starts tenants of one GPU, natively or through a server, makes them begin together, and collects their output."""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path.insert(0, os.path.join(ROOT, "test", "support"))
from gpuwire_server import Server  # noqa: E402

READY_SECONDS = 120
EXTRA_SECONDS = 60
END_SECONDS = 10


class Tenant:
    """One process. `command` says "ready", waits for "go" and ends with one line of JSON."""

    def __init__(self, command, environment):
        self.command = command
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True)
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _failed(self, what):
        self.process.kill()
        self.errors.seek(0)
        return RuntimeError(f"{' '.join(self.command)}: {what}\n{self.errors.read()[-2000:]}")

    def line(self, seconds):
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            raise self._failed(f"silent for {seconds} s") from None
        if line is None:
            raise self._failed(f"ended with {self.process.wait()}")
        return line

    def await_ready(self, seconds=READY_SECONDS):
        while self.line(seconds).strip() != "ready":
            pass

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def round(self, seconds):
        """Returns the line that ends the round of the last go()."""
        return json.loads(self.line(seconds + EXTRA_SECONDS))

    def result(self, seconds):
        result = self.round(seconds)
        self.process.wait(EXTRA_SECONDS)
        return result

    def end(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def run_together(starters, seconds, when_ready=lambda: None):
    """Starts all, makes them begin at the same time, and returns their results in the same order."""
    tenants = [start() for start in starters]
    try:
        for tenant in tenants:
            tenant.await_ready()
        when_ready()
        for tenant in tenants:
            tenant.go()
        return [tenant.result(seconds) for tenant in tenants]
    finally:
        for tenant in tenants:
            if tenant.process.poll() is None:
                tenant.process.kill()


class Company:
    """Programs that are started once and then run in any combination, each round from a "go" to a line of JSON.

    At the end of their input they end.
    """

    def __init__(self, starters):
        self.starters = starters
        self.programs = {}

    def __enter__(self):
        try:
            for name, start in self.starters.items():
                self.programs[name] = start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for program in self.programs.values():
            program.end()

    def await_ready(self):
        """Returns the reasons why programs are not available: {name: text}. They are skipped from then on."""
        until = time.monotonic() + READY_SECONDS
        return self._each(self.programs, lambda program: program.await_ready(max(1, until - time.monotonic())))[1]

    def run(self, names, seconds):
        """Returns their results. Raises RuntimeError if one of them fails, and skips it from then on."""
        for name in names:
            if name not in self.programs:
                raise RuntimeError(f"{name} has failed before")
        chosen = {name: self.programs[name] for name in names}
        results, failed = self._each(chosen, lambda program: program.go())
        results, failed = ({}, failed) if failed else self._each(chosen, lambda program: program.round(seconds))
        if failed:
            raise RuntimeError("; ".join(failed.values()))
        return [results[name] for name in names]

    def _each(self, programs, step):
        results, failed = {}, {}
        for name, program in list(programs.items()):
            try:
                results[name] = step(program)
            except (RuntimeError, OSError, ValueError) as why:
                failed[name] = str(why)
                self.programs.pop(name).end()
        return results, failed


class Native:
    """The programs on this machine's own driver; on the software device: on its library, in their own process."""

    name = "native"

    def __init__(self, build, software):
        self.environment = dict(os.environ)
        if software:
            self.environment["LD_LIBRARY_PATH"] = os.path.join(build, "lib", "software_direct")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def starter(self, command, tenant):
        return lambda: Tenant(command, self.environment)


class Mps(Native):
    """As native, but with NVIDIA's multi-process service between the programs and the GPU."""

    name = "MPS"

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="gpuwire-mps-")
        self.environment["CUDA_MPS_PIPE_DIRECTORY"] = self.folder
        self.environment["CUDA_MPS_LOG_DIRECTORY"] = self.folder
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.environment, check=True, capture_output=True)
        return self

    def __exit__(self, *_):
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", env=self.environment, text=True,
                       capture_output=True, timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def available():
        return shutil.which("nvidia-cuda-mps-control") is not None


class Gpuwire:
    """A server with these tenants, {name: {"class": ..., "weight": ...}}, on plain loopback TCP; each shows a token."""

    name = "gpuwire"

    def __init__(self, build, device, client_prefix, tenants, scheduling=True):
        self.build, self.client_prefix, self.tenants = build, client_prefix, tenants
        self.folder = tempfile.mkdtemp(prefix="gpuwire-sharing-")
        self.gpuwire = os.path.join(build, "bin", "gpuwire")
        identities = os.path.join(self.folder, "identities")
        self._admin("init", "--directory", identities, "--host", "localhost")
        configuration = [
            "[server]", f"scheduling = {'true' if scheduling else 'false'}",
            f'control_socket = "{self.folder}/control"', "sessions_max = 256", "[tls]", f'directory = "{identities}"'
        ]
        for name, settings in tenants.items():
            self._admin("add-tenant", name, "--directory", identities, "--token", "--out",
                        os.path.join(self.folder, name + ".token"))
            configuration += [f"[tenants.{name}]"] + [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        file = os.path.join(self.folder, "gpuwire.toml")
        with open(file, "w") as out:
            out.write("\n".join(configuration) + "\n")
        self.arguments = ["--config", file, "--device", device]

    def _admin(self, *arguments):
        ran = subprocess.run([self.gpuwire, "admin", *arguments], capture_output=True, text=True)
        if ran.returncode != 0:
            raise RuntimeError(f"gpuwire admin {' '.join(arguments)}:\n{ran.stdout}{ran.stderr}")

    def __enter__(self):
        self.server = Server(self.build, self.arguments).__enter__()
        return self

    def __exit__(self, *_):
        self.server.stop(signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def starter(self, command, tenant):
        prefix = self.client_prefix + [
            self.gpuwire, "run", "--server", self.server.address, "--token-file",
            os.path.join(self.folder, tenant + ".token"), "--"
        ]
        return lambda: Tenant(prefix + command, dict(os.environ))

    def status(self):
        """Every figure of the server since its start (docs/monitoring.md)."""
        ran = subprocess.run([self.gpuwire, "status", "--json", "--control",
                              os.path.join(self.folder, "control")], capture_output=True, text=True, timeout=30)
        if ran.returncode != 0:
            raise RuntimeError(f"gpuwire status: {ran.stderr}")
        return json.loads(ran.stdout)
