"""A server with very many sessions of many tenants: they are admitted, shown, given other weights and adopted by the
next server, and cost little while idle. The sessions' workers are simulated (simulated_worker.cpp); the broker, the
login process and the keeper are real. The test judges the broker's processor time, which does not depend on other work
of the machine; it prints the time of each part."""

import concurrent.futures
import os
import resource
import signal
import subprocess
import sys
import time
import unittest

from restart_test import GPUWIRE, RestartCase
from support import BUILD, LONG, RUN_LIMIT_SECONDS, wait_for_answer, wait_until

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hostile"))
import attackers  # noqa: E402, in the folder named above

SESSIONS, TENANTS, DEVICES = (1000, 64, 8) if LONG else (96, 16, 8)
LOGINS_AT_ONCE = 16
CLASSES = ("realtime", "interactive", "batch", "scavenger")
# Bounds of the broker's processor time in seconds, for all sessions together, and its part of a core while idle.
ADMISSION_MAX, STATUS_MAX, RELOAD_MAX, RESTART_MAX, ENDS_MAX, IDLE_PART_MAX = 30, 3, 3, 10, 10, 0.2
IDLE_SECONDS = 20 if LONG else 5
DESCRIPTORS = 16_384


def processor_time(process):
    """Returns the processor time of all threads of a process, in seconds."""
    with open(f"/proc/{process}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Took:
    """Measures a part: the broker's processor time, and the elapsed time."""

    def __init__(self, process):
        self._process, self._processor_time, self._began = process, processor_time(process), time.monotonic()

    def clock(self):
        return time.monotonic() - self._began

    def tell(self, what):
        """Returns the processor time, in seconds."""
        spent = processor_time(self._process) - self._processor_time
        print(f"{what}: {spent:.2f} s of the broker's processor time, {self.clock():.1f} s in all", flush=True)
        return spent


class ManySessions(RestartCase):
    MORE = ("--worker", os.path.join(BUILD, "test_bin", "gpuwire_simulated_worker"))

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        os.environ["GPUWIRE_TEST_DEVICES"] = str(DEVICES)
        cls.addClassCleanup(os.environ.pop, "GPUWIRE_TEST_DEVICES")

    def setUp(self):
        super().setUp()
        self.identity = os.path.join(self.folder, "identity")
        self.admin("init", "--host", "127.0.0.1")
        self.tokens = [self.new_tenant(f"tenant{number}") for number in range(TENANTS)]
        self.give_weights(1)

    def admin(self, *words):
        subprocess.run([GPUWIRE, "admin", "--directory", self.identity, *words], check=True, capture_output=True,
                       timeout=RUN_LIMIT_SECONDS)

    def new_tenant(self, name):
        file = os.path.join(self.folder, name + ".token")
        self.admin("add-tenant", name, "--token", "--out", file, "--ca-out", file + ".ca")
        with open(file, "rb") as lines:
            return lines.read().splitlines()[-1]

    def give_weights(self, weight):
        with open(self.configuration, "w", encoding="ascii") as out:
            out.write(
                f'[server]\nlisten = ["{self.address}"]\nsessions_max = {SESSIONS + 8}\nadopt_grace = "{self.GRACE}"\n'
                f'runtime_directory = "{self.runtime}"\ncontrol_socket = "{self.control}"\naudit_log = "{self.audit}"\n'
                f'[tls]\ndirectory = "{self.identity}"\n'
            )
            out.writelines(f'[tenants.tenant{number}]\nclass = "{CLASSES[number % len(CLASSES)]}"\nweight = {weight}\n'
                           for number in range(TENANTS))

    def log_in(self, number):
        """Returns a connection that is a session."""
        link, word, text = attackers.log_in(self.address, self.tokens[number % TENANTS])
        while word == attackers.QUEUED:
            word, text = attackers.answer(link)
        self.assertEqual(word, attackers.ADMITTED, text)
        return link

    def running(self):
        """Returns each session with its worker and tenant."""
        return {(one["id"], one["worker_pid"], one["tenant"]) for one in self.status()["sessions"]
                if one["state"] == "running"}

    def test_very_many_sessions_are_let_in_shown_reloaded_and_carried_on_and_cost_little_while_they_rest(self):
        print(f"{SESSIONS} sessions of {TENANTS} tenants on {DEVICES} devices")
        self.start()
        took = Took(self.server.pid)
        with concurrent.futures.ThreadPoolExecutor(LOGINS_AT_ONCE) as pool:
            links = list(pool.map(self.log_in, range(SESSIONS)))
        wait_for_answer(lambda: len(self.running()), SESSIONS, "every session")
        self.assertLess(took.tell("admission"), ADMISSION_MAX)
        sessions = self.running()
        self.assertEqual(len({tenant for _, _, tenant in sessions}), TENANTS)

        took = Took(self.server.pid)
        self.assertEqual(len(self.status()["sessions"]), SESSIONS)
        self.assertLess(took.tell("status"), STATUS_MAX)

        took = Took(self.server.pid)
        wait_until(lambda: took.clock() >= IDLE_SECONDS, RUN_LIMIT_SECONDS, "the time of rest")
        clock = took.clock()
        self.assertLess(took.tell("rest") / clock, IDLE_PART_MAX)

        self.give_weights(2)
        took = Took(self.server.pid)
        subprocess.run([GPUWIRE, "admin", "reload", "--control", self.control], check=True, capture_output=True,
                       timeout=RUN_LIMIT_SECONDS)
        self.assertLess(took.tell("reload"), RELOAD_MAX)
        self.assertEqual({tenant["weight"] for tenant in self.status()["tenants"]}, {2})

        began = time.monotonic()
        self.assertEqual(self.end(signal.SIGUSR2), 0)
        self.start()
        wait_for_answer(self.running, sessions, "the sessions under the next server")
        spent = processor_time(self.server.pid)
        print(f"restart: {spent:.2f} s of the new broker's processor time, {time.monotonic() - began:.1f} s in all")
        self.assertLess(spent, RESTART_MAX)

        # All of them at once. No query runs meanwhile, which would time out on a busy machine.
        took = Took(self.server.pid)
        for link in links:
            link.close()
        wait_for_answer(lambda: self.audited('"event":"ended"', '"cause":"finished"'), SESSIONS, "every session's end")
        self.assertLess(took.tell("ends"), ENDS_MAX)
        self.assertEqual(self.status()["sessions"], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
