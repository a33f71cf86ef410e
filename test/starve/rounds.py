"""Common code of these tools: computing processes, starved threads, and repeated runs of a command, of which the output
of failed runs is kept."""

import concurrent.futures
import contextlib
import os
import random
import subprocess
import sys
import threading
import time

MARK = "GPUWIRE_STARVED"


# A computing process ends with the tool that started it, however that ends.
COMPUTE = "import os, sys\nparent = int(sys.argv[1])\nwhile os.getppid() == parent: sum(range(100000))"


@contextlib.contextmanager
def load(processes):
    """Runs this many computing processes inside of the context."""
    running = [subprocess.Popen([sys.executable, "-c", COMPUTE, str(os.getpid())]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


# --- starving --------------------------------------------------------------------------------------------------------


def _threads_of(mark):
    """The threads of all processes that a marked command has started."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as environment:
                if mark in environment.read():
                    found += map(int, os.listdir(f"/proc/{process}/task"))
        except OSError:  # it has ended
            continue
    return found


def _put(threads, policy):
    for thread in threads:
        try:
            os.sched_setscheduler(thread, policy, os.sched_param(0))
        except OSError:  # it has ended
            continue


def _starve(rng, mark, longest, over):
    """Until `over` is set, starves a third of the threads for a random, mostly short time, then none for a while."""
    while not over.is_set():
        threads = _threads_of(mark)
        chosen = rng.sample(threads, (len(threads) + 2) // 3)
        _put(chosen, os.SCHED_IDLE)
        over.wait(rng.random() ** 2 * longest)
        _put(chosen, os.SCHED_OTHER)
        over.wait(rng.random() ** 2 * longest / 10)


@contextlib.contextmanager
def starvation(seed, longest_seconds):
    """Random threads of what is started with this environment get next to no time for as long as this lasts."""
    over = threading.Event()
    mark = f"{MARK}={os.getpid()}"
    starver = threading.Thread(target=_starve, args=(random.Random(seed), mark.encode(), longest_seconds, over))
    starver.start()
    try:
        yield {MARK: str(os.getpid())}
    finally:
        over.set()
        starver.join()


@contextlib.contextmanager
def quiet():
    """Replaces starvation() and starves no thread."""
    yield {}


# --- rounds ----------------------------------------------------------------------------------------------------------


class Rounds:
    """Runs of one command. `keep`: the folder for the output of failed ones; `skips`: the exit status of a run that was
    left out."""

    def __init__(self, command, limit_seconds, keep, environment=None, folder=None, skips=None):
        self.command, self.limit_seconds, self.keep = command, limit_seconds, keep
        self.environment, self.folder, self.skips = {**os.environ, **(environment or {})}, folder, skips
        self.failed = self.skipped = 0

    def _one(self, number):
        """Returns (exit status, nothing or the report of a failed run)."""
        try:
            ran = subprocess.run(self.command, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=self.limit_seconds,
                                 check=False)
            status, how, output = ran.returncode, f"status {ran.returncode}", ran.stdout
            if status in (0, self.skips):
                return status, None
        except subprocess.TimeoutExpired as late:
            status, how, output = None, f"hung: not done in {self.limit_seconds:g} s", late.stdout or b""
        path = os.path.join(self.keep, f"failed.{os.getpid()}.{number}.txt")
        with open(path, "wb") as file:
            file.write(output)
        return status, f"run {number}: {how}: {path}"

    def run(self, count, together):
        """Returns the number of failed runs. Prints each failed run, and the count after every tenth run."""
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(together) as pool:
            runs = [pool.submit(self._one, number) for number in range(count)]
            for done, future in enumerate(concurrent.futures.as_completed(runs), 1):
                status, said = future.result()
                self.failed += said is not None
                self.skipped += status is not None and status == self.skips
                if said:
                    print(said, flush=True)
                elif done % 10 == 0 or done == count:
                    print(f"{done} of {count} runs, {self.failed} failed, {time.monotonic() - begun:.0f} s", flush=True)
        return self.failed


def add_options(parser, load_processes, together, limit_seconds):
    """Those that both tools have."""
    parser.add_argument("--together", type=int, default=together, metavar="N", help="runs at a time (%(default)s)")
    parser.add_argument("--load", type=int, default=load_processes, metavar="N",
                        help="processes that only compute (%(default)s)")
    parser.add_argument("--limit", type=float, default=limit_seconds, metavar="SECONDS",
                        help="a run that takes longer counts as hung (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of which threads are starved, and when (%(default)s)")
    parser.add_argument("--longest", type=float, default=1.0, metavar="SECONDS",
                        help="how long a thread is starved at most (%(default)s)")
