"""Queued programs outlive the server: it is killed, told to leave and restarted; each program returns to its place, and
they run in order."""

import json
import os
import random
import re
import signal
import subprocess
import time
import unittest

from restart_test import GPUWIRE, RestartCase
from support import LONG, RUN_LIMIT_SECONDS, command, wait_until

SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20251122"))
KILLS = int(os.environ.get("GPUWIRE_TEST_KILLS", "20" if LONG else "6"))
WAITING = 4


class Queued:
    """A queued program."""

    LOST = "to return to the place in the queue"
    WAITED = re.compile(r"admitted at \S+ after (\d+) (s|min)$", re.M)

    def __init__(self, address, log):
        self._log = log
        self.started = time.monotonic()
        self.queued = None  # a time by which it waited
        with open(log, "w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(command(address, "rounds"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=errors, text=True)

    def errors(self):
        with open(self._log, encoding="utf-8") as log:
            return log.read()

    def losses(self):
        """Returns how often it has lost the server."""
        return self.errors().count(self.LOST)

    def places(self):
        """Returns its reported places in the queue since it last lost the server."""
        return {int(place) for place in re.findall(r"place (\d+) of", self.errors().rpartition(self.LOST)[2])}

    def waited(self):
        """Returns the bounds, in seconds, of the time that it says that it has waited; none if it has not said it."""
        said = self.WAITED.findall(self.errors())
        if len(said) != 1:
            return None
        number, unit = int(said[0][0]), 60 if said[0][1] == "min" else 1
        return number * unit, (number + 1) * unit

    def end(self):
        self.process.kill()
        self.process.communicate()


class QueueCase(RestartCase):
    def configure(self, tenants, **words):
        super().configure(tenants, **words)
        with open(self.configuration, "a", encoding="ascii") as out:
            out.write("sessions_max = 1\n")  # for the last tenant: its other programs wait

    def begin_all(self):
        """Starts one running program, and others that wait for it."""
        self.start()
        self.runs = self.program()
        self.hear(self.runs, "ready")
        self.first = self.status()["sessions"][0]["id"]
        self.waiting = []
        for number in range(1, WAITING + 1):
            self.waiting.append(Queued(self.address, os.path.join(self.folder, f"waiting{number}")))
            self.addCleanup(self.waiting[-1].end)
            wait_until(lambda: self.waiting[-1].places(), RUN_LIMIT_SECONDS, "the place of another program")
            self.waiting[-1].queued = time.monotonic()
            self.assertEqual(self.waiting[-1].places(), {number})
        self.order = self.queue()
        self.assertEqual(len(self.order), WAITING)

    def queue(self):
        """Returns the numbers of the waiting sessions, in order."""
        waiting = [one for one in self.status()["sessions"] if one["state"] == "queued"]
        return [one["id"] for one in sorted(waiting, key=lambda one: one["place"])]

    def all_come_back(self, losses):
        """Waits until each program has lost the server so often, and knows its place again."""
        for place, one in enumerate(self.waiting, 1):
            wait_until(lambda: one.losses() == losses and one.places(), RUN_LIMIT_SECONDS,
                       f"the return of program {place}")
            self.assertEqual(one.places(), {place}, one.errors())
        self.assertEqual(self.queue(), self.order)

    def run_one_after_the_other(self):
        """The running program ends, and the queued ones run in order with the same results. Each says how long it has
        waited: at least from its first place to the end of the one before, at most from its start until it is
        ready, whatever servers it has waited at."""
        self.work(self.runs)
        freed = time.monotonic()
        self.passes(self.runs)
        for place, one in enumerate(self.waiting):
            self.assertEqual(one.process.stdout.readline(), "ready\n", one.errors() + self.log()[-6000:])
            least, most = one.waited() or self.fail(one.errors())
            self.assertGreater(most, freed - one.queued, one.errors())
            self.assertLessEqual(least, time.monotonic() - one.started, one.errors())
            freed = time.monotonic()
            self.assertEqual(self.queue(), self.order[place + 1:])
            out, _ = one.process.communicate("go\n", timeout=RUN_LIMIT_SECONDS)
            self.assertEqual((one.process.returncode, out), (0, "done\nPASSED\n"), one.errors())
        wait_until(lambda: not self.status()["sessions"], RUN_LIMIT_SECONDS, "the end of the sessions")
        with open(self.audit, encoding="utf-8") as lines:
            events = [json.loads(line) for line in lines]
        order = [self.first, *self.order]
        self.assertEqual([event["session"] for event in events if event["event"] == "begun"], order)
        self.assertEqual([(event["session"], event["cause"]) for event in events if event["event"] == "ended"],
                         [(session, "finished") for session in order])


class Waits(QueueCase):
    def restarted(self, number, status):
        self.begin_all()
        for loss in range(1, 4):
            self.assertEqual(self.end(number), status)
            self.start()
            self.all_come_back(loss)
            self.work(self.runs)
        self.run_one_after_the_other()

    def test_programs_come_back_to_their_places_when_the_server_was_killed(self):
        self.restarted(signal.SIGKILL, -signal.SIGKILL)

    def test_programs_come_back_to_their_places_when_the_server_was_upgraded(self):
        self.restarted(signal.SIGUSR2, 0)

    def test_servers_that_are_killed_before_anybody_is_back_lose_no_place(self):
        chance = random.Random(SEED)
        print(f"seed {SEED}")
        self.begin_all()
        for _ in range(KILLS):
            self.end(chance.choice((signal.SIGKILL, signal.SIGUSR2)))
            process = self.begin()
            if chance.random() < 0.5:
                wait_until(lambda: self.owner() == process.pid, RUN_LIMIT_SECONDS, "the folder's new owner")
            else:
                self.assertIn("listening on", process.stdout.readline(), self.log())
        self.end()
        self.start()
        wait_until(lambda: self.queue() == self.order, RUN_LIMIT_SECONDS, "the queue as it was")
        self.run_one_after_the_other()

    def test_a_client_that_reconnects_first_does_not_overtake_one_that_came_first(self):
        self.begin_all()
        first, second = self.waiting[:2]
        first.process.send_signal(signal.SIGSTOP)
        self.end()
        # The server has room for one of them before any of them is back.
        self.passes(self.runs)
        self.start()
        wait_until(lambda: second.losses() == 1 and second.places(), RUN_LIMIT_SECONDS, "the second one's return")
        self.assertEqual(self.queue(), self.order)
        first.process.send_signal(signal.SIGCONT)
        self.assertEqual(first.process.stdout.readline(), "ready\n", first.errors() + self.log()[-6000:])
        self.assertEqual(self.queue(), self.order[1:])
        for one in self.waiting:
            out, _ = one.process.communicate("go\n", timeout=RUN_LIMIT_SECONDS)
            self.assertTrue(out.endswith("done\nPASSED\n"), out + one.errors())

    def test_the_place_of_a_program_that_does_not_come_back_is_given_to_the_next(self):
        self.begin_all()
        self.end()
        gone = self.waiting.pop(0)
        gone.end()
        self.passes(self.runs)
        self.start()
        # A place is kept for half a minute for a missing client; an administrator can end it earlier.
        ended = subprocess.run([GPUWIRE, "admin", "end", str(self.order.pop(0)), "--control", self.control],
                               capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        for one in self.waiting:
            self.assertEqual(one.process.stdout.readline(), "ready\n", one.errors() + self.log()[-6000:])
            out, _ = one.process.communicate("go\n", timeout=RUN_LIMIT_SECONDS)
            self.assertEqual(out, "done\nPASSED\n", one.errors())


if __name__ == "__main__":
    unittest.main()
