"""Common code of benchmarks: running programs natively and remotely, parsing their JSON, facts of the machine."""

import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
import threading

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "test", "support"))
from gpuwire_server import Server  # noqa: E402,F401

RUN_LIMIT_SECONDS = 300
# The exit code of a program that cannot run here.
NOT_INSTALLED = 77
TICKS = os.sysconf("SC_CLK_TCK")
# The share of one core for each idle session, client and server together.
IDLE_SHARE_MAX = 0.002


class NotInstalled(Exception):
    """Raised when a program reports that it cannot run here."""


def add_options(parser):
    """Adds the options that every benchmark with a server has."""
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--device", default="auto", choices=["auto", "cuda", "software"])
    parser.add_argument("--client-prefix", default="",
                        help="a command before `gpuwire run`, one that hides the device files for example")


def native_environment(build, device):
    """Returns the environment of programs on this machine's own driver; on the software device, on its library in their
    own process."""
    environment = dict(os.environ)
    if "software" in device:
        environment["LD_LIBRARY_PATH"] = os.path.join(build, "lib", "software_direct")
    return environment


def through(build, client_prefix, *options):
    """Returns the command line before a program that uses a server; `options` are those of `gpuwire run`."""
    return [*shlex.split(client_prefix), os.path.join(build, "bin", "gpuwire"), "run", *options, "--"]


class SlowLink:
    """build/bench/slow_link before a server; `address` is where clients connect, `words` say how long and wide it
    is."""

    START_LIMIT_SECONDS = 20

    def __init__(self, build, server_address, words):
        self.process = subprocess.Popen(
            [os.path.join(build, "bench", "slow_link"), *words, "--server", server_address],
            stdout=subprocess.PIPE, text=True)
        watch = threading.Timer(self.START_LIMIT_SECONDS, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        if not line.startswith("listening on "):
            self.process.kill()
            self.process.wait()
            raise RuntimeError("slow_link did not start")
        self.address = line.split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def run_text(command, environment=None, limit_seconds=RUN_LIMIT_SECONDS):
    """What a program prints."""
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_seconds)
    if ran.returncode == NOT_INSTALLED:
        raise NotInstalled(ran.stdout.strip() or ran.stderr.strip())
    if ran.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} failed ({ran.returncode}):\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def run_json(command, environment=None, limit_seconds=RUN_LIMIT_SECONDS):
    """Returns the JSON on the last line of a program's output."""
    return json.loads(run_text(command, environment, limit_seconds).strip().splitlines()[-1])


def whole_processes_ms(command, count, client_prefix="", environment=None, rest_seconds=0.0,
                       limit_seconds=RUN_LIMIT_SECONDS):
    """Returns the durations of this many processes, one after the other, without the time of the prefix."""
    runner = os.path.join(os.path.dirname(os.path.abspath(__file__)), "whole_processes.py")
    return run_json([*shlex.split(client_prefix), sys.executable, runner, "--count", str(count), "--rest",
                     str(rest_seconds), "--", *command], environment, limit_seconds)


def configuration(path, *server_lines):
    """Writes a configuration of a server for whoever is on this machine; the words for `gpuwire serve`."""
    with open(path, "w", encoding="utf-8") as out:
        out.write("\n".join(["[server]", 'open_tenant = "open"', *server_lines, "[tenants.open]"]) + "\n")
    return ["--config", path]


def machine_facts():
    """Returns the facts of the machine, for the interpretation of figures."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return {
        "processor": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    }


def processes(root):
    """{process id: name} of a process and all below it."""
    parents, names = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as stat:
                    before, _, rest = stat.read().rpartition(")")
                parents[int(entry)], names[int(entry)] = int(rest.split()[1]), before.partition("(")[2]
    found, new = {}, [root]
    while new:
        found.update((one, names.get(one, "")) for one in new)
        new = [one for one, parent in parents.items() if parent in new]
    return found


def processor_seconds(process):
    """Returns the time of all present threads, in the nanoseconds of the kernel's scheduler, or in ticks without
    those."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/schedstat", encoding="ascii") as counts:
                total += int(counts.read().split()[0])
    if total:
        return total / 1e9
    with contextlib.suppress(OSError):
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def write_json(path, what):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(what, out, indent=1)
        out.write("\n")


def say(text):
    """Progress."""
    print(text, file=sys.stderr, flush=True)
