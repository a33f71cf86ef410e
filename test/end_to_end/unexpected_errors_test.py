"""Whatever the broker meets that it has no answer to, sessions go on: its memory ends, or the watches of its user, at
any call that it makes from its start on."""

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
# Of each kind, how many places of the program fail once, chosen by the seed; "all": every one, as in the long form.
SAMPLES = os.environ.get("GPUWIRE_TEST_FAILING_CALLS", "all" if LONG else "25")


class CallsFail(RestartCase):
    def begin_failing(self, what, counts=None):
        """A server of which one call fails."""
        # The linker takes a blank for the end of a path, which the tree's may have.
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
        """What a server has to do while it is up, as far as it comes: a session that goes on, one that comes and ends,
        and questions. None of it may hang when the server ends in the middle."""
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
        """True: it has ended the server, by the way that is meant for it."""
        print(what, flush=True)
        server = self.begin_failing(what)
        self.use(program)
        # A failure that it has an answer to leaves it running.
        if server.poll() is None:
            server.send_signal(signal.SIGKILL)
        status = server.wait(RUN_LIMIT_SECONDS)
        server.stdout.close()
        # A signal: a library in C that does not look at what it was given. It leaves no frame either.
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
