"""Sessions survive every unexpected error of the broker: lack of memory, or of its user's watches, at any call from its
start on."""

import json
import os
import random
import shutil
import signal
import unittest

from restart_test import SEED, RestartCase
from support import BUILD, LONG, RUN_LIMIT_SECONDS, wait_until

FAILING_CALLS = "libgpuwire_failing_calls.so"
UNEXPECTED_ERROR = 3
# The number of places of the program, for each kind, that fail once, chosen by the seed; "all": every place, as in the
# long form.
SAMPLES = os.environ.get("GPUWIRE_TEST_FAILING_CALLS", "all" if LONG else "25")


class CallsFail(RestartCase):
    def begin_failing(self, what, counts=None):
        """Starts a server in which one call fails."""
        # The dynamic linker takes a blank for the end of a path, and the tree's path may have one.
        preloaded = shutil.copy(os.path.join(BUILD, "test_bin", FAILING_CALLS), self.folder)
        before = dict(os.environ)
        os.environ.update(LD_PRELOAD=preloaded, GPUWIRE_TEST_FAIL=what)
        if counts:
            os.environ["GPUWIRE_TEST_FAIL_COUNTS"] = counts
        try:
            return self.begin()
        finally:
            os.environ.clear()
            os.environ.update(before)

    def use(self, program):
        """Uses the server while it is up: a session that continues, one that begins and ends, and queries. None may
        hang when the server ends in the middle."""
        if not self.server.stdout.readline():
            return
        self.ask(program)
        self.hear(program, "done")
        other = self.program()
        if other.stdout.readline() == "ready\n":
            other.communicate("go\n", timeout=RUN_LIMIT_SECONDS)
        other.kill()

    def test_a_session_outlives_every_server_of_which_a_call_fails(self):
        print(f"seed {SEED}")
        chance = random.Random(SEED)
        counts = os.path.join(self.folder, "counts")
        self.start()
        program = self.program()
        self.hear(program, "ready")
        sessions = self.who()
        self.end()
        self.begin_failing("malloc:0", counts)
        self.use(program)
        self.assertEqual(self.end(signal.SIGUSR2), 0, self.log()[-6000:])
        with open(counts, encoding="ascii") as file:
            made = json.load(file)
        print({kind: (of_kind["calls"], len(of_kind["places"])) for kind, of_kind in made.items()})
        ended = 0
        for kind in ("epoll_ctl", "malloc"):
            every = sorted(made[kind]["places"])
            self.assertGreater(len(every), 1)
            chosen = every if SAMPLES == "all" else sorted(chance.sample(every, min(int(SAMPLES), len(every))))
            for number in chosen:
                ended += self.one_fails(program, sessions, f"{kind}:{number}")
        self.assertGreater(ended, 0, "no call's failure ended a server")
        self.start()
        self.passes(program)

    def one_fails(self, program, sessions, what):
        """Returns true if the failure has ended the server in the intended way."""
        print(what, flush=True)
        server = self.begin_failing(what)
        self.use(program)
        # The server survives a failure that it handles.
        if server.poll() is None:
            server.send_signal(signal.SIGKILL)
        status = server.wait(RUN_LIMIT_SECONDS)
        server.stdout.close()
        # A signal comes from a C library that does not check an allocation. It does not unwind the stack either.
        self.assertTrue(status in (UNEXPECTED_ERROR, 1) or status < 0, f"{what}: {status}\n{self.log()[-6000:]}")
        self.start()
        try:
            wait_until(lambda: sessions <= self.who(), RUN_LIMIT_SECONDS, f"the session after {what}")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.log()[-6000:]}") from None
        self.work(program)
        self.end()
        return status == UNEXPECTED_ERROR


if __name__ == "__main__":
    unittest.main(verbosity=2)
