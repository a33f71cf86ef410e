"""Processes that generate sequences, run them on both sides and judge them, each with a pair of living interpreters."""

import itertools
import multiprocessing
import queue
import time

import comparing
import reporting
import streaming

TELL_SECONDS = 0.5  # the interval of a job's reports
GRACE_SECONDS = 20  # for sequences that run when the time is over
CONFIRMED_MAX = 2   # for a kind, in a job: differences that are run again alone; later ones count without
PROCESSES = multiprocessing.get_context("fork")


def seeds_of(text):
    """Yields each seed of "1-5,9"."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


class Source:
    """The sequences for all jobs: each goes to one of them, in order."""

    def __init__(self, seeds, seconds=None, calls=None):
        """`seeds`: returns an iterator of the seeds."""
        self.seeds, self.seconds, self.calls = seeds, seconds, calls
        self.given, self.made = PROCESSES.Value("q", 0), PROCESSES.Value("q", 0)
        self.until = PROCESSES.Value("d", 0)

    def start(self):
        self.until.value = time.monotonic() + (self.seconds or 10**9)

    def over(self):
        return time.monotonic() > self.until.value or self.calls is not None and self.made.value >= self.calls

    def give_up(self):
        return self.until.value + GRACE_SECONDS

    def note_calls(self, count):
        with self.made.get_lock():
            self.made.value += count

    def __iter__(self):
        """Yields a job's share."""
        mine, at = iter(self.seeds()), 0
        while not self.over():
            with self.given.get_lock():
                number = self.given.value
                self.given.value += 1
            try:
                seed = next(itertools.islice(mine, number - at, None))
            except StopIteration:
                return
            at = number + 1
            yield seed


class Judge:
    """Judges differences: one found in a batch is confirmed alone, so that it belongs to the sequence and not to
    leftovers of an earlier one."""

    def __init__(self, sides, rules, alone, give_up=lambda: float("inf")):
        self.sides, self.rules, self.alone, self.give_up = sides, rules, alone, give_up
        self.confirmed = {}  # by kind, how often

    def judge(self, lines, logs):
        """Returns (found, logs that show it, unrepeated, explained)."""
        explained = []
        found = comparing.differences(*logs, self.rules, explained)
        left = self.seconds_left()
        if not found or self.alone or self.known(found) or left <= 0:
            return found, logs, [], explained
        alone = [side.run(lines, min(side.limit_seconds, left)) for side in self.sides]
        again = comparing.differences(*alone, self.rules)
        for each in again:
            self.confirmed[each.kind] = self.confirmed.get(each.kind, 0) + 1
        return (again, alone, [], explained) if again else ([], logs, found, explained)

    def known(self, found):
        return all(self.confirmed.get(each.kind, 0) >= CONFIRMED_MAX for each in found)

    def seconds_left(self):
        return self.give_up() - time.monotonic()

    def differs_alike(self, difference, lines):
        return any(each.kind == difference.kind
                   for each in comparing.differences(*[side.run(lines) for side in self.sides], self.rules))


class Job:
    """The work of one process: it takes sequences until there are no more, and puts reports into a queue, None last."""

    def __init__(self, sides, rules, make, options, source, reports):
        """`make`: returns the lines of an item of the source."""
        self.make, self.options, self.source, self.reports = make, options, source, reports
        self.judge = Judge(sides, rules, options.batch == 1, source.give_up)
        self.pair = streaming.Pair(sides, options.batch)
        self.report, self.told = reporting.Report(), time.monotonic()

    def run(self):
        try:
            tasks = ((key, self.make(key)) for key in self.source)
            for key, lines, logs in self.pair.run(tasks, self.source.give_up()):
                self.note(key, lines, logs)
        except streaming.TooLate:
            pass
        finally:
            self.report.processes, self.report.renewals = self.pair.processes, self.pair.renewed
            self.reports.put(self.report)
            self.reports.put(None)

    def note(self, key, lines, logs):
        found, shown, unrepeated, explained = self.judge.judge(lines, logs)
        before = self.report.calls
        self.report.count(key, lines, logs, explained)
        self.source.note_calls(self.report.calls - before)
        if found or unrepeated:
            self.report.add(key, lines, found, shown, unrepeated, self.pair.said() if unrepeated else ())
            self.pair.tainted = True
            if found and not self.options.quiet:
                self.show(key, lines, found)
        if time.monotonic() > self.told + TELL_SECONDS:
            self.reports.put(self.report)
            self.report, self.told = reporting.Report(), time.monotonic()

    def show(self, key, lines, found):
        said = [f"seed {key}: {len(found)} differences\n  {found[0]}"]
        if not self.options.no_shrink:
            short = comparing.shrink(lines, lambda some: self.judge.differs_alike(found[0], some))
            said += ["    " + (line if len(line) < 300 else line[:300] + "...") for line in short]
        print("\n".join(said), flush=True)


def run(count, make_job, source, report, progress=lambda: None):
    """Runs jobs and merges their reports until the source is empty. `make_job`: makes a job in its process. Returns
    whether all ended normally."""
    reports = PROCESSES.Queue()
    processes = [PROCESSES.Process(target=lambda: make_job(reports).run()) for _ in range(count)]
    source.start()
    for process in processes:
        process.start()
    ended = 0
    while ended < count:
        try:
            part = reports.get(timeout=1)
        except queue.Empty:
            # A killed job has put no None.
            if not any(process.is_alive() for process in processes) and reports.empty():
                break
            part = ()
        if part is None:
            ended += 1
        elif part != ():
            report.merge(part)
        progress()
    for process in processes:
        process.join()
    return all(process.exitcode == 0 for process in processes)
